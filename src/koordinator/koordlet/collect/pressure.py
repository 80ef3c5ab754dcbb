"""Pressure stall information of pods and containers. Source: behaviour/koordlet-observe 5.9."""

import logging
from collections.abc import Mapping

from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_layout, cgroup_values
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroup_values import Pressure, PressureStall
from koordinator.host.errors import ContentError
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.metrics import NodeGauge
from koordinator.koordlet.parts import Shared

log = logging.getLogger(__name__)

_KNOBS = {"cpu": Knob.CPU_PRESSURE, "mem": Knob.MEMORY_PRESSURE, "io": Knob.IO_PRESSURE}
_PRECISION = "10"


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
        at_ms = int(self._shared.clock.now() * 1000)
        for pod in self._shared.view.pods.values():
            meta = pod.pod.metadata
            of_pod = (pod.uid, meta.name, meta.namespace)
            stalls = self._stalls(pod.group)
            if stalls is not None:
                names = {kinds.POD_UID: pod.uid}
                self._keep((kinds.POD_PSI, kinds.POD_PSI_FULL_SUPPORTED), names, stalls, at_ms)
                _show(metrics.pod_psi, of_pod, stalls)
            for container in pod.containers:
                stalls = self._stalls(container.group)
                if stalls is not None:
                    names = {kinds.POD_UID: pod.uid, kinds.CONTAINER_ID: container.id}
                    kind = (kinds.CONTAINER_PSI, kinds.CONTAINER_PSI_FULL_SUPPORTED)
                    self._keep(kind, names, stalls, at_ms)
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

    def _keep(
        self,
        kind: tuple[str, str],
        names: Mapping[str, str],
        stalls: Mapping[str, PressureStall],
        at_ms: int,
    ) -> None:
        store = self._shared.store
        for resource, stall in stalls.items():
            for degree, pressure in (("some", stall.some), ("full", stall.full)):
                own = {"psi_resource": resource, "psi_precision": _PRECISION, "psi_degree": degree}
                store.ring(kind[0], {**names, **own}).append(at_ms, pressure.avg10)
        supported = float(stalls["cpu"].is_full_supported)
        store.ring(kind[1], names).append(at_ms, supported)


def _show(gauge: NodeGauge, labels: tuple[str, ...], stalls: Mapping[str, PressureStall]) -> None:
    is_full = str(stalls["cpu"].is_full_supported).lower()
    for resource, stall in stalls.items():
        for degree, pressure in (("some", stall.some), ("full", stall.full)):
            for precision, value in _averages(pressure):
                gauge.set(value, *labels, resource, precision, degree, is_full)


def _averages(pressure: Pressure) -> tuple[tuple[str, float], ...]:
    return (("avg10", pressure.avg10), ("avg60", pressure.avg60), ("avg300", pressure.avg300))
