"""The batch queue: a queue per kind of job, first come first served; a stage waits for the one before.

As the platform of the object-level run (`batch_platform`): a queue per kind, so that large tasks that find no room do
not hold up small ones; evicted work starts over, ahead of what came later.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np

from koordinator.local.nodes.usage import Index
from koordinator.simulate.whatif.demand import BatchTasks, JobSource

UNLIMITED = 1 << 40
"""Tasks that wait where there is always more work than room."""


class BatchQueue:
    """Waiting tasks by kind, and how long they wait."""

    def __init__(self, source: JobSource) -> None:
        self.kinds = tuple(source.kinds)
        self.is_limited = source.has_limit
        """True where the queue can run empty."""
        self.waiting = [0 if source.has_limit else UNLIMITED for _ in self.kinds]
        self._source = source
        self._queues: list[deque[BatchTasks]] = [deque() for _ in self.kinds]
        self._jobs: dict[int, tuple[int, Iterator[BatchTasks]]] = {}  # kind, stages that are still to come
        self._running: dict[int, int] = {}  # tasks of the present stage that have not ended
        self._next_job = 0
        self._curves: list[list[tuple[float, int, int]]] = [[] for _ in self.kinds]  # time, arrived, started
        self._arrived = [0] * len(self.kinds)
        self._started = [0] * len(self.kinds)

    @property
    def length(self) -> int:
        """Tasks that wait; 0 where there is always more."""
        return sum(self.waiting) if self.is_limited else 0

    def arrive(self, from_s: float, to_s: float) -> None:
        """Let the jobs of this time come in."""
        for job in self._source.arriving(from_s, to_s):
            self._jobs[self._next_job] = job.kind, job.stages
            self._begin_stage(self._next_job)
            self._next_job += 1

    def take(self, kind: int, count: int) -> BatchTasks:
        """Return the first `count` tasks of a kind, which start now."""
        self._started[kind] += count
        if not self.is_limited:
            return self._source.draw(kind, count)
        self.waiting[kind] -= count
        queue, taken = self._queues[kind], []
        while count:
            first = queue.popleft()
            if first.count > count:
                queue.appendleft(first.rows(slice(count, None)))
                first = first.rows(slice(count))
            taken.append(first)
            count -= first.count
        return _joined(taken)

    def put_back(self, kind: int, tasks: BatchTasks) -> None:
        """Let evicted tasks wait again, ahead of all others."""
        self._arrived[kind] += tasks.count
        if self.is_limited:
            self._queues[kind].appendleft(tasks)
            self.waiting[kind] += tasks.count

    def ended(self, job: Index) -> None:
        """Tasks of these jobs are done, (tasks,): jobs whose stage is over go on to the next one."""
        numbers, counts = np.unique(job, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            if number < 0:
                continue
            self._running[number] -= count
            if not self._running[number]:
                self._begin_stage(number)

    def _begin_stage(self, number: int) -> None:
        kind, stages = self._jobs[number]
        tasks = next(stages, None)
        if tasks is None:
            del self._jobs[number]
            self._running.pop(number, None)
            return
        tasks.job[:] = number
        self._running[number] = tasks.count
        self._queues[kind].append(tasks)
        self.waiting[kind] += tasks.count
        self._arrived[kind] += tasks.count

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


def _joined(parts: list[BatchTasks]) -> BatchTasks:
    if len(parts) == 1:
        return parts[0]
    return BatchTasks(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in BatchTasks.__struct_fields__)
    )
