"""Act on the degradation of services, each second: what is measured → one step of the controller → what strategies
are allowed.

No file has two writers: CPU suppression, resctrl, disk limits, bandwidth and batch quotas act on `view.allowance` in
their next rounds. Only `memory.high` of the group of all batch is written here, since nobody else writes it. Groups of
services are never touched. Switched off, ended or killed, all is as configured again.
"""

import asyncio
import logging
from collections.abc import Mapping

import msgspec
import numpy as np

from koordinator.api import interference as api
from koordinator.api import pod_resources, resources
from koordinator.api.core import Pod
from koordinator.api.feature_gates import FeatureGate, FeatureStage
from koordinator.api.interference import InterferenceSettings
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.errors import ContentError
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.allowance import AS_CONFIGURED, BatchAllowance
from koordinator.koordlet.degradation import INTERFERENCE
from koordinator.koordlet.interference import control, limits
from koordinator.koordlet.interference.control import (
    FULL_PERCENT,
    Actions,
    ControlConfig,
    Resource,
    State,
)
from koordinator.koordlet.interference.indicators import ControlInput, NodeUsage, control_input
from koordinator.koordlet.interference.limits import Cap
from koordinator.koordlet.interference.steps import REASON, Step, StepRecords
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import eviction
from koordinator.koordlet.qos.cpu_suppress_run import threshold_percent
from koordinator.koordlet.qos.eviction import EvictionTask, ReleaseTarget
from koordinator.koordlet.qos.eviction_strategy import CarriesOut
from koordinator.koordlet.view import Topic
from koordinator.koordlet.writing.update_plan import Update

log = logging.getLogger(__name__)

INTERFERENCE_CONTROL = "InterferenceControl"
"""Feature gate of acting; indicators have their own (`degradation.INTERFERENCE`)."""
NEW_GATES: Mapping[str, FeatureGate] = {
    INTERFERENCE_CONTROL: FeatureGate(
        False, FeatureStage.ALPHA, f"let batch follow what services feel (needs {INTERFERENCE})"
    )
}
INTERVAL_S = 1.0
_MILLI = 1000


class InterferenceControl:
    """The closed loop of one node."""

    name = INTERFERENCE_CONTROL
    gates: tuple[str, ...] = (INTERFERENCE_CONTROL,)
    interval_s = INTERVAL_S
    after = Topic.USAGE

    def __init__(self, shared: Shared, evictor: CarriesOut) -> None:
        self._shared = shared
        self._view = shared.view
        self._evictor = evictor
        self._settings: tuple[object, InterferenceSettings] | None = None
        self._state: State | None = None
        self._config: ControlConfig | None = None
        self._stepped_s = 0.0
        self._cap: Cap | None = None
        self._memory_used: int | None = None
        """Memory that batch used when it was shrunk."""
        self._is_memory_ours = True
        """A former run may have left its `memory.high`."""
        self._logged: set[str] = set()
        self.records = StepRecords(shared)

    async def run(self) -> None:
        """Do one round."""
        settings = self._settings_now()
        if not settings.enable:
            self._stop()
            return
        if not self._shared.gates.is_on(INTERFERENCE):
            self._log_once(f"gate {INTERFERENCE} is off: nothing is known of services")
        now_s = asyncio.get_running_loop().time()
        config = limits.config_of(settings, self._fixed_percent())
        if self._state is None or config != self._config:
            self._state, self._config, self._stepped_s = self._begun(config), config, now_s
        known = control_input(
            self._view.interference, self._use(), self._usable(settings), self._may_act_on, now_s
        )
        self._state, actions = control.step(self._state, known.measured, now_s - self._stepped_s, config)
        self._stepped_s = now_s
        step = self._step(known, actions)
        self._allow(settings, known, step)
        self.records.record(step, known, settings)
        if actions.evict[0] and settings.evict_culprit:
            await self._evict(known, step)

    def disable(self) -> None:
        """Put back what it changed, and let strategies act as configured."""
        self._is_memory_ours = True
        self._stop()

    def _begun(self, config: ControlConfig) -> State:
        """Return the state to go on from: with other settings ceilings are looked for anew, after a pause."""
        fresh = control.initial(1, config)
        if self._state is None:
            return fresh
        return msgspec.structs.replace(
            fresh, calm_s=np.zeros(1), degraded_s=self._state.degraded_s, signal=self._state.signal
        )

    def _stop(self) -> None:
        self._state, self._cap = None, None
        self._give_memory_back()
        self._set(AS_CONFIGURED)
        self.records.end()

    # What is known

    def _settings_now(self) -> InterferenceSettings:
        slo = self._view.slo
        if slo is None:
            return api.DEFAULT_SETTINGS
        if self._settings is None or self._settings[0] is not slo:
            found = api.settings_of(slo.extensions, f"NodeSLO {self._shared.config.node_name}")
            self._settings = slo, found
        return self._settings[1]

    def _fixed_percent(self) -> int:
        slo = self._view.slo
        strategy = slo.resource_used_threshold_with_be if slo is not None else None
        if strategy is None or not strategy.enable:
            self._log_once("resourceUsedThresholdWithBE is off: CPU of batch is not held back")
            return int(FULL_PERCENT)
        return threshold_percent(strategy)

    def _use(self) -> NodeUsage | None:
        """Return how much of the node's CPU is used; None when that is not measured."""
        capacity_milli = self._view.capacity(resources.CPU)
        readings = self._shared.readings
        node, batch = readings.latest(kinds.NODE_CPU), readings.latest(kinds.NODE_BE, kinds.BE_CPU_USED)
        if capacity_milli <= 0 or node is None:
            return None
        batch_percent = min((batch or 0.0) / capacity_milli * FULL_PERCENT, FULL_PERCENT)
        node_percent = min(node * _MILLI / capacity_milli * FULL_PERCENT, FULL_PERCENT)
        stolen = readings.latest(kinds.NODE_CPU_STOLEN) or 0.0
        stolen_percent = min(stolen * _MILLI / capacity_milli * FULL_PERCENT, FULL_PERCENT)
        return NodeUsage(max(node_percent - batch_percent, 0.0), batch_percent, stolen_percent)

    def _usable(self, settings: InterferenceSettings) -> frozenset[Resource]:
        """Return the resources that batch can be shrunk on here: a switch is on, and what it needs is configured."""
        gates = self._shared.gates
        strategy = self._view.slo.resource_qos_strategy if self._view.slo is not None else None
        section = strategy.be_class if strategy is not None else None
        found = {Resource.CPU}
        if self._has_memory_high():
            found.add(Resource.MEMORY)
        if section is not None:
            for resource, part, gate in (
                (Resource.CACHE, section.resctrl_qos, "RdtResctrl"),
                (Resource.DISK, section.blkio_qos, "BlkIOReconcile"),
                (Resource.NETWORK, section.network_qos, "TCNetworkQoS"),
            ):
                if part is not None and part.enable and gates.is_on(gate):
                    found.add(resource)
        if Resource.CACHE in found and self._shared.host.resctrl.full_mask() is None:
            found.remove(Resource.CACHE)
        return frozenset(each for each in found if settings.acts_on(each.name.lower()))

    def _may_act_on(self, uid: str) -> bool:
        """Return whether a pod is batch: nobody else is ever capped or evicted here."""
        record = self._view.pods.get(uid)
        if record is not None:
            return record.is_active and record.qos is QoSClass.BE
        return uid in self._view.foreign

    def _step(self, known: ControlInput, actions: Actions) -> Step:
        return Step(
            at_s=self._shared.clock.now(),
            stage=control.Stage(int(actions.stage[0])),
            source=control.Source(int(actions.source[0])),
            slack=float(actions.slack[0]),
            resource=Resource(int(known.measured.resource[0])),
            ceilings={each: float(actions.ceiling_percent[0, each]) for each in Resource},
            culprit_percent=float(actions.culprit_percent[0]),
            signal=float(actions.signal[0]),
            victim=known.victim,
            culprit=known.verdict.culprit if known.verdict is not None else "",
        )

    # What is done

    def _allow(self, settings: InterferenceSettings, known: ControlInput, step: Step) -> None:
        self._name_cap(known, step)
        self._set(limits.allowance_of(step.ceilings, settings, self._cap, step.culprit_percent))
        if settings.acts_on("memory"):
            self._limit_memory(step.ceilings[Resource.MEMORY])
        else:
            self._give_memory_back()

    def _set(self, allowed: BatchAllowance) -> None:
        if allowed != self._view.allowance:
            self._view.allowance = allowed
            self._view.changed(Topic.ALLOWANCE)

    def _name_cap(self, known: ControlInput, step: Step) -> None:
        """Keep who is capped, and what it used then; a new culprit takes the place of the one before."""
        if step.culprit_percent >= FULL_PERCENT:
            self._cap = None
        elif known.verdict is not None and (self._cap is None or self._cap.uid != known.verdict.culprit):
            uid = known.verdict.culprit
            record = self._view.pods.get(uid)
            cores = self._shared.readings.pods().get(uid)
            if record is None or cores is None or not _has_batch_cpu(record.pod):
                return  # its quota is the runtime's; it is shrunk with all others
            self._cap = Cap(uid, int(cores * _MILLI))

    def _limit_memory(self, percent: float) -> None:
        if percent >= FULL_PERCENT:
            self._give_memory_back()
            return
        if not self._has_memory_high():
            return
        if self._memory_used is None:
            self._memory_used = self._batch_bytes()
        if self._memory_used is None:
            return
        value = limits.memory_high_bytes(self._memory_used, limits.stepped(percent))
        self._is_memory_ours = True
        update = Update(self._batch_group, Knob.MEMORY_HIGH, str(value), REASON)
        self._shared.executor.update([update], owner=self.name)

    def _give_memory_back(self) -> None:
        self._memory_used = None
        if self._is_memory_ours:
            self._is_memory_ours = False
            self._shared.executor.restore(self.name, REASON)

    @property
    def _batch_group(self) -> str:
        return cgroup_layout.class_dir(self._view.driver, KubeQoS.BEST_EFFORT)

    def _has_memory_high(self) -> bool:
        """Return whether the kernel reclaims above a mark, which v1 does not."""
        cgroups = self._shared.host.cgroups
        return cgroups.version != V1 and cgroups.files.exists(
            cgroups.path(Knob.MEMORY_HIGH, self._batch_group)
        )

    def _batch_bytes(self) -> int | None:
        try:
            return self._shared.host.cgroups.number(Knob.MEMORY_USAGE, self._batch_group)
        except ContentError:
            return None

    async def _evict(self, known: ControlInput, step: Step) -> None:
        """Evict the culprit, where its own annotation lets us; the pair that is reported keeps its successor away."""
        verdict = known.verdict
        if verdict is None:
            return
        uid = verdict.culprit
        record = self._view.pods.get(uid)
        foreign = self._view.foreign.get(uid)
        pod = record.pod if record is not None else foreign.record.pod if foreign is not None else None
        if pod is None:
            return
        reason = f"{self.records.why(step, known)}; another node may suit it"
        candidates = eviction.uids(eviction.largest_first(self.name, [pod], {uid: 1.0}))
        gives = {uid: {resources.CPU: 1}}
        task = EvictionTask(self.name, ReleaseTarget.USED, {resources.CPU: 1}, candidates, gives, reason)
        if candidates:
            await self._evictor.carry_out([task])

    def _log_once(self, problem: str) -> None:
        if problem not in self._logged:
            self._logged.add(problem)
            log.warning("the closed loop is held back", extra={"problem": problem})


def _has_batch_cpu(pod: Pod) -> bool:
    """Return whether the quota of a pod is the batch hook's, which puts it back."""
    return pod_resources.batch(pod).request_cpu_milli > 0
