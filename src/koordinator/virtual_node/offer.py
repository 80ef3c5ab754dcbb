"""Decide which nodes of the lender are idle, what they offer, and where a borrowed pod goes. Pure, over arrays of
nodes. Source: behaviour/tidal 5.

Columns of amounts are `RESOURCES`, in the units of `api.resource_vector`: milli-cores, bytes, bytes, pods.
"""

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import resources
from koordinator.api.quantity import RawQuantity, ResourceList
from koordinator.api.resource_vector import I64, amount, amount_text

F64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

RESOURCES = (resources.CPU, resources.MEMORY, resources.EPHEMERAL_STORAGE, resources.PODS)
CPU, MEMORY, STORAGE, PODS = range(len(RESOURCES))
NOWHERE = -1
_MIB = 1 << 20
_PERCENTILE = 0.95


class LendingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds at which a node of the lender is idle, and at which it is taken back. Percentages are
    of the node's allocatable."""

    idle_for_s: float = 600.0
    """Time that a node has to be idle before it is offered; also the window of the percentile of its usage."""
    idle_request_percent: int = 10
    """Online pods of an idle node request less CPU than this."""
    idle_usage_percent: int = 15
    """The 95th percentile of the CPU that others than borrowed pods use stays below this on an idle node."""
    reclaim_usage_percent: int = 50
    """Above this, borrowed pods leave the node at once."""
    safety_percent: int = 10
    """The part of a node that is never offered."""
    report_s_max: float = 300.0
    """A node without a report for longer is not offered: nobody knows how busy it is."""


def vector(amounts: Mapping[str, RawQuantity]) -> I64:
    """Return the amounts of RESOURCES as an array (4,). Raises: QuantityError."""
    return np.array([amount(name, amounts.get(name, 0)) for name in RESOURCES], np.int64)


def unknown_resources(amounts: Mapping[str, RawQuantity]) -> list[str]:
    """Return the resources among the requests that no virtual node has. Raises: QuantityError."""
    return sorted(name for name, raw in amounts.items() if name not in RESOURCES and amount(name, raw) > 0)


def wire(amounts: I64) -> ResourceList:
    """Return amounts (4,) as a Node says them."""
    return {name: amount_text(name, int(number)) for name, number in zip(RESOURCES, amounts, strict=True)}


def percentile(samples: F64) -> F64:
    """Return the 95th percentile of each row, by nearest rank: samples (nodes, reports), NaN where there is none;
    returns (nodes,), NaN for rows without a sample."""
    ordered = np.sort(samples, axis=1)  # NaN goes last
    counts = np.count_nonzero(~np.isnan(samples), axis=1)
    ranks = np.maximum(np.ceil(counts * _PERCENTILE).astype(np.int64) - 1, 0)
    found: F64 = np.take_along_axis(ordered, ranks[:, None], axis=1)[:, 0]
    return found


def is_quiet(usable: Mask, allocatable: I64, online_milli: I64, usage: F64, policy: LendingPolicy) -> Mask:
    """Return which nodes do next to nothing now.

    Shapes: allocatable (nodes, 4); all others and the result (nodes,). Units: milli-cores. Unknown usage (NaN) is
    not quiet.
    """
    cpu = allocatable[:, CPU]
    few_requests = online_milli * 100 < cpu * policy.idle_request_percent
    little_used = usage * 100 < cpu * policy.idle_usage_percent
    return usable & few_requests & little_used


def free(allocatable: I64, others: I64, policy: LendingPolicy) -> I64:
    """Return what is left for borrowed pods where nodes are idle: allocatable less what all others request and
    less the safety margin, never below zero.

    Shapes: all (nodes, 4). Bytes are whole MiB; the margin does not apply to the number of pods.
    """
    margin = -(-allocatable * policy.safety_percent // 100)
    margin[:, PODS] = 0
    left: I64 = np.maximum(allocatable - others - margin, 0)
    left[:, [MEMORY, STORAGE]] &= -_MIB  # people read these figures
    return left


def room(idle: Mask, free: I64, lent: I64) -> I64:
    """Return what can still be lent on each node: idle (nodes,), the others and the result (nodes, 4)."""
    left: I64 = np.maximum(free - lent, 0) * idle[:, None]
    return left


def place(request: I64, room: I64, allowed: Mask) -> int:
    """Return the node for a borrowed pod, `NOWHERE` when none has room: request (4,), room (nodes, 4), allowed
    (nodes,).

    The fullest node that fits, so that large holes stay whole; the first of equals.
    """
    fits = allowed & (room >= request).all(axis=1) & (room[:, PODS] > 0)
    rows = np.flatnonzero(fits)
    if not rows.size:
        return NOWHERE
    largest = np.maximum(room.max(axis=0), 1)
    left = ((room[rows] - request) / largest)[:, : MEMORY + 1].max(axis=1)
    return int(rows[left.argmin()])


def largest_hole(room: I64) -> int:
    """Return the node with the most room, `NOWHERE` when none has any: room (nodes, 4), by the scarcer of its CPU and
    memory as parts of the most that any node has."""
    if not room.shape[0]:
        return NOWHERE
    most = np.maximum(room.max(axis=0), 1)
    shares = (room / most)[:, : MEMORY + 1].min(axis=1)
    best = int(shares.argmax())
    return best if room[best, : MEMORY + 1].all() else NOWHERE


def offered(room: I64, lent: I64) -> I64:
    """Return what the virtual node has in all (4,): room (nodes, 4) and what it lends already, lent (nodes, 4).

    What is lent counts wherever it is: the borrower's scheduler takes it off again, and what is left is the room.
    """
    total: I64 = room.sum(axis=0) + lent.sum(axis=0)
    return total
