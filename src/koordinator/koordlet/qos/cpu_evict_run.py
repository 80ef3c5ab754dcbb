"""Evicts for CPU: reads what was measured, asks `cpu_evict`, hands the tasks to the evictor."""

from collections.abc import Collection, Sequence

import msgspec

from koordinator.api import resources
from koordinator.api.core import Pod
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import cpu_evict
from koordinator.koordlet.qos.cpu_evict import BESample, CPUState
from koordinator.koordlet.qos.evict_rounds import EvictRounds
from koordinator.koordlet.qos.eviction import Amounts, EvictionTask
from koordinator.koordlet.qos.eviction_settings import Feature
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.measured import PlausibleUsage, plausible

FEATURES = (Feature.BE_CPU, Feature.CPU_ALLOCATABLE, Feature.CPU)
_MILLI = 1_000
_ALLOCATIONS = (kinds.BE_USAGE, kinds.BE_REQUEST, kinds.BE_REAL_LIMIT)


class CPUEvict(EvictRounds):
    """The three tasks that evict for CPU. After the start it rests once, so that there is something to average."""

    name = "CPUEvict"
    gates = tuple(map(str, FEATURES))

    def __init__(self, shared: Shared, evictor: Evictor) -> None:
        config = shared.config.qos
        self.interval_s = config.cpu_evict_interval_s
        super().__init__(
            shared,
            evictor,
            features=FEATURES,
            resource=resources.CPU,
            lent=(resources.BATCH_CPU, resources.MID_CPU),
            by_allocatable=Feature.CPU_ALLOCATABLE,
            cool_s=config.cpu_evict_cool_s,
            rests_first=True,
        )

    def _wanted(
        self,
        features: Collection[Feature],
        strategy: ResourceThresholdStrategy,
        capacity: int,
        lent: Amounts,
        pods: Sequence[Pod],
    ) -> list[EvictionTask]:
        return cpu_evict.tasks(features, strategy, self._state(strategy, capacity), lent, pods)

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
