"""Collect what kernel and CPU count on demand: cycles and instructions of containers, pressure stalls of pods and
containers, cache and memory bandwidth of the QoS classes. Source: behaviour/koordlet-observe 5.9 and 5.12."""

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_layout, cgroup_values, perf_events
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroup_values import Pressure, PressureStall
from koordinator.host.errors import ContentError
from koordinator.host.perf_events import CYCLES_AND_INSTRUCTIONS, EventPair
from koordinator.koordlet.metrics import NodeGauge
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
        gauge = self._shared.metrics.container_cpi
        gauge.reset()
        for each in watched:
            found = counts.get(each.container.group)
            if found is None:
                continue  # it ended before it could be watched
            meta = each.pod.pod.metadata
            labels = (each.container.id, each.container.name, each.pod.uid, meta.name, meta.namespace)
            gauge.set(found.leader, *labels, "cycles")
            gauge.set(found.follower, *labels, "instructions")


_KNOBS = {"cpu": Knob.CPU_PRESSURE, "mem": Knob.MEMORY_PRESSURE, "io": Knob.IO_PRESSURE}


class PressureCollector:
    """Does nothing where the kernel does not tell."""

    name = "PSICollector"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.interval_s = shared.config.collect.psi_interval_s
        self._reported = ""

    def collect(self) -> bool:
        if not self._is_supported():
            return True
        if not self._shared.view.has_pods:
            return False
        metrics = self._shared.metrics
        metrics.pod_psi.reset()
        metrics.container_psi.reset()
        for pod in self._shared.view.pods.values():
            meta = pod.pod.metadata
            of_pod = (pod.uid, meta.name, meta.namespace)
            stalls = self._stalls(pod.group)
            if stalls is not None:
                _show(metrics.pod_psi, of_pod, stalls)
            for container in pod.containers:
                stalls = self._stalls(container.group)
                if stalls is not None:
                    _show(metrics.container_psi, (container.id, container.name, *of_pod), stalls)
        return True

    def _is_supported(self) -> bool:
        """Asked in the group of all pods, each round: the kubelet may make it after we started."""
        cgroups = self._shared.host.cgroups
        root = cgroup_layout.class_dir(self._shared.view.driver, KubeQoS.GUARANTEED)
        missing = [cgroups.path(knob, root) for knob in _KNOBS.values()]
        missing = [path for path in missing if not cgroups.files.exists(path)]
        reason = f"no file {missing[0]}" if missing else ""
        if reason and reason != self._reported:
            log.warning("pressure not collected", extra={"reason": reason})
        self._reported = reason
        return not missing

    def _stalls(self, group: str) -> dict[str, PressureStall] | None:
        """By resource; None when one cannot be read."""
        cgroups = self._shared.host.cgroups
        contents = cgroups.files.hot_many([cgroups.path(knob, group) for knob in _KNOBS.values()])
        found = {}
        for resource, data in zip(_KNOBS, contents, strict=True):
            if data is None:
                return None
            try:
                found[resource] = cgroup_values.pressure(data.decode(errors="replace"))
            except ContentError:
                return None
        return found


def _show(gauge: NodeGauge, labels: tuple[str, ...], stalls: Mapping[str, PressureStall]) -> None:
    is_full = str(stalls["cpu"].is_full_supported).lower()
    for resource, stall in stalls.items():
        for degree, pressure in (("some", stall.some), ("full", stall.full)):
            for precision, value in _averages(pressure):
                gauge.set(value, *labels, resource, precision, degree, is_full)


def _averages(pressure: Pressure) -> tuple[tuple[str, float], ...]:
    return (("avg10", pressure.avg10), ("avg60", pressure.avg60), ("avg300", pressure.avg300))


GROUPS = ("LSR", "LS", "BE")
CPU_FLAGS = frozenset(("cat_l3", "mba", "cqm_llc", "cqm_occup_llc", "cqm_mbm_total", "cqm_mbm_local"))
_VENDORS = frozenset(("GenuineIntel", "AuthenticAMD"))


class ResctrlMonitors:
    """Does nothing where CPU or kernel do not count, or while resctrl is not mounted."""

    name = "resctrlCollector"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.interval_s = shared.config.collect.resctrl_interval_s
        self._reported = ""

    def collect(self) -> bool:
        reason = self._obstacle()
        if reason != self._reported:
            self._reported = reason
            if reason:
                log.warning("resctrl not collected", extra={"reason": reason})
        if reason:
            return True
        metrics = self._shared.metrics
        metrics.llc_occupancy.reset()
        metrics.memory_bandwidth.reset()
        for group in GROUPS:
            try:
                monitors = self._shared.host.resctrl.monitors(group)
            except ContentError as error:
                log.debug("resctrl group skipped", extra={"group": group, "problem": str(error)})
                continue
            for cache, counted in (monitors or {}).items():
                if counted.occupancy_bytes is not None:
                    metrics.llc_occupancy.set(counted.occupancy_bytes, str(cache), group)
                traffic = (("mbm_local_bytes", counted.local_bytes), ("mbm_total_bytes", counted.total_bytes))
                for kind, moved_bytes in traffic:
                    if moved_bytes is not None:
                        metrics.memory_bandwidth.set(moved_bytes, str(cache), group, kind)
        return True

    def _obstacle(self) -> str:
        """Return why there is nothing to read; empty when there is."""
        host = self._shared.host
        support = host.resctrl.support()
        if not support.is_supported:
            return support.reason
        model = host.machine.cpu_model()
        if model.vendor not in _VENDORS:
            return f"CPU of vendor {model.vendor}"
        missing = CPU_FLAGS - model.flags
        return f"CPU without {', '.join(sorted(missing))}" if missing else ""
