"""Batch resources per NUMA zone, on the NodeResourceTopology of a node (behaviour/manager 6.6)."""

from collections.abc import Mapping, Sequence

import msgspec

from koordinator.api import quantity, resources
from koordinator.api.node_topology import Zone, ZoneResource
from koordinator.manager.noderesource import batch
from koordinator.manager.noderesource.account import Amount, bounded

ZoneAmounts = Mapping[str, Mapping[str, int | None]]
"""Zone name -> resource -> whole units; None means that the zone must not have it."""


def tell_amounts(zones: Sequence[Zone]) -> bool:
    """Return whether any zone tells its cpu or memory; without, there is nothing to divide."""
    return any(row.name in (resources.CPU, resources.MEMORY) for zone in zones for row in zone.resources)


def zone_capacity(zone: Zone) -> Amount:
    """Allocatable cpu and memory in thousandths."""
    cpu = memory = 0
    for row in zone.resources:
        if row.name == resources.CPU:
            cpu = quantity.milli(row.allocatable)
        elif row.name == resources.MEMORY:
            memory = quantity.milli(row.allocatable)
    return bounded((cpu, memory))


def withdrawn(zones: Sequence[Zone]) -> dict[str, dict[str, int | None]]:
    """Return what removes the Batch resources of all zones that have some."""
    return {
        zone.name: dict.fromkeys(resources.BATCH_RESOURCES)
        for zone in zones
        if any(row.name in resources.BATCH_RESOURCES for row in zone.resources)
    }


def needs_write(zones: Sequence[Zone], wanted: ZoneAmounts, threshold: float) -> bool:
    """Return whether any amount of any zone differs by more than the threshold."""
    for zone in zones:
        amounts = wanted.get(zone.name)
        if not amounts:
            continue
        rows = {row.name: row for row in zone.resources if row.name in amounts}
        for name, want in amounts.items():
            row = rows.get(name)
            if (row is None) != (want is None):
                return True
            if row is None or want is None:
                continue
            for have in (row.capacity, row.allocatable, row.available):
                if batch.differs(quantity.value(have), want, threshold):
                    return True
    return False


def zones_target(zones: Sequence[Zone], wanted: ZoneAmounts, threshold: float) -> tuple[list[Zone], bool]:
    """Return the zones with their Batch resources, and whether any changed by more than the threshold.

    Zones that `wanted` lacks keep what they have.
    """
    updated, changed = [], False
    for zone in zones:
        amounts = dict(wanted.get(zone.name, {}))
        rows = []
        zone_changed = False
        for row in zone.resources:
            if row.name not in amounts:
                rows.append(row)
                continue
            want = amounts.pop(row.name)
            if want is None:
                zone_changed = True
                continue
            replaced = _zone_resource(row, want, threshold)
            zone_changed |= replaced is not row
            rows.append(replaced)
        for name, want in amounts.items():
            if want is not None:
                text = quantity.text_of_value(want)
                rows.append(ZoneResource(name=name, capacity=text, allocatable=text, available=text))
                zone_changed = True
        if zone_changed:
            changed = True
            rows.sort(key=lambda row: row.name)
            zone = msgspec.structs.replace(zone, resources=rows)
        updated.append(zone)
    return updated, changed


def _zone_resource(row: ZoneResource, want: int, threshold: float) -> ZoneResource:
    """Return the row with those of its three amounts replaced that differ enough; itself when none does."""
    text = quantity.text_of_value(want)
    changes = {
        field: text
        for field in ("capacity", "allocatable", "available")
        if batch.differs(quantity.value(getattr(row, field)), want, threshold)
    }
    return msgspec.structs.replace(row, **changes) if changes else row
