"""Batch work as it comes: jobs of the kinds of `batch_jobs`, their tasks drawn as arrays, stage by stage.

A cluster of thousands of nodes sees millions of tasks in a week; no object is made for any of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np

from koordinator.api import resources
from koordinator.api.core import Container, Pod, PodSpec, ResourceRequirements
from koordinator.api.priority import PriorityClass
from koordinator.local.nodes.usage import F64, Index, Mask
from koordinator.scheduler.plugins.load_aware import load
from koordinator.scheduler.plugins.load_aware.args import LoadAwarePolicy
from koordinator.simulate import batch_jobs
from koordinator.simulate.batch_jobs import MEMORY_USE_OF_REQUEST, USE_OF_REQUEST, JobKind


class Wanted(msgspec.Struct, frozen=True):
    """Batch demand in cores that arriving work wants on average; None: always more than fits."""

    cores: float | None
    source: str = ""


def unlimited() -> Wanted:
    """Return a demand that always has more work than there is room for."""
    return Wanted(None, source="as much as finds room")


def of_ratio(ratio: float, cluster_cores: float) -> Wanted:
    """Return a steady demand for a share of all CPUs."""
    return Wanted(ratio * cluster_cores, source=f"{100 * ratio:g} % of all CPUs")


class BatchTasks(msgspec.Struct, frozen=True, eq=False):
    """Tasks, (tasks,) each: what each uses at a time, the CPU that it needs in all, and the number of its job (-1: it
    belongs to none)."""

    used_milli: F64
    used_bytes: F64
    work_milli_s: F64
    job: Index

    @property
    def count(self) -> int:
        """Return how many there are."""
        return self.job.size

    def rows(self, chosen: slice | Mask) -> "BatchTasks":
        """Return some of them."""
        return BatchTasks(
            self.used_milli[chosen], self.used_bytes[chosen], self.work_milli_s[chosen], self.job[chosen]
        )


class ArrivingJob(msgspec.Struct, frozen=True, eq=False):
    """A job as it comes: its kind (a position), and its stages, each asked for when it may begin."""

    kind: int
    stages: Iterator[BatchTasks]


class JobSource(Protocol):
    """Says which jobs come when. `has_limit` is false where there is always more work than room."""

    @property
    def kinds(self) -> Sequence[JobKind]: ...

    @property
    def has_limit(self) -> bool: ...

    def arriving(self, from_s: float, to_s: float) -> Iterable[ArrivingJob]:
        """Return the jobs that come in this time."""
        ...

    def draw(self, kind: int, count: int) -> BatchTasks:
        """Return tasks that belong to no job, as the one that comes next where there is always more."""
        ...


class DrawnJobs:
    """Jobs drawn from a seed, by the laws of `batch_jobs.stream`."""

    def __init__(self, wanted: Wanted, seed: int) -> None:
        self.kinds = tuple(batch_jobs.KINDS)
        self.has_limit = wanted.cores is not None
        self._cores = wanted.cores or 0.0
        self._rng = np.random.default_rng(seed)

    def arriving(self, from_s: float, to_s: float) -> Iterator[ArrivingJob]:
        """See `JobSource`."""
        if not self._cores:
            return
        for number, kind in enumerate(self.kinds):
            per_s = batch_jobs.jobs_per_hour(kind, self._cores) / 3600
            for _ in range(int(self._rng.poisson(per_s * (to_s - from_s)))):
                yield ArrivingJob(number, self._stages(number))

    def draw(self, kind: int, count: int) -> BatchTasks:
        """See `JobSource`."""
        rng, shape = self._rng, self.kinds[kind]
        used = shape.cpu_milli * rng.uniform(*USE_OF_REQUEST, count)
        seconds = shape.task_minutes * 60 * rng.lognormal(0, shape.spread_sigma, count)
        return BatchTasks(
            used_milli=used,
            used_bytes=shape.memory_bytes * rng.uniform(*MEMORY_USE_OF_REQUEST, count),
            work_milli_s=used * seconds,
            job=np.full(count, -1),
        )

    def _stages(self, kind: int) -> Iterator[BatchTasks]:
        shape = self.kinds[kind]
        least, most = batch_jobs.tasks_range(shape, self._cores)
        for _ in range(int(self._rng.integers(shape.stages[0], shape.stages[1] + 1))):
            yield self.draw(kind, int(self._rng.integers(least, most + 1)))


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
