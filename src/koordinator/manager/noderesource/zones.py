"""Batch resources per NUMA zone, on the NodeResourceTopology of a node (spec 02 §6.6)."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from koordinator.api import quantity, resources
from koordinator.api.node_topology import Zone, ZoneResource
from koordinator.manager.noderesource import batch, prepare
from koordinator.manager.noderesource.account import Amount


def zone_amounts(
    zones: Sequence[Zone],
    reserved: Amount,
    system_usage: Amount,
    pods: Sequence[batch.PodDemand],
    dangling: Sequence[Amount],
    policy: batch.ReclaimPolicy,
) -> dict[str, dict[str, int]]:
    """Zone name -> Batch resource -> thousandths; {} when no zone tells its cpu or memory.

    What belongs to the node as a whole (system, reservation, unbound pods) is spread evenly.
    """
    if not any(row.name in (resources.CPU, resources.MEMORY) for zone in zones for row in zone.resources):
        return {}
    count = len(zones)
    capacity = np.array([_capacity(zone) for zone in zones], np.int64)
    demand = batch.sum_zone_demand(pods, dangling, count)
    inputs = batch.BatchInputs(
        capacity=capacity,
        reserved=np.tile(batch.divide(np.array(reserved, np.int64), count), (count, 1)),
        system_usage=np.tile(batch.divide(np.array(system_usage, np.int64), count), (count, 1)),
        hp_request=demand.request,
        hp_used=demand.used,
        hp_max=demand.maximum,
    )
    rows = batch.batch_allocatable(inputs, policy).tolist()
    return {
        zone.name: {
            resources.BATCH_CPU: row[batch.CPU] * batch.MILLI,
            resources.BATCH_MEMORY: row[batch.MEMORY],
        }
        for zone, row in zip(zones, rows, strict=True)
    }


def _capacity(zone: Zone) -> Amount:
    amounts = {row.name: quantity.milli(row.allocatable) for row in zone.resources}
    return amounts.get(resources.CPU, 0), amounts.get(resources.MEMORY, 0)


def zones_target(
    zones: Sequence[Zone], calculated: Mapping[str, Mapping[str, int]], threshold: float, ratio: float = 0.0
) -> tuple[list[Zone], bool]:
    """The zones with their Batch resources, and whether any changed by more than the threshold.

    `calculated` is zone name -> resource -> thousandths; zones that it lacks keep what they have.
    """
    updated, changed = [], False
    for zone in zones:
        wanted = {
            name: prepare.whole_amount(name, amount, ratio)
            for name, amount in calculated.get(zone.name, {}).items()
        }
        rows = []
        zone_changed = False
        for row in zone.resources:
            want = wanted.pop(row.name, None)
            replaced = row if want is None else _zone_resource(row, want, threshold)
            zone_changed |= replaced is not row
            rows.append(replaced)
        for name, want in wanted.items():
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
    """The row with those of its three amounts replaced that differ enough; itself when none does."""
    text = quantity.text_of_value(want)
    changes = {
        field: text
        for field in ("capacity", "allocatable", "available")
        if batch.differs(quantity.value(getattr(row, field)), want, threshold)
    }
    return msgspec.structs.replace(row, **changes) if changes else row
