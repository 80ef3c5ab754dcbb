"""Zones of a NodeResourceTopology, and whether it must be written. Source: behaviour/koordlet-observe 9.7 and 9.8."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api import labels, node_reservation, quantity, resources
from koordinator.api.node_topology import NodeResourceTopology, Zone, ZoneResource
from koordinator.api.quantity import ZERO, Family, Quantity, QuantityError
from koordinator.api.resource_list import Amounts
from koordinator.host.procfs import KIB

ZONE_TYPE = "Node"
HUGE_PAGE_NAMES = {1_048_576: "hugepages-1Gi", 2_048: "hugepages-2Mi"}
"""Resource of each size of huge page in KiB."""

COMPARED_ANNOTATIONS = (
    labels.NODE_CPU_BASIC_INFO,
    labels.NODE_CPU_TOPOLOGY,
    labels.NODE_CPU_SHARED_POOLS,
    labels.NODE_BE_CPU_SHARED_POOLS,
    labels.KUBELET_CPU_MANAGER_POLICY,
    labels.NODE_POD_CPU_ALLOCS,
    labels.NODE_RESERVATION,
    labels.NODE_SYSTEM_QOS_RESOURCE,
)
_COMPARED_RESOURCES = (resources.CPU, resources.MEMORY, "koordinator.sh/gpu", *HUGE_PAGE_NAMES.values())
_NANO_PER_MILLI = quantity.NANO // 1000


class NUMANode(msgspec.Struct, frozen=True):
    """A NUMA node: CPUs, memory in KiB, number of huge pages by size in KiB."""

    cpu_count: int
    memory_kib: int
    huge_pages: dict[int, int] = {}


def zone_amounts(nodes: Sequence[NUMANode], *, reports_huge_pages: bool) -> list[Amounts]:
    """Return what each NUMA node has; memory less its huge pages, which count 0 unless they are reported."""
    found = []
    for node in nodes:
        pages = node.huge_pages if reports_huge_pages else {}
        huge = {name: pages.get(kib, 0) * kib * KIB for kib, name in HUGE_PAGE_NAMES.items()}
        memory = node.memory_kib * KIB - sum(huge.values())
        amounts = {resources.CPU: Quantity.of_value(node.cpu_count)}
        amounts[resources.MEMORY] = Quantity.of_value(memory, Family.BINARY)
        amounts |= {name: Quantity.of_value(each, Family.BINARY) for name, each in huge.items()}
        found.append(amounts)
    return found


def reserved_of(capacity: Amounts, allocatable: Amounts) -> Amounts:
    """Return what the kubelet keeps of cpu and memory, where it keeps something; a missing amount tells nothing."""
    kept = node_reservation.kubelet_reserved(capacity, allocatable)
    return {name: amount for name, amount in kept.items() if amount > ZERO and name in allocatable}


def less_reserved(zones: Sequence[Amounts], reserved: Amounts) -> list[Amounts]:
    """Return what pods may request of each zone: an equal part of what the kubelet keeps is taken from each."""
    shares = {name: _part(amount, len(zones)) for name, amount in reserved.items()}
    return [
        {
            name: max(amount - shares[name], ZERO) if name in shares else amount
            for name, amount in zone.items()
        }
        for zone in zones
    ]


def zones_of(capacity: Sequence[Amounts], allocatable: Sequence[Amounts]) -> list[Zone]:
    """Return zones `node-0`, `node-1`, `node-10`, …: by name, as their other writers order them, and so resources."""
    zones = [
        Zone(
            name=f"node-{index}",
            type=ZONE_TYPE,
            resources=[
                ZoneResource(
                    name=name,
                    capacity=have[name].text,
                    allocatable=offered[name].text,
                    available=offered[name].text,
                )
                for name in sorted(have)
            ],
        )
        for index, (have, offered) in enumerate(zip(capacity, allocatable, strict=True))
    ]
    return sorted(zones, key=lambda zone: zone.name)


def merge_zones(old: Sequence[Zone], new: Sequence[Zone]) -> list[Zone]:
    """Return the new zones with what others wrote into the old ones; ours wins.

    Capacity and allocatable stay apart (the reference writes one amount into both), and so do costs and attributes.
    """
    old_by_name = {zone.name: zone for zone in old}
    merged = []
    for zone in new:
        ours = {resource.name for resource in zone.resources}
        before = old_by_name.get(zone.name)
        foreign = [each for each in before.resources if each.name not in ours] if before else []
        together = sorted([*zone.resources, *foreign], key=lambda resource: resource.name)
        merged.append(msgspec.structs.replace(before or zone, type=zone.type, resources=together))
    return merged


def patch_of(old: NodeResourceTopology, new: NodeResourceTopology) -> dict[str, Any] | None:
    """Return the merge patch that brings our parts of the stored object up to date; None when they are.

    An annotation or list of policies that `new` does not have is not known now and stays as it is; zones likewise.
    """
    meta: dict[str, Any] = {}
    annotations = {
        key: new.metadata.annotations[key]
        for key in COMPARED_ANNOTATIONS
        if key in new.metadata.annotations
        and _json(old.metadata.annotations.get(key)) != _json(new.metadata.annotations[key])
    }
    if annotations:
        meta["annotations"] = annotations
    label = labels.NODE_ENABLE_NUMA_RESERVATION
    if old.metadata.labels.get(label, "") != new.metadata.labels.get(label, ""):
        meta["labels"] = {label: new.metadata.labels.get(label)}
    patch: dict[str, Any] = {"metadata": meta} if meta else {}
    if new.topology_policies and new.topology_policies != old.topology_policies:
        patch["topologyPolicies"] = new.topology_policies
    if new.zones:
        zones = merge_zones(old.zones, new.zones)
        if _amounts(zones) != _amounts(old.zones):
            patch["zones"] = msgspec.to_builtins(zones)
    return patch or None


def is_changed(old: NodeResourceTopology | None, new: NodeResourceTopology) -> bool:
    """Return whether the stored object must be written; what others put there does not matter."""
    if old is None or not old.metadata.annotations:
        return True
    if list(old.topology_policies) != list(new.topology_policies):
        return True
    before, after = old.metadata.annotations, new.metadata.annotations
    if any(_json(before.get(key)) != _json(after.get(key)) for key in COMPARED_ANNOTATIONS):
        return True
    label = labels.NODE_ENABLE_NUMA_RESERVATION
    if old.metadata.labels.get(label, "") != new.metadata.labels.get(label, ""):
        return True
    return _shape(old.zones) != _shape(new.zones)


_ABSENT = object()


def _json(text: str | None) -> Any:
    """Return an annotation by value: texts that mean the same are equal; absent differs from all."""
    if text is None:
        return _ABSENT
    try:
        return json.loads(text)
    except ValueError:
        return text


def _shape(zones: Sequence[Zone]) -> list[tuple[str, str, Mapping[str, Quantity]]]:
    """Return what is compared of zones: names, types, amounts of the resources that we report."""
    return [
        (
            zone.name,
            zone.type,
            {
                each.name: quantity.of(each.allocatable)
                for each in zone.resources
                if each.name in _COMPARED_RESOURCES
            },
        )
        for zone in zones
    ]


_Said = Quantity | str


def _amounts(zones: Sequence[Zone]) -> list[tuple[str, str, dict[str, tuple[_Said, _Said]]]]:
    """Zones by name and type, with capacity and allocatable. Available amounts are left out: they change with pods."""
    return [
        (
            zone.name,
            zone.type,
            {each.name: (_amount(each.capacity), _amount(each.allocatable)) for each in zone.resources},
        )
        for zone in zones
    ]


def _amount(raw: quantity.RawQuantity) -> _Said:
    """Return an amount by value; what others wrote wrongly, by its text."""
    try:
        return quantity.of(raw)
    except QuantityError:
        return str(raw)


def _part(amount: Quantity, parts: int) -> Quantity:
    """Return an equal part, rounded up to thousandths."""
    milli = -(-amount.nanos // (_NANO_PER_MILLI * parts))
    return Quantity.of_milli(milli, amount.family)
