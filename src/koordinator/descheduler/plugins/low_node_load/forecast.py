"""Expect what nodes will use, by what they used in the last minutes and by the tide of their pool. Pure but for memory.

An eviction is worth it where a node stays hot and its destination stays cool. A node that is above its limit by little,
or for moments, comes down by itself, and so does one whose whole pool ebbs; one that is cool for moments only is a bad
destination. Usage is smoothed exponentially, so that a node counts the sooner the further it is above its limit, and
moved on by the growth of the whole pool, whose sum has far less noise than a node.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.descheduler.plugins.low_node_load.usage import Classified, Columns

Floats = npt.NDArray[np.float64]

SOURCE_S_MIN, SOURCE_S_MAX = 180.0, 900.0
"""Time constant of the level that makes a node a source. At 180 s one that was as far below its limit as it is above it
now counts after two minutes; shorter ones cost evictions and cool little more (docs/performance.md)."""
CYCLES = 2
"""The time constant is so many times that for which a node must be hot by the pool's anomaly condition."""
TARGET_S = 1_800.0
"""Time constant of the level that a target is expected to come back to: longer, so that no chance low counts."""
TIDE_SHORT_S, TIDE_LONG_S = 900.0, 3_600.0
"""Time constants of both levels of a pool that its growth is measured by."""
AHEAD_S = 3_600.0
"""Horizon: moves made now should be right for that long."""
TIDE_MAX = 0.25
"""The most that a pool may be expected to grow, or to shrink, by then."""


class _Level(msgspec.Struct):
    """Usage of the nodes of a pool, (nodes, resources) amounts of `usage` and `prod_usage` side by side: as sources and
    as targets; `pool` (2, resources) is the part of all capacity that is used, over a short and a long time."""

    names: tuple[str, ...]
    source: Floats
    target: Floats
    pool: Floats


class UsageForecast:
    """Remembers the levels of nodes between cycles, by pool."""

    def __init__(self) -> None:
        self._levels: list[_Level] = []
        self._seen_s = 0.0

    def see(self, pools: Sequence[Classified], cycles: Sequence[int], now_s: float) -> None:
        """Take what is measured now; `cycles` says by pool for how many a node must be hot. A clock that went back
        counts as no time."""
        passed_s = max(now_s - self._seen_s, 0.0)
        self._seen_s = now_s
        before = self._levels if len(self._levels) == len(pools) else [None] * len(pools)
        self._levels = [
            _follow(old, each, count, passed_s)
            for old, each, count in zip(before, pools, cycles, strict=True)
        ]

    def sources(self, pools: Sequence[Classified], hot: Iterable[str]) -> set[str]:
        """Return the nodes of `hot` that are expected to stay so. `pools` are those that were seen last."""
        stays: set[str] = set()
        for each, level in zip(pools, self._levels, strict=True):
            found = (level.source * _tide(level) > _limits(each)).any(axis=1)
            stays.update(level.names[row] for row in np.flatnonzero(found).tolist())
        return stays.intersection(hot)

    def as_targets(self, pools: Sequence[Classified], sources: set[str]) -> list[Classified]:
        """Return the pools with what is expected of all nodes but the sources, where that is more than they use now.
        No node becomes hot by that."""
        return [_raised(each, level, sources) for each, level in zip(pools, self._levels, strict=True)]


def _follow(old: _Level | None, seen: Classified, cycles: int, passed_s: float) -> _Level:
    """Return the levels after what is seen; a node, or a pool, that was not known begins as it is."""
    names = tuple(load.name for load in seen.loads)
    used = np.concatenate([seen.usage, seen.prod_usage], axis=1).astype(np.float64)
    whole = np.concatenate([seen.capacity, seen.capacity], axis=1).sum(axis=0)
    part = used.sum(axis=0) / np.maximum(whole, 1)
    if old is None or not old.names or old.source.shape[1] != used.shape[1]:
        return _Level(names, used, used, np.stack([part, part]))
    source, target = old.source, old.target
    if old.names != names:
        row_of = {name: row for row, name in enumerate(old.names)}
        rows = np.array([row_of.get(name, -1) for name in names], np.intp)
        is_new = (rows < 0)[:, None]
        source, target = np.where(is_new, used, source[rows]), np.where(is_new, used, target[rows])
    source_s = min(max(CYCLES * cycles * passed_s, SOURCE_S_MIN), SOURCE_S_MAX)
    return _Level(
        names,
        source + _share(passed_s, source_s) * (used - source),
        target + _share(passed_s, TARGET_S) * (used - target),
        np.stack(
            [
                old.pool[0] + _share(passed_s, TIDE_SHORT_S) * (part - old.pool[0]),
                old.pool[1] + _share(passed_s, TIDE_LONG_S) * (part - old.pool[1]),
            ]
        ),
    )


def _share(passed_s: float, constant_s: float) -> float:
    return -math.expm1(-passed_s / constant_s)


def _tide(level: _Level) -> Floats:
    """Return (resources,) by which factor a pool's usage grows until `AHEAD_S`: what rises or falls evenly is seen by
    two exponential means with delays that differ by their time constants."""
    short, long = level.pool
    growth = (short - long) / np.maximum(short, 1e-9) * AHEAD_S / (TIDE_LONG_S - TIDE_SHORT_S)
    return np.asarray(1 + np.clip(growth, -TIDE_MAX, TIDE_MAX))


def _limits(seen: Classified) -> Columns:
    return np.concatenate([seen.limits.high, seen.limits.prod_high], axis=1)


def _raised(seen: Classified, level: _Level, sources: set[str]) -> Classified:
    used = np.concatenate([seen.usage, seen.prod_usage], axis=1)
    expected = np.maximum(used, level.target) * np.maximum(_tide(level), 1.0)
    expected = np.maximum(np.minimum(expected, _limits(seen)), used).astype(np.int64)
    stays = np.array([name in sources for name in level.names], np.bool_)
    expected = np.where(stays[:, None], used, expected)
    count = seen.usage.shape[1]
    return msgspec.structs.replace(seen, usage=expected[:, :count], prod_usage=expected[:, count:])
