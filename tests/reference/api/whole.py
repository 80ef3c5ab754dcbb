"""Labels and annotations with all that each can hold, by who reads them."""

import json
from typing import Any

Json = dict[str, Any]

_S, _N, _G = "scheduling.koordinator.sh/", "node.koordinator.sh/", "gang.scheduling.koordinator.sh/"
_Q = "quota.scheduling.koordinator.sh/"
_LIST = {"cpu": "1500m", "memory": "2Gi", "example.io/x": 3}
_SELECTOR = {
    "matchLabels": {"a": "b"},
    "matchExpressions": [{"key": "k", "operator": "In", "values": ["x", "y"]}],
}
_REFERENCE = {"apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "p", "uid": "u", "fieldPath": "f"}
_CONTROLLER = {"namespace": "ns", "kind": "ReplicaSet", "name": "rs", "uid": "u", "controller": True}
_POOLS = [{"socket": 0, "node": 1, "cpuset": "0-3"}]
_TOLERATION = {"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule", "tolerationSeconds": 3}
_CACHES: Json = {
    "schemata": {"percent": 20, "range": [20, 80]},
    "schemataPerCache": [{"cacheID": 1, "percent": 3, "range": [0, 30]}],
}
_TERM = {
    "matchExpressions": [{"key": "t", "operator": "NotIn", "values": ["a"]}],
    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}],
}
_IO = dict.fromkeys(
    ("readIOPS", "writeIOPS", "readBPS", "writeBPS", "ioWeightPercent", "readLatency", "writeLatency"), 100
)
_IO |= dict.fromkeys(("readLatencyPercent", "writeLatencyPercent"), 90)
_ANNOTATIONS: dict[str, tuple[str, Any]] = {
    "resource-spec": (
        f"{_S}resource-spec",
        {
            "requiredCPUBindPolicy": "FullPCPUs",
            "preferredCPUBindPolicy": "SpreadByPCPUs",
            "preferredCPUExclusivePolicy": "PCPULevel",
        },
    ),
    "resource-status": (
        f"{_S}resource-status",
        {"cpuset": "0-3", "numaNodeResources": [{"node": 1, "resources": _LIST}]},
    ),
    "device-allocated": (
        f"{_S}device-allocated",
        {
            "gpu": [{"minor": 1, "resources": _LIST, "id": "x"}],
            "rdma": [
                {
                    "minor": 0,
                    "resources": {},
                    "extension": {"vfs": [{"minor": 2, "busID": "0:1"}], "gpuSharedResourceTemplate": "t"},
                }
            ],
        },
    ),
    "device-allocate-hint": (
        f"{_S}device-allocate-hint",
        {
            "rdma": {
                "selector": _SELECTOR,
                "vfSelector": _SELECTOR,
                "allocateStrategy": "RequestsAsCount",
                "requiredTopologyScope": "PCIe",
                "exclusivePolicy": "PCIeLevel",
            }
        },
    ),
    "gpu-partition-spec": (
        f"{_S}gpu-partition-spec",
        {"allocatePolicy": "BestEffort", "ringBusBandwidth": "100Gi"},
    ),
    "reservation-affinity": (
        f"{_S}reservation-affinity",
        {
            "name": "r",
            "requiredDuringSchedulingIgnoredDuringExecution": {"reservationSelectorTerms": [_TERM, {}]},
            "reservationSelector": {"a": "b"},
            "tolerations": [_TOLERATION],
        },
    ),
    "reservation-restricted-options": (
        f"{_S}reservation-restricted-options",
        {"resources": ["cpu", "memory"]},
    ),
    "exact-match-reservation": (f"{_S}exact-match-reservation", {"resourceNames": ["cpu"]}),
    "reservation-owners": (
        f"{_S}reservation-owners",
        [{"object": _REFERENCE, "controller": _CONTROLLER, "labelSelector": _SELECTOR}],
    ),
    "reservation-current-owner": (f"{_S}reservation-current-owner", _REFERENCE),
    "soft-eviction": (
        f"{_S}soft-eviction",
        {
            "timestamp": "2020-01-02T03:04:05Z",
            "deleteOptions": {"gracePeriodSeconds": 3},
            "initiator": "i",
            "reason": "r",
        },
    ),
    "network-qos": ("koordinator.sh/networkQOS", {"ingressLimit": "10M", "egressLimit": "7"}),
    "blkio-qos": ("koordinator.sh/blkioQOS", {"blocks": [{"name": "b", "type": "device", "ioCfg": _IO}]}),
    "cpu-qos": (
        "koordinator.sh/cpuQOS",
        {"enable": True, "groupIdentity": 2, "schedIdle": 1, "coreExpeller": True},
    ),
    "memory-qos": (
        "koordinator.sh/memoryQOS",
        {
            "policy": "none",
            "minLimitPercent": 1,
            "lowLimitPercent": 2,
            "throttlingPercent": 3,
            "wmarkRatio": 95,
            "wmarkScalePermill": 20,
            "wmarkMinAdj": -25,
            "priorityEnable": 1,
            "priority": 6,
            "oomKillGroup": 0,
        },
    ),
    "resctrl": (f"{_N}resctrl", {"llc": _CACHES, "mb": _CACHES}),
    "extended-resource-spec": (
        f"{_N}extended-resource-spec",
        {"containers": {"c": {"limits": _LIST, "requests": _LIST}}},
    ),
    "gang-groups": (f"{_G}groups", ["ns/a", "ns/b"]),
    "quota-shared-weight": (f"{_Q}shared-weight", _LIST),
    "quota-namespaces": (f"{_Q}namespaces", ["a", "b"]),
    "quota-max-strict-check-resource-keys": (f"{_Q}max-strict-check-resource-keys", ["cpu"]),
    "load-estimated-seconds-after-initialized": (f"{_S}load-estimated-seconds-after-initialized", "30"),
    "node-reservation": (
        f"{_N}reservation",
        {"resources": _LIST, "reservedCPUs": "0-1", "applyPolicy": "ReservedCPUsOnly"},
    ),
    "raw-allocatable": (f"{_N}raw-allocatable", _LIST),
    "amplification-ratio": (f"{_N}resource-amplification-ratio", {"cpu": 1.5, "memory": 2}),
    "origin-extended-allocatable": (f"{_N}originExtendedAllocatable", {"resources": _LIST}),
    "third-party-allocations": (
        f"{_N}thirdPartyAllocations",
        {"allocations": [{"name": "n", "priority": "koord-batch", "resources": _LIST}]},
    ),
    "cpu-basic-info": (
        f"{_N}cpu-basic-info",
        {
            "cpuModel": "m",
            "hyperThreadEnabled": True,
            "turboEnabled": True,
            "catL3CbmMask": "7ff",
            "vendorID": "v",
        },
    ),
    "be-cpu-shared-pools": (f"{_N}be-cpu-shared-pools", _POOLS),
    "pod-cpu-allocs": (
        f"{_N}pod-cpu-allocs",
        [{"namespace": "n", "name": "p", "uid": "u", "cpuset": "1", "managedByKubelet": True}],
    ),
    **{
        f"quota-{name}": (f"{_Q}{name}", _LIST)
        for name in (
            *("runtime", "request", "child-request", "allocated", "guaranteed", "admission"),
            *("non-preemptible-request", "non-preemptible-used", "unschedulable-resource"),
        )
    },
}
_LABELS = {
    "core-sched": ("koordinator.sh/core-sched-policy", "none"),
    "quota-is-root": (f"{_Q}is-root", "true"),
    "quota-tree-id": (f"{_Q}tree-id", "t"),
    "quota-allow-force-update": (f"{_Q}allow-force-update", "true"),
}
_OF_NODES = (
    *(
        "node-reservation",
        "raw-allocatable",
        "amplification-ratio",
        "origin-extended-allocatable",
        "cpu-basic-info",
    ),
    *("third-party-allocations", "be-cpu-shared-pools", "pod-cpu-allocs"),
)


def questions(of_nodes: bool) -> list[Json]:
    """Return a question for each of those that read pods and quotas, or nodes."""
    found: list[Json] = []
    for read, (key, content) in _ANNOTATIONS.items():
        text = content if isinstance(content, str) else json.dumps(content)
        if (read in _OF_NODES) == of_nodes:
            found.append({"read": read, "annotations": {key: text}})
    if not of_nodes:
        found += [
            {"read": read, "annotations": {}, "labels": {key: text}} for read, (key, text) in _LABELS.items()
        ]
    return found
