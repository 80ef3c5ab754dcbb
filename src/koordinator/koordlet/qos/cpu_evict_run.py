"""Evicts for CPU: reads what was measured, asks `cpu_evict`, hands the tasks to the evictor."""

import asyncio

import msgspec

from koordinator.api import resources
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import allocatable, cpu_evict, eviction_settings
from koordinator.koordlet.qos.allocatable import Lent
from koordinator.koordlet.qos.cool_down import CoolDown
from koordinator.koordlet.qos.cpu_evict import BESample, CPUState
from koordinator.koordlet.qos.eviction import EvictionTask
from koordinator.koordlet.qos.eviction_settings import Feature
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.measured import PlausibleUsage, plausible
from koordinator.koordlet.view import Topic

FEATURES = (Feature.BE_CPU, Feature.CPU_ALLOCATABLE, Feature.CPU)
_MILLI = 1_000
_ALLOCATIONS = (kinds.BE_USAGE, kinds.BE_REQUEST, kinds.BE_REAL_LIMIT)


class CPUEvict:
    """The three tasks that evict for CPU. After the start it rests once, so that there is something to average."""

    name = "CPUEvict"
    gates = tuple(map(str, FEATURES))
    after = Topic.USAGE

    def __init__(self, shared: Shared, evictor: Evictor) -> None:
        config = shared.config.qos
        self.interval_s = config.cpu_evict_interval_s
        self._shared = shared
        self._evictor = evictor
        self._features = frozenset(feature for feature in FEATURES if shared.gates.is_on(feature))
        self._lent = Lent((resources.BATCH_CPU, resources.MID_CPU))
        self._cool_down: CoolDown | None = None

    async def run(self) -> None:
        """One round."""
        now_s = asyncio.get_running_loop().time()
        if self._cool_down is None:
            self._cool_down = CoolDown(self._shared.config.qos.cpu_evict_cool_s, now_s)
        tasks = self._tasks(now_s)
        if tasks and self._cool_down.is_over(now_s) and await self._evictor.carry_out(tasks):
            self._cool_down.begin(asyncio.get_running_loop().time())

    def disable(self) -> None:
        """Nothing to put back: who was evicted stays so."""

    def _tasks(self, now_s: float) -> list[EvictionTask]:
        view = self._shared.view
        strategy = view.slo.resource_used_threshold_with_be if view.slo is not None else None
        capacity_milli = allocatable.capacity(view.node, resources.CPU)
        if (
            strategy is None
            or eviction_settings.activity(strategy)
            or view.node is None
            or capacity_milli <= 0
        ):
            return []
        facts = view.pods, view.node, strategy
        features = self._features
        if self._lent.is_known_to_fit(*facts):
            features -= {Feature.CPU_ALLOCATABLE}
        lent = self._lent.amounts(view.node, now_s)
        pods = [record.pod for record in view.pods.values() if record.is_active]
        tasks = cpu_evict.tasks(features, strategy, self._state(strategy, capacity_milli), lent, pods)
        if all(task.feature is not Feature.CPU_ALLOCATABLE for task in tasks):
            self._lent.found_to_fit(*facts)
        return tasks

    def _state(self, strategy: ResourceThresholdStrategy, capacity_milli: int) -> CPUState:
        """What was measured; an average counts only while there are new samples."""
        readings, cores = self._shared.readings, capacity_milli / _MILLI
        window_s = cpu_evict.window_s(strategy, readings.collect_interval_s)
        node_cores = None
        if Feature.CPU in self._features and plausible(readings.latest(kinds.NODE_CPU), cores) is not None:
            node_cores = plausible(readings.average(kinds.NODE_CPU, window_s).value, cores)
        state = CPUState(
            capacity_milli=capacity_milli,
            node_cores=node_cores,
            pods_cores=PlausibleUsage(readings.pods, cores),
            be_average=None,
            be_latest=None,
            collect_interval_s=readings.collect_interval_s,
        )
        if Feature.BE_CPU not in self._features:
            return state
        latest = self._best_effort(None, capacity_milli)
        average = self._best_effort(window_s, capacity_milli) if latest is not None else None
        return msgspec.structs.replace(state, be_average=average, be_latest=latest)

    def _best_effort(self, window_s: float | None, capacity_milli: int) -> BESample | None:
        """Best-effort pods over a window, or now; None when a part is missing or cannot be true."""
        readings = self._shared.readings
        values, counts = [], []
        for allocation in _ALLOCATIONS:
            properties = {kinds.BE_RESOURCE: resources.CPU, kinds.BE_ALLOCATION: allocation}
            if window_s is None:
                value, count = readings.latest(kinds.NODE_BE, properties), 1
            else:
                average = readings.average(kinds.NODE_BE, window_s, properties)
                value, count = average.value, average.count
            if value is None or value < 0:
                return None
            values.append(value)
            counts.append(count)
        usage, request, limit = values
        if plausible(usage, capacity_milli) is None or plausible(limit, capacity_milli) is None:
            return None
        return BESample(min(counts), usage, request, limit)
