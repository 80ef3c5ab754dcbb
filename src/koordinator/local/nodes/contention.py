"""Work out what pods get when they want more CPU than their node has, and what that does to response times.

Everything is elementwise over pods, grouped by a node index. How batch beside a service lengthens its p99 was measured
by `koordinator demo-node --interference FILE`: `interference.json` beside this module holds the runs with their date,
kernel and machine. Sources, calibration and limits: docs/models.md.
"""

import enum
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, variance

import msgspec
import numpy as np

from koordinator.local.nodes.usage import F64, Index, Mask, per_node

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
    return _fitted(measured, mode, 0.0)


def _fitted(measured: Interference, mode: str, errors: float) -> Curve:
    """Fit as `curve` says, each point moved by so many standard errors."""
    loads = sorted(measured.p99_ms[mode])
    points = []
    for load in loads:
        mean, precision = _log_ratio(measured.p99_ms["alone"].get(load, ()), measured.p99_ms[mode][load])
        points.append((mean + errors / math.sqrt(precision), precision))
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


# The kernel's smallest cpu.shares: the weight of the whole best-effort tier beside services.
BEST_EFFORT_SHARES = 2.0
# SCHED_IDLE entities weigh 3 against 1024 for a nice-0 task (kernel/sched/sched.h), i.e. nothing to speak of.
IDLE_SHARES = 0.003


class Protection(enum.StrEnum):
    """The protection of a node's services against best-effort pods."""

    NONE = "none"  # best-effort pods weigh as much as services of the same size
    SHARES = "shares"  # cpu.shares=2 on the best-effort tier, as the kubelet sets it
    SUPPRESS = "suppress"  # and CPU suppression: what an installation does that nobody has configured
    IDLE = "idle"  # and cpu.idle=1 on best-effort pods, where a NodeSLO asks for it

    @property
    def has_agent(self) -> bool:
        """Return whether the node agent holds best-effort pods back."""
        return self in (Protection.SUPPRESS, Protection.IDLE)


# Which mode of `koordinator demo-node` stands for a protection. The machine measured has two CPUs, the least that the
# shipped CPU suppression leaves to batch: there, shares are all that separates batch from services. Without protection
# there is no curve: sharing by weight and the queue that follows from it account for what was measured.
_MODES = {Protection.SHARES: "default", Protection.SUPPRESS: "default", Protection.IDLE: "managed"}
CURVES = {protection: curve(shipped(), mode) for protection, mode in _MODES.items()}
BOUND_ERRORS = 1.645
"""Standard errors on either side of the mean between which it lies in 90 of 100 cases."""


def bounds(protection: Protection) -> tuple[Curve, Curve] | None:
    """Return the lowest and highest curves that the shipped measurement allows, of 90 % of cases; None without a
    curve."""
    mode = _MODES.get(protection)
    if mode is None:
        return None
    return _fitted(shipped(), mode, -BOUND_ERRORS), _fitted(shipped(), mode, BOUND_ERRORS)


PRESENCE_RATIO = 0.01
"""Share of a node's CPU from which on a protected tier disturbs as much as one that takes all that is left: it
disturbs by being there (docs/models.md, section 2)."""
# Requests that waited this many times the usual are given up by their callers: nothing above is reported.
SLOWDOWN_MAX = 1_000.0
# Utilisation above which a queue has no steady state within a sampling step.
UTILISATION_MAX = 0.99
# The measurement gave p99 only. Half of the requests meet a busy CPU far less often than the slowest percent;
# a quarter of the growth in logarithms is our assumption.
P50_SHARE_OF_GROWTH = 0.25


def water_fill(demand: F64, weight: F64, group: Index, capacity: F64) -> F64:
    """Weighted max-min shares: nobody gets more than its demand, no group more than its capacity.

    Shapes: demand, weight, group (pods,), capacity (groups,). Where a group's demand fits, all of it is
    granted; else each gets min(demand, weight × level) with one level per group that uses the capacity up.
    """
    assert demand.shape == weight.shape == group.shape, (demand.shape, weight.shape, group.shape)
    granted = demand.copy()
    wanted = per_node(group, demand, capacity.size)
    over = wanted > capacity
    if not over.any():
        return granted
    pods = np.flatnonzero(over[group])
    level = _levels(demand[pods], weight[pods], group[pods], capacity)
    granted[pods] = np.minimum(demand[pods], weight[pods] * level[group[pods]])
    return granted


def _levels(demand: F64, weight: F64, group: Index, capacity: F64) -> F64:
    """Grant per weight in each group, for groups whose demand exceeds the capacity; (groups,)."""
    thirst = demand / weight
    order = np.lexsort((thirst, group))
    demand, weight, group, thirst = demand[order], weight[order], group[order], thirst[order]
    first = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    sizes = np.diff(np.r_[first, group.size])
    # Going up in thirst: if all before were sated, this level would be left for the rest of the group.
    sated = np.cumsum(demand) - demand
    sated -= np.repeat(sated[first], sizes)
    lighter = np.cumsum(weight) - weight
    lighter -= np.repeat(lighter[first], sizes)
    left_weight = (
        np.repeat(np.bincount(group, weight, minlength=capacity.size)[group[first]], sizes) - lighter
    )
    level_if = (capacity[group] - sated) / left_weight
    is_thirsty = thirst > level_if
    # The first pod that stays thirsty fixes the level; rounding may leave none, then the last one does.
    is_thirsty[first + sizes - 1] = True
    positions = np.where(is_thirsty, np.arange(group.size), group.size)
    fixing = np.minimum.reduceat(positions, first)
    levels = np.zeros(capacity.size)
    levels[group[first]] = np.maximum(level_if[fixing], 0.0)
    return levels


def share_cpu(
    demand: F64,
    weight: F64,
    is_best_effort: Mask,
    node: Index,
    available: F64,
    best_effort_limit: F64,
    protection: Protection,
) -> F64:
    """CPU that each pod gets: services and the best-effort tier by weight, then the tier among its pods.

    Shapes: demand, weight, is_best_effort, node (pods,); available, best_effort_limit (nodes,); milli-cores.
    `available` is what the node has left beside system processes, which are served first; `best_effort_limit` is
    what suppression allows, infinite without.
    """
    if protection is Protection.NONE:
        return water_fill(demand, weight, node, available)
    nodes = available.size
    tier_demand = np.minimum(per_node(node, demand * is_best_effort, nodes), best_effort_limit)
    tier_weight = IDLE_SHARES if protection is Protection.IDLE else BEST_EFFORT_SHARES
    services = np.flatnonzero(~is_best_effort)
    batch = np.flatnonzero(is_best_effort)
    top = water_fill(
        np.r_[demand[services], tier_demand],
        np.r_[weight[services], np.full(nodes, tier_weight)],
        np.r_[node[services], np.arange(nodes)],
        available,
    )
    granted = np.empty_like(demand)
    granted[services] = top[: services.size]
    granted[batch] = water_fill(demand[batch], weight[batch], node[batch], top[services.size :])
    return granted


def reachable(
    granted: F64,
    weight: F64,
    limit: F64,
    node: Index,
    rivals_granted: F64,
    rivals_weight: F64,
    available: F64,
) -> F64:
    """CPU that each service could get if it asked for everything, (services,).

    That is what it has and what the rivals leave idle, or its share by weight if that is more. `rivals_…` are sums over
    all who do not give way (itself included) and `available` is what pods may have, (nodes,).
    """
    idle = np.maximum(available - rivals_granted, 0.0)
    per_weight = available / np.maximum(rivals_weight, 1.0)
    found: F64 = np.minimum(np.maximum(granted + idle[node], weight * per_weight[node]), limit)
    return found


class Latency(msgspec.Struct, frozen=True):
    """Response times of each service pod, (pods,), in units of its mean service time; only what is asked for is worked
    out."""

    waiting: F64
    """The share of requests that wait …"""
    drain: F64
    """… and how fast a queue of them gets shorter."""
    stretch: F64
    growth: F64

    @property
    def p50(self) -> F64:
        return self._of(2, self.growth**P50_SHARE_OF_GROWTH)

    @property
    def p99(self) -> F64:
        return self._of(100, self.growth)

    @property
    def p999(self) -> F64:
        return self._of(1_000, self.growth)  # what batch does to it was not measured: as to p99

    def _of(self, one_in: int, growth: F64) -> F64:
        """Return the time that one in so many requests exceeds."""
        wait = np.log(np.maximum(self.waiting / (1 / one_in), 1.0)) / self.drain
        times: F64 = (np.log(one_in) + wait) * self.stretch * growth
        return times


def latency(demand: F64, reachable: F64, slowdown: F64) -> Latency:
    """Return response times of a service that wants `demand` and could get `reachable` milli-cores; all arrays are
    (services,).

    A queue with as many servers as reachable cores and exponential service times, waiting probability by
    Sakasegawa's approximation; then multiplied by what co-runners do (`slowdown`).
    """
    cores = np.maximum(reachable, 1.0) / 1000
    # A service that cannot get one whole core runs each request slower.
    stretch = 1 / np.minimum(cores, 1.0)
    servers = np.maximum(cores, 1.0)
    busy = np.minimum(demand / np.maximum(reachable, 1.0), UTILISATION_MAX)
    waiting = busy ** (np.sqrt(2 * (servers + 1)) - 1)
    drain = servers * (1 - busy)
    return Latency(waiting, drain, stretch, np.minimum(slowdown, SLOWDOWN_MAX))


def slowdown(load: F64, occupied: F64, protection: Protection) -> F64:
    """Return the growth of a service's p99 on each node beside a protected best-effort tier, beyond its queue:
    (nodes,).

    `load` is what services use of the node's CPU (0–1), `occupied` what the tier has of it.
    """
    return slowdown_beside(log_slowdown(load, protection), occupied)


def slowdown_by(curve: Curve, load: F64, occupied: F64) -> F64:
    """Return the growth that a curve says, as `slowdown` does: (nodes,)."""
    return slowdown_beside(_log_growth(curve, load), occupied)


def log_slowdown(load: F64, protection: Protection) -> F64 | None:
    """Return the logarithm of `slowdown` beside a tier that takes all it can get, (nodes,); None for no growth."""
    curve = CURVES.get(protection)
    return None if curve is None else _log_growth(curve, load)


def slowdown_beside(log_slowdown: F64 | None, occupied: F64) -> F64:
    """Return the growth beside a tier that has so much of the node, as `slowdown` does: (nodes,)."""
    if log_slowdown is None:
        return np.ones_like(occupied)
    presence = np.minimum(occupied / PRESENCE_RATIO, 1.0)
    factor: F64 = np.minimum(np.exp(log_slowdown * presence), SLOWDOWN_MAX)
    return factor


def _log_growth(curve: Curve, load: F64) -> F64:
    xs, ys, steepness = _log_points(curve)
    growth: F64 = np.interp(load, xs, ys) + np.maximum(load - xs[-1], 0) * steepness
    return growth


@functools.cache
def _log_points(curve: Curve) -> tuple[F64, F64, float]:
    """Return loads, logarithms of slowdowns, (points,) both, and how the latter rise beyond the last point."""
    xs, ys = np.array(curve.load), np.log(curve.slowdown)
    return xs, ys, (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
