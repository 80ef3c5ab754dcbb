"""Find which hook answers where: by stage of a container runtime, and by level and file of the reconciler.

Source: behaviour/koordlet-act 13.3 and 13.7.
"""

import enum
from collections.abc import Callable, Collection, Hashable
from typing import Any

import msgspec

from koordinator.api import qos
from koordinator.api.annotations import placement
from koordinator.api.errors import KoordinatorError
from koordinator.api.qos import QoSClass
from koordinator.clock import Clock
from koordinator.koordlet.hooks import contexts
from koordinator.koordlet.hooks.contexts import Context, HookResponse, HookStage, PodContext
from koordinator.koordlet.metrics import AgentMetrics, status_of

REASON = "runtime-hooks"
"""What the audit log says of writes by hooks."""
FAIL = "Fail"
"""Plugin failure policy: stop at the first hook that fails."""

HookFunction = Callable[[Any], HookResponse]
"""Takes the kind of context that its stage or level has. Raises: KoordinatorError, for bad annotations."""
Filter = Callable[[PodContext], Hashable]
Deliver = Callable[[Any, HookResponse], None]
ALL = "all"
"""The one condition of entries without filter."""


class ReconcileLevel(enum.Enum):
    """The level at which the reconciler calls hooks."""

    CLASS = "kubeqos"
    POD = "pod"
    SANDBOX = "sandbox"
    CONTAINER = "container"
    HOST_APPLICATION = "hostapp"


def always(pod: PodContext) -> Hashable:
    """Return the filter that lets everything through."""
    return ALL


def by_pod_qos(pod: PodContext) -> Hashable:
    """Return the raw class; a pod without class whose CPUs are bound counts as LSR."""
    of_pod = qos.of_labels(pod.labels)
    if of_pod is QoSClass.NONE and placement.has_cpuset(pod.annotations):
        return QoSClass.LSR
    return of_pod


class ReconcileEntry(msgspec.Struct, frozen=True):
    """One file (or more that are decided together) of a level: its functions by condition."""

    level: ReconcileLevel
    resources: tuple[str, ...]
    select: Filter
    functions: dict[Hashable, tuple[str, HookFunction]]
    """Condition → name of the hook, function."""
    deliver: Deliver | None = None
    """Carries an answer out where it is no value in a file; called on every refresh."""

    def function(self, condition: Hashable) -> tuple[str, HookFunction] | None:
        """Hook and function for a condition."""
        return self.functions.get(condition)


class HookAnswer(msgspec.Struct, frozen=True):
    """The answer of one hook."""

    hook: str
    response: HookResponse


class StageResult(msgspec.Struct, frozen=True):
    """Answers of all hooks of a stage in order, and what went wrong."""

    answers: tuple[HookAnswer, ...]
    errors: tuple[KoordinatorError, ...] = ()

    @property
    def response(self) -> HookResponse:
        """All answers as one."""
        return contexts.merged(answer.response for answer in self.answers)


class HookRegistry:
    """All hooks of an agent. Registering the same thing twice is a mistake of ours."""

    def __init__(self, metrics: AgentMetrics, clock: Clock, failure_policy: str = "Ignore") -> None:
        self._metrics = metrics
        self._clock = clock
        self._failure_policy = failure_policy
        self._stages: dict[HookStage, dict[str, HookFunction]] = {}
        self._entries: dict[ReconcileLevel, list[ReconcileEntry]] = {level: [] for level in ReconcileLevel}

    def at_stage(self, stage: HookStage, hook: str, function: HookFunction) -> None:
        """Call a function when a runtime reaches this stage."""
        hooks = self._stages.setdefault(stage, {})
        assert hook not in hooks, (stage, hook)
        hooks[hook] = function
        self._stages[stage] = dict(sorted(hooks.items()))

    def at_resource_stages(self, hook: str, of_pod: HookFunction, of_container: HookFunction) -> None:
        """Call functions wherever a runtime sets resources: for a new sandbox, for a container new or changed."""
        self.at_stage(HookStage.PRE_RUN_POD_SANDBOX, hook, of_pod)
        for stage in (HookStage.PRE_CREATE_CONTAINER, HookStage.PRE_UPDATE_CONTAINER_RESOURCES):
            self.at_stage(stage, hook, of_container)

    def reconcile(
        self,
        level: ReconcileLevel,
        resources: tuple[str, ...],
        hook: str,
        function: HookFunction,
        *,
        select: Filter = always,
        conditions: Collection[Hashable] = (ALL,),
        deliver: Deliver | None = None,
    ) -> None:
        """Call a function for what the reconciler finds on a level, where the filter gives one of the conditions."""
        entry = next((each for each in self._entries[level] if each.resources == resources), None)
        if entry is None:
            entry = ReconcileEntry(level, resources, select, {}, deliver)
            self._entries[level].append(entry)
        for other in self._entries[level]:
            if set(other.resources) & set(resources):
                assert other.select is select, (level, resources, "a file of a level has one filter")
                assert not other.functions.keys() & set(conditions), (level, resources, conditions)
        for condition in conditions:
            entry.functions[condition] = (hook, function)

    def entries(self, level: ReconcileLevel) -> list[ReconcileEntry]:
        """Return what is reconciled on a level."""
        return self._entries[level]

    def stages(self) -> list[HookStage]:
        """Stages that at least one hook answers, which a runtime must be told."""
        return [stage for stage in HookStage if self._stages.get(stage)]

    def run_stage(self, stage: HookStage, context: Context) -> StageResult:
        """Ask all hooks of a stage in the order of their names; after a failure the others only if so configured."""
        answers: list[HookAnswer] = []
        errors: list[KoordinatorError] = []
        for hook, function in self._stages.get(stage, {}).items():
            start_s = self._clock.now()
            is_success = True
            try:
                answers.append(HookAnswer(hook, function(context)))
            except KoordinatorError as error:
                errors.append(error)
                is_success = False
            duration_ms = (self._clock.now() - start_s) * 1000
            self._metrics.hook_invoked.of(hook, stage, status_of(is_success)).observe(duration_ms)
            if errors and self._failure_policy == FAIL:
                break
        return StageResult(tuple(answers), tuple(errors))
