"""Areas about pods and nodes: QoS, priority, amounts, translation, reservation, normalisation."""

import json
from typing import Any

import msgspec

from koordinator.api import (
    decode,
    labels,
    node_reservation,
    normalization,
    pod_resources,
    priority,
    qos,
    resource_list,
    resources,
)
from koordinator.api.core import Node, Pod
from koordinator.api.device import Device
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.sigs import ElasticQuota
from koordinator.manager.profiles import extended_resources
from koordinator.manager.webhooks import pod_rules
from tests.vectors.compare import quantities

Case = dict[str, Any]


def qos_priority(case: Case) -> Case:
    if case["op"] == "subPriority":
        of_text = {} if case["text"] is None else {labels.PRIORITY: case["text"]}
        return {"value": priority.sub_priority(of_text, case["default"])}
    pod = decode.from_builtins(case["pod"], Pod)
    match case["op"]:
        case "qosRaw":
            return {"class": qos.raw(pod).value}
        case "kubeQoS":
            return {"class": qos.kube(pod).value}
        case "qos":
            return {"class": qos.default(pod).value}
        case "priorityRaw":
            return {"class": priority.raw(pod).value}
        case "priority":
            return {"class": priority.default(pod).value}
        case "priorityValue":
            return {"value": priority.default_number(pod)}
        case "preemptionPolicy":
            return {"class": priority.preemption_policy(pod.metadata.labels)}
        case "preemptionPolicyDefault":
            return {"class": priority.default_preemption_policy(pod.metadata.labels)}
        case "preemptible":
            return {"allowed": priority.is_preemptible(pod.metadata.labels)}
        case "admit":
            return {"allowed": not pod_rules.colocation(pod, None)}
    raise ValueError(case["op"])


def pod_amounts(case: Case) -> Case:
    pod = decode.from_builtins(case["pod"], Pod)
    match case["op"]:
        case "requests":
            return {"result": resource_list.to_wire(pod_resources.requests(pod))}
        case "cpuLimitMilli":
            return {"result": pod_resources.cpu_limit_milli(pod)}
        case "batch":
            return {"result": _batch(pod_resources.batch(pod))}
        case "extended":
            annotations = extended_resources.annotate_pod(case["pod"])["metadata"].get("annotations") or {}
            return {
                "result": json.loads(annotations.get(labels.EXTENDED_RESOURCE_SPEC, "{}")).get(
                    "containers", {}
                )
            }
    raise ValueError(case["op"])


def _batch(amounts: pod_resources.BatchAmounts) -> Case:
    return {
        "batchCPURequest": amounts.request_cpu_milli,
        "batchCPULimit": amounts.limit_cpu_milli,
        "batchMemoryRequest": amounts.request_memory_bytes,
        "batchMemoryLimit": amounts.limit_memory_bytes,
    }


def translation(case: Case) -> Case:
    if case["op"] == "values":
        requests = case["requests"]
        return {
            "batchCPU": resources.whole(requests, resources.BATCH_CPU),
            "batchMemory": resources.whole(requests, resources.BATCH_MEMORY),
            "midCPU": resources.whole(requests, resources.MID_CPU),
            "midMemory": resources.whole(requests, resources.MID_MEMORY),
        }
    cls = priority.of_name(case["class"])
    if case["op"] == "name":
        return {"resource": resources.translate(cls, case["resource"])}
    requests, limits = case.get("requests") or {}, case.get("limits") or {}
    requests, limits = resources.translate_requirements(cls, requests, limits)
    return {name: amounts for name, amounts in (("requests", requests), ("limits", limits)) if amounts}


def reservation(case: Case) -> Case:
    text = case.get("annotation")
    annotations = {} if text is None else {labels.NODE_RESERVATION: text}
    found = node_reservation.of_annotations(annotations)
    match case["op"]:
        case "reservedCPUs":
            cpus = node_reservation.reserved_cpus(found)
            return {"cpus": cpus.cpus, "count": cpus.count}
        case "resources":
            amounts = node_reservation.amounts(found)
            return {"resources": resource_list.to_wire(amounts) or None}
        case "trim":
            allocatable = resource_list.of(case["allocatable"])
            left = node_reservation.trim_allocatable(allocatable, found)
            return {"allocatable": resource_list.to_wire(left), "trimmed": left != allocatable}
        case "kubelet":
            capacity, allocatable = resource_list.of(case["capacity"]), resource_list.of(case["allocatable"])
            kept = node_reservation.kubelet_reserved(capacity, allocatable)
            return {"resources": resource_list.to_wire(kept)}
    raise ValueError(case["op"])


def object_normalization(case: Case) -> Case:
    gates = FeatureGates(dict.fromkeys(case.get("gates", ()), True))
    obj: Any
    match case["kind"]:
        case "Pod":
            pod = decode.from_builtins(case["object"], Pod)
            obj = normalization.normalize_pod(pod, normalization.PodSteps.of(gates))
        case "Node":
            obj = normalization.normalize_node(decode.from_builtins(case["object"], Node))
        case "Device":
            obj = normalization.normalize_device(decode.from_builtins(case["object"], Device))
        case "ElasticQuota":
            obj = normalization.normalize_quota(decode.from_builtins(case["object"], ElasticQuota))
        case kind:
            raise ValueError(kind)
    return {"object": msgspec.to_builtins(obj)}


def same_object(expected: Case, actual: Case) -> bool:
    """Quantities by value, JSON in annotations as JSON, members that are empty as if they were absent."""
    return quantities(_comparable(expected), _comparable(actual))


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        members = {name: _comparable(member) for name, member in value.items()}
        return {name: member for name, member in members.items() if member not in (None, "", [], {}, False)}
    if isinstance(value, list):
        return [_comparable(member) for member in value]
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return _comparable(json.loads(value))
        except ValueError:
            return value
    return value


def same_or_nothing(expected: Case, actual: Case) -> bool:
    """Quantities by value; an empty list of resources is the same as none."""
    return quantities(_without_nothing(expected), _without_nothing(actual))


def _without_nothing(result: Case) -> Case:
    return {name: value for name, value in result.items() if value not in (None, {})}


ADAPTERS = {
    "api-qos-priority": qos_priority,
    "api-pod-resources": pod_amounts,
    "api-resource-translation": translation,
    "api-node-reservation": reservation,
    "api-object-normalization": object_normalization,
}
COMPARE = {
    "api-pod-resources": quantities,
    "api-resource-translation": same_or_nothing,
    "api-node-reservation": same_or_nothing,
    "api-object-normalization": same_object,
}
