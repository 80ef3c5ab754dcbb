"""Areas of plain values: quantities, resource lists, cpusets, amplification, gates, orders."""

from typing import Any

import msgspec

from koordinator.api import (
    amplification,
    cpuset,
    failed_details,
    feature_gates,
    gang_labels,
    labels,
    quantity,
    resource_list,
    zones,
)
from koordinator.api.quantity import Quantity
from koordinator.api.resource_list import Amounts
from koordinator.api.schedule_explanation import NodeFailedDetail
from koordinator.api.zones import ZoneResource, Zones
from tests.vectors.compare import quantities

Case = dict[str, Any]


def api_quantity(case: Case) -> Case:
    match case["op"]:
        case "parse":
            return _parsed(quantity.parse(case["text"]))
        case "add":
            return {"canonical": (quantity.parse(case["a"]) + quantity.parse(case["b"])).text}
        case "sub":
            return {"canonical": (quantity.parse(case["a"]) - quantity.parse(case["b"])).text}
        case "cmp":
            a, b = quantity.parse(case["a"]), quantity.parse(case["b"])
            return {"order": (a > b) - (a < b)}
    raise ValueError(case["op"])


def _parsed(amount: Quantity) -> Case:
    """Integer views only within 64 bits, as the format says."""
    views = {"value": amount.value, "milli": amount.milli}
    return {"canonical": amount.text} | {k: v for k, v in views.items() if -(2**63) <= v < 2**63}


def api_cpuset_string(case: Case) -> Case:
    match case["op"]:
        case "parse":
            return {"cpus": sorted(cpuset.parse(case["text"]))}
        case "format":
            return {"text": cpuset.text_of(case["cpus"])}
        case "roundtrip":
            return {"text": cpuset.text_of(cpuset.parse(case["text"]))}
    raise ValueError(case["op"])


def cpusets(case: Case) -> Case:
    match case["op"]:
        case "parse" | "format":
            return api_cpuset_string(case)
        case "equalText":
            return {"result": cpuset.is_equal_text(case["a"], case["b"])}
    a, b = frozenset(case["a"]), frozenset(case["b"])
    match case["op"]:
        case "union":
            return {"cpus": sorted(a | b)}
        case "intersection":
            return {"cpus": sorted(a & b)}
        case "difference":
            return {"cpus": sorted(a - b)}
        case "isSubsetOf":
            return {"result": a <= b}
    raise ValueError(case["op"])


def resource_lists(case: Case) -> Case:
    match case["op"]:
        case "multiply":
            return {"result": resource_list.multiply(quantity.of(case["quantity"]), case["factor"]).text}
        case "multiplyMilli":
            amount = quantity.of(case["quantity"])
            return {"result": resource_list.multiply_milli(amount, case["factor"]).text}
        case "zonesToMap" | "mapToZones" | "capAllocToZones" | "mergeZones" | "trimZones":
            return {"result": _zone_result(case)}
    a, b = resource_list.of(case["a"]), resource_list.of(case["b"])
    match case["op"]:
        case "min":
            return {"result": resource_list.to_wire(resource_list.minimum(a, b))}
        case "equalIgnoringZero":
            return {"result": resource_list.is_equal_ignoring_zeros(a, b)}
        case "differs":
            return {"result": resource_list.differs(a, b, case["resource"], case["threshold"])}
        case "leqCompletely":
            return {"result": resource_list.fits_completely(a, b)}
        case "exactMatch":
            return {"result": resource_list.is_exact_match(case["names"], a, b)}
    raise ValueError(case["op"])


def _zone_result(case: Case) -> Any:
    a, b = case["a"], case.get("b")
    match case["op"]:
        case "zonesToMap":
            return {zone: resource_list.to_wire(own) for zone, own in zones.allocatable(_zones(a)).items()}
        case "mapToZones":
            return _zone_list(zones.of_amounts({zone: resource_list.of(own) for zone, own in a.items()}))
        case "capAllocToZones":
            return _zone_list(zones.of_capacity({zone: _capacity(own) for zone, own in a.items()}))
        case "mergeZones":
            return _zone_list(zones.merge(_zones(a), _zones(b)))
    return _zone_list(zones.trim(_zones(a), _zones(b)))


def _capacity(own: Case) -> tuple[Amounts, Amounts]:
    capacity, allocatable = own.get("capacity") or {}, own.get("allocatable") or {}
    return resource_list.of(capacity), resource_list.of(allocatable)


def _zones(listed: list[Case] | None) -> Zones:
    return {
        zone["name"]: {
            each["name"]: ZoneResource(
                *(quantity.of(each.get(part)) for part in ("capacity", "allocatable", "available"))
            )
            for each in zone.get("resources", ())
        }
        for zone in listed or ()
    }


def _zone_list(found: Zones) -> list[Case]:
    return [
        {"name": zone, "type": zones.ZONE_TYPE, "resources": [_resource(*item) for item in own.items()]}
        for zone, own in found.items()
    ]


def _resource(name: str, own: ZoneResource) -> Case:
    return {
        "name": name,
        "capacity": own.capacity.text,
        "allocatable": own.allocatable.text,
        "available": own.available.text,
    }


def api_amplification(case: Case) -> Case:
    if case["op"] == "scalar":
        return {"amount": amplification.amplify(case["amount"], case["ratio"])}
    amounts = resource_list.of(case["resources"])
    amplified = amplification.amplify_list(amounts, case["ratios"], case.get("names") or ())
    return {"resources": resource_list.to_wire(amplified)}


def gates(case: Case) -> Case:
    if case["op"] == "state":
        of = feature_gates.FeatureGates.of(feature_gates.Component(case["component"]), case["flag"])
        return {"enabled": {name: of.is_on(name) for name in case["query"]}}
    slo = (case["nodeSLO"] or {}).get("spec") or {}
    enable = (slo.get("resourceUsedThresholdWithBE") or {}).get("enable")
    switch = feature_gates.node_switch(case["query"][0], enable)
    if switch is feature_gates.NodeSwitch.UNKNOWN:
        return {"error": True, "disabled": True}
    return {"disabled": switch is feature_gates.NodeSwitch.OFF}


def ordering(case: Case) -> Case:
    if case["op"] == "podsByIndex":
        return {"result": sorted((pod["name"] for pod in case["pods"]), key=_topology_order(case["pods"]))}
    details = msgspec.convert(case["details"], list[NodeFailedDetail])
    return {"result": [_all_members(detail) for detail in failed_details.sorted_details(details)]}


def _topology_order(pods: list[Case]) -> Any:
    index = labels.GANG_NETWORK_TOPOLOGY_INDEX
    annotations = {p["name"]: {} if p["index"] is None else {index: p["index"]} for p in pods}
    return lambda name: gang_labels.topology_order(name, annotations[name])


def _all_members(detail: NodeFailedDetail) -> Case:
    return {
        "failedPlugin": detail.failed_plugin,
        "reason": detail.reason,
        "preemptMightHelp": detail.preempt_might_help,
        "failedNodes": detail.failed_nodes,
    }


ADAPTERS = {
    "api-quantity": api_quantity,
    "api-cpuset-string": api_cpuset_string,
    "cpuset": cpusets,
    "api-resource-lists": resource_lists,
    "api-amplification": api_amplification,
    "api-feature-gates": gates,
    "api-ordering": ordering,
}
COMPARE = {"api-resource-lists": quantities, "api-amplification": quantities}
