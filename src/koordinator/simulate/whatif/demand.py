"""Batch work that waits: how much arrives, what one task asks for and uses. Drawn from a seed as arrays.

The kinds of tasks are those of `batch_jobs`, or the batch pods that a cluster runs already; tasks need nothing of each
other.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from koordinator.api import resources
from koordinator.api.core import Container, Pod, PodSpec, ResourceRequirements
from koordinator.api.priority import PriorityClass
from koordinator.local.nodes.usage import F64, Index
from koordinator.scheduler.plugins.load_aware import load
from koordinator.scheduler.plugins.load_aware.args import LoadAwarePolicy
from koordinator.simulate import batch_jobs
from koordinator.simulate.batch_jobs import USE_OF_REQUEST, JobKind

MEMORY_USE_OF_REQUEST = (0.7, 1.0)
UNLIMITED = 1 << 40
"""Tasks that wait where there is always more work than room."""


class Wanted(msgspec.Struct, frozen=True, eq=False):
    """Batch demand in cores, one value for each `step_s`, starting over at the end; None: always more than fits."""

    cores: F64 | None
    step_s: float = math.inf
    source: str = ""

    def at(self, time_s: float) -> float:
        """Return the cores that arriving work wants on average, at a moment."""
        assert self.cores is not None
        step = 0 if math.isinf(self.step_s) else int(time_s // self.step_s) % self.cores.size
        return float(self.cores[step])


def unlimited() -> Wanted:
    """Return a demand that always has more work than there is room for."""
    return Wanted(None, source="as much as finds room")


def of_ratio(ratio: float, cluster_cores: float) -> Wanted:
    """Return a steady demand for a share of all CPUs."""
    return Wanted(np.array([ratio * cluster_cores]), source=f"{100 * ratio:g} % of all CPUs")


class BatchTasks(msgspec.Struct, frozen=True, eq=False):
    """Tasks as they are drawn, (tasks,) each: what each uses at a time, and the CPU that it needs in all."""

    used_milli: F64
    used_bytes: F64
    work_milli_s: F64


class BatchQueue:
    """Waiting tasks by kind, and how long they wait: first come, first served within a kind."""

    def __init__(self, wanted: Wanted, seed: int, kinds: Sequence[JobKind] = batch_jobs.KINDS) -> None:
        self.kinds = tuple(kinds)
        self.waiting = [UNLIMITED if wanted.cores is None else 0 for _ in kinds]
        self._wanted = wanted
        self._rng = np.random.default_rng(seed)
        self._curves: list[list[tuple[float, int, int]]] = [[] for _ in kinds]  # time, arrived, started
        self._arrived = [0] * len(self.kinds)
        self._started = [0] * len(self.kinds)

    @property
    def is_limited(self) -> bool:
        """Return whether the queue can run empty."""
        return self._wanted.cores is not None

    @property
    def length(self) -> int:
        """Tasks that wait; 0 where there is always more."""
        return sum(self.waiting) if self.is_limited else 0

    def arrive(self, time_s: float, elapsed_s: float) -> None:
        """Let the work of the next `elapsed_s` come in."""
        if not self.is_limited:
            return
        cores = self._wanted.at(time_s)
        for number, kind in enumerate(self.kinds):
            per_s = cores * kind.share_of_work / (_mean_core_h(kind) * 3600)
            count = int(self._rng.poisson(per_s * elapsed_s))
            self.waiting[number] += count
            self._arrived[number] += count

    def take(self, kind: int, count: int) -> BatchTasks:
        """Return the first `count` tasks of a kind, which start now."""
        self.waiting[kind] -= count if self.is_limited else 0
        self._started[kind] += count
        return self._draw(self.kinds[kind], count)

    def put_back(self, kind: int, count: int) -> None:
        """Let evicted tasks wait again: their work starts over."""
        self.waiting[kind] += count if self.is_limited else 0
        self._arrived[kind] += count

    def note(self, time_s: float) -> None:
        """Remember how many have come and gone by now."""
        for curve, arrived, started in zip(self._curves, self._arrived, self._started, strict=True):
            curve.append((time_s, arrived, started))

    def waits_s(self) -> tuple[float, float]:
        """Return the median and the 95th percentile of how long tasks waited, those that still do included; 0 where
        demand has no limit."""
        if not self.is_limited or not self._curves[0]:
            return 0.0, 0.0
        waits, counts = [], []
        for curve in self._curves:
            times, arrived, started = np.array(curve, np.float64).T
            came = np.r_[arrived[0], np.diff(arrived)]
            # The n-th to come is the n-th to start; who has not started has waited until now.
            start_s = np.interp(arrived, started, times, right=times[-1])
            waits.append(np.maximum(start_s - times, 0.0))
            counts.append(came)
        wait, count = np.concatenate(waits), np.concatenate(counts)
        order = np.argsort(wait)
        share = np.cumsum(count[order]) / max(float(count.sum()), 1.0)
        median, p95 = np.minimum(np.searchsorted(share, [0.5, 0.95]), wait.size - 1).tolist()
        return float(wait[order[median]]), float(wait[order[p95]])

    def _draw(self, kind: JobKind, count: int) -> BatchTasks:
        rng = self._rng
        used = kind.cpu_milli * rng.uniform(*USE_OF_REQUEST, count)
        seconds = kind.task_minutes * 60 * rng.lognormal(0, kind.spread_sigma, count)
        return BatchTasks(
            used_milli=used,
            used_bytes=kind.memory_bytes * rng.uniform(*MEMORY_USE_OF_REQUEST, count),
            work_milli_s=used * seconds,
        )


def _mean_core_h(kind: JobKind) -> float:
    use = sum(USE_OF_REQUEST) / 2
    return kind.cpu_milli / 1000 * use * kind.task_minutes / 60 * math.exp(kind.spread_sigma**2 / 2)


def estimates(kinds: Sequence[JobKind], policy: LoadAwarePolicy) -> Index:
    """Return what the scheduler expects a task of each kind to use, (kinds, names of the policy)."""
    rows = []
    for kind in kinds:
        found = load.estimate(
            _pod(kind),
            PriorityClass.BATCH,
            policy.factors,
            allow_custom=policy.args.allow_customize_estimation,
        )
        rows.append([found.get(name, 0) for name in policy.names])
    return np.array(rows, np.int64)


def _pod(kind: JobKind) -> Pod:
    """Return a pod of a kind as the webhook makes it: on Batch resources."""
    amounts = {resources.BATCH_CPU: kind.cpu_milli, resources.BATCH_MEMORY: kind.memory_bytes}
    wanted = ResourceRequirements(requests=dict(amounts), limits=dict(amounts))
    return Pod(spec=PodSpec(containers=[Container(name="main", resources=wanted)]))
