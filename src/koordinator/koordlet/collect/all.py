"""All collectors of this node, by flags and feature gates, and what runs them. Source: behaviour/koordlet-observe 2.2,
2.3 and 5.

Each runs at once, and again one interval after the end of its last round. Those that measure usage at the same pace
share a loop, so that each round of them ends with figures that belong together, and the agent wakes up once. Whatever a
round raises costs only that round. Series are kept as long as the longest window that anybody asks for; those of ended
pods go.
"""

import asyncio
import inspect
import logging
from collections.abc import Sequence

from koordinator.api import duration
from koordinator.api.node_metric import NodeMetricSpec
from koordinator.api.scalars import ScalarError
from koordinator.cluster.supervise import Guard
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet import wakeups
from koordinator.koordlet.collect import cold_pages, runtime_usage
from koordinator.koordlet.collect.cold_pages import ColdPages
from koordinator.koordlet.collect.gpu_usage import GPUUsageCollector
from koordinator.koordlet.collect.group_usage import GroupScan
from koordinator.koordlet.collect.node_usage import NodeInfo, NodeUsageCollector, StorageInfo, SystemUsage
from koordinator.koordlet.collect.performance import CPI, PressureCollector, ResctrlMonitors
from koordinator.koordlet.collect.pod_usage import (
    BestEffortUsage,
    ForeignUsage,
    HostApplicationUsages,
    PodUsage,
)
from koordinator.koordlet.collect.rates import LatestSamples
from koordinator.koordlet.collect.runtime_usage import RuntimeUsageCollector
from koordinator.koordlet.parts import Collector, Shared
from koordinator.koordlet.report import node_metric
from koordinator.koordlet.series import GROUP_WINDOW_S_MAX

log = logging.getLogger(__name__)

INTERVAL_S = 60.0
GROUP_WINDOW_S = 300.0
"""The longest window of strategies over series of pods and containers, where none is set."""
ENDED_S = 150.0
"""Age at which a series of a group that gets no points any more goes: its pod has ended, and nobody
reports it. Longer than the rarest series (CPI) pauses."""
_INTERVALS = 2.5
_SLACK = 1.2


class SeriesRetention:
    """Looks at the policies in force once a minute."""

    name = "SeriesRetention"
    interval_s = INTERVAL_S

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def collect(self) -> bool:
        shared = self._shared
        config = shared.config.collect
        now_ms = int(shared.clock.now() * 1000)
        ended_s = max(ENDED_S, _INTERVALS * config.cpi_interval_s)
        for kept, window_s in self._windows_s():
            kept_s = min(window_s, shared.config.series_retention_s) * _SLACK
            shared.store.retain(kept, int(kept_s / config.used_interval_s))
            unused_s = kept_s if kept is kinds.NODE_KINDS else ended_s
            shared.store.expire(now_ms - int(unused_s * 1000), kept)
        return True

    def _windows_s(self) -> list[tuple[frozenset[str], float]]:
        """Kinds and the longest window that anybody asks for; an hour at most of the many series of groups."""
        shared = self._shared
        policy = node_metric.collect_policy(shared.view.metric_spec or NodeMetricSpec())
        slo = shared.view.slo
        threshold = slo.resource_used_threshold_with_be if slo is not None else None
        strategy_s = (threshold.cpu_evict_time_window_seconds if threshold is not None else None) or 0
        learnt_s = shared.config.predict.training_interval_s
        reported_s = max(policy.aggregate_duration_s, learnt_s, GROUP_WINDOW_S)
        return [
            (kinds.NODE_KINDS, max([reported_s, strategy_s, *map(_seconds, policy.durations)])),
            (kinds.REPORTED_KINDS, min(reported_s, GROUP_WINDOW_S_MAX)),
            (kinds.GROUP_KINDS - kinds.REPORTED_KINDS, GROUP_WINDOW_S),
        ]


def _seconds(text: str) -> float:
    try:
        return duration.parse(text)
    except ScalarError:
        return 0.0  # the reporter says so


INTERVAL_S_MIN = 1.0
"""Below that nothing is collected, as in the reference."""


def collectors(shared: Shared) -> list[Collector]:
    """Return the collectors that are on, in the order in which one round of usage needs them."""
    config, gates = shared.config.collect, shared.gates
    if not gates.is_on(cold_pages.OWNER):
        shared.executor.restore(cold_pages.OWNER)  # a former run may have switched the kernel's scanner on
    if config.used_interval_s < INTERVAL_S_MIN:
        log.warning("collection is off", extra={"used_interval_s": config.used_interval_s})
        return []
    known = LatestSamples()
    scan = GroupScan(shared.host.cgroups, lambda: _cpu_count(shared))
    found: list[Collector] = [
        NodeInfo(shared),
        NodeUsageCollector(shared, known),
        PodUsage(shared, known, scan),
        HostApplicationUsages(shared, known, scan),
        ForeignUsage(shared, scan),
        BestEffortUsage(shared),
        SystemUsage(shared, known),
        SeriesRetention(shared),
    ]
    if gates.is_on("Accelerators") and shared.gpus is not None:
        found.append(GPUUsageCollector(shared, shared.gpus))
    if gates.is_on(runtime_usage.GATE):
        found.append(RuntimeUsageCollector(shared, known))
    if gates.is_on("CPICollector"):
        found.append(CPI(shared))
    if gates.is_on("Libpfm4"):
        log.info("gate Libpfm4 has no effect: cycles and instructions are always counted as one group")
    if gates.is_on("PSICollector"):
        found.append(PressureCollector(shared))
    if gates.is_on("ColdPageCollector"):
        found.append(ColdPages(shared))
    if gates.is_on("ResctrlCollector") and config.resctrl:
        found.append(ResctrlMonitors(shared))
    if gates.is_on("BlkIOReconcile"):
        found.append(StorageInfo(shared))
    off = [each for each in found if each.interval_s <= 0]
    if off:
        log.warning(
            "collectors without an interval are off", extra={"collectors": [each.name for each in off]}
        )
    return [each for each in found if each.interval_s > 0]


def _cpu_count(shared: Shared) -> float:
    """Return how much one group can use; without limit while the machine is not known."""
    cpu = shared.view.cpu
    return float("inf") if cpu is None else len(cpu.processors)


START_WAIT_S = 30.0
"""Time that the rest of the agent waits for first good rounds; one that waits for its NodeSLO may never have one."""


class CollectorRunner:
    """`run` never ends; `wait_started` tells when there is something to act upon."""

    def __init__(self, collectors: Sequence[Collector], used_interval_s: float) -> None:
        self._started = {each.name: asyncio.Event() for each in collectors}
        self._guards = {each.name: Guard(each.name) for each in collectors}
        together = [each for each in collectors if _shares_rounds(each, used_interval_s)]
        alone = [each for each in collectors if each not in together]
        self._loops: list[list[Collector]] = [*([each] for each in alone), together]

    @property
    def missing(self) -> list[str]:
        """Collectors that have not had a good round yet."""
        return [name for name, started in self._started.items() if not started.is_set()]

    async def run(self) -> None:
        """Run all loops, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for each in self._loops:
                if each:
                    names = ", ".join(collector.name for collector in each)
                    tasks.create_task(self._repeat(each), name=f"collect {names}")

    async def wait_started(self, timeout_s: float = START_WAIT_S) -> list[str]:
        """Until every collector has had a good round, but not longer; the names of those that have not."""
        try:
            async with asyncio.timeout(timeout_s):
                for started in self._started.values():
                    await started.wait()
        except TimeoutError:
            log.warning("started before all collectors were ready", extra={"missing": self.missing})
        return self.missing

    async def _repeat(self, collectors: list[Collector]) -> None:
        while True:
            for each in collectors:
                await self._guards[each.name].call_async(self._round, each)
                await asyncio.sleep(0)  # whoever waits for an answer need not wait for all of them
            await wakeups.sleep(collectors[0].interval_s)

    async def _round(self, collector: Collector) -> None:
        good = collector.collect()
        if not isinstance(good, bool):
            good = await good
        if good:
            self._started[collector.name].set()


def _shares_rounds(collector: Collector, used_interval_s: float) -> bool:
    """Return whether a collector has the pace of the others and waits for nobody; those of pods let others go first."""
    is_quick = isinstance(collector, PodUsage | BestEffortUsage) or not inspect.iscoroutinefunction(
        collector.collect
    )
    return collector.interval_s == used_interval_s and is_quick
