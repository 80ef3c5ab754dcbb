"""Memory QoS, round by round: all groups get their values when pods, policy or node change.

Source: behaviour/koordlet-act 9.

Knobs that this kernel lacks are not tried; those that it refuses are tried again after a while.
"""

import msgspec

from koordinator.api import quantity, resources
from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_knobs, cgroup_layout
from koordinator.host.cgroup_knobs import Knob
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import memory_qos
from koordinator.koordlet.qos.memory_qos import MemoryPlan, Texts
from koordinator.koordlet.writing.update_plan import Update, WriteOutcome

REASON = "UpdateCgroups"
"""As the audit log has it."""
RETRY_S = 5.0
"""Groups that are not there yet, and values that the kernel refused, have their next chance after this time."""
_REFUSED = frozenset((WriteOutcome.FAILED, WriteOutcome.NOT_HELD))


class _Inputs(msgspec.Struct, frozen=True, eq=False):
    """The inputs of the values; compared by identity, since views replace values as a whole."""

    pods: object
    strategy: object
    allocatable_bytes: int


class MemoryQoS:
    """Protects and throttles memory by the class of pods."""

    name = "CgroupReconcile"
    gates: tuple[str, ...] = ("CgroupReconcile",)

    def __init__(self, shared: Shared) -> None:
        self.interval_s = shared.config.qos.reconcile_interval_s
        self._shared = shared
        self._view = shared.view
        self._cgroups = shared.host.cgroups
        self._done_for: _Inputs | None = None
        self._done_s = 0.0
        self._is_pending = False

    def run(self) -> None:
        """One round; nothing to do while nothing has changed."""
        view = self._view
        slo, node = view.slo, view.node
        if slo is None or slo.resource_qos_strategy is None or node is None or not view.has_pods:
            return
        allocatable = node.status.allocatable.get(resources.MEMORY)
        if allocatable is None:
            return
        inputs = _Inputs(view.pods, slo.resource_qos_strategy, quantity.value(allocatable))
        if not self._is_due(inputs):
            return
        not_started = [
            (uid, container.name)
            for uid, record in view.pods.items()
            for container in record.pod.spec.containers
            if container.name not in {each.name for each in record.containers if not each.is_init}
        ]
        pods = [record.pod for record in view.pods.values()]
        plan = memory_qos.plan(
            pods,
            slo.resource_qos_strategy,
            inputs.allocatable_bytes,
            self._cgroups.version,
            not_started,
        )
        results = self._shared.executor.update_leveled(self._levels(plan), owner=self.name)
        running = {
            each.group for record in view.pods.values() for each in record.containers if each.is_running
        }
        self._is_pending = any(
            result.outcome in _REFUSED
            or (result.outcome is WriteOutcome.MISSING and result.update.group in running)
            for result in results
        )
        self._done_for, self._done_s = inputs, self._shared.clock.now()

    def disable(self) -> None:
        """All groups say again what they said before."""
        self._done_for = None
        self._shared.executor.restore(self.name, REASON)

    def _is_due(self, inputs: _Inputs) -> bool:
        done = self._done_for
        if done is None or done.pods is not inputs.pods or done.strategy is not inputs.strategy:
            return True
        if done.allocatable_bytes != inputs.allocatable_bytes:
            return True
        every_s = RETRY_S if self._is_pending else self._shared.config.qos.force_update_s
        return not 0 <= self._shared.clock.now() - self._done_s < every_s

    def _levels(self, plan: MemoryPlan) -> list[list[Update]]:
        driver = self._view.driver
        top = cgroup_layout.class_dir(driver, KubeQoS.GUARANTEED)
        known: dict[Knob, bool] = {}

        def updates(group: str, texts: Texts) -> list[Update]:
            found = []
            for knob, text in texts.items():
                if knob not in known:
                    known[knob] = self._has(knob, top)
                if known[knob]:
                    found.append(Update(group, knob, text, REASON))
            return found

        classes = [
            update
            for kube, texts in plan.classes.items()
            for update in updates(cgroup_layout.class_dir(driver, kube), texts)
        ]
        pods: list[Update] = []
        containers: list[Update] = []
        for uid, texts in plan.pods.items():
            record = self._view.pods[uid]
            pods += updates(record.group, texts)
            of_pod = plan.containers[uid]
            for container in record.containers:
                if not container.is_init and container.name in of_pod:
                    containers += updates(container.group, of_pod[container.name])
        return [classes, pods, containers]

    def _has(self, knob: Knob, top: str) -> bool:
        """Return whether this kernel has the file; a knob that counts as always there may be missing all the same."""
        if not self._cgroups.support(knob, top).is_supported:
            return False
        return self._cgroups.files.exists(
            self._cgroups.absolute(cgroup_knobs.path(knob, self._cgroups.version, top))
        )
