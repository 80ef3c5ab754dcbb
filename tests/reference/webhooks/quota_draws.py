"""Questions about quotas and feature gates, drawn from nothing."""

import random
from typing import Any

from tests.reference.webhooks.draws import (
    AMOUNTS,
    BATCH,
    KEYS,
    amounts,
    maybe,
    present,
    selector,
    some,
    texts,
)
from tests.vectors.adapters.manager_quota_admission import whole_quota

Json = dict[str, Any]

ROOT = "koordinator-root-quota"
BUILT_IN = (ROOT, "koordinator-system-quota", "koordinator-default-quota")
PREFIX = "quota.scheduling.koordinator.sh"
NAMES = ("p", "q", "r", "s", "t")
NAMESPACES = ("n1", "n2", "p")
GATES = (
    "ElasticQuotaEnableUpdateResourceKey",
    "ElasticQuotaGuaranteeUsage",
    "SupportParentQuotaSubmitPod",
    "DisableDefaultQuota",
)
_RESOURCES = ("cpu", "memory", "x/y")
_WHOLE = ("0", "1", "2", "4", "8", "16", "500m", "-1")


def _list(chance: random.Random, likely: float = 0.85, largest: int = len(_WHOLE)) -> Json:
    return {name: chance.choice(_WHOLE[:largest]) for name in _RESOURCES[:2] if chance.random() < likely}


def _bounds(chance: random.Random, *, is_child: bool) -> tuple[Json, Json]:
    """Min and max; mostly those of sound quotas, where children have room in their parents."""
    if chance.random() < 0.1:
        return _list(chance), _list(chance)
    keys = _RESOURCES[:2] if chance.random() < 0.9 else some(chance, _RESOURCES, 2)
    small, large = ("0", "1", "2", "3"), ("4", "6", "8")
    amounts_of = small if is_child == (chance.random() < 0.9) else large
    most = {name: chance.choice(("8", "16", "20")) for name in keys}
    return {name: chance.choice(amounts_of) for name in most if chance.random() < 0.9}, most


def _short(chance: random.Random, name: str, known: dict[str, Json]) -> Json:
    """A quota in the words of area elasticquota-webhook, mostly one that goes with those that are known."""
    parents = [each for each in known if known[each].get("isParent") and each != name]
    parent = chance.choice(parents) if parents and chance.random() < 0.7 else None
    if chance.random() < 0.1:
        parent = chance.choice((*NAMES[:3], ROOT, "", "nobody"))
    tree = known.get(parent or "", {}).get("treeId")
    if chance.random() < 0.1:
        tree = chance.choice(("t1", "t2", ""))
    elif parent is None and chance.random() < 0.4:
        tree = "t1"
    least, most = _bounds(chance, is_child=parent is not None)
    weights = (_list(chance), "", "{", '{"cpu":"x"}', "[]")
    return present(
        name=name,
        parent=parent,
        isParent=maybe(chance, 0.8, chance.random() < (0.3 if parent else 0.8)),
        treeId=tree,
        isTreeRoot=maybe(chance, 0.1, True),
        forceUpdate=maybe(chance, 0.1, True),
        sharedWeight=maybe(chance, 0.2, chance.choice((*weights[:1] * 5, *weights))),
        namespaces=maybe(chance, 0.2, chance.choice((*[some(chance, NAMESPACES, 2)] * 5, "n1", ""))),
        guaranteed=maybe(chance, 0.6, chance.choice((*[_list(chance, largest=6)] * 9, "{"))),
        maxStrictCheckKeys=maybe(chance, 0.15, chance.choice((["cpu", "memory"], ["x/y"], ["cpu"], "cpu"))),
        min=maybe(chance, 0.95, least),
        max=maybe(chance, 0.97, most),
        used=maybe(chance, 0.3, _list(chance)),
    )


def _pod(chance: random.Random) -> Json:
    own = present(
        **{
            f"{PREFIX}/name": maybe(chance, 0.6, chance.choice((*NAMES, "nobody", ROOT))),
            f"{PREFIX}/preemptible": maybe(chance, 0.3, chance.choice(("true", "false", ""))),
        }
    )
    namespace = chance.choice(NAMESPACES)
    return {"metadata": {"name": "pod", "namespace": namespace, "labels": own}, "spec": {}}


def _changed(chance: random.Random, name: str, known: dict[str, Json]) -> Json:
    """The quota of that name, a little different, or very."""
    other = _short(chance, name, known)
    if name not in known or chance.random() < 0.3:
        return other
    return {**known[name], **{key: other[key] for key in some(chance, sorted(other), 3)}, "name": name}


def _step(chance: random.Random, known: dict[str, Json]) -> Json:
    likely = ("create",) * 5 + ("update",) * 4 + ("delete", "podCreate", "podUpdate")
    op = chance.choice(likely if len(known) < 4 else likely[3:])
    if op == "podCreate":
        return {"op": op, "pod": _pod(chance)}
    if op == "podUpdate":
        return {"op": op, "pod": _pod(chance), "oldPod": _pod(chance)}
    free = [name for name in NAMES if name not in known]
    if op == "create":
        name = (
            chance.choice(free) if free and chance.random() < 0.9 else chance.choice((*NAMES, *BUILT_IN[1:]))
        )
        quota = _short(chance, name, known)
        known.setdefault(name, quota)
    else:
        named = known and chance.random() < 0.9
        name = chance.choice(list(known)) if named else chance.choice((*NAMES, *BUILT_IN))
        quota = _changed(chance, name, known)
        if op == "update" and name in known and chance.random() < 0.5:
            known[name] = quota
        if op == "delete":
            known.pop(name, None)
    pods = maybe(chance, 0.3, [_pod(chance)]) if op != "create" else None
    return present(op=op, quota=whole_quota(quota), pods=pods)


def quota_webhook(chance: random.Random) -> Json:
    known: dict[str, Json] = {}
    steps = [_step(chance, known) for _ in range(chance.randint(2, 12))]
    return {"gates": some(chance, GATES, 2), "steps": steps}


def elasticquota_webhook(chance: random.Random) -> Json:
    known: dict[str, Json] = {}
    bound: set[str] = set()
    for name in some(chance, NAMES, 5):
        each = _short(chance, name, known)
        if isinstance(namespaces := each.get("namespaces"), list):  # admission has seen to that
            each["namespaces"] = [one for one in namespaces if one not in bound]
            bound.update(each["namespaces"])
        if each.get("parent") in NAMES and each["parent"] not in known:
            del each["parent"]  # no circles
        known[name] = each
    kind = chance.choice(("create", "create", "update", "update", "update", "delete", "default", "pod"))
    shared: Json = {"kind": kind, "existing": list(known.values()), "gates": some(chance, GATES, 2)}
    if kind == "pod":
        pods = [
            present(
                quotaLabel=maybe(chance, 0.7, chance.choice((*NAMES, "nobody"))),
                preemptibleLabel=maybe(chance, 0.3, chance.choice(("true", "false", ""))),
            )
            for _ in range(2)
        ]
        return {**shared, "operation": chance.choice(("create", "update")), "pod": pods[0], "old": pods[1]}
    free = [name for name in NAMES if name not in known]
    if kind == "default":
        return present(**shared, object=_changed(chance, chance.choice(NAMES), known))
    likely = free if kind == "create" else list(known)
    name = chance.choice(likely) if likely and chance.random() < 0.9 else chance.choice((*NAMES, *BUILT_IN))
    return present(**shared, object=_changed(chance, name, known), boundPods=maybe(chance, 0.2, ["pod1"]))


# quota-evaluate and quota-profile

_EVALUATED = ("cpu", "memory", *BATCH, "nvidia.com/gpu", "koordinator.sh/gpu", "x/y", "requests.cpu", "pods")


def quota_evaluate(chance: random.Random) -> Json:
    names = some(chance, _EVALUATED, 4) or ["cpu"]
    texts_of_lists = (amounts(chance, names, 4), {}, "", "{", '{"cpu":"x"}')
    quota = present(
        max=amounts(chance, names, 4),
        admission=maybe(chance, 0.3, chance.choice((*texts_of_lists[:1] * 5, *texts_of_lists))),
        childRequest=maybe(chance, 0.5, chance.choice((*texts_of_lists[:1] * 8, *texts_of_lists))),
    )
    pods = [{"requests": amounts(chance, (*names, "cpu", "other"), 3)} for _ in range(chance.randint(1, 6))]
    return {"op": "evaluate", "quota": quota, "pods": pods}


_RATIOS = (
    "0.9",
    "0.33",
    "1",
    "1.0",
    "0",
    "-1",
    "1e-1",
    ".5",
    "5.",
    "abc",
    "",
    " 0.5",
    "NaN",
    "Inf",
    "1.01",
)


def quota_profile(chance: random.Random) -> Json:
    nodes = []
    for number in range(chance.randint(0, 6)):
        conditions = [{"type": "Ready", "status": chance.choice(("True", "True", "False", "Unknown"))}]
        node = {
            "metadata": {"name": f"n{number}", "labels": texts(chance, 3)},
            "spec": present(unschedulable=maybe(chance, 0.2, True)),
            "status": {
                "allocatable": amounts(chance, ("cpu", "memory", "x/y", *BATCH), 4),
                "conditions": maybe(chance, 0.9, conditions) or [],
            },
        }
        nodes.append(node)
    metadata = {
        "name": "profile",
        "namespace": chance.choice(("kube-system", "n1")),
        "labels": present(**{f"{PREFIX}/tree-id": maybe(chance, 0.3, chance.choice(("t1", "")))}),
        "annotations": present(
            **{
                f"{PREFIX}/resource-keys": maybe(
                    chance,
                    0.4,
                    chance.choice(('["cpu","x/y"]', "[]", "cpu", "", "null", '["cpu","cpu"]', '["cpu",1]')),
                )
            }
        ),
    }
    spec = present(
        quotaName="root",
        nodeSelector=chance.choice((selector(chance), {"matchLabels": texts(chance, 1)}, {})),
        quotaLabels=maybe(
            chance, 0.4, {chance.choice((*KEYS, f"{PREFIX}/is-root", f"{PREFIX}/tree-id")): "v"}
        ),
        resourceRatio=maybe(chance, 0.6, chance.choice(_RATIOS)),
    )
    existing = {
        "metadata": {
            "name": "root",
            "namespace": metadata["namespace"],
            "labels": texts(chance),
            "annotations": {f"{PREFIX}/total-resource": chance.choice(("{}", "{", '{"cpu":"1"}'))},
        },
        "spec": {"min": {"cpu": chance.choice(AMOUNTS), "z": "1"}, "max": {"cpu": "1"}},
    }
    return present(
        profile={"metadata": metadata, "spec": spec}, nodes=nodes, existingQuota=maybe(chance, 0.4, existing)
    )


# api-feature-gates

_GATES = {
    "manager": (
        "PodMutatingWebhook",
        "MultiQuotaTree",
        "EnableQuotaAdmission",
        "PriorityTransformer",
        "DisablePVCReservation",
    ),
    "descheduler": ("PodMutatingWebhook", "MultiQuotaTree", "DisablePVCReservation"),
    "scheduler": (
        "DynamicSchedulerCheck",
        "MultiQuotaTree",
        "SyncBarrier",
        "ResizePod",
        "CSIStorageCapacity",
    ),
    "koordlet": ("BECPUSuppress", "BEMemoryEvict", "CPUBurst", "Accelerators", "AuditEvents", "RdtResctrl"),
}
_SWITCHED = (
    "BECPUSuppress",
    "BEMemoryEvict",
    "BECPUEvict",
    "CPUEvict",
    "MemoryEvict",
    "CPUAllocatableEvict",
    "CPUBurst",
)


def feature_gates(chance: random.Random) -> Json:
    if chance.random() < 0.2:
        enable = chance.choice((True, False, None))
        slo = chance.choice((None, {}, {"spec": {"resourceUsedThresholdWithBE": {"enable": enable}}}))
        return {"op": "disabledByNodeSLO", "nodeSLO": slo, "query": [chance.choice(_SWITCHED)]}
    component = chance.choice(sorted(_GATES))
    names = _GATES[component]
    words = [
        chance.choice(("", " "))
        + chance.choice((*names, *names, "AllAlpha", "AllBeta", "Nobody"))
        + chance.choice(("=", "=", "=", "=", " = ", "", ":"))
        + chance.choice(("true", "false", "True", "TRUE", "t", "1", "0", "F", "yes", "", "true "))
        for _ in range(chance.randint(0, 3))
    ]
    flag = chance.choice((",", ",", ", ")).join(words) + chance.choice(("", "", "", ",", " "))
    return {"op": "state", "component": component, "flag": flag, "query": some(chance, names, 5)}
