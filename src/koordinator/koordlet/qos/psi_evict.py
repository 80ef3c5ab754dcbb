"""Evicting by pressure (PSI): best-effort pods go while pods stall on memory, or services wait for CPU.

Use tells how full a node is, pressure what that costs: time that work loses (docs/protect-services.md). The rule for
memory is that of oomd's `pressure_rising_beyond`: a minute says that it lasts, ten seconds that it goes on. Defaults
are systemd-oomd's: 60 % for half a minute, which is then some 25 % of the last minute.
"""

import logging
from collections.abc import Sequence

import msgspec

from koordinator.api import resources
from koordinator.api.core import Pod
from koordinator.api.feature_gates import FeatureGate, FeatureStage
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.api.slo import PSI, PSISettings
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroup_values import Pressure, PressureStall
from koordinator.host.errors import ContentError
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import eviction
from koordinator.koordlet.qos.eviction import EvictionTask, ReleaseTarget, Used
from koordinator.koordlet.qos.eviction_strategy import (
    CarriesOut,
    EvictionStrategy,
    Flag,
    PlausibleUsage,
    plausible,
)

log = logging.getLogger(__name__)

_MILLI = 1_000


class PSIState(msgspec.Struct, frozen=True):
    """The last measurements; None where they are not known."""

    capacity_bytes: int
    capacity_milli: int
    node_bytes: float | None
    memory: Pressure | None
    """`full` of all pods."""
    cpu_percent: float | None
    """`some` of the service that waits most."""
    cpu_since_s: float | None
    """Time for which CPU pressure has been above its threshold."""
    pods_bytes: Used
    pods_cores: Used


class PSIEvict(EvictionStrategy):
    """One feature: best-effort pods go by pressure on memory, then on CPU."""

    name = PSI
    gates = (PSI,)
    new_gates = {
        PSI: FeatureGate(
            False, FeatureStage.ALPHA, "evict best-effort pods by pressure on memory and CPU (PSI)"
        )
    }
    interval = Flag(
        "psi-evict-interval-seconds", 5, "Loop of eviction by pressure; 0: off (not in the reference)."
    )
    cool_down = Flag(
        "psi-evict-cool-time-seconds", 15, "Pause after an eviction by pressure (not in the reference)."
    )

    def __init__(self, shared: Shared, evictor: CarriesOut) -> None:
        super().__init__(shared, evictor)
        self._above_since_s: float | None = None
        self._is_reported = False

    def tasks(self, now_s: float) -> list[EvictionTask]:
        settings, view = self.settings(PSI, PSISettings), self._shared.view
        if settings is None or not settings.enable:
            self._above_since_s = None
            return []
        memory, cpu = view.capacity(resources.MEMORY), view.capacity(resources.CPU)
        readings = self._shared.readings
        cpu_percent = self._services_percent() if settings.cpu_some_avg10_percent is not None else None
        state = PSIState(
            capacity_bytes=memory,
            capacity_milli=cpu,
            node_bytes=plausible(readings.latest(kinds.NODE_MEMORY), memory),
            memory=self._memory(),
            cpu_percent=cpu_percent,
            cpu_since_s=self._above_s(settings, cpu_percent, now_s),
            pods_bytes=PlausibleUsage(self.used_bytes, memory),
            pods_cores=PlausibleUsage(self.used_cores, cpu / _MILLI),
        )
        return wanted(settings, state, self.active_pods())

    def _above_s(self, settings: PSISettings, percent: float | None, now_s: float) -> float | None:
        """Return for how long CPU pressure has been above its threshold."""
        threshold = settings.cpu_some_avg10_percent
        if threshold is None or percent is None or percent < threshold:
            self._above_since_s = None
            return None
        if self._above_since_s is None:
            self._above_since_s = now_s
        return now_s - self._above_since_s

    def _memory(self) -> Pressure | None:
        group = cgroup_layout.class_dir(self._shared.view.driver, KubeQoS.GUARANTEED)  # the group of all pods
        stall = self._stall(Knob.MEMORY_PRESSURE, group)
        if stall is None and not self._is_reported:
            log.warning("eviction by pressure is off: the kernel reports no PSI", extra={"group": group})
        self._is_reported = stall is None
        return stall.full if stall is not None else None

    def _services_percent(self) -> float | None:
        """Return how long the service that waits most waits for CPU, less what its own limit may have cost it."""
        throttled = self._shared.readings.pods(kinds.POD_THROTTLED)
        found = []
        for record in self._shared.view.pods.values():
            if not record.is_active or QoSClass.BE is record.qos or record.kube_qos is KubeQoS.BEST_EFFORT:
                continue
            stall = self._stall(Knob.CPU_PRESSURE, record.group)
            if stall is not None:
                found.append(stall.some.avg10 - 100 * throttled.get(record.uid, 0.0))
        return max(found, default=None)

    def _stall(self, knob: Knob, group: str) -> PressureStall | None:
        try:
            return self._shared.host.cgroups.pressure(knob, group)
        except ContentError:
            return None


def wanted(settings: PSISettings, state: PSIState, pods: Sequence[Pod]) -> list[EvictionTask]:
    """Return what must go: best-effort pods, lower priority first, then those that use most of what is short."""
    tasks = []
    memory = state.memory
    if memory is not None and is_short_of_memory(settings, state):
        tasks.append(
            _task(
                resources.MEMORY,
                settings.release_percent * state.capacity_bytes // 100,
                pods,
                state.pods_bytes,
                reason=f"memory pressure full avg10={memory.avg10:.0f}% avg60={memory.avg60:.0f}%",
            )
        )
    if state.cpu_since_s is not None and state.cpu_since_s >= settings.cpu_duration_seconds:
        tasks.append(
            _task(
                resources.CPU,
                settings.release_percent * state.capacity_milli // 100,
                pods,
                state.pods_cores,
                unit=_MILLI,
                reason=f"cpu pressure some avg10={state.cpu_percent:.0f}% for {state.cpu_since_s:.0f}s",
            )
        )
    return tasks


def is_short_of_memory(settings: PSISettings, state: PSIState) -> bool:
    """Return whether all pods stall on memory, have done so for a while, and the node has little left."""
    if state.memory is None or state.node_bytes is None:
        return False
    return (
        state.memory.avg10 >= settings.memory_full_avg10_percent
        and state.memory.avg60 >= settings.memory_full_avg60_percent
        and state.node_bytes * 100 >= state.capacity_bytes * settings.memory_used_percent
    )


def _task(
    resource: str, release: int, pods: Sequence[Pod], used: Used, *, reason: str, unit: int = 1
) -> EvictionTask:
    candidates = eviction.uids(eviction.largest_first(PSI, pods, used))
    gives = {uid: {resource: int(amount * unit)} for uid, amount in used.items()}
    return EvictionTask(PSI, ReleaseTarget.USED, {resource: release}, candidates, gives, reason)
