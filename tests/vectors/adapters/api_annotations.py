"""Areas of labels and annotations: how each is read, and how it is written."""

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from koordinator.api import (
    gang_labels,
    labels,
    node_labels,
    pod_labels,
    quantity,
    quota_labels,
    resource_list,
)
from koordinator.api.annotations import device, koordlet, node, placement
from koordinator.api.annotations.codec import Annotation
from koordinator.api.annotations.koordlet import EXTENDED_RESOURCE_SPEC, ExtendedResourceSpec
from koordinator.api.annotations.node import (
    BE_CPU_SHARED_POOLS,
    CPU_BASIC_INFO,
    CPU_SHARED_POOLS,
    CPU_TOPOLOGY,
    KUBELET_CPU_MANAGER_POLICY,
    POD_CPU_ALLOCS,
    CPUBasicInfo,
)
from koordinator.api.meta import ObjectMeta
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.reservation import (
    CURRENT_OWNER,
    EXACT_MATCH_RESERVATION,
    OWNERS,
    RESERVATION_AFFINITY,
    RESERVATION_ALLOCATED,
    RESTRICTED_OPTIONS,
    ReservationAllocated,
    without_allocated,
)
from koordinator.koordlet.report import topology as topology_report
from koordinator.manager.config import amplification
from koordinator.manager.noderesource import target
from koordinator.yarn import amounts
from tests.vectors.compare import quantities

Case = dict[str, Any]
_ZERO = re.compile(r"[+-]?[0.]+[A-Za-z]{0,2}")
"""An amount of nothing, in any unit."""
Read = Callable[[Case], Any]


def _plain(annotation: Annotation[Any]) -> Read:
    return lambda case: annotation.read(case.get("annotations") or {})


def _by_labels(reader: Callable[[Any], Any]) -> Read:
    return lambda case: reader(case.get("labels") or {})


def _by_annotations(reader: Callable[[Any], Any]) -> Read:
    return lambda case: reader(case.get("annotations") or {})


def _by_both(reader: Callable[[Any, Any], Any]) -> Read:
    return lambda case: reader(case.get("labels") or {}, case.get("annotations") or {})


def _network_qos(case: Case) -> Case:
    limits = koordlet.network_limits(case["annotations"]) or koordlet.NetworkLimits(0, 0)
    return {
        "ingressBytesPerSecond": limits.ingress_bytes_per_s,
        "egressBytesPerSecond": limits.egress_bytes_per_s,
    }


def _core_sched(case: Case) -> Case:
    found = pod_labels.core_sched(case.get("labels") or {})
    return {"groupID": found.group_id, "policy": found.policy}


def _replace_resources(case: Case) -> Case:
    found = pod_labels.replace_resources(case["annotations"])
    return {"erase": sorted(found.erase), "replace": found.replace}


def _network_bandwidth(case: Case) -> str | None:
    bandwidth = node_labels.network_bandwidth(case["annotations"])
    return None if bandwidth is None else bandwidth.text


def _cpu_bind_policy(case: Case) -> str:
    kubelet = KUBELET_CPU_MANAGER_POLICY.read(case["annotations"])
    return node_labels.cpu_bind_policy(case.get("labels") or {}, kubelet)


def _system_qos_exclusive(case: Case) -> bool:
    found = node.SYSTEM_QOS_RESOURCE.read(case["annotations"]) or node.SystemQOSResource()
    return found.is_exclusive


def _third_party(case: Case) -> Any:
    return resource_list.to_wire(node.third_party_by_priority(case["annotations"], case["name"]) or {})


def _amplification_ratio(case: Case) -> float:
    ratios = node.AMPLIFICATION_RATIO.read(case["annotations"]) or {}
    return ratios.get(case["name"], node_labels.NO_RATIO)


def _reclaim_percent(case: Case) -> int | None:
    return node_labels.ratio_percent(case.get("labels") or {}, labels.NODE_CPU_RECLAIM_RATIO)


POD_READERS: dict[str, Read] = {
    "resource-spec": _plain(placement.RESOURCE_SPEC),
    "numa-topology-spec": _plain(placement.NUMA_TOPOLOGY_SPEC),
    "resource-status": _plain(placement.RESOURCE_STATUS),
    "network-topology-spec": _plain(placement.NETWORK_TOPOLOGY_SPEC),
    "scheduling-hint": _by_annotations(placement.scheduling_hint),
    "load-estimated-scaling-factors": _by_annotations(placement.load_scaling_factors),
    "load-estimated-seconds-after-pod-scheduled": _by_annotations(
        pod_labels.load_estimated_s_after_scheduled
    ),
    "load-estimated-seconds-after-initialized": _by_annotations(
        pod_labels.load_estimated_s_after_initialized
    ),
    "device-allocated": _plain(device.DEVICE_ALLOCATED),
    "device-allocate-hint": _plain(device.DEVICE_ALLOCATE_HINT),
    "device-joint-allocate": _plain(device.DEVICE_JOINT_ALLOCATE),
    "gpu-partition-spec": _plain(device.GPU_PARTITION_SPEC),
    "reservation-affinity": _plain(RESERVATION_AFFINITY),
    "reservation-allocated": _plain(RESERVATION_ALLOCATED),
    "reservation-restricted-options": _plain(RESTRICTED_OPTIONS),
    "exact-match-reservation": _plain(EXACT_MATCH_RESERVATION),
    "reservation-owners": _plain(OWNERS),
    "reservation-current-owner": _plain(CURRENT_OWNER),
    "extended-resource-spec": _plain(EXTENDED_RESOURCE_SPEC),
    "cpu-burst": _plain(koordlet.CPU_BURST),
    "cpu-qos": _plain(koordlet.CPU_QOS),
    "memory-qos": _plain(koordlet.MEMORY_QOS),
    "blkio-qos": _plain(koordlet.BLKIO_QOS),
    "network-qos": _network_qos,
    "resctrl": _plain(koordlet.RESCTRL),
    "soft-eviction": _plain(koordlet.SOFT_EVICTION),
    "oom-score-adj": lambda case: koordlet.oom_score_adj(case["annotations"], case["name"]),
    "eviction-policy-allows": lambda case: koordlet.allows_eviction_by(case["annotations"], case["name"]),
    "eviction-cost": _by_annotations(pod_labels.eviction_cost),
    "eviction-priority": _by_annotations(pod_labels.eviction_priority),
    "eviction-enabled": _by_labels(pod_labels.is_eviction_enabled),
    "core-sched": _core_sched,
    "replace-resources": _replace_resources,
    "scheduler-name": lambda case: pod_labels.scheduler_name(
        case.get("labels") or {}, (case.get("spec") or {}).get("schedulerName", "")
    ),
    "reservation-ignored": _by_labels(pod_labels.is_reservation_ignored),
    "pod-inactive": lambda case: pod_labels.is_inactive(case.get("phase") or ""),
    "gang-name": _by_both(gang_labels.gang_name),
    "gang-min-available": _by_both(gang_labels.min_available),
    "gang-total-number": _by_annotations(gang_labels.total_number),
    "gang-mode": _by_annotations(gang_labels.mode),
    "gang-waiting-time": _by_annotations(gang_labels.waiting_time_s),
    "gang-match-policy": _by_annotations(gang_labels.match_policy),
    "gang-groups": _by_annotations(gang_labels.groups),
    "network-topology-index": _by_annotations(gang_labels.network_topology_index),
    "pod-non-preemptible": _by_labels(quota_labels.is_pod_non_preemptible),
    "quota-parent": lambda case: quota_labels.parent_name(case.get("name") or "", case.get("labels") or {}),
    "quota-is-parent": _by_labels(quota_labels.is_parent),
    "quota-is-root": _by_labels(quota_labels.is_tree_root),
    "quota-tree-id": _by_labels(quota_labels.tree_id),
    "quota-allow-lent": _by_labels(quota_labels.allows_lending),
    "quota-allow-force-update": _by_labels(quota_labels.allows_forced_update),
    "quota-ignore-default-tree": _by_labels(quota_labels.ignores_default_tree),
    "quota-shared-weight": lambda case: quota_labels.shared_weight(
        case["annotations"], (case.get("spec") or {}).get("max") or {}
    ),
    "quota-namespaces": _by_annotations(quota_labels.namespaces),
    "quota-runtime": _plain(quota_labels.RUNTIME),
    "quota-request": _plain(quota_labels.REQUEST),
    "quota-child-request": _plain(quota_labels.CHILD_REQUEST),
    "quota-allocated": _plain(quota_labels.ALLOCATED),
    "quota-guaranteed": _plain(quota_labels.GUARANTEED),
    "quota-non-preemptible-request": _plain(quota_labels.NON_PREEMPTIBLE_REQUEST),
    "quota-non-preemptible-used": _plain(quota_labels.NON_PREEMPTIBLE_USED),
    "quota-admission": _plain(quota_labels.ADMISSION),
    "quota-total-resource": _plain(quota_labels.TOTAL_RESOURCE),
    "quota-unschedulable-resource": _plain(quota_labels.UNSCHEDULABLE_RESOURCE),
    "quota-max-strict-check-resource-keys": _plain(quota_labels.MAX_STRICT_CHECK_RESOURCE_KEYS),
    "quota-resource-keys": _by_annotations(quota_labels.resource_keys),
}

NODE_READERS: dict[str, Read] = {
    "node-reservation": _plain(node.NODE_RESERVATION),
    "system-qos-resource": _plain(node.SYSTEM_QOS_RESOURCE),
    "system-qos-exclusive": _system_qos_exclusive,
    "network-bandwidth": _network_bandwidth,
    "cpu-normalization-ratio": _by_annotations(node_labels.cpu_normalization_ratio),
    "cpu-normalization-enabled": _by_labels(node_labels.is_cpu_normalization_enabled),
    "amplification-ratio": _plain(node.AMPLIFICATION_RATIO),
    "amplification-ratio-of": _amplification_ratio,
    "raw-allocatable": _plain(node.RAW_ALLOCATABLE),
    "usage-thresholds": _plain(node.USAGE_THRESHOLDS),
    "origin-extended-allocatable": _plain(node.ORIGIN_EXTENDED_ALLOCATABLE),
    "third-party-allocations": _plain(node.THIRD_PARTY_ALLOCATIONS),
    "third-party-by-priority": _third_party,
    "reclaim-percent": _reclaim_percent,
    "node-cpu-bind-policy": _cpu_bind_policy,
    "cpu-topology": _plain(CPU_TOPOLOGY),
    "cpu-basic-info": _plain(CPU_BASIC_INFO),
    "cpu-shared-pools": _plain(CPU_SHARED_POOLS),
    "be-cpu-shared-pools": _plain(BE_CPU_SHARED_POOLS),
    "pod-cpu-allocs": _plain(POD_CPU_ALLOCS),
    "kubelet-cpu-manager-policy": _plain(KUBELET_CPU_MANAGER_POLICY),
    "gpu-partitions": _plain(device.GPU_PARTITIONS),
    "gpu-partition-policy": _by_labels(device.node_partition_policy),
}


def read(case: Case) -> Case:
    reader = (POD_READERS | NODE_READERS)[case["read"]]
    return {"result": msgspec.to_builtins(reader({"annotations": {}, "name": "", **case}), str_keys=True)}


def same_content(expected: Case, actual: Case) -> bool:
    """Quantities by value; members that are empty or 0 are as if absent; nothing at all is the same as null."""
    if "result" not in expected or "result" not in actual:
        return expected == actual
    return quantities(_comparable(expected["result"]), _comparable(actual["result"]))


def _comparable(value: Any) -> Any:
    pruned = _without_empty(value)
    return None if pruned in ({}, []) else pruned


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        members = {name: _without_empty(member) for name, member in value.items()}
        return {name: m for name, m in members.items() if not (m in (None, "", [], {}) or _is_zero(m))}
    if isinstance(value, list):
        return [_without_empty(member) for member in value]
    return value


def _is_zero(value: Any) -> bool:
    return not value if isinstance(value, bool | int | float) else bool(_ZERO.fullmatch(str(value)))


def write(case: Case) -> Case:
    return {**WRITERS[case["op"]](case), "compare": case.get("compare", "text")}


def _annotations(case: Case, key: str) -> dict[str, str]:
    return {} if case.get("old") is None else {key: case["old"]}


def _updated(case: Case, new: str | None) -> Case:
    """`new` is None when nothing changes."""
    return {"text": case["old"] if new is None else new, "changed": new is not None}


def _set_amplification_ratio(case: Case) -> Case:
    old = node.AMPLIFICATION_RATIO.read(_annotations(case, labels.NODE_RESOURCE_AMPLIFICATION_RATIO)) or {}
    text = amplification.annotation_text({**old, case["resource"]: case["ratio"]})
    return {"text": text, "changed": amplification.needs_sync(case["old"], text)}


def _set_cpu_normalization_ratio(case: Case) -> Case:
    text = node_labels.cpu_normalization_ratio_text(case["ratio"])
    return _updated(case, None if text == case["old"] else text)


def _ratio_differs(case: Case) -> Case:
    return {"changed": node_labels.is_cpu_normalization_ratio_different(case["old"], case["new"])}


def _set_resource_status(case: Case) -> Case:
    status = placement.RESOURCE_STATUS.decode(json.dumps(case["status"]))
    return {"text": placement.RESOURCE_STATUS.encode(status)}


def _set_device_allocated(case: Case) -> Case:
    allocations = device.DEVICE_ALLOCATED.decode(json.dumps(case["allocations"]))
    return {"text": device.DEVICE_ALLOCATED.encode(allocations)}


def _set_reservation_allocated(case: Case) -> Case:
    allocated = ReservationAllocated(name=case["name"], uid=case["uid"])
    return {"text": RESERVATION_ALLOCATED.encode(allocated)}


def _remove_reservation_allocated(case: Case) -> Case:
    left = without_allocated(_annotations(case, labels.RESERVATION_ALLOCATED), case["uid"])
    if left is None:
        return {"text": case["old"], "changed": False}
    return {"text": left.get(labels.RESERVATION_ALLOCATED), "changed": True}


def _set_origin_extended_allocatable(case: Case) -> Case:
    annotations = _annotations(case, labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE)
    origin = {name: quantity.value(amount) for name, amount in case["resources"].items()}
    return {"text": target.origin_text(annotations, origin)}


def _set_third_party_allocation(case: Case) -> Case:
    allocation = node.ThirdPartyAllocation(
        name=case["name"], priority=case["priority"], resources=case["resources"]
    )
    allocations = amounts.with_allocation(amounts.read(case["old"]), allocation)
    return {"text": node.THIRD_PARTY_ALLOCATIONS.encode(node.ThirdPartyAllocations(allocations=allocations))}


def _set_extended_resource_spec(case: Case) -> Case:
    spec = msgspec.convert({"containers": case["containers"]}, ExtendedResourceSpec)
    return {"text": EXTENDED_RESOURCE_SPEC.encode(spec)}


def _set_cpu_basic_info(case: Case) -> Case:
    key = labels.NODE_CPU_BASIC_INFO
    info = CPU_BASIC_INFO.encode(msgspec.convert(case["info"], CPUBasicInfo))
    old, new = (
        NodeResourceTopology(metadata=ObjectMeta(annotations=annotations))
        for annotations in (_annotations(case, key), {key: info})
    )
    patch = topology_report.patch_of(old, new)
    return {
        "text": case["old"] if patch is None else patch["metadata"]["annotations"][key],
        "changed": patch is not None,
    }


WRITERS: dict[str, Callable[[Case], Case]] = {
    "amplificationRatioSet": _set_amplification_ratio,
    "cpuNormalizationRatioSet": _set_cpu_normalization_ratio,
    "cpuNormalizationRatioDiffers": _ratio_differs,
    "rawAllocatableSet": lambda case: {"text": node.RAW_ALLOCATABLE.encode(case["resources"])},
    "resourceStatusSet": _set_resource_status,
    "deviceAllocatedSet": _set_device_allocated,
    "reservationAllocatedSet": _set_reservation_allocated,
    "reservationAllocatedRemove": _remove_reservation_allocated,
    "originExtendedAllocatableSet": _set_origin_extended_allocatable,
    "thirdPartyAllocationSet": _set_third_party_allocation,
    "extendedResourceSpecSet": _set_extended_resource_spec,
    "cpuBasicInfoSet": _set_cpu_basic_info,
}


def same_text(expected: Case, actual: Case) -> bool:
    """All that is expected is the same; texts to the letter, or by value where they are JSON."""
    for name, value in expected.items():
        own = actual.get(name)
        if name == "text" and actual["compare"] == "json" and value is not None and own is not None:
            value, own = json.loads(value), json.loads(own)
        if not quantities(value, own):
            return False
    return True


ADAPTERS = {"api-annotations-pod": read, "api-annotations-node": read, "api-annotation-encode": write}
COMPARE = {
    "api-annotations-pod": same_content,
    "api-annotations-node": same_content,
    "api-annotation-encode": same_text,
}
