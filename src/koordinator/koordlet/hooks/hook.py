"""Define what every runtime hook has: a name, which is its gate and the owner of its writes, rules, and a way back.

`IdleGroups` is shared: one place for all who want `cpu.idle` of the groups of the three Kubernetes QoS classes. Group
identity wants it of best-effort pods on kernels without bvt, core scheduling as NodeSLO says. A group is idle while
anybody wants it, so neither takes away what the other gave (docs/models.md). Source: behaviour/koordlet-act 13.1, 13.6,
14 and 18.
"""

import abc
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.api.feature_gates import FeatureGate
from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroups import KernelSupport
from koordinator.koordlet.hooks.commands import Runner
from koordinator.koordlet.hooks.contexts import ClassContext, HookResponse
from koordinator.koordlet.hooks.registry import REASON, HookRegistry, ReconcileLevel
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.view import Topic
from koordinator.koordlet.writing.update_plan import Update

log = logging.getLogger(__name__)


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


T = TypeVar("T")


class HookRule(Generic[T]):
    """The rule that a hook took from the view; malformed input keeps the last good one."""

    def __init__(
        self,
        name: str,
        topics: Collection[Topic],
        parse: Callable[[], T | None],
        initial: T,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`parse` answers None while nothing is known. Raises (parse): KoordinatorError."""
        self.name = name
        self.topics = frozenset(topics)
        self.value = initial
        self.changed = changed
        """Called after all rules of a topic were read, when this one differs."""
        self._parse = parse
        self._problem = ""

    def refresh(self) -> bool:
        """Read again; whether it differs now."""
        try:
            value = self._parse()
        except KoordinatorError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("rule not changed", extra={"rule": self.name, "problem": self._problem})
            return False
        self._problem = ""
        if value is None or value == self.value:
            return False
        self.value = value
        return True


class HookTools(msgspec.Struct, frozen=True):
    """The tools that hooks share; `runner` runs commands of the host in place of the host's own."""

    idle: IdleGroups
    runner: Runner | None = None


class Hook(abc.ABC):
    """One feature. Subclasses say what they answer where; nothing runs before `register`."""

    name: ClassVar[str]
    """Its feature gate."""

    new_gate: ClassVar[FeatureGate | None] = None
    """The gate where the reference has none of that name (`api.feature_gates` has the others)."""

    waits: ClassVar[bool] = False
    """It has work of its own in `follow`."""

    needs_runtime: ClassVar[bool] = False
    """Only a container runtime that asks hooks can carry its answers out."""

    wants_idle: ClassVar[bool] = False
    """It makes groups idle by `tools.idle`."""

    def __init__(self, shared: Shared, tools: HookTools) -> None:
        self.shared = shared
        self.invalidate: Callable[[], None] = lambda: None
        """To be called when answers change otherwise than by a rule: all pods are asked for anew."""

    def support(self) -> KernelSupport:
        """Return whether this host can do it at all; asked at the start and, while not, now and then."""
        return KernelSupport(True)

    def rules(self) -> Sequence[HookRule[Any]]:
        """Return what it follows."""
        return ()

    @abc.abstractmethod
    def register(self, registry: HookRegistry) -> None:
        """Say which functions answer where."""

    def on_pods(self) -> None:  # noqa: B027 - most hooks need none
        """All pods were reconciled: once per refresh."""

    def disable(self) -> None:
        """Put back what it changed."""
        self.shared.executor.restore(self.name)

    async def follow(self) -> None:  # noqa: B027 - most hooks need none
        """Work that waits (commands, say), after each change and every reconcile interval."""

    async def close(self) -> None:  # noqa: B027 - most hooks need none
        """Undo what `follow` did; awaited by whoever disables the hook."""
