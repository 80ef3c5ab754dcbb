"""Decide which nodes of a tidal pool change sides now. Pure. Source: behaviour/tidal 4.

A step only starts a change: `to-batch` and `to-online` nodes are emptied by others (`drain`), and arrive when they are
empty.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.manager.tidal.nodes import PodDemand, Side, TidalNode, TidalPhase, total
from koordinator.manager.tidal.target import Reserves

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

CANDIDATES_MAX = 64
"""Nodes that are tried in one pass beyond those that are wanted: the next pass tries again."""
NEXT_MAX = 64
"""Nodes that are next in line at a time: their pods are marked for scale-in."""
OVERLOAD_PERCENT = 90.0
"""Online load that nodes return for at once; no node is lent if that would bring the load there."""


class PhaseStep(msgspec.Struct, frozen=True):
    """A node's next phase, and why."""

    node: str
    to: TidalPhase
    reason: str


class TidalPlan(msgspec.Struct, frozen=True):
    """The changes to start now; `blocked` says why a node that should be lent is not; `next_nodes` are those that
    would be lent next, the cheapest first."""

    steps: tuple[PhaseStep, ...] = ()
    blocked: dict[str, str] = {}
    next_nodes: tuple[str, ...] = ()


class StepRules(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one pass: at most `in_flight_max` nodes change at a time, none before `cooldown_s` in its phase.

    `load_max_percent`: what the online load may be after lending; `hindrance`: why a node cannot be emptied at
    all, empty when nothing is known; `may_lend`: whether nodes may be lent now.
    """

    in_flight_max: int
    cooldown_s: float = 0.0
    load_max_percent: float = OVERLOAD_PERCENT
    may_lend: bool = True
    hindrance: Callable[[TidalNode], str] = lambda _: ""


def assign_reserves(nodes: Sequence[TidalNode], sides: Reserves) -> dict[str, Side]:
    """Return which nodes are reserved: present ones stay as long as the counts fit, new ones come from their side by
    name."""
    reserved: dict[str, Side] = {}
    for side, count in ((Side.ONLINE, sides.online), (Side.BATCH, sides.batch)):
        if not count:
            continue
        left = [node for node in nodes if node.name not in reserved]
        left.sort(key=lambda n: (_rank(n.reserve, side), n.is_lent is not (side is Side.BATCH), n.name))
        reserved.update((node.name, side) for node in left[:count])
    return reserved


def _rank(label: Side | None, side: Side) -> int:
    """Own ones first, those of the other side last."""
    if label is None:
        return 1
    return 0 if label is side else 2


def online_percent(nodes: Iterable[TidalNode], without: str = "") -> float | None:
    """Return what online pods request of the online side, the larger of cpu and memory; as if one node were lent.

    None when nothing would be left of that side although something is requested.
    """
    requested, capacity = [], []
    for node in nodes:
        requested.append(node.requested)
        if not node.is_lent and node.name != without:
            capacity.append(node.allocatable)
    wanted, there = total(requested), total(capacity)
    if wanted.cpu_milli > 0 and there.cpu_milli == 0:
        return None
    return 100.0 * wanted.share_of(there)


def cheapest(nodes: Iterable[TidalNode], reserved: dict[str, Side]) -> TidalNode | None:
    """Return the tidal node that would be lent next, if all could be emptied."""
    online = (node for node in nodes if node.phase is TidalPhase.ONLINE and node.name not in reserved)
    return min(online, key=_cost, default=None)


def plan(
    nodes: Sequence[TidalNode], reserved: dict[str, Side], target: int, rules: StepRules, now_s: float
) -> TidalPlan:
    """Steps towards `target` lent nodes besides the batch reserve, and of reserved nodes to their side."""
    room = rules.in_flight_max - sum(node.is_moving for node in nodes)
    ready = [node for node in nodes if now_s - node.since_s >= rules.cooldown_s]
    tidal = [node for node in nodes if node.name not in reserved]
    lent = sum(node.is_lent for node in tidal)
    steps = _home(nodes, ready, reserved, room)
    room -= sum(1 if step.to is TidalPhase.TO_ONLINE else -1 for step in steps)
    if lent > target:
        ready_tidal = [node for node in ready if node.name not in reserved]
        return TidalPlan((*steps, *_returns(tidal, ready_tidal, lent - target, room, now_s)))
    missing = sum(node.phase is TidalPhase.ONLINE and reserved.get(node.name) is Side.BATCH for node in nodes)
    wanted = target - lent + missing
    if not wanted or not rules.may_lend:
        return TidalPlan(tuple(steps))
    found = _lends(nodes, ready, reserved, wanted, room, rules, now_s)
    return TidalPlan((*steps, *found.steps), found.blocked, found.next_nodes)


def _home(
    nodes: Sequence[TidalNode], ready: Sequence[TidalNode], reserved: dict[str, Side], room: int
) -> list[PhaseStep]:
    """Return nodes that have become an online reserve."""
    away = [node for node in nodes if reserved.get(node.name) is Side.ONLINE and node.is_lent]
    return _returns(away, [node for node in ready if node in away], len(away), room, 0.0) if away else []


def _returns(
    lent: Sequence[TidalNode], ready: Sequence[TidalNode], wanted: int, room: int, now_s: float
) -> list[PhaseStep]:
    """Reversals first, they cost nothing and take no room; then batch nodes with the least work to lose."""
    reversed_ = sorted(
        (node for node in lent if node.phase is TidalPhase.TO_BATCH), key=lambda node: node.name
    )
    steps = [
        PhaseStep(node.name, TidalPhase.ONLINE, "not to be lent after all") for node in reversed_[:wanted]
    ]
    ranked = sorted(
        ((node.lost_core_s(now_s), node.name) for node in ready if node.phase is TidalPhase.BATCH),
    )
    more = max(min(wanted - len(steps), room + len(steps)), 0)
    return steps + [
        PhaseStep(name, TidalPhase.TO_ONLINE, "loses the least batch work") for _, name in ranked[:more]
    ]


def _lends(
    nodes: Sequence[TidalNode],
    ready: Sequence[TidalNode],
    reserved: dict[str, Side],
    wanted: int,
    room: int,
    rules: StepRules,
    now_s: float,
) -> TidalPlan:
    """Return the cheapest online nodes whose pods fit elsewhere, all of them together, batch reserves first."""
    rooms = _Rooms(nodes, reserved)
    blocked: dict[str, str] = {}
    chosen: list[str] = []
    candidates = (
        node
        for node in ready
        if node.phase is TidalPhase.ONLINE and reserved.get(node.name) is not Side.ONLINE
    )
    count = max(min(wanted, room), 0)
    most = min(wanted, count + NEXT_MAX)
    ranked = heapq.nsmallest(
        most + CANDIDATES_MAX, candidates, key=lambda node: (node.name not in reserved, _cost(node))
    )
    for node in ranked:
        if len(chosen) == most:
            break
        why = _blocked(node, rules, now_s) or rooms.lend(node, rules.load_max_percent)
        if why:
            blocked[node.name] = why
        else:
            chosen.append(node.name)
    steps = tuple(PhaseStep(name, TidalPhase.TO_BATCH, "is the cheapest to empty") for name in chosen[:count])
    return TidalPlan(steps, blocked, tuple(chosen[count:]))


def _blocked(node: TidalNode, rules: StepRules, now_s: float) -> str:
    if node.blocked_until_s > now_s:
        return "its online pods did not leave in time when it was to be lent last"
    return rules.hindrance(node)


class _Rooms:
    """Free room on the online side while nodes are lent one after the other. Columns: cpu, memory; rows by name."""

    def __init__(self, nodes: Sequence[TidalNode], reserved: dict[str, Side]) -> None:
        hosts = sorted(
            (
                node
                for node in nodes
                if node.phase is TidalPhase.ONLINE and reserved.get(node.name) is not Side.BATCH
            ),
            key=lambda node: node.name,
        )
        self._row = {node.name: row for row, node in enumerate(hosts)}
        self._free = free_room(hosts)
        self._stays: Mask = np.ones(len(hosts), np.bool_)
        self._requested = total(node.requested for node in nodes)
        self._capacity = total(node.allocatable for node in nodes if not node.is_lent)
        self._is_full = False
        for node in nodes:
            # Their pods leave, too, and may go to the same nodes.
            if node.phase is TidalPhase.TO_BATCH and not self._move(node.online_pods):
                self._is_full = True

    def lend(self, node: TidalNode, load_max_percent: float) -> str:
        """Take a node off the online side; why not, empty when that was done."""
        if self._is_full:
            return "the room on other online nodes is for pods of nodes that are being emptied"
        capacity = PodDemand(
            self._capacity.cpu_milli - node.allocatable.cpu_milli,
            self._capacity.memory_bytes - node.allocatable.memory_bytes,
        )
        if 100.0 * self._requested.share_of(capacity) > load_max_percent:
            return f"without it the online load would be above {load_max_percent:g} %"
        row = self._row.get(node.name)
        if row is not None:
            self._stays[row] = False
        if not self._move(node.online_pods):
            if row is not None:
                self._stays[row] = True
            return "its online pods do not fit on the other online nodes"
        self._capacity = capacity
        return ""

    def _move(self, pods: Sequence[PodDemand]) -> bool:
        """Place pods, the largest first, each on the first node with room; False, and nothing changed, when one fits
        nowhere."""
        free = self._free.copy()
        for pod in sorted(pods, key=lambda pod: (-pod.cpu_milli, -pod.memory_bytes)):
            fits = self._stays & (free[:, 0] >= pod.cpu_milli) & (free[:, 1] >= pod.memory_bytes)
            row = int(fits.argmax()) if len(fits) else 0
            if not len(fits) or not fits[row]:
                return False
            free[row] -= (pod.cpu_milli, pod.memory_bytes)
        self._free = free
        return True


def free_room(nodes: Iterable[TidalNode]) -> I64:
    """Return what is free for online pods, (nodes, 2): cpu and memory."""
    return np.array([(node.free.cpu_milli, node.free.memory_bytes) for node in nodes], np.int64).reshape(
        -1, 2
    )


def _cost(node: TidalNode) -> tuple[float, int, str]:
    return node.requested.share_of(node.allocatable), len(node.online_pods), node.name
