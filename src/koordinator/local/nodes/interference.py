"""Model how batch beside a service lengthens its p99: measured by `koordinator demo-node --interference FILE`.

`interference.json` beside this module holds the runs with their date, kernel and machine. Method: docs/models.md.
"""

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, variance

import msgspec

_FILE = Path(__file__).with_name("interference.json")
# Runs that happen to agree must not outweigh all others: no mean is known better than to 2 %.
_SPREAD_MIN = 0.02


class Interference(msgspec.Struct, frozen=True, rename="camel"):
    """p99 of a service on one machine: milliseconds of each run, by mode (`alone`, `default`, …) and load (%)."""

    measured_at: str
    kernel: str
    machine: str
    cpus: int
    cgroup_version: int
    seconds: float
    p99_ms: dict[str, dict[int, list[float]]]


class Curve(msgspec.Struct, frozen=True):
    """Growth of a service's p99 beside batch: `slowdown` (at least 1) at `load` (ratio of the node, ascending)."""

    load: tuple[float, ...]
    slowdown: tuple[float, ...]


@functools.cache
def shipped() -> Interference:
    """Return the measurement that comes with the package."""
    return msgspec.json.decode(_FILE.read_bytes(), type=Interference)


def curve(measured: Interference, mode: str) -> Curve:
    """Fit growth that never falls as load rises to the runs of `mode` beside those of `alone`.

    Isotonic regression of log p99 ratios, weighted by their precision: a service near saturation varies more from
    run to run than batch changes it. Each load needs two runs of both modes.

    Source: Barlow, Bartholomew, Bremner, Brunk, *Statistical Inference under Order Restrictions*, 1972 (pool
    adjacent violators).
    Raises: ValueError, where a load has fewer runs.
    """
    loads = sorted(measured.p99_ms[mode])
    points = [
        _log_ratio(measured.p99_ms["alone"].get(load, ()), measured.p99_ms[mode][load]) for load in loads
    ]
    return Curve(tuple(load / 100 for load in loads), tuple(max(math.exp(y), 1.0) for y in _rising(points)))


def _log_ratio(alone: Sequence[float], beside: Sequence[float]) -> tuple[float, float]:
    """Mean log of beside ÷ alone, and its precision (1 ÷ variance)."""
    if min(len(alone), len(beside)) < 2:
        raise ValueError("an interference curve needs two runs or more at each load, alone and beside batch")
    logs = [[math.log(p99) for p99 in runs] for runs in (alone, beside)]
    spread = sum(variance(each) / len(each) for each in logs)
    return fmean(logs[1]) - fmean(logs[0]), 1 / max(spread, _SPREAD_MIN**2)


def _rising(points: Sequence[tuple[float, float]]) -> list[float]:
    """Pool neighbours that fall into their weighted mean until none does; one value per point."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in points:
        size = 1
        while pools and pools[-1][0] > value:
            before, before_weight, before_size = pools.pop()
            value = (before * before_weight + value * weight) / (before_weight + weight)
            weight, size = before_weight + weight, before_size + size
        pools.append((value, weight, size))
    return [value for value, _, size in pools for _ in range(size)]
