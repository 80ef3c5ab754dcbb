"""Questions about quotas and feature gates, drawn from nothing."""

import json
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


def _bounds(chance: random.Random) -> tuple[Json, Json]:
    """Min and max; mostly those of a sound quota."""
    if chance.random() < 0.2:
        return _list(chance), _list(chance)
    most = {name: chance.choice(("8", "16", "20")) for name in _RESOURCES[:2]}
    return {name: chance.choice(("0", "1", "2", "4", "7")) for name in most if chance.random() < 0.9}, most


def _quota(chance: random.Random) -> Json:
    name = chance.choice(NAMES) if chance.random() < 0.95 else chance.choice(BUILT_IN)
    own = present(
        **{
            f"{PREFIX}/is-parent": maybe(chance, 0.5, chance.choice(("true", "true", "false", "True"))),
            f"{PREFIX}/parent": maybe(chance, 0.7, chance.choice((*NAMES[:3], "", ROOT, "nobody"))),
            f"{PREFIX}/tree-id": maybe(chance, 0.2, chance.choice(("t1", "t2", ""))),
            f"{PREFIX}/is-root": maybe(chance, 0.1, "true"),
            f"{PREFIX}/allow-force-update": maybe(chance, 0.1, "true"),
        }
    )
    annotations = present(
        **{
            f"{PREFIX}/shared-weight": maybe(
                chance, 0.2, chance.choice((json.dumps(_list(chance)), "", "{", '{"cpu":"x"}', "[]"))
            ),
            f"{PREFIX}/namespaces": maybe(
                chance, 0.25, chance.choice((json.dumps(some(chance, NAMESPACES, 2)), "n1", ""))
            ),
            f"{PREFIX}/guaranteed": maybe(chance, 0.3, chance.choice((json.dumps(_list(chance)), "{"))),
            f"{PREFIX}/max-strict-check-resource-keys": maybe(
                chance, 0.1, chance.choice(('["cpu"]', '["cpu", "memory"]', "cpu", '["x/y"]'))
            ),
        }
    )
    least, most = _bounds(chance)
    quota = {
        "metadata": {"name": name, "namespace": "kube-system", "labels": own, "annotations": annotations},
        "spec": present(min=maybe(chance, 0.9, least), max=maybe(chance, 0.97, most)),
    }
    return quota if chance.random() < 0.8 else {**quota, "status": {"used": _list(chance)}}


def _pod(chance: random.Random) -> Json:
    own = present(
        **{
            f"{PREFIX}/name": maybe(chance, 0.6, chance.choice((*NAMES, "nobody", ROOT))),
            f"{PREFIX}/preemptible": maybe(chance, 0.3, chance.choice(("true", "false", ""))),
        }
    )
    namespace = chance.choice(NAMESPACES)
    return {"metadata": {"name": "pod", "namespace": namespace, "labels": own}, "spec": {}}


def _step(chance: random.Random, known: dict[str, Json]) -> Json:
    op = chance.choice(("create", "create", "create", "update", "update", "delete", "podCreate", "podUpdate"))
    if op == "podCreate":
        return {"op": op, "pod": _pod(chance)}
    if op == "podUpdate":
        return {"op": op, "pod": _pod(chance), "oldPod": _pod(chance)}
    quota = _quota(chance)
    name = quota["metadata"]["name"]
    if op != "create" and known and chance.random() < 0.8:
        name = chance.choice(list(known))
        quota["metadata"]["name"] = name
        if chance.random() < 0.5:  # a small change
            part = chance.choice(("spec", "metadata"))
            quota = {**known[name], part: quota[part]}
    if op == "create":
        if name == ROOT:  # its weight is left as it is
            quota["metadata"]["annotations"] = {}
        known.setdefault(name, quota)
    if op == "delete":
        known.pop(name, None)
    pods = maybe(chance, 0.3, [_pod(chance)]) if op != "create" else None
    return present(op=op, quota=quota, pods=pods)


def quota_webhook(chance: random.Random) -> Json:
    known: dict[str, Json] = {}
    steps = [_step(chance, known) for _ in range(chance.randint(2, 9))]
    return {"gates": some(chance, GATES, 2), "steps": steps}


def _short(chance: random.Random, name: str) -> Json:
    least, most = _bounds(chance)
    return present(
        name=name,
        parent=maybe(chance, 0.6, chance.choice((*NAMES[:3], ROOT, ""))),
        isParent=maybe(chance, 0.6, chance.random() < 0.7),
        treeId=maybe(chance, 0.3, chance.choice(("t1", "t1", "t2"))),
        isTreeRoot=maybe(chance, 0.1, True),
        forceUpdate=maybe(chance, 0.1, True),
        sharedWeight=maybe(chance, 0.2, _list(chance)),
        namespaces=maybe(chance, 0.15, some(chance, NAMESPACES, 2)),
        guaranteed=maybe(chance, 0.5, _list(chance, largest=6)),
        maxStrictCheckKeys=maybe(chance, 0.1, ["cpu", "memory"]),
        min=maybe(chance, 0.9, least),
        max=maybe(chance, 0.97, most),
        used=maybe(chance, 0.3, _list(chance)),
    )


def elasticquota_webhook(chance: random.Random) -> Json:
    existing = [_short(chance, name) for name in some(chance, NAMES, 5)]
    bound: set[str] = set()
    for each in existing:  # admission has seen to that
        each["namespaces"] = [name for name in each.get("namespaces", ()) if name not in bound]
        bound.update(each["namespaces"])
    for at, each in enumerate(existing):  # no circles
        if each.get("parent") in [other["name"] for other in existing[at:]]:
            del each["parent"]
    names = [each["name"] for each in existing]
    kind = chance.choice(("create", "update", "update", "delete", "default", "pod"))
    shared: Json = {"kind": kind, "existing": existing, "gates": some(chance, GATES, 2)}
    if kind == "pod":
        pods = [
            present(
                quotaLabel=maybe(chance, 0.7, chance.choice((*NAMES, "nobody"))),
                preemptibleLabel=maybe(chance, 0.3, chance.choice(("true", "false", ""))),
            )
            for _ in range(2)
        ]
        return {**shared, "operation": chance.choice(("create", "update")), "pod": pods[0], "old": pods[1]}
    changes = kind in ("update", "delete")
    name = chance.choice(names) if changes and names else chance.choice((*NAMES, *BUILT_IN))
    changed = _short(chance, name)
    if changes and names and chance.random() < 0.7:  # a small change
        old = next(each for each in existing if each["name"] == name) if name in names else {}
        changed = {**old, **{key: changed[key] for key in some(chance, sorted(changed), 3)}, "name": name}
    return present(**shared, object=changed, boundPods=maybe(chance, 0.2, ["pod1"]))


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
