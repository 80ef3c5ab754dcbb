"""NUMA zones of a NodeResourceTopology: their names, and lists of them as amounts per zone.

Source: behaviour/api 5.6.
"""

from collections.abc import Mapping

import msgspec

from koordinator.api.quantity import Quantity
from koordinator.api.resource_list import Amounts

ZONE_TYPE = "Node"
_PREFIX = "node-"


class ZoneResource(msgspec.Struct, frozen=True):
    """One resource of a zone."""

    capacity: Quantity
    allocatable: Quantity
    available: Quantity


Zones = dict[str, dict[str, ZoneResource]]
"""Zone name → resource name → amounts, both in order of their names."""


def zone_name(numa_node: int) -> str:
    """`node-<id>`."""
    return f"{_PREFIX}{numa_node}"


def numa_node_of(name: str) -> int | None:
    """The NUMA node of a zone's name, None for any other name."""
    text = name.removeprefix(_PREFIX)
    return int(text) if text != name and text.isascii() and text.isdigit() else None


def allocatable(zones: Zones) -> dict[str, Amounts]:
    """Allocatable amounts of each zone."""
    return {
        zone: {name: resource.allocatable for name, resource in of_zone.items()}
        for zone, of_zone in zones.items()
    }


def of_amounts(amounts: Mapping[str, Amounts]) -> Zones:
    """Zones whose capacity, allocatable and available are all the given amounts."""
    return of_capacity({zone: (own, own) for zone, own in amounts.items()})


def of_capacity(amounts: Mapping[str, tuple[Amounts, Amounts]]) -> Zones:
    """Zones from (capacity, allocatable): the one that is missing is filled from the other.

    What is allocatable is available.
    """
    zones: Zones = {}
    for zone in sorted(amounts):
        capacity, of_zone = amounts[zone]
        zones[zone] = {}
        for name in sorted(capacity.keys() | of_zone.keys()):
            usable = of_zone[name] if name in of_zone else capacity[name]
            zones[zone][name] = ZoneResource(capacity.get(name, usable), usable, usable)
    return zones


def merge(a: Zones, b: Zones) -> Zones:
    """Both together; where both have a resource of a zone, that of `b`."""
    merged = {zone: {**a.get(zone, {}), **b.get(zone, {})} for zone in a.keys() | b.keys()}
    return {zone: dict(sorted(merged[zone].items())) for zone in sorted(merged)}


def trim(a: Zones, b: Zones) -> Zones:
    """The zones of `a` that `b` has, too."""
    return {zone: of_zone for zone, of_zone in a.items() if zone in b}
