"""The demo's day with real components, watched: what a what-if run over arrays is compared with."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from koordinator.api import resources
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.meta import Object
from koordinator.api.node_metric import NodeMetric
from koordinator.clock import LoopClock
from koordinator.cluster import garbage
from koordinator.cluster.supervise import strictly
from koordinator.local.nodes.usage import TRACE_STEP_S
from koordinator.simulate import batch_jobs, services
from koordinator.simulate.batch_jobs import JobKind, TraceJob
from koordinator.simulate.run import RunResult, _Day
from koordinator.simulate.scenario import Scenario
from koordinator.simulate.virtual_time import run_virtual
from koordinator.simulate.whatif import cluster as clusters
from koordinator.simulate.whatif import history, strategy, summary
from koordinator.simulate.whatif.batch_queue import BatchQueue
from koordinator.simulate.whatif.cluster import WhatIfCluster
from koordinator.simulate.whatif.demand import ArrivingJob, BatchTasks
from koordinator.simulate.whatif.run import WhatIfRun
from koordinator.simulate.whatif.summary import StrategyResult


class SampledCluster(msgspec.Struct, frozen=True):
    """The objects of a moment."""

    at_s: float
    nodes: list[Node]
    pods: list[Pod]
    metrics: list[NodeMetric]

    def columns(self) -> WhatIfCluster:
        """Return them as the what-if run sees them, services alone."""
        return clusters.of_objects(self.nodes, self.pods, self.metrics)

    def on_nodes(self) -> list[tuple[int, int]]:
        """Return batch-cpu and batch-memory as they stand on the nodes."""
        return [
            (resources.whole(n.status.allocatable, resources.BATCH_CPU),
             resources.whole(n.status.allocatable, resources.BATCH_MEMORY))
            for n in self.nodes
        ]  # fmt: skip


class ObjectDay(msgspec.Struct, frozen=True):
    """A day with real components: its result, objects at some moments, and what machines of the trace did."""

    scenario: Scenario
    result: RunResult
    samples: list[SampledCluster]
    ratio: np.ndarray[Any, Any]
    jobs: list[TraceJob]
    """The batch jobs that came."""


def object_day(scenario: Scenario, every: int) -> ObjectDay:
    """Run the day with co-location; keep the objects of every so many samples (five minutes)."""
    samples: list[SampledCluster] = []
    days: list[_Day] = []

    async def main(clock: LoopClock) -> RunResult:
        with strictly():
            day = _Day(scenario, clock, True)
            days.append(day)
            return await day.run(lambda _: _sample(day, samples, every))

    with garbage.collected_rarely():
        result = run_virtual(main)
    trace = days[0].fleet.trace
    assert trace is not None, "the comparison needs a trace"
    first = int(scenario.warm_up_s // TRACE_STEP_S)
    return ObjectDay(scenario, result, samples[1:], np.roll(trace.ratio, -first, axis=1), days[0].jobs)


def _sample(day: _Day, samples: list[SampledCluster], every: int) -> None:
    taken = len(day.recorder.series.hour)
    if taken % every and samples:
        return
    nodes, pods, metrics = (_all(day, view) for view in (Node, Pod, NodeMetric))
    kept = [pod for pod in pods if pod.metadata.namespace == services.NAMESPACE]
    samples.append(SampledCluster(day.clock.now(), nodes, kept, metrics))


def _all(day: _Day, view: type[Any]) -> list[Any]:
    assert issubclass(view, Object)
    found = day.registry.store.table(view.resource.qualified)
    return [from_builtins(record.obj, view) for record in found.records()]


class ListedJobs:
    """Jobs that are known: those of an object-level run, say. All kinds of `jobs` are among `kinds`."""

    has_limit = True

    def __init__(self, jobs: Sequence[TraceJob], kinds: Sequence[JobKind] = batch_jobs.KINDS) -> None:
        self.kinds = tuple(kinds)
        self._number = {kind.name: number for number, kind in enumerate(kinds)}
        self._left = sorted(jobs, key=lambda job: job.arrives_s, reverse=True)

    def arriving(self, from_s: float, to_s: float) -> Iterator[ArrivingJob]:
        """See `JobSource`."""
        while self._left and self._left[-1].arrives_s < to_s:
            job = self._left.pop()
            yield ArrivingJob(self._number[job.kind], _stages_of(job))

    def draw(self, kind: int, count: int) -> BatchTasks:
        """There is no work but that of the jobs."""
        raise AssertionError("listed jobs have an end")


def _stages_of(job: TraceJob) -> Iterator[BatchTasks]:
    for stage in job.stages:
        used, held, work = np.array([(t.used_milli, t.used_bytes, 1000 * t.work_core_s) for t in stage]).T
        yield BatchTasks(used, held, work, np.full(len(stage), -1))


def array_day(day: ObjectDay, seed: int = 1) -> StrategyResult:
    """Run the same services, nodes and load over arrays, with the same batch jobs."""
    scenario = day.scenario
    seen = day.samples[0].columns()
    met = history.NodeHistory(
        seen, day.ratio, TRACE_STEP_S, np.full(len(seen.nodes.objects), 100.0), "the object-level run's trace"
    )
    chosen = strategy.of_settings(
        "demo",
        {
            "colocation-config": {"enable": True},
            "resource-threshold-config": {"clusterStrategy": {"enable": True}},
            "feature-gates": ["BEMemoryEvict"],
        },
    )
    queue = BatchQueue(ListedJobs(day.jobs, scenario.jobs))
    run = WhatIfRun(seen, met, chosen, queue, seed)
    run.run(round(scenario.hours * 3600 / TRACE_STEP_S))
    return summary.result_of(seen, chosen, run, queue, None)
