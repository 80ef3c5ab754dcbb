"""`cpu.idle` of the groups of the three Kubernetes QoS classes: one place for all who want it.

Group identity wants it of best-effort pods on kernels without bvt, core scheduling as NodeSLO says. A group is idle
while anybody wants it, so neither takes away what the other gave. Source: behaviour/koordlet-act 14 and 18;
docs/models.md.
"""

from collections.abc import Collection

from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroups import KernelSupport
from koordinator.koordlet.hooks.contexts import ClassContext, HookResponse
from koordinator.koordlet.hooks.registry import REASON, HookRegistry, ReconcileLevel
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.writing.update_plan import Update


class IdleGroups:
    """Collects who wants which groups idle."""

    name = "CPUIdle"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._wanted: dict[str, frozenset[KubeQoS]] = {}

    def support(self) -> KernelSupport:
        """Return whether groups can be made idle here."""
        return self._shared.host.cgroups.support(Knob.CPU_IDLE, self._group(KubeQoS.GUARANTEED))

    def register(self, registry: HookRegistry) -> None:
        """Let the reconciler keep it so."""
        registry.reconcile(ReconcileLevel.CLASS, (Knob.CPU_IDLE,), self.name, self.of_class)

    def want(self, who: str, groups: Collection[KubeQoS]) -> None:
        """These groups should be idle, says `who`, and no others on their account; written at once."""
        if self._wanted.get(who) == frozenset(groups):
            return
        self._wanted[who] = frozenset(groups)
        self._write()

    def _write(self) -> None:
        updates = [
            Update(self._group(each), Knob.CPU_IDLE, str(self._value(each)), REASON) for each in KubeQoS
        ]
        if self.support().is_supported:
            self._shared.executor.update(updates, owner=self.name)

    def of_class(self, context: ClassContext) -> HookResponse:
        """Return whether a group should be idle; nothing before the first policy is known."""
        if not self._wanted or not self.support().is_supported:
            return HookResponse()
        return HookResponse(cpu_idle=self._value(context.kube_qos))

    def disable(self) -> None:
        """Nobody wants any group idle any more."""
        self._wanted.clear()
        if self._shared.executor.changed_by(self.name):
            self._write()
        self._shared.executor.restore(self.name)

    def _value(self, kube_qos: KubeQoS) -> int:
        return int(any(kube_qos in groups for groups in self._wanted.values()))

    def _group(self, kube_qos: KubeQoS) -> str:
        return cgroup_layout.class_dir(self._shared.view.driver, kube_qos)
