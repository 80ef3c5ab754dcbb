"""Decide how many nodes of a tidal pool stay on each side, and how many are lent now. Source: behaviour/tidal 4."""

import enum
import re
from collections import deque
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
    ALL_ONLINE = "drainAll brings all nodes online"
    ALL_BATCH = "drainAll lends all nodes"


class LendTarget(msgspec.Struct, frozen=True):
    """Nodes to be lent besides the batch reserve."""

    nodes: int
    reason: TargetReason


class PoolFacts(msgspec.Struct, frozen=True, kw_only=True):
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


def target(pool: PoolFacts, now_s: float, load: OnlineLoad | None) -> LendTarget:
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


def _by_windows(pool: PoolFacts, sides: Reserves, now_s: float) -> LendTarget:
    """Return the largest of the open windows."""
    best = LendTarget(0, TargetReason.NO_WINDOW)
    for window in pool.windows or ():
        if window.start_s <= now_s < window.end_s:
            found = _by_window(pool, sides, window, now_s)
            if found.nodes > best.nodes or best.reason is TargetReason.NO_WINDOW:
                best = found
    return best


def _by_window(pool: PoolFacts, sides: Reserves, window: Window, now_s: float) -> LendTarget:
    """Return all nodes of the window, or the part of them that the lead time leaves, so that all are back at its
    end."""
    base = min(max(window.batch_nodes.down(pool.members) - sides.batch, 0), sides.tidal)
    left_s = window.end_s - now_s
    if left_s >= pool.lead_s:
        return LendTarget(base, TargetReason.WINDOW)
    return LendTarget(base * int(left_s) // max(int(pool.lead_s), 1), TargetReason.RAMP)


def _by_load(pool: PoolFacts, load: OnlineLoad | None, cap: int) -> LendTarget:
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


GAP_S = 120.0
"""Samples further apart than this tell nothing about the time between them."""


class LoadHistory:
    """Samples of the load that one node less would have made, over the window of the load rule (behaviour/tidal 3)."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, at_s: float, percent: float | None, window_s: float) -> None:
        """Note a sample; None, a gap, and a clock that went back begin anew."""
        samples = self._samples
        if samples and not 0.0 <= at_s - samples[-1][0] <= GAP_S:
            samples.clear()
        if percent is None:
            samples.clear()
            return
        samples.append((at_s, percent))
        # The oldest one that is kept tells that the window is full.
        while len(samples) > 1 and samples[1][0] <= at_s - window_s:
            samples.popleft()

    def clear(self) -> None:
        """Forget everything: a node was lent, so what was measured was another pool."""
        self._samples.clear()

    def highest(self, now_s: float, window_s: float) -> float | None:
        """Return the highest load within the window, None while the window is not full."""
        if not self._samples or self._samples[0][0] > now_s - window_s:
            return None
        return max(percent for _, percent in self._samples)
