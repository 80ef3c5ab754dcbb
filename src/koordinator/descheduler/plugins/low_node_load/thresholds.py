"""From thresholds in percent to limits per node. Pure. Source: behaviour/descheduler 6.3 and 6.5."""

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import resources
from koordinator.descheduler.config.low_node_load import NodePool, Thresholds
from koordinator.descheduler.plugins.low_node_load.usage import Columns

Floats = npt.NDArray[np.float64]


class Filled(msgspec.Struct, frozen=True):
    """Thresholds in percent (distances from the average in deviation mode) for each resource of `names`."""

    names: tuple[str, ...]
    is_deviation: bool
    low: Thresholds
    high: Thresholds
    prod_low: Thresholds
    prod_high: Thresholds


class Limits(msgspec.Struct, frozen=True):
    """(nodes, resources) limits, milli-cores of cpu and whole units of all else."""

    low: Columns
    high: Columns
    prod_low: Columns
    prod_high: Columns


def fill(pool: NodePool) -> Filled:
    """Return every resource of any map, and memory, in every map.

    A resource that has no low threshold is not limited, even if it has a high one; one that has a low
    threshold only has a high one of 0. Both are the reference's.
    """
    maps = (
        pool.low_thresholds or {},
        pool.high_thresholds or {},
        pool.prod_low_thresholds or {},
        pool.prod_high_thresholds or {},
    )
    names = tuple(sorted({resources.MEMORY}.union(*maps)))
    unlimited = 0.0 if pool.use_deviation_thresholds else 100.0
    low, high = _fill_pair(maps[0], maps[1], names, unlimited)
    prod_low, prod_high = _fill_pair(maps[2], maps[3], names, unlimited)
    return Filled(names, pool.use_deviation_thresholds, low, high, prod_low, prod_high)


def limits(filled: Filled, capacity: Columns, usage: Columns, prod_usage: Columns) -> Limits:
    """Return the limits of each node; all arrays have the shape (nodes, names), names as in `filled`."""
    low, high = _pair(filled.low, filled.high, filled, capacity, usage)
    prod_low, prod_high = _pair(filled.prod_low, filled.prod_high, filled, capacity, prod_usage)
    return Limits(low, high, prod_low, prod_high)


def _fill_pair(
    low: Thresholds, high: Thresholds, names: tuple[str, ...], unlimited: float
) -> tuple[Thresholds, Thresholds]:
    filled_low = {name: low.get(name, unlimited) for name in names}
    filled_high = {name: high.get(name, 0.0) if name in low else unlimited for name in names}
    return filled_low, filled_high


def _pair(
    low: Thresholds, high: Thresholds, filled: Filled, capacity: Columns, usage: Columns
) -> tuple[Columns, Columns]:
    low_percent = np.array([low[name] for name in filled.names], np.float64)
    high_percent = np.array([high[name] for name in filled.names], np.float64)
    if not filled.is_deviation:
        return _part(low_percent, capacity), _part(high_percent, capacity)
    average = _average(usage, capacity)
    is_free = low_percent == 0
    low_limit = _part(np.clip(average - low_percent, 0, 100), capacity)
    high_limit = _part(np.clip(average + high_percent, 0, 100), capacity)
    return np.where(is_free, capacity, low_limit), np.where(is_free, capacity, high_limit)


def _part(percent: Floats, capacity: Columns) -> Columns:
    """In binary floating point and cut off, in this order of operations: 29 % of 100 is 28."""
    return np.trunc(percent * 0.01 * capacity.astype(np.float64)).astype(np.int64)


def _average(usage: Columns, capacity: Columns) -> Floats:
    """Percent used per resource; nodes without the resource count as 0."""
    used = np.zeros(usage.shape, np.float64)
    np.divide(usage, capacity, out=used, where=capacity > 0)
    return np.asarray((used * 100).sum(axis=0) / max(len(usage), 1), np.float64)
