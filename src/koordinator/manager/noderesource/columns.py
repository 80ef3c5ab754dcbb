"""Nodes and their pods as columns: the facts of whole clusters, summed as `account.node_demand` sums those of one node.

Amounts are (cpu, memory) in thousandths, measured CPU in billionths of a core, as everywhere in this room.
"""

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.manager.noderesource import batch
from koordinator.manager.noderesource.account import NANO_PER_MILLI
from koordinator.manager.noderesource.batch import (
    AMOUNT_MAX,
    CPU,
    I64,
    BatchInputs,
    BatchTerms,
    ReclaimColumns,
)

Mask = npt.NDArray[np.bool_]

_MEASURED = np.array([NANO_PER_MILLI, 1], np.int64)
"""Factors that turn requests into the unit of measurements."""


class NodeColumns(msgspec.Struct, frozen=True, eq=False):
    """The facts of nodes, each (nodes, 2); `system` is measured."""

    capacity: I64
    reserved: I64
    system: I64


class PodColumns(msgspec.Struct, frozen=True, eq=False):
    """The facts of high-priority pods: `node` is a row, (pods,); `request` is (pods, 2); `is_exclusive` (LSE) and
    `is_reported` are (pods,)."""

    node: I64
    request: I64
    is_exclusive: Mask
    is_reported: Mask


class DemandColumns(msgspec.Struct, frozen=True, eq=False):
    """The sums of each node, (nodes, 2) each: `used` and `maximum` are measured."""

    request: I64
    used: I64
    maximum: I64


def node_sums(node: I64, amounts: I64, nodes: int) -> I64:
    """Return exact sums of `amounts` (pods, 2) on each node, (nodes, 2)."""
    sums = np.zeros((2, nodes), np.int64)
    for total, column in zip(sums, amounts.T, strict=True):
        np.add.at(total, node, np.ascontiguousarray(column))
    return np.ascontiguousarray(sums.T)


def requested(pods: PodColumns, nodes: int) -> I64:
    """Return what pods request on each node, (nodes, 2): it changes only with the pods."""
    return _bounded(node_sums(pods.node, pods.request, nodes))


def demand(pods: PodColumns, usage: I64, request: I64) -> DemandColumns:
    """Return what `account.node_demand` says of each node; `usage` (pods, 2) is measured, `request` is `requested`."""
    nodes = len(request)
    asked = pods.request * _MEASURED
    seen = np.where(pods.is_reported[:, np.newaxis], usage, asked)
    used = seen.copy()
    used[pods.is_exclusive, CPU] = asked[pods.is_exclusive, CPU]
    maximum = np.maximum(asked, seen)
    return DemandColumns(
        request,
        _bounded(node_sums(pods.node, used, nodes)),
        _bounded(node_sums(pods.node, maximum, nodes)),
    )


def batch_inputs(nodes: NodeColumns, sums: DemandColumns) -> BatchInputs:
    """Return the rows of the Batch formula, as `decide.batch_terms` makes them of objects."""
    held = np.maximum(nodes.system, nodes.reserved * _MEASURED)
    taken, at_most = ((held + part) // _MEASURED for part in (sums.used, sums.maximum))
    return BatchInputs(nodes.capacity, nodes.reserved, sums.request, taken, at_most)


def batch_terms(nodes: NodeColumns, sums: DemandColumns, policy: ReclaimColumns) -> BatchTerms:
    """Return how the Batch amounts of each node come about."""
    return batch.batch_terms(batch_inputs(nodes, sums), policy)


def _bounded(amounts: I64) -> I64:
    return np.clip(amounts, -AMOUNT_MAX, AMOUNT_MAX)
