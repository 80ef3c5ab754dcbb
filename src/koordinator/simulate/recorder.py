"""Watches a simulated run: samples every few minutes for the plots, sums for the table."""

import msgspec
import numpy as np

from koordinator.api import resources
from koordinator.api.core import Node
from koordinator.cluster.informer import Informer
from koordinator.local.nodes.fleet import HollowFleet
from koordinator.local.nodes.service_latency import TimeAbove, service_latency, time_above
from koordinator.local.nodes.usage import F64, Index, per_node

UTILISATION_BINS = 20
# Where batch should not be added any more (`scheduling.LOAD_AWARE_ARGS`).
HOT_PERCENT = 55.0
NODES_SHOWN_MAX = 120
"""Nodes whose use is kept one by one, evenly chosen: a picture has no room for more."""
SLOW_RATIO = 2.0
"""A service suffers while its p99 is above so many times what it would be without batch; tolerated is …"""
SLOW_S_MAX = 30.0
"""… so much of a minute."""
MINUTE_S = 60.0
HOT_BIN = int(HOT_PERCENT * UTILISATION_BINS / 100)


class RecordedSeries(msgspec.Struct):
    """One value per sample; CPU in cores, ratios 0–1, latency in milliseconds."""

    hour: list[float] = []
    services: list[float] = []
    batch: list[float] = []
    system: list[float] = []
    requested: list[float] = []
    batch_allocatable: list[float] = []
    batch_requested: list[float] = []
    queue: list[int] = []
    p50_ms: list[float] = []
    p99_ms: list[float] = []
    p99_alone_ms: list[float] = []
    hot_nodes: list[int] = []
    memory_gib: list[float] = []
    batch_wanted: list[float] = []
    """Cores that batch would have used if nobody had held it back."""
    jobs_arrived: list[int] = []
    jobs_finished: list[int] = []
    node_percent: list[list[int]] = []
    """CPU use of single nodes in percent: those of `Recorder.shown`."""


class Recorder:
    """`step` after each step of the fleet, `sample` at each sampling time of the measured day."""

    def __init__(self, fleet: HollowFleet, nodes: Informer[Node]) -> None:
        self.series = RecordedSeries()
        self.utilisation = np.zeros(UTILISATION_BINS, dtype=np.int64)
        self._fleet = fleet
        self._nodes = nodes
        self._cores = float(fleet.capacity.sum()) / 1000
        self._node_seconds = np.zeros(5)  # services, batch, system, requests (Batch too), elapsed
        count = len(fleet.shapes)
        self.shown: Index = np.linspace(0, count - 1, min(count, NODES_SHOWN_MAX)).astype(np.int64)
        self._node_p99 = np.zeros((2, count))  # request-weighted p99 and p99 alone of the services of a node
        self._batch_wanted_cores = 0.0  # in the last step, as `HollowFleet.batch_used` is of it
        self._latency = np.zeros(
            6
        )  # sums of request-weighted p50, p99, p99 alone, p99.9, p99.9 alone; requests
        self._slow_s: list[tuple[float, dict[int, float]]] = []  # of the last minute: length, seconds by slot
        self.slow_minutes = 0
        """Minutes in which some service was slow for too long, beginning with each step."""
        self._slow_since_s: dict[
            int, float
        ] = {}  # by slot, of services that were slow when the last step ended
        self.longest_slow_s = 0.0
        """The longest that any service was slow without a break."""

    def step(self, elapsed_s: float) -> None:
        """Count what the last step used."""
        fleet = self._fleet
        active = fleet.active()
        self._node_seconds += elapsed_s * np.array(
            [
                fleet.services_used.sum(),
                fleet.batch_used.sum(),
                fleet.system.sum(),
                fleet.request[active].sum() + self._batch_requested_milli(active).sum(),
                1.0,
            ]
        )
        latency = service_latency(fleet)
        weight = latency.requests
        self._latency += elapsed_s * np.array(
            [
                (latency.p50_ms * weight).sum(),
                (latency.p99_ms * weight).sum(),
                (latency.p99_alone_ms * weight).sum(),
                (latency.p999_ms * weight).sum(),
                (latency.p999_alone_ms * weight).sum(),
                weight.sum(),
            ]
        )
        above = time_above(fleet, latency, SLOW_RATIO, elapsed_s)
        self._count_slow(above, elapsed_s)
        self._follow_slow(above)
        active = fleet.active()
        self._batch_wanted_cores = _cores(fleet.demand[active[fleet.is_batch[active]]])
        node = fleet.node[active[fleet.is_service[active]]]
        for total, p99_ms in zip(self._node_p99, (latency.p99_ms, latency.p99_alone_ms), strict=True):
            total += elapsed_s * per_node(node, p99_ms * weight, total.size)
        ratio = fleet.used / fleet.capacity
        bins = np.minimum((ratio * UTILISATION_BINS).astype(np.int64), UTILISATION_BINS - 1)
        self.utilisation += np.bincount(bins, minlength=UTILISATION_BINS)

    def _count_slow(self, above: TimeAbove, elapsed_s: float) -> None:
        """Count the minute that ends now if some service was slow for too long in it."""
        seconds = above.seconds
        slow = np.flatnonzero(seconds > 0)
        slots, seconds = above.slots[slow], seconds[slow]
        self._slow_s.append((elapsed_s, dict(zip(slots.tolist(), seconds.tolist(), strict=True))))
        while sum(length_s for length_s, _ in self._slow_s[1:]) >= MINUTE_S:
            del self._slow_s[0]
        sums: dict[int, float] = {}
        for _, by_slot in self._slow_s:
            for slot, slow_s in by_slot.items():
                sums[slot] = sums.get(slot, 0.0) + slow_s
        self.slow_minutes += max(sums.values(), default=0.0) > SLOW_S_MAX

    def _follow_slow(self, above: TimeAbove) -> None:
        """Follow services that are slow without a break."""
        slow = np.flatnonzero(above.is_above.any(axis=0))
        slots = above.slots[slow].tolist()
        still: dict[int, float] = {}
        for slot, moments in zip(slots, above.is_above[:, slow].T.tolist(), strict=True):
            since_s = self._slow_since_s.get(slot, 0.0)
            for is_slow, lasted_s in zip(moments, above.durations_s.tolist(), strict=True):
                since_s = since_s + lasted_s if is_slow else 0.0
                self.longest_slow_s = max(self.longest_slow_s, since_s)
            still[slot] = since_s
        self._slow_since_s = still

    def sample(self, hour: float, queue: int, jobs_arrived: int = 0, jobs_finished: int = 0) -> None:
        """Note how things are now."""
        fleet, series = self._fleet, self.series
        active = fleet.active()
        latency = service_latency(fleet)
        series.hour.append(round(hour, 4))
        series.services.append(_cores(fleet.services_used))
        series.batch.append(_cores(fleet.batch_used))
        series.system.append(_cores(fleet.system))
        series.requested.append(_cores(fleet.request[active]))
        series.batch_allocatable.append(self._batch_allocatable())
        series.batch_requested.append(_cores(self._batch_requested_milli(active)))
        series.queue.append(queue)
        series.p50_ms.append(_weighted(latency.p50_ms, latency.requests))
        series.p99_ms.append(_weighted(latency.p99_ms, latency.requests))
        series.p99_alone_ms.append(_weighted(latency.p99_alone_ms, latency.requests))
        series.hot_nodes.append(int((fleet.used * 100 > fleet.capacity * HOT_PERCENT).sum()))

        series.memory_gib.append(round(float(fleet.used_bytes.sum()) / 2**30, 2))
        series.batch_wanted.append(self._batch_wanted_cores)
        series.jobs_arrived.append(jobs_arrived)
        series.jobs_finished.append(jobs_finished)
        percent = np.minimum(fleet.used[self.shown] * 100 / fleet.capacity[self.shown], 100)
        series.node_percent.append(percent.round().astype(int).tolist())

    def slowed_nodes(self) -> dict[str, float]:
        """Node → by how many percent batch raised the p99 of its services, over the whole time."""
        p99, alone = self._node_p99
        names = [shape.name for shape in self._fleet.shapes]
        return {
            name: round((float(with_batch) / float(without) - 1) * 100, 2)
            for name, with_batch, without in zip(names, p99, alone, strict=True)
            if without > 0
        }

    def _batch_requested_milli(self, active: Index) -> F64:
        """Batch CPU that running best-effort pods asked for."""
        requested: F64 = self._fleet.batch_milli[active]
        return requested

    def _batch_allocatable(self) -> float:
        """Cores that the manager lends to batch, as the Node objects say."""
        total = sum(
            max(resources.whole(node.status.allocatable, resources.BATCH_CPU), 0)
            for node in self._nodes.objects.values()
        )
        return round(total / 1000, 3)

    @property
    def means(self) -> dict[str, float]:
        """Averages over the measured time: ratios of the cluster's CPUs, core-hours, milliseconds."""
        services, batch, system, requested, elapsed_s = self._node_seconds.tolist()
        scale = 1 / (elapsed_s * self._cores * 1000) if elapsed_s else 0.0
        p50, p99, p99_alone, p999, p999_alone, requests = self._latency.tolist()
        per_request = 1 / requests if requests else 0.0
        return {
            "services_ratio": services * scale,
            "batch_ratio": batch * scale,
            "cpu_use_ratio": (services + batch + system) * scale,
            "cpu_allocated_ratio": requested * scale,
            "batch_core_hours": batch / 1000 / 3600,
            "p50_ms": p50 * per_request,
            "p99_ms": p99 * per_request,
            "p99_alone_ms": p99_alone * per_request,
            "p999_ms": p999 * per_request,
            "p999_alone_ms": p999_alone * per_request,
        }


def _cores(milli: F64) -> float:
    return round(float(milli.sum()) / 1000, 3)


def _weighted(values: F64, weight: F64) -> float:
    total = float(weight.sum())
    return round(float((values * weight).sum()) / total, 4) if total else 0.0
