"""Decide which lent nodes return at once because services need them. Pure. Source: behaviour/tidal 4, item 3."""

import heapq
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.manager.tidal.nodes import PodDemand, Side, TidalNode, TidalPhase, total
from koordinator.manager.tidal.plan import OVERLOAD_PERCENT, PhaseStep, free_room

Mask = npt.NDArray[np.bool_]

PENDING_S = 30.0
"""An online pod that found no node for so long is an emergency."""
PENDING_MAX = 500
"""Number of the pods that are looked at in a pass: those that wait longest."""
MEMBERS_PERCENT = 20
"""Largest part of the members that returns per pass; at least one node."""
HOLD_S = 1800.0
"""After an emergency nothing is lent for this long, or for the cool-down if that is longer."""


class PendingPod(PodDemand, frozen=True, kw_only=True):
    """An online pod that the scheduler found no node for since `since_s`; `admits` tells whether it may use a node,
    by its selectors and tolerations."""

    key: str
    since_s: float
    admits: Callable[[str], bool]


class EmergencyReturn(msgspec.Struct, frozen=True):
    """Nodes that return now, and for whom."""

    steps: tuple[PhaseStep, ...]
    reason: str


def emergency(
    nodes: Sequence[TidalNode],
    reserved: Mapping[str, Side],
    pending: Sequence[PendingPod],
    load_percent: float | None,
    now_s: float,
) -> EmergencyReturn | None:
    """Return the nodes that must return although no rule of time says so; None when none need.

    A pod that fits a node which is online already does not wait for room: more nodes would not help it.
    """
    waiting = heapq.nsmallest(
        PENDING_MAX,
        (pod for pod in pending if now_s - pod.since_s > PENDING_S),
        key=lambda pod: (pod.since_s, pod.key),
    )
    is_overloaded = load_percent is None or load_percent > OVERLOAD_PERCENT
    if not waiting and not is_overloaded:
        return None
    lent = sorted(
        (node for node in nodes if node.is_lent and node.name not in reserved),
        key=lambda node: (
            node.phase is TidalPhase.BATCH,
            total(node.batch_pods).share_of(node.allocatable),
            node.lost_core_s(now_s),
            node.name,
        ),
    )
    most = max(len(nodes) * MEMBERS_PERCENT // 100, 1)
    chosen, served = _for_pods(nodes, lent, waiting)
    reason = f"online pod {served} waits for room" if served else ""
    if is_overloaded:
        needed = _for_load(nodes, lent, chosen)
        if needed > len(chosen):
            reason = reason or f"the online load is above {OVERLOAD_PERCENT:g} %"
            chosen += [node for node in lent if node not in chosen][: needed - len(chosen)]
    steps = tuple(_step(node, reason) for node in chosen[:most])
    return EmergencyReturn(steps, reason) if steps else None


def _step(node: TidalNode, reason: str) -> PhaseStep:
    to = TidalPhase.ONLINE if node.phase is TidalPhase.TO_BATCH else TidalPhase.TO_ONLINE
    return PhaseStep(node.name, to, f"emergency: {reason}")


def _for_pods(
    nodes: Sequence[TidalNode], lent: Sequence[TidalNode], waiting: Sequence[PendingPod]
) -> tuple[list[TidalNode], str]:
    """Return the nodes that pods need once they are empty, and the first such pod. Nodes that return already count."""
    online = _Rooms([node for node in nodes if node.phase is TidalPhase.ONLINE])
    returning = [node for node in nodes if node.phase is TidalPhase.TO_ONLINE]
    rooms = _Rooms([*returning, *lent])
    is_used: Mask = np.arange(len(rooms.nodes)) < len(returning)
    served = ""
    for pod in sorted(waiting, key=lambda pod: (-pod.cpu_milli, -pod.memory_bytes, pod.key)):
        if online.first(pod) is not None:
            continue
        row = rooms.first(pod, is_used)
        if row is None and (row := rooms.first(pod)) is not None:
            is_used[row] = True
            served = served or pod.key
        if row is not None:
            rooms.take(row, pod)
    return [rooms.nodes[row] for row in np.flatnonzero(is_used).tolist() if row >= len(returning)], served


class _Rooms:
    """Free room for online pods; one row per node."""

    def __init__(self, nodes: Sequence[TidalNode]) -> None:
        self.nodes = nodes
        self._free = free_room(nodes)

    def first(self, pod: PendingPod, among: Mask | None = None) -> int | None:
        """Return the first row that has room for a pod and admits it."""
        fits = (self._free[:, 0] >= pod.cpu_milli) & (self._free[:, 1] >= pod.memory_bytes)
        rows = np.flatnonzero(fits if among is None else fits & among).tolist()
        return next((row for row in rows if pod.admits(self.nodes[row].name)), None)

    def take(self, row: int, pod: PendingPod) -> None:
        """Count a pod on a node."""
        self._free[row] -= (pod.cpu_milli, pod.memory_bytes)


def _for_load(nodes: Sequence[TidalNode], lent: Sequence[TidalNode], chosen: Sequence[TidalNode]) -> int:
    """Return how many lent nodes must return until the load is bearable, the chosen ones first."""
    requested = total(node.requested for node in nodes)
    there = [node.allocatable for node in nodes if not node.is_lent]
    count = 0
    for node in (*chosen, *(node for node in lent if node not in chosen)):
        if 100.0 * requested.share_of(total(there)) <= OVERLOAD_PERCENT:
            break
        there.append(node.allocatable)
        count += 1
    return count
