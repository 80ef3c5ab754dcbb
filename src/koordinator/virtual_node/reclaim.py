"""Decide which borrowed pods leave so that online pods get their room back. Pure.

Source: behaviour/tidal 5; the order of behaviour/tidal 4, least lost work first.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from koordinator.api.resource_vector import I64
from koordinator.virtual_node import offer
from koordinator.virtual_node.offer import F64, LendingPolicy, Mask
from koordinator.virtual_node.table import LentPod


class Victim(msgspec.Struct, frozen=True):
    """A borrowed pod that has to go, and why, in words for its user."""

    pod: LentPod
    reason: str
    message: str


BUSY, NEEDED, WITHDRAWN = "NodeBusy", "OnlinePodPending", "NodeWithdrawn"


def lost_work(pod: LentPod, allocatable: I64, now_s: float) -> float:
    """Return what evicting a pod throws away: seconds × the larger share of its node's CPU and memory, allocatable
    (4,)."""
    shares = (pod.request / np.maximum(allocatable, 1))[: offer.MEMORY + 1]
    return float(max(now_s - pod.since_s, 0.0) * shares.max())


def in_order(pods: Iterable[LentPod], allocatable: I64, now_s: float) -> list[LentPod]:
    """Return the pods of nodes in the order in which they leave: the lowest class first, then who loses least, then by
    uid. allocatable: (nodes, 4)."""
    return sorted(
        pods, key=lambda one: (not one.is_free, lost_work(one, allocatable[one.row], now_s), one.uid)
    )


def busy(usage: F64, allocatable: I64, lent: I64, policy: LendingPolicy) -> list[int]:
    """Return the nodes whose own pods use so much CPU that borrowed ones leave.

    Shapes: usage (nodes,) in milli-cores, NaN where unknown; the others (nodes, 4).
    """
    limit = allocatable[:, offer.CPU] * policy.reclaim_usage_percent
    hot = (usage * 100 > limit) & lent.any(axis=1)
    return [int(row) for row in np.flatnonzero(hot)]


class Return(msgspec.Struct, frozen=True):
    """The node that an online pod gets, and who leaves it for that."""

    row: int
    victims: tuple[LentPod, ...]


def for_waiting(
    request: I64,
    allocatable: I64,
    others: I64,
    pods_of: Mapping[int, Sequence[LentPod]],
    lent: I64,
    allowed: Mask,
    may_run: Callable[[int], bool],
    now_s: float,
) -> Return | None:
    """Return where an online pod gets room, and who makes it; None where evicting helps nobody: the pod fits nowhere
    even then, or somewhere already and waits for another reason.

    Shapes: request (4,), allowed (nodes,), others (nodes, 4). `pods_of` has borrowed pods by row, `may_run` says
    whether the pod may be on a node at all.
    """
    open_room = allocatable - others
    possible = allowed & (open_room >= request).all(axis=1)
    fits_now = possible & (open_room - lent >= request).all(axis=1)
    if any(may_run(int(row)) for row in np.flatnonzero(fits_now)):
        return None
    best: tuple[float, Return] | None = None
    for row in map(int, np.flatnonzero(possible & lent.any(axis=1) & ~fits_now)):
        if not may_run(row):
            continue
        pods = in_order(pods_of[row], allocatable, now_s)
        victims = _enough(pods, request - (open_room[row] - lent[row]))
        cost = sum(lost_work(one, allocatable[row], now_s) for one in victims)
        if best is None or cost < best[0]:
            best = cost, Return(row, tuple(victims))
    return None if best is None else best[1]


def _enough(pods: Sequence[LentPod], missing: I64) -> list[LentPod]:
    """Return the first pods that free what is missing (4,), without those that turn out not to be needed."""
    chosen: list[LentPod] = []
    left = missing.copy()
    for pod in pods:
        if not (left > 0).any():
            break
        chosen.append(pod)
        left -= pod.request
    for pod in reversed(chosen[:-1]):
        if not (left + pod.request > 0).any():
            chosen.remove(pod)
            left += pod.request
    return chosen
