"""Decide how many nodes of a tidal pool stay on each side, how many are lent, and which change sides now. Pure. Source:
behaviour/tidal 4.

A step only starts a change: `to-batch` and `to-online` nodes are drained by others, and finish when they are empty.
"""

import enum
import re
from collections.abc import Sequence

import msgspec

from koordinator.api.errors import ProtocolError

IntOrPercent = int | str
"""A number of nodes, or a percentage of the pool's members such as `40%`."""

_PERCENT = re.compile(r"([0-9]{1,9})%", re.ASCII)


class PoolShare(msgspec.Struct, frozen=True):
    """A part of the pool: `number` of nodes, or of hundredths of the members."""

    number: int = 0
    is_percent: bool = False

    @classmethod
    def of(cls, raw: IntOrPercent, field: str) -> "PoolShare":
        """Return what a field of the pool says. Raises: ProtocolError."""
        if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
            return cls(raw)
        percent = _PERCENT.fullmatch(raw) if isinstance(raw, str) else None
        if percent is None:
            raise ProtocolError("", field, f"{raw!r} is neither a number of nodes nor a percentage like 40%")
        return cls(int(percent[1]), True)

    def up(self, members: int) -> int:
        """Nodes, a percentage rounded up."""
        return -(-members * self.number // 100) if self.is_percent else self.number

    def down(self, members: int) -> int:
        """Nodes, a percentage rounded down."""
        return members * self.number // 100 if self.is_percent else self.number


class Reserves(msgspec.Struct, frozen=True):
    """Nodes that never leave the online or the batch side, and those that go with the tide."""

    online: int
    batch: int
    tidal: int


class Window(msgspec.Struct, frozen=True):
    """A time in which nodes are lent, in seconds since 1970: from `start_s` until before `end_s`."""

    start_s: float
    end_s: float
    batch_nodes: PoolShare


class LoadRule(msgspec.Struct, frozen=True):
    """Marks of the online load in percent: below the first one node more is lent, above the second one less."""

    lend_below_percent: float = 45.0
    return_above_percent: float = 65.0


class OnlineLoad(msgspec.Struct, frozen=True):
    """The load that online pods request of the online side, the larger of cpu and memory, in percent.

    `percent` as things are; `without_next_percent` the highest within the rule's window had the next node
    already been lent, None while the window is not full.
    """

    percent: float
    without_next_percent: float | None


class TargetReason(enum.Enum):
    """The rule that set the number of nodes to be lent."""

    NO_WINDOW = "no window is open"
    WINDOW = "a window is open"
    RAMP = "a window ends soon: nodes go back one after the other"
    LOAD_LOW = "the online load would stay low with one node less"
    LOAD_HIGH = "the online load is high"
    LOAD_STEADY = "the online load is between the marks"
    SUSPENDED = "the pool is suspended: no node more is lent"


class LendTarget(msgspec.Struct, frozen=True):
    """Nodes to be lent besides the batch reserve."""

    nodes: int
    reason: TargetReason


class TidalPool(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that decide the target: `windows` is None without a schedule, `rule` without a load rule.

    `members` counts the nodes that match, are Ready and not cordoned; `lent` those that are in batch phase or
    on their way there, without the batch reserve.
    """

    members: int
    online_reserve: PoolShare = PoolShare()
    batch_reserve: PoolShare = PoolShare()
    windows: Sequence[Window] | None = None
    lead_s: float = 1800.0
    rule: LoadRule | None = None
    suspended: bool = False
    lent: int = 0


def reserves(members: int, online: PoolShare, batch: PoolShare) -> Reserves:
    """Return the sides of a pool; where both reserves do not fit, online wins. Rounding as Katalyst's tide
    controller."""
    online_nodes = min(online.up(members), members)
    batch_nodes = min(batch.down(members), members - online_nodes)
    return Reserves(online_nodes, batch_nodes, members - online_nodes - batch_nodes)


def target(pool: TidalPool, now_s: float, load: OnlineLoad | None) -> LendTarget:
    """Return how many nodes should be lent now, 0 to the tidal nodes of the pool.

    A schedule is the ceiling of the load rule. An unknown load (None) moves nothing.
    """
    sides = reserves(pool.members, pool.online_reserve, pool.batch_reserve)
    wanted = _by_load(pool, load, sides.tidal) if pool.rule is not None else None
    if pool.windows is not None or wanted is None:
        ceiling = _by_windows(pool, sides, now_s)
        wanted = ceiling if wanted is None or ceiling.nodes <= wanted.nodes else wanted
    if pool.suspended and pool.lent < wanted.nodes:
        return LendTarget(pool.lent, TargetReason.SUSPENDED)
    return wanted


def _by_windows(pool: TidalPool, sides: Reserves, now_s: float) -> LendTarget:
    """Return the largest of the open windows."""
    best = LendTarget(0, TargetReason.NO_WINDOW)
    for window in pool.windows or ():
        if window.start_s <= now_s < window.end_s:
            found = _by_window(pool, sides, window, now_s)
            if found.nodes > best.nodes or best.reason is TargetReason.NO_WINDOW:
                best = found
    return best


def _by_window(pool: TidalPool, sides: Reserves, window: Window, now_s: float) -> LendTarget:
    """Return all nodes of the window, or the part of them that the lead time leaves, so that all are back at its
    end."""
    base = min(max(window.batch_nodes.down(pool.members) - sides.batch, 0), sides.tidal)
    left_s = window.end_s - now_s
    if left_s >= pool.lead_s:
        return LendTarget(base, TargetReason.WINDOW)
    return LendTarget(base * int(left_s) // max(int(pool.lead_s), 1), TargetReason.RAMP)


def _by_load(pool: TidalPool, load: OnlineLoad | None, cap: int) -> LendTarget:
    """One node more or less than now."""
    assert pool.rule is not None
    rule = pool.rule
    spare_percent = load.without_next_percent if load is not None else None
    change, reason = 0, TargetReason.LOAD_STEADY
    if load is not None and load.percent > rule.return_above_percent:
        change, reason = -1, TargetReason.LOAD_HIGH
    elif spare_percent is not None and spare_percent < rule.lend_below_percent:
        change, reason = 1, TargetReason.LOAD_LOW
    return LendTarget(min(max(pool.lent + change, 0), cap), reason)


class TidalPhase(enum.Enum):
    """The state of a node, as its label says; a new node is online."""

    ONLINE = "online"
    TO_BATCH = "to-batch"
    BATCH = "batch"
    TO_ONLINE = "to-online"


class Side(enum.Enum):
    """The side that a reserved node never leaves."""

    ONLINE = "online"
    BATCH = "batch"


class PodDemand(msgspec.Struct, frozen=True):
    """The requests of a pod."""

    cpu_milli: int
    memory_bytes: int


class TidalNode(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a pool. `since_s`: when it entered its phase; `lost_work`: what its batch pods would lose.

    `free` is what is left of it for online pods while it is online; `reserve` what its label says.
    """

    name: str
    phase: TidalPhase = TidalPhase.ONLINE
    since_s: float = 0.0
    reserve: Side | None = None
    allocatable: PodDemand
    free: PodDemand
    online_pods: tuple[PodDemand, ...] = ()
    lost_work: float = 0.0

    @property
    def is_lent(self) -> bool:
        """Return whether it is on the batch side or on its way there."""
        return self.phase in (TidalPhase.TO_BATCH, TidalPhase.BATCH)


class PhaseStep(msgspec.Struct, frozen=True):
    """A node's next phase, and why."""

    node: str
    to: TidalPhase
    reason: str


class TidalPlan(msgspec.Struct, frozen=True):
    """The changes to start now; `blocked` says why a node that should be lent is not."""

    steps: tuple[PhaseStep, ...]
    blocked: dict[str, str]


def assign_reserves(nodes: Sequence[TidalNode], sides: Reserves) -> dict[str, Side]:
    """Return which nodes are reserved: present ones stay as long as the counts fit, new ones come from their side by
    name."""
    reserved: dict[str, Side] = {}
    for side, count in ((Side.ONLINE, sides.online), (Side.BATCH, sides.batch)):
        free = [node for node in nodes if node.name not in reserved and node.reserve in (side, None)]
        free += [node for node in nodes if node.name not in reserved and node not in free]
        ranked = sorted(
            free, key=lambda n: (n.reserve is not side, n.is_lent is not (side is Side.BATCH), n.name)
        )
        reserved.update((node.name, side) for node in ranked[:count])
    return reserved


def plan(
    nodes: Sequence[TidalNode],
    reserved: dict[str, Side],
    target: int,
    in_flight_max: int,
    cooldown_s: float,
    now_s: float,
) -> TidalPlan:
    """Steps towards `target` lent nodes besides the batch reserve; at most `in_flight_max` nodes change at a time."""
    tidal = [node for node in nodes if node.name not in reserved]
    lent = sum(node.is_lent for node in tidal)
    moving = sum(node.phase in (TidalPhase.TO_BATCH, TidalPhase.TO_ONLINE) for node in nodes)
    room = max(in_flight_max - moving, 0)
    ready = [node for node in tidal if now_s - node.since_s >= cooldown_s]
    if lent > target:
        return TidalPlan(tuple(_returns(tidal, ready, lent - target, room)), {})
    return _lends(nodes, ready, reserved, min(target - lent, room))


def _returns(
    tidal: Sequence[TidalNode], ready: Sequence[TidalNode], wanted: int, room: int
) -> list[PhaseStep]:
    """Reversals first, they cost nothing and take no room; then batch nodes with the least work to lose."""
    reversed_ = sorted(
        (node for node in tidal if node.phase is TidalPhase.TO_BATCH), key=lambda node: node.name
    )
    steps = [
        PhaseStep(node.name, TidalPhase.ONLINE, "not to be lent after all") for node in reversed_[:wanted]
    ]
    batch = sorted(
        (node for node in ready if node.phase is TidalPhase.BATCH),
        key=lambda node: (node.lost_work, node.name),
    )
    more = min(wanted - len(steps), room + len(steps))
    return steps + [
        PhaseStep(node.name, TidalPhase.TO_ONLINE, f"loses the least batch work ({node.lost_work:g})")
        for node in batch[:more]
    ]


def _lends(
    nodes: Sequence[TidalNode], ready: Sequence[TidalNode], reserved: dict[str, Side], count: int
) -> TidalPlan:
    """Return the cheapest online nodes whose pods fit elsewhere, all of them together."""
    free = {
        node.name: [node.free.cpu_milli, node.free.memory_bytes]
        for node in nodes
        if node.phase is TidalPhase.ONLINE and reserved.get(node.name) is not Side.BATCH
    }
    steps: list[PhaseStep] = []
    blocked: dict[str, str] = {}
    for node in sorted((node for node in ready if node.phase is TidalPhase.ONLINE), key=_cost):
        if len(steps) == count:
            break
        others = {name: left for name, left in free.items() if name != node.name}
        placed = _placed(node.online_pods, others)
        if placed is None:
            blocked[node.name] = "its online pods do not fit on the other online nodes"
            continue
        free = placed
        steps.append(PhaseStep(node.name, TidalPhase.TO_BATCH, "is the cheapest to empty"))
    return TidalPlan(tuple(steps), blocked)


def _cost(node: TidalNode) -> tuple[float, int, str]:
    cpu = sum(pod.cpu_milli for pod in node.online_pods) / max(node.allocatable.cpu_milli, 1)
    memory = sum(pod.memory_bytes for pod in node.online_pods) / max(node.allocatable.memory_bytes, 1)
    return max(cpu, memory), len(node.online_pods), node.name


def _placed(pods: Sequence[PodDemand], free: dict[str, list[int]]) -> dict[str, list[int]] | None:
    """Return what is left of each node when all pods moved there, the largest first; None when one fits nowhere."""
    left = {name: list(each) for name, each in sorted(free.items())}
    for pod in sorted(pods, key=lambda pod: (-pod.cpu_milli, -pod.memory_bytes)):
        fitting = (each for each in left.values() if each[0] >= pod.cpu_milli and each[1] >= pod.memory_bytes)
        home = next(fitting, None)
        if home is None:
            return None
        home[0] -= pod.cpu_milli
        home[1] -= pod.memory_bytes
    return left
