"""Define what every runtime hook has: a name, which is its gate and the owner of its writes, rules, and a way back.

`IdleGroups` is shared: one place for all who want the pods of a Kubernetes QoS class idle (`cpu.idle`). Group identity
wants it of best-effort pods on kernels without bvt, core scheduling as NodeSLO says. A class is idle while anybody
wants it, so neither takes away what the other gave (docs/models.md). Source: behaviour/koordlet-act 13.1, 13.6, 14 and
18.

`HookRegistry` finds which hook answers where: by stage of a container runtime, and by level and file of the reconciler
(behaviour/koordlet-act 13.3 and 13.7).

Commands of the host (`tc`, `ipset`, `iptables`) run in its network namespace: bounded in time, audited, or only told.
"""

import abc
import asyncio
import contextlib
import enum
import functools
import logging
import shutil
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from koordinator.api import qos
from koordinator.api.annotations import placement
from koordinator.api.errors import KoordinatorError
from koordinator.api.feature_gates import FeatureGate
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.clock import Clock
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroups import KernelSupport
from koordinator.host.host import Host
from koordinator.koordlet.hooks import contexts
from koordinator.koordlet.hooks.contexts import Context, HookResponse, HookStage, PodContext
from koordinator.koordlet.hooks.time_slice import TimeSlices
from koordinator.koordlet.metrics import AgentMetrics, status_of
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.view import Topic
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.update_plan import Update

log = logging.getLogger(__name__)

REASON = "runtime-hooks"
"""Reason in the audit log of writes by hooks."""
FAIL = "Fail"
"""Plugin failure policy: stop at the first hook that fails, and fail the runtime's call."""

HookFunction = Callable[[Any], HookResponse]
"""Takes the kind of context that its stage or level has. Raises: KoordinatorError, for bad annotations."""
Filter = Callable[[PodContext], Hashable]
Deliver = Callable[[Any, HookResponse], None]
ALL = "all"
"""The one condition of entries without filter."""
COMMAND_TIMEOUT_S = 10.0
OUTPUT_BYTES_MAX = 4 * 1024 * 1024
_MISSING_CODE = 127


class CommandResult(msgspec.Struct, frozen=True):
    """The answer of a command; `code` 127 where it is not installed, negative where it was killed."""

    code: int
    output: str
    error: str = ""

    @property
    def is_good(self) -> bool:
        """Return whether it succeeded."""
        return self.code == 0


class Runner(Protocol):
    """Runs one command."""

    async def __call__(self, command: Sequence[str], text: str = "") -> CommandResult:
        """Give it `text` to read, and wait until it ends or its time is over. Raises nothing."""
        ...


def host_runner(host: Host) -> Runner:
    """Return the host's commands, entered into the network namespace of its first process where ours is another."""
    own, first = (f"{host.roots.proc}/{pid}/ns/net" for pid in ("self", "1"))
    is_other = host.files.identity(first) not in (None, host.files.identity(own))
    return NamespaceRunner(first if is_other else "")


class NamespaceRunner:
    """Commands in a network namespace, named by its file; empty is our own."""

    def __init__(self, namespace: str = "", timeout_s: float = COMMAND_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._prefix = ("nsenter", f"--net={namespace}", "--") if namespace else ()

    async def __call__(self, command: Sequence[str], text: str = "") -> CommandResult:
        if shutil.which(command[0]) is None:
            return CommandResult(_MISSING_CODE, "", f"{command[0]} is not installed")
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self._prefix, *command, stdin=pipe, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            return CommandResult(_MISSING_CODE, "", str(error))
        try:
            async with asyncio.timeout(self._timeout_s):
                output, problem = await process.communicate(text.encode())
        except TimeoutError:
            return CommandResult(-1, "", f"took longer than {self._timeout_s:g} s")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        kept = output[:OUTPUT_BYTES_MAX].decode(errors="replace")
        return CommandResult(process.returncode or 0, kept, problem.decode(errors="replace").strip()[:400])


class Commands:
    """Commands of one owner: those that look, and those that change something."""

    def __init__(self, runner: Runner, executor: Executor, owner: str) -> None:
        self._runner = runner
        self._executor = executor
        self._owner = owner

    async def look(self, *command: str) -> CommandResult:
        """Ask; done in a dry run, too."""
        return await self._runner(command)

    async def change(self, *command: str, text: str = "") -> CommandResult:
        """Change something: audited when it succeeded; only told in a dry run."""
        words = " ".join(command)
        if self._executor.is_dry_run:
            self._log_command(words, text)
            return CommandResult(0, "")
        done = await self._runner(command, text)
        if done.is_good:
            self._log_command(words, text)
        return done

    def _log_command(self, words: str, text: str) -> None:
        what = text.strip().replace("\n", "; ") or "run"
        self._executor.perform(words, what, lambda: None, self._owner, REASON)


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


class HookAnswer(msgspec.Struct, frozen=True):
    """The answer of one hook."""

    hook: str
    response: HookResponse


class HookFailed(KoordinatorError):
    """A hook failed, and its failure is to fail the runtime's call (--runtime-hooks-plugin-failure-policy=Fail)."""


class StageResult(msgspec.Struct, frozen=True, dict=True):
    """Answers of all hooks of a stage in order, and what went wrong; `fails_call` where that is to fail the call."""

    answers: tuple[HookAnswer, ...]
    errors: tuple[KoordinatorError, ...]
    fails_call: bool

    @functools.cached_property
    def response(self) -> HookResponse:
        """Return all answers as one."""
        return contexts.merged(answer.response for answer in self.answers)

    def accepted(self) -> HookResponse:
        """Return the response for the runtime. Raises: HookFailed."""
        if self.fails_call:
            raise HookFailed(str(self.errors[0]))
        return self.response


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

    def reconcile_resources(
        self,
        hook: str,
        resources: tuple[str, ...],
        of_pod: HookFunction,
        of_container: HookFunction,
        conditions: Collection[Hashable],
    ) -> None:
        """Call functions for pods and containers of these QoS classes."""
        for level, function in ((ReconcileLevel.POD, of_pod), (ReconcileLevel.CONTAINER, of_container)):
            self.reconcile(level, resources, hook, function, select=by_pod_qos, conditions=conditions)

    def entries(self, level: ReconcileLevel) -> list[ReconcileEntry]:
        """Return what is reconciled on a level."""
        return self._entries[level]

    def stages(self) -> list[HookStage]:
        """Stages that at least one hook answers, which a runtime must be told."""
        return [stage for stage in HookStage if self._stages.get(stage)]

    def asked_by_runtimes(self) -> list[str]:
        """Return the names of hooks that answer at a stage."""
        return sorted({hook for hooks in self._stages.values() for hook in hooks})

    def reconciled(self) -> list[str]:
        """Return the names of hooks that the reconciler asks."""
        found = (entry.functions.values() for entries in self._entries.values() for entry in entries)
        return sorted({hook for functions in found for hook, _ in functions})

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
        fails_call = bool(errors) and self._failure_policy == FAIL
        return StageResult(tuple(answers), tuple(errors), fails_call)


class IdleGroups:
    """Collects who wants the pods of which classes idle.

    The pods' groups are idle, not that of the class: a kubelet writes the CPU shares of a class at its start, each
    minute and before each pod; the kernel refuses shares of idle groups, and then a kubelet that starts ends. Groups of
    pods it writes when it makes them (docs/decisions/0015). What else lies below the class (YARN, say) is idle, too.
    Their threads have long time slices, for with the class in between services would not interrupt them at once.
    """

    name = "CPUIdle"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._slices = TimeSlices(shared, REASON)
        self._wanted: dict[str, frozenset[KubeQoS]] = {}

    def support(self) -> KernelSupport:
        """Return whether groups can be made idle here."""
        return self._shared.host.cgroups.support(Knob.CPU_IDLE, self._group(KubeQoS.GUARANTEED))

    def register(self, registry: HookRegistry) -> None:
        """Pods are idle from their start, and the reconciler keeps them so."""
        registry.at_stage(HookStage.PRE_RUN_POD_SANDBOX, self.name, self.of_pod)
        registry.reconcile(ReconcileLevel.POD, (Knob.CPU_IDLE,), self.name, self.of_pod)

    def want(self, who: str, classes: Collection[KubeQoS]) -> None:
        """The pods of these classes should be idle, says `who`, and no others on their account; written at once."""
        if self._wanted.get(who) == frozenset(classes):
            return
        self._wanted[who] = frozenset(classes)
        self.refresh()
        for _ in self.slices():
            pass

    def refresh(self) -> None:
        """Make all idle that should be, also what the kubelet did not tell of, and nothing else any more."""
        if not self._wanted or not self.support().is_supported:
            return
        groups = self._groups()
        updates = [Update(group, Knob.CPU_IDLE, "1", REASON) for group in groups]
        self._shared.executor.update(updates, owner=self.name)
        self._restore(keep=frozenset(groups))

    def of_pod(self, pod: PodContext) -> HookResponse:
        """Return that a pod should be idle; nothing for others."""
        is_idle = self._is_idle(pod.kube_qos) and self.support().is_supported
        return HookResponse(cpu_idle=1) if is_idle else HookResponse()

    def slices(self) -> Iterator[None]:
        """Give what pods have started since the last time long time slices; where this yields, others may have their
        turn."""
        if self._wanted and self.support().is_supported:
            yield from self._slices.give(self._groups())

    def covers(self, group: str) -> bool:
        """Return whether a group is idle with the class that it is directly below."""
        above = group.rpartition("/")[0]
        return any(self._is_idle(each) and self._group(each) == above for each in KubeQoS)

    def disable(self) -> None:
        """Nobody wants anything idle any more."""
        self._wanted.clear()
        self._restore(keep=frozenset())
        for _ in self._slices.give(()):
            pass

    def _restore(self, keep: Collection[str]) -> None:
        """Put back all that was made idle but some groups."""
        executor = self._shared.executor
        records = executor.changed_by(self.name)
        over = {record.key for record in records if record.group not in keep}
        if over:
            executor.restore(self.name, REASON, keys=over)

    def _groups(self) -> list[str]:
        return [group for each in KubeQoS if self._is_idle(each) for group in self._below(each)]

    def _is_idle(self, kube_qos: KubeQoS) -> bool:
        return any(kube_qos in classes for classes in self._wanted.values())

    def _below(self, kube_qos: KubeQoS) -> list[str]:
        """Return the groups of pods and others below that of a class, without those of other classes."""
        classes = {self._group(each) for each in KubeQoS}
        return sorted(set(self._shared.host.cgroups.children(self._group(kube_qos)) or ()) - classes)

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
        changed: Callable[[], None],
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
        self.rules: list[HookRule[Any]] = []
        """Rules that it follows."""

    def rule(
        self,
        topics: Collection[Topic],
        parse: Callable[[], T | None],
        initial: T,
        changed: Callable[[], None] = lambda: None,
    ) -> HookRule[T]:
        """Return a new rule that this hook follows."""
        self.rules.append(HookRule(self.name, topics, parse, initial, changed))
        return self.rules[-1]

    @abc.abstractmethod
    def register(self, registry: HookRegistry) -> None:
        """Say which functions answer where."""

    def on_pods(self) -> None:  # noqa: B027 - most hooks need none
        """Note that all pods were reconciled: once per refresh."""

    def disable(self) -> None:
        """Put back what it changed."""
        self.shared.executor.restore(self.name)

    async def follow(self) -> None:  # noqa: B027 - most hooks need none
        """Work that waits (commands, say), after each change and every reconcile interval."""

    async def close(self) -> None:  # noqa: B027 - most hooks need none
        """Undo what `follow` did; awaited by whoever disables the hook."""
