"""Cycles and instructions of containers, by performance counters. Source: behaviour/koordlet-observe 5.9."""

import asyncio
import logging

import msgspec

from koordinator.host import perf_events
from koordinator.host.errors import ContentError
from koordinator.host.perf_events import CYCLES_AND_INSTRUCTIONS, EventPair
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.node_pods import NodeContainer, PodRecord
from koordinator.koordlet.parts import Shared

log = logging.getLogger(__name__)

DESCRIPTORS_MAX = 4_096
"""Counters open at once: two per container and CPU. On a machine with more of them, containers take turns."""
_PER_CPU = 2


class _Watched(msgspec.Struct, frozen=True):
    """A container to be watched."""

    pod: PodRecord
    container: NodeContainer


class CPI:
    """Watches containers for a while, all at once as far as descriptors go. Does nothing where the CPU cannot count."""

    name = "CPICollector"

    def __init__(self, shared: Shared, pair: EventPair = CYCLES_AND_INSTRUCTIONS) -> None:
        self._shared = shared
        self._pair = pair
        self.interval_s = shared.config.collect.cpi_interval_s
        self._window_s = shared.config.collect.cpi_window_s
        self._is_supported: bool | None = None
        self._first = 0

    async def collect(self) -> bool:
        if not self._can_count():
            return True
        if not self._shared.view.has_pods:
            return False
        try:
            cpus = sorted(self._shared.host.machine.online_cpus())
        except ContentError:
            return False
        watched = self._turn(max(DESCRIPTORS_MAX // (_PER_CPU * max(len(cpus), 1)), 1))
        host = self._shared.host
        groups = [each.container.group for each in watched]
        with perf_events.watch(host.cgroups, host.syscalls, groups, cpus, self._pair) as watch:
            await asyncio.sleep(self._window_s)
            counts = watch.read()
        self._keep(watched, counts)
        return True

    def _can_count(self) -> bool:
        if self._is_supported is None:
            support = perf_events.support(self._shared.host.syscalls, self._pair)
            self._is_supported = support.is_supported
            if not self._is_supported:
                log.warning("CPI not collected", extra={"reason": support.reason})
        return self._is_supported

    def _turn(self, containers_max: int) -> list[_Watched]:
        """Return the running containers whose turn it is."""
        running = [
            _Watched(pod, container)
            for pod in self._shared.view.pods.values()
            for container in pod.containers
            if container.is_running
        ]
        if len(running) <= containers_max:
            return running
        first = self._first % len(running)
        self._first = first + containers_max
        return (running[first:] + running[:first])[:containers_max]

    def _keep(self, watched: list[_Watched], counts: dict[str, perf_events.Counts]) -> None:
        at_ms = int(self._shared.clock.now() * 1000)
        gauge, store = self._shared.metrics.container_cpi, self._shared.store
        gauge.reset()
        for each in watched:
            found = counts.get(each.container.group)
            if found is None:
                continue  # it ended before it could be watched
            meta = each.pod.pod.metadata
            labels = (each.container.id, each.container.name, each.pod.uid, meta.name, meta.namespace)
            fields = (("cycle", "cycles", found.leader), ("instruction", "instructions", found.follower))
            for resource, field, value in fields:
                names = {
                    kinds.POD_UID: each.pod.uid,
                    kinds.CONTAINER_ID: each.container.id,
                    "cpi_resource": resource,
                }
                store.ring(kinds.CONTAINER_CPI, names).append(at_ms, value)
                gauge.set(value, *labels, field)
