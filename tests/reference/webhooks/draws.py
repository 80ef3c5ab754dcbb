"""Questions about pods at admission, drawn from nothing."""

import json
import random
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

GPU = tuple(
    f"koordinator.sh/{name}" for name in ("gpu", "gpu-core", "gpu-memory", "gpu-memory-ratio", "gpu.shared")
)
BATCH = ("kubernetes.io/batch-cpu", "kubernetes.io/batch-memory")
MID = ("kubernetes.io/mid-cpu", "kubernetes.io/mid-memory")
OLD = (
    "koordinator.sh/batch-cpu",
    "koordinator.sh/batch-memory",
    "kubernetes.io/gpu",
    "kubernetes.io/gpu-core",
)
AMOUNTS = (
    "0",
    "1",
    "2",
    "4",
    "500m",
    "1500m",
    "2500m",
    "0.5",
    "1Gi",
    "4Gi",
    "1G",
    "100",
    "1e3",
    "10k",
    "1.5",
    "3u",
)
QOS = ("LSE", "LSR", "LS", "BE", "SYSTEM", "", "be")
PRIORITIES = (0, 2999, 3000, 3999, 4500, 5000, 5999, 6000, 7000, 7999, 9000, 9999, 10000, -1)
QOS_CLASS, PRIORITY, PRIORITY_CLASS = (
    f"koordinator.sh/{key}" for key in ("qosClass", "priority", "priority-class")
)
KEYS, VALUES = ("a", "b", "c", "d"), ("x", "y", "z", "")
NAMESPACES = ("n1", "n2", "n3")


def some(chance: random.Random, of: Sequence[Any], most: int) -> list[Any]:
    return chance.sample(list(of), chance.randint(0, min(most, len(of))))


def maybe(chance: random.Random, likely: float, value: Any) -> Any:
    """The value, or None, which is left out of `present`."""
    return value if chance.random() < likely else None


def present(**members: Any) -> Json:
    return {name: value for name, value in members.items() if value is not None}


def amounts(chance: random.Random, names: Sequence[str], most: int = 3) -> Json:
    return {name: chance.choice(AMOUNTS) for name in some(chance, names, most)}


def texts(chance: random.Random, most: int = 2) -> dict[str, str]:
    return {key: chance.choice(VALUES) for key in some(chance, KEYS, most)}


def needs(chance: random.Random, names: Sequence[str]) -> Json:
    return present(
        requests=maybe(chance, 0.8, amounts(chance, names)), limits=maybe(chance, 0.6, amounts(chance, names))
    )


def own_labels(chance: random.Random) -> dict[str, str]:
    return texts(chance) | present(
        **{
            QOS_CLASS: maybe(chance, 0.5, chance.choice(QOS)),
            PRIORITY: maybe(chance, 0.3, chance.choice(("1111", "2222", ""))),
            PRIORITY_CLASS: maybe(
                chance, 0.3, chance.choice(("koord-prod", "koord-mid", "koord-batch", "koord-free", "x", ""))
            ),
        }
    )


def pod(chance: random.Random, names: Sequence[str] = ("cpu", "memory", *BATCH, *MID, "x/y")) -> Json:
    containers = [
        {"name": name, "resources": needs(chance, names)} for name in ("m", "n", "o")[: chance.randint(1, 3)]
    ]
    inits: list[Json] = [{"name": name, "resources": needs(chance, names)} for name in ("i", "j")]
    if chance.random() < 0.3:
        inits[0]["restartPolicy"] = "Always"
    spec = present(
        containers=containers,
        initContainers=maybe(chance, 0.4, inits[: chance.randint(1, 2)]),
        overhead=maybe(chance, 0.2, amounts(chance, names)),
        priority=maybe(chance, 0.6, chance.choice(PRIORITIES)),
        priorityClassName=maybe(chance, 0.2, chance.choice(("koord-batch", "pc", "x"))),
        schedulerName=maybe(chance, 0.3, chance.choice(("s1", "s2"))),
        preemptionPolicy=maybe(chance, 0.2, chance.choice(("Never", "PreemptLowerPriority"))),
        resources=maybe(chance, 0.05, needs(chance, names)),
    )
    metadata = present(
        name="p",
        namespace=chance.choice(NAMESPACES),
        labels=own_labels(chance) or None,
        annotations=texts(chance) or None,
    )
    status = {"qosClass": chance.choice(("Guaranteed", "Burstable", "BestEffort"))}
    return present(metadata=metadata, spec=spec, status=maybe(chance, 0.2, status))


def key_map(chance: random.Random) -> dict[str, str]:
    return {source: chance.choice(KEYS) for source in chance.sample(KEYS, chance.choice((1, 1, 2)))}


# colocationprofile-mutate


def selector(chance: random.Random) -> Json:
    operator = chance.choice(("In", "NotIn", "Exists", "DoesNotExist"))
    values = [chance.choice(VALUES) for _ in range(chance.randint(1, 2))] if operator.endswith("In") else None
    return present(
        matchLabels=maybe(chance, 0.5, texts(chance, 1)),
        matchExpressions=maybe(
            chance, 0.4, [present(key=chance.choice(KEYS), operator=operator, values=values)]
        ),
    )


_CONTAINER_PATCHES: tuple[Json, ...] = (
    {"name": "m", "resources": {"requests": {"cpu": "3"}}},
    {"name": "m", "env": [{"name": "E", "value": "1"}], "ports": [{"containerPort": 80, "name": "web"}]},
    {"name": "new", "image": "i"},
    {"name": "n", "$patch": "delete"},
    {"name": "m", "$patch": "replace", "image": "i"},
    {"name": "m", "command": ["a", "b"], "volumeMounts": [{"mountPath": "/m", "name": "v"}]},
)
_SPEC_PATCHES: tuple[Json, ...] = (
    {"tolerations": [{"key": "t", "operator": "Exists"}]},
    {"nodeSelector": {"k": "v", "gone": None}},
    {"volumes": [{"name": "v", "emptyDir": {}}]},
    {"priority": 5500},
    {"priority": None, "schedulerName": "s3"},
    {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}},
    {"hostNetwork": True, "terminationGracePeriodSeconds": 0},
    {"initContainers": [{"name": "i", "image": "x"}]},
    {"initContainers": None},
    {"overhead": {"cpu": "2"}},
    {
        "$setElementOrder/containers": [{"name": "n"}, {"name": "m"}],
        "containers": [{"name": "m", "image": "q"}],
    },
    {"topologySpreadConstraints": [{"topologyKey": "z", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]},
    {"securityContext": {"runAsUser": 1, "sysctls": [{"name": "s", "value": "1"}]}},
    {"readinessGates": [{"conditionType": "c"}]},
    {"imagePullSecrets": [{"name": "s"}]},
    {"containers": "wrong"},
)
_METADATA_PATCHES: tuple[Json, ...] = (
    {"labels": {"a": "patched"}},
    {"labels": {"a": None, "b": "q"}},
    {"labels": None},
    {"annotations": {"$patch": "replace", "k": "v"}},
    {"annotations": {"n": "1"}, "finalizers": ["f/x"]},
    {"labels": {QOS_CLASS: "BE"}},
    {"$deleteFromPrimitiveList/finalizers": ["f/x"]},
)


_LISTS: tuple[tuple[str, str, tuple[Any, ...], Json], ...] = (
    ("env", "name", ("E", "F", "G"), {"value": "1"}),
    ("ports", "containerPort", (80, 81, 82), {"name": "web"}),
    ("volumeMounts", "mountPath", ("/a", "/b"), {"readOnly": True}),
    ("command", "", ("run", "now"), {}),
)
"""Lists of containers: name, key by which they merge, values of it, another member."""


def _members(chance: random.Random, key: str, values: tuple[Any, ...], more: Json) -> list[Any]:
    found = some(chance, values, len(values))
    needed = {"name": "v"} if key == "mountPath" else {}
    return (
        [{key: one, **needed, **(more if chance.random() < 0.5 else {})} for one in found] if key else found
    )


def enriched(chance: random.Random, drawn: Json) -> Json:
    """The pod with lists that merge."""
    for container in drawn["spec"]["containers"]:
        for name, key, values, more in some(chance, _LISTS, 3):
            container[name] = _members(chance, key, values, more)
    if chance.random() < 0.5:
        drawn["metadata"]["finalizers"] = ["f/x", "f/y"]
        drawn["spec"]["volumes"] = [{"name": "v", "hostPath": {"path": "/x"}}, {"name": "w", "emptyDir": {}}]
    return drawn


def _list_patch(chance: random.Random, name: str, key: str, values: tuple[Any, ...], more: Json) -> Json:
    members = _members(chance, key, values, more)
    if not key or not members:
        return {name: members}
    found: Json = {}
    order = [each[key] for each in members]
    if chance.random() < 0.3:
        for value in values:
            if value not in order:
                order.insert(chance.randint(0, len(order)), value)
        found[f"$setElementOrder/{name}"] = [{key: value} for value in order]
    elif chance.random() < 0.3 and len(members) > 1:
        members[-1] = {key: members[-1][key], "$patch": "delete"}
    elif chance.random() < 0.1:
        members.append({"$patch": "replace"})
    return {**found, name: members}


_VOLUMES: tuple[Json, ...] = (
    {"name": "v", "emptyDir": {}, "$retainKeys": ["name", "emptyDir"]},
    {"name": "v", "emptyDir": {}, "hostPath": None},
    {"name": "w", "$patch": "delete"},
    {"name": "z", "secret": {"secretName": "s"}},
)


def list_patch(chance: random.Random) -> Json:
    """A patch of lists."""
    containers = []
    for name in some(chance, "mno", 2):
        container: Json = {"name": name}
        for one in some(chance, _LISTS, 2):
            # Directives in elements that are new stay what they are, and are decoded as elements.
            container |= _list_patch(chance, *one) if name == "m" else {one[0]: _members(chance, *one[1:])}
        containers.append(container)
    metadata = chance.choice(
        (
            {"finalizers": ["f/z", "f/x"]},
            {"$deleteFromPrimitiveList/finalizers": ["f/x"]},
            {"$setElementOrder/finalizers": ["f/y", "f/x"], "finalizers": ["f/x"]},
        )
    )
    spec = present(containers=containers, volumes=maybe(chance, 0.5, some(chance, _VOLUMES, 2)))
    return present(metadata=maybe(chance, 0.4, metadata), spec=spec)


def patch(chance: random.Random) -> Json:
    if chance.random() < 0.4:
        return list_patch(chance)
    spec: Json = {}
    for one in some(chance, _SPEC_PATCHES, 2):
        spec |= one
    if chance.random() < 0.4 and "containers" not in spec:
        spec["containers"] = some(chance, _CONTAINER_PATCHES, 2)
    return present(
        metadata=maybe(chance, 0.5, chance.choice(_METADATA_PATCHES)), spec=maybe(chance, 0.7, spec)
    )


def colocation_profile(chance: random.Random, name: str) -> Json:
    spec = present(
        selector=maybe(chance, 0.7, selector(chance)),
        namespaceSelector=maybe(chance, 0.3, selector(chance)),
        labels=maybe(chance, 0.4, own_labels(chance)),
        annotations=maybe(chance, 0.3, texts(chance)),
        labelKeysMapping=maybe(chance, 0.2, key_map(chance)),
        annotationKeysMapping=maybe(chance, 0.2, key_map(chance)),
        labelSuffixes=maybe(chance, 0.2, {chance.choice(KEYS): chance.choice(("-s", "x"))}),
        schedulerName=maybe(chance, 0.3, "koord-scheduler"),
        qosClass=maybe(chance, 0.4, chance.choice(QOS[:5])),
        priorityClassName=maybe(chance, 0.4, chance.choice(("koord-batch", "koord-mid", "koord-prod"))),
        koordinatorPriority=maybe(chance, 0.3, chance.choice((0, 1111, -5))),
        patch=maybe(chance, 0.5, patch(chance)),
        probability=maybe(
            chance, 0.3, chance.choice((0, 1, 50, 99, 100, 120, "50%", "100%", "0%", "50", "-5%"))
        ),
    )
    skips = {"config.koordinator.sh/skip-update-resources": chance.choice(("", "false"))}
    return {"metadata": present(name=name, annotations=maybe(chance, 0.1, skips)), "spec": spec}


def profile_mutate(chance: random.Random) -> Json:
    shared = {"random": chance.choice((0, 1, 49, 50, 51, 98, 99))}
    drawn = enriched(chance, pod(chance))
    if chance.random() < 0.25:
        profile = colocation_profile(chance, "a")
        profile["spec"].setdefault("selector", {})
        profile["spec"].pop("namespaceSelector", None)
        drawn["status"] = {
            **drawn.get("status", {}),
            "phase": chance.choice(("Pending", "Pending", "Pending", "Running")),
        }
        return {"op": "reconcilePendingPod", "pod": drawn, "profile": profile, **shared}
    profiles = [colocation_profile(chance, name) for name in chance.sample("abc", chance.randint(1, 3))]
    classes = {
        name: present(value=value, preemptionPolicy=maybe(chance, 0.5, "Never"))
        for name, value in (("koord-batch", 5000), ("koord-mid", 7500), ("koord-prod", 9500))
        if chance.random() < 0.95
    }
    return {
        "op": "mutatePod",
        "pod": drawn,
        "profiles": profiles,
        "namespaces": {name: texts(chance) for name in NAMESPACES if chance.random() < 0.9},
        "priorityClasses": classes,
        "skipResourcesGate": chance.random() < 0.1,
        **shared,
    }


# pod-validate


def pod_validate(chance: random.Random) -> Json:
    match chance.choice(("colocation", "colocation", "device", "enhanced")):
        case "colocation":
            old, new = pod(chance), pod(chance)
            if chance.random() < 0.5:
                new = {**old, "metadata": {**old["metadata"], "labels": own_labels(chance)}}
            is_update = chance.random() < 0.5
            return {
                "op": "colocation",
                "operation": "UPDATE" if is_update else "CREATE",
                "oldPod": old if is_update else None,
                "newPod": new,
                "skipPriorityGate": chance.random() < 0.3,
            }
        case "device":
            return {
                "op": "device",
                "operation": chance.choice(("CREATE", "UPDATE")),
                "pod": {
                    "spec": {"containers": [_gpu_container(chance) for _ in range(chance.randint(1, 2))]}
                },
                "gate": chance.random() < 0.9,
            }
    rules = [
        present(
            name="r",
            requiredLabels=maybe(chance, 0.9, some(chance, KEYS, 2)),
            namespaceWhitelist=maybe(chance, 0.5, some(chance, (*NAMESPACES, ""), 2)),
        )
        for _ in range(chance.randint(0, 2))
    ]
    found = pod(chance)
    if chance.random() < 0.2:
        found["metadata"].setdefault("labels", {})["pod.koordinator.sh/skip-enhanced-validation"] = (
            chance.choice(("true", "false", "True"))
        )
    data = present(
        enable=maybe(chance, 0.9, chance.choice(("true", "TRUE", " true ", "1", "false"))),
        rules=maybe(
            chance, 0.9, chance.choice((json.dumps(rules), json.dumps(rules), "", "null", "{}", "[null]"))
        ),
    )
    return {"op": "enhanced", "configMapData": maybe(chance, 0.95, data), "pod": found}


_GPU_AMOUNTS = ("0", "1", "2", "4", "50", "100", "150", "200", "300", "500m", "1Gi")


def _gpu_container(chance: random.Random) -> Json:
    names = (*GPU, "nvidia.com/gpu", "huawei.com/npu-core", "cpu")
    requests = {name: chance.choice(_GPU_AMOUNTS) for name in some(chance, names, 4)}
    return {"name": "c", "resources": present(requests=requests, limits=maybe(chance, 0.5, requests))}


# pod-inject and pod-transform


def _in_tree(chance: random.Random) -> Json:
    """A pod, and quotas and profiles of two trees; a namespace is bound to one quota."""
    domain = "quota.scheduling.koordinator.sh"
    free = chance.sample(NAMESPACES, 3)
    quotas = []
    for name in some(chance, ("q", "r", *NAMESPACES), 4):
        bound = [free.pop()] if free and chance.random() < 0.4 else None
        own = present(**{f"{domain}/tree-id": maybe(chance, 0.8, chance.choice(("t1", "t2", "")))})
        annotations = present(**{f"{domain}/namespaces": bound and json.dumps(bound)})
        quotas.append(
            {"metadata": {"name": name, "namespace": "k", "labels": own, "annotations": annotations}}
        )
    profiles = [
        {
            "metadata": {"name": tree, "namespace": "k", "labels": {f"{domain}/tree-id": tree}},
            "spec": present(quotaName="q", nodeSelector=maybe(chance, 0.9, selector(chance))),
        }
        for tree in ("t1", "t2")
        if chance.random() < 0.9
    ]
    expression = {"key": "x", "operator": "Exists"}
    term = chance.choice(
        ({"matchExpressions": [expression]}, {"matchFields": [{**expression, "key": "metadata.name"}]})
    )
    required = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term] * chance.randint(1, 2)}
    }
    found = pod(chance)
    found["spec"] = present(
        affinity=maybe(chance, 0.5, chance.choice(({"nodeAffinity": required}, {"podAffinity": {}})))
    )
    if chance.random() < 0.5:
        found["metadata"].setdefault("labels", {})[f"{domain}/name"] = chance.choice(("q", "r", "nobody"))
    return {
        "op": "quotaTreeAffinity",
        "gate": chance.random() < 0.9,
        "pod": found,
        "quotas": quotas,
        "profiles": profiles,
    }


def pod_inject(chance: random.Random) -> Json:
    if chance.random() < 0.3:
        return _in_tree(chance)
    if chance.random() < 0.4:
        requests = {name: chance.choice(_GPU_AMOUNTS) for name in some(chance, (*GPU, "cpu"), 4)}
        if "koordinator.sh/gpu" not in requests:  # the release takes GPUs without a ratio for none
            requests.setdefault("koordinator.sh/gpu-memory-ratio", chance.choice(_GPU_AMOUNTS))
        limits = {name: amount for name, amount in requests.items() if chance.random() < 0.9} or requests
        return {"op": "gpuResources", "resources": {"requests": requests, "limits": limits}}
    names = ("cpu", "memory", *BATCH, *MID)
    containers = [
        {"name": name, "resources": needs(chance, names)} for name in ("m", "n", "m")[: chance.randint(1, 3)]
    ]
    amount = chance.choice(AMOUNTS)
    annotation = chance.choice(
        (
            None,
            None,
            "",
            "{}",
            "null",
            "{",
            json.dumps({"containers": {"m": {"requests": {BATCH[0]: amount}}}}),
            json.dumps({"containers": {"m": {"requests": {BATCH[0]: amount}, "limits": {}}}}),
            json.dumps({"containers": {"m": {"limits": {"x/y": "1"}}}, "more": 1}),
            json.dumps({"containers": {"m": {"requests": {BATCH[0]: "many"}}}}),
        )
    )
    return {"op": "extendedResourceSpec", "containers": containers, "annotation": annotation}


_REPLACE = (
    "cpu:x/y",
    "cpu:,memory:x/y",
    "",
    "cpu",
    ":x",
    "cpu:x/y,cpu:z/w",
    " cpu : x/y ",
    "cpu:x/y:z",
    "x/y:cpu",
)


def pod_transform(chance: random.Random) -> Json:
    gates = some(
        chance, ("PriorityTransformer", "PreemptionPolicyTransformer", "ReplaceResourcesTransformer"), 3
    )
    if chance.random() < 0.5:
        return {"kind": "node", "gates": gates, "object": _node(chance)}
    found = pod(chance, ("cpu", "memory", *BATCH, *OLD, "x/y"))
    own = found["metadata"].setdefault("labels", {})
    domain = "scheduling.koordinator.sh"
    for key, values in (
        ("scheduler-name", ("s1", "s3", "")),
        ("preemption-policy", ("Never", "PreemptLowerPriority", "x", "")),
    ):
        if chance.random() < 0.4:
            own[f"{domain}/{key}"] = chance.choice(values)
    annotations = found["metadata"].setdefault("annotations", {})
    if chance.random() < 0.5:
        annotations["pod.koordinator.sh/replace-resources"] = chance.choice(_REPLACE)
    if chance.random() < 0.3:
        entry = {
            "minor": 0,
            "resources": amounts(chance, ("kubernetes.io/gpu-core", "koordinator.sh/gpu-core", "x/y")),
        }
        annotations[f"{domain}/device-allocated"] = json.dumps({"gpu": [entry]})
    return {"kind": "pod", "gates": gates, "object": found}


def _node(chance: random.Random) -> Json:
    reservation = present(
        resources=maybe(chance, 0.6, amounts(chance, ("cpu", "memory", "x/y", *BATCH))),
        reservedCPUs=maybe(chance, 0.4, chance.choice(("0", "0-3", "1,3", "x", ""))),
        applyPolicy=maybe(chance, 0.4, chance.choice(("Default", "ReservedCPUsOnly", "x", ""))),
    )
    names = ("cpu", "memory", "x/y", *BATCH, *OLD)
    return {
        "annotations": present(
            **{"node.koordinator.sh/reservation": maybe(chance, 0.7, json.dumps(reservation))}
        ),
        "allocatable": amounts(chance, names, 5),
        "capacity": amounts(chance, names, 5),
    }
