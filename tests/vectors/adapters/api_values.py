"""Areas of plain values: quantities, resource lists, cpusets, amplification, gates, orders."""

from typing import Any

import msgspec

from koordinator.api import (
    cpuset,
    feature_gates,
    gang_labels,
    labels,
    node_labels,
    quantity,
    resource_list,
    resource_vector,
    schedule_explanation,
)
from koordinator.api.node_topology import NodeResourceTopology, Zone
from koordinator.api.quantity import Quantity
from koordinator.api.resource_list import Amounts
from koordinator.api.resource_vector import amount_text
from koordinator.api.schedule_explanation import NodeFailedDetail
from koordinator.koordlet.report import topology
from koordinator.manager.noderesource import batch
from koordinator.scheduler.plugins.node_numa_resource import cpu_topology, topology_options
from koordinator.scheduler.plugins.reservation import matching
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
            return {
                "result": resource_list.multiply_units(quantity.of(case["quantity"]), case["factor"]).text
            }
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
            old, new = (each[name].milli if (name := case["resource"]) in each else None for each in (a, b))
            return {"result": batch.differs(old, new, case["threshold"])}
        case "leqCompletely":
            return {"result": resource_list.fits_completely(a, b)}
        case "exactMatch":
            return {"result": matching.is_exact_match(case["names"] or (), a, b)}
    raise ValueError(case["op"])


def _zone_result(case: Case) -> Any:
    a, b = case["a"], case.get("b")
    match case["op"]:
        case "zonesToMap":
            found = topology_options.options_of(NodeResourceTopology(zones=_zones(a))).zones
            return {f"node-{numa}": {n: amount_text(n, own[n]) for n in own} for numa, own in found.items()}
        case "mapToZones":
            return _named({name: (resource_list.of(amounts),) * 2 for name, amounts in a.items()})
        case "capAllocToZones":
            return _named({name: _capacity(own) for name, own in a.items()})
        case "mergeZones":
            both = [*_zones(b), *(_empty(zone) for zone in _zones(a) if zone.name not in _names(b))]
            merged = topology.merge_zones(_zones(a), both)
            return msgspec.to_builtins(sorted(merged, key=lambda zone: zone.name))
    kept = [_empty(zone) for zone in _zones(a) if zone.name in _names(b)]
    return msgspec.to_builtins(topology.merge_zones(_zones(a), kept))


def _named(zones: dict[str, tuple[Amounts, Amounts]]) -> Any:
    """Zones with capacity and allocatable, by their names, which need not count from 0."""
    names = sorted(zones)
    found = topology.zones_of([zones[name][0] for name in names], [zones[name][1] for name in names])
    return [{**msgspec.to_builtins(zone), "name": name} for name, zone in zip(names, found, strict=True)]


def _capacity(own: Case) -> tuple[Amounts, Amounts]:
    """What a zone has, and what is left of it where less is allocatable."""
    allocatable = resource_list.of(own.get("allocatable") or {})
    capacity = {**allocatable, **resource_list.of(own.get("capacity") or {})}
    kept = topology.reserved_of(resource_list.mask(capacity, allocatable), allocatable)
    (left,) = topology.less_reserved([capacity], kept)
    return capacity, left


def _zones(listed: list[Case] | None) -> list[Zone]:
    return msgspec.convert(listed or [], list[Zone])


def _names(listed: list[Case] | None) -> set[str]:
    return {zone["name"] for zone in listed or ()}


def _empty(zone: Zone) -> Zone:
    return msgspec.structs.replace(zone, resources=[])


def api_amplification(case: Case) -> Case:
    if case["op"] == "scalar":
        return {"amount": node_labels.amplify(case["amount"], case["ratio"])}
    ratios = {name: ratio for name, ratio in case["ratios"].items() if name in (case.get("names") or [name])}
    amplified = cpu_topology.amplified(resource_vector.integers(case["resources"]), ratios)
    return {"resources": {name: amount_text(name, number) for name, number in amplified.items()}}


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
    return {"result": [_all_members(detail) for detail in schedule_explanation.sorted_details(details)]}


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
