"""A stream of batch jobs as data platforms have it, all drawn from the seed before the run.

Three kinds: Spark-like (stages of executors, each of which works off many short tasks; a stage waits for the
one before), transcoding-like (medium tasks that need nothing of each other), training-like (few, long).
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

GIB = 2**30


class Task(msgspec.Struct, frozen=True):
    """One pod's work: it needs `work_core_s` of CPU and uses up to `cpu_milli` at a time."""

    cpu_milli: int
    memory_bytes: int
    work_core_s: float
    used_milli: float
    used_bytes: float


class TraceJob(msgspec.Struct, frozen=True):
    """Stages of tasks; all tasks of a stage may run at once, when all of the stage before are done."""

    name: str
    kind: str
    arrives_s: float
    stages: tuple[tuple[Task, ...], ...]


class JobKind(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of one kind of job; ranges are drawn from uniformly."""

    name: str
    share_of_work: float
    stages: tuple[int, int]
    tasks: tuple[int, int]
    cpu_milli: int
    memory_bytes: int
    task_minutes: float  # median at full speed
    spread_sigma: float  # of the logarithm of a task's duration


KINDS = (
    JobKind(
        name="spark", share_of_work=0.4, stages=(2, 4), tasks=(8, 40), cpu_milli=2_000,
        memory_bytes=5 * GIB, task_minutes=40, spread_sigma=0.4,
    ),
    JobKind(
        name="transcode", share_of_work=0.35, stages=(1, 1), tasks=(16, 64), cpu_milli=2_000,
        memory_bytes=3 * GIB, task_minutes=80, spread_sigma=0.3,
    ),
    JobKind(
        name="train", share_of_work=0.25, stages=(1, 1), tasks=(1, 4), cpu_milli=8_000,
        memory_bytes=20 * GIB, task_minutes=180, spread_sigma=0.5,
    ),
)  # fmt: skip
# Tasks use a little less CPU than they ask for: input, output, stragglers' threads.
USE_OF_REQUEST = (0.8, 1.0)
MEMORY_USE_OF_REQUEST = (0.7, 1.0)


def stream(
    cores: float, hours: float, rng: np.random.Generator, kinds: Sequence[JobKind] = KINDS
) -> list[TraceJob]:
    """Jobs of these kinds that arrive within `hours` and together want `cores` on average, in order of arrival.

    Jobs are kept small against the cluster, so that a small simulated one sees many jobs, too.
    """
    jobs: list[TraceJob] = []
    for kind in kinds:
        tasks = tasks_range(kind, cores)
        per_hour = jobs_per_hour(kind, cores)
        count = int(rng.poisson(per_hour * hours))
        for at_s in np.sort(rng.uniform(0, hours * 3_600, count)).tolist():
            jobs.append(_job(kind, tasks, at_s, rng))
    jobs.sort(key=lambda job: (job.arrives_s, job.kind))
    return [msgspec.structs.replace(job, name=f"{job.kind}-{i:05d}") for i, job in enumerate(jobs)]


def jobs_per_hour(kind: JobKind, cores: float) -> float:
    """Return how many jobs of a kind arrive where all kinds together want `cores` on average."""
    tasks = tasks_range(kind, cores)
    mean_tasks = (tasks[0] + tasks[1]) / 2 * (kind.stages[0] + kind.stages[1]) / 2
    mean_use = sum(USE_OF_REQUEST) / 2
    mean_task_core_h = (
        kind.cpu_milli / 1000 * mean_use * kind.task_minutes / 60 * math.exp(kind.spread_sigma**2 / 2)
    )
    return cores * kind.share_of_work / (mean_tasks * mean_task_core_h)


def tasks_range(kind: JobKind, cores: float) -> tuple[int, int]:
    """Return the least and the most tasks of a stage: at most a tenth of the wanted cores."""
    most = max(int(cores * 0.1 * 1000 / kind.cpu_milli), 1)
    return min(kind.tasks[0], most), min(kind.tasks[1], most)


def _job(kind: JobKind, tasks: tuple[int, int], arrives_s: float, rng: np.random.Generator) -> TraceJob:
    stages = []
    for _ in range(int(rng.integers(kind.stages[0], kind.stages[1] + 1))):
        count = int(rng.integers(tasks[0], tasks[1] + 1))
        stages.append(tuple(_task(kind, rng) for _ in range(count)))
    return TraceJob(name="", kind=kind.name, arrives_s=arrives_s, stages=tuple(stages))


def _task(kind: JobKind, rng: np.random.Generator) -> Task:
    used_milli = kind.cpu_milli * rng.uniform(*USE_OF_REQUEST)
    duration_s = kind.task_minutes * 60 * rng.lognormal(0, kind.spread_sigma)
    return Task(
        cpu_milli=kind.cpu_milli,
        memory_bytes=kind.memory_bytes,
        work_core_s=round(used_milli / 1000 * duration_s, 1),
        used_milli=round(used_milli, 1),
        used_bytes=round(kind.memory_bytes * rng.uniform(*MEMORY_USE_OF_REQUEST)),
    )
