"""Lend plugins the node table, the API, the objects they watch, and what they may ask for; let them handle a failed
attempt besides the scheduler itself, and decide which nomination it leaves. Source: behaviour/scheduler C5."""

import enum
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec

from koordinator.api.core import Pod
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.meta import Object
from koordinator.clock import Clock
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import Guard
from koordinator.scheduler.plugin.events import SCHEDULING, ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.metrics import SchedulerMetrics
from koordinator.scheduler.plugin.status import Status
from koordinator.scheduler.plugin.topology_tree import TopologyTree
from koordinator.scheduler.table.columns import TableColumn
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import Nominations, PodInfo

T = TypeVar("T", bound=Object)
C = TypeVar("C")
V = TypeVar("V")

JOB_PREEMPTION_SUCCESS = "JobPreemptionSuccessPlugin"
"""Turns down a waiting pod whose job made room: it keeps its node."""
JOB_REJECT = "JobRejectPlugin"
"""Turns down a waiting pod because its job fails: its nomination stays as it is."""
JOB_PREEMPTION_FAILURE = "JobPreemptionFailurePlugin"
"""Turns down a waiting pod whose job could not make room: it loses its nomination."""

JOB_PLUGINS = frozenset((JOB_PREEMPTION_SUCCESS, JOB_REJECT, JOB_PREEMPTION_FAILURE))
"""Plugin names under which a waiting pod is rejected for the sake of its job."""


class SchedulingFailure(msgspec.Struct, frozen=True):
    """An attempt that ended without a binding. `nominated_node` None leaves the nomination, "" clears it."""

    pod: PodInfo
    profile_name: str
    status: Status
    rejected_by: frozenset[str]
    nominated_node: str | None = None


class Handling(enum.Enum):
    """The treatment of a failure after a plugin had a look at it."""

    GO_ON = "the next one looks, and in the end the scheduler: it queues the pod again and tells users"
    QUIETLY = "the pod is queued again, and the plugin tells users"
    DONE = "the pod has left the queue, or the plugin brings it back"


Before = Callable[[SchedulingFailure], Handling]
After = Callable[[SchedulingFailure], None]


class FailureHandlers:
    """The handlers that plugins registered (`Handle.on_failure`, `Handle.after_failure`), in that order."""

    def __init__(self, before: Iterable[Before], after: Iterable[After]) -> None:
        self._before = tuple(before)
        self._after = tuple(after)
        self._guard = Guard("scheduler plugins, handling a failure")

    def before(self, failure: SchedulingFailure) -> Handling:
        """Ask the handlers in order; the first answer that is not GO_ON ends it. A handler that raises counts as one
        that goes on."""
        for handler in self._before:
            handling = self._guard.answer(handler, failure, otherwise=lambda _: Handling.GO_ON)
            if handling is not Handling.GO_ON:
                return handling
        return Handling.GO_ON

    def after(self, failure: SchedulingFailure) -> None:
        """Call all handlers, however the failure was handled."""
        for handler in self._after:
            self._guard.call(handler, failure)


def nomination_after(status: Status, node_name: str, nominated_node: str | None) -> str | None:
    """Return the nomination that a failure leaves: a job's preemption takes it over.

    `node_name` is where the pod waited, `nominated_node` what the attempt said itself.
    """
    if status.plugin == JOB_PREEMPTION_SUCCESS:
        return node_name
    if status.plugin == JOB_REJECT:
        return None
    if status.plugin == JOB_PREEMPTION_FAILURE:
        return ""
    return nominated_node


class Watch(msgspec.Struct, Generic[T], frozen=True):
    """Handlers for objects that a plugin watches. Those for pods are called before the queue's."""

    view: type[T]
    on_add: Callable[[T], Any]
    on_update: Callable[[T, T], Any]
    on_delete: Callable[[T], Any]
    namespace: str = ""
    name: str = ""
    """With a name, the one object that has it there is followed, where its kind may be read."""

    @classmethod
    def newest(cls, view: type[T], put: Callable[[T], Any], drop: Callable[[T], Any]) -> "Watch[T]":
        """Watch objects of which only the newest state counts."""
        return cls(view, put, lambda _, new: put(new), drop)

    @classmethod
    def changes(cls, view: type[T], changed: Callable[[T | None, T | None], Any]) -> "Watch[T]":
        """Watch objects as pairs of before and after: None before they came, and after they went."""
        return cls(view, lambda new: changed(None, new), changed, lambda old: changed(old, None))

    @classmethod
    def one(cls, view: type[T], namespace: str, name: str, changed: Callable[[T | None], Any]) -> "Watch[T]":
        """Watch the one object of this name: None when it went."""

        def put(new: T) -> None:
            if (new.metadata.namespace, new.metadata.name) == (namespace, name):
                changed(new)

        def drop(old: T) -> None:
            if (old.metadata.namespace, old.metadata.name) == (namespace, name):
                changed(None)

        return cls(view, put, lambda _, new: put(new), drop, namespace, name)


class RecordKind(enum.StrEnum):
    """The events of a workload that the auditor keeps records of. Source: behaviour/scheduler C13."""

    CREATED = "create"
    GATED = "gatedByQueueAdmission"
    ADMITTED = "admissionPassed"
    SCHEDULED = "scheduled"
    SCHEDULE_FAILED = "scheduleFailure"
    PREEMPT_NOMINATED = "preemptNominated"
    PREEMPT_FAILED = "preemptFailure"
    VICTIM_DELETING = "preemptVictimDeleting"
    VICTIMS_DELETED = "victimAllDeleted"
    EVICTED = "evicted"
    """Itself a victim."""
    GONE = "gone"
    """Its last pod was deleted."""
    MIN_SATISFIED = "gangMinMemberSatisfied"
    """A gang has as many pods as it needs to start."""
    ALL_TRIED = "gangAllPodsAlreadyAttempted"
    """A gang was tried pod by pod, and is not placed."""


class Actions:
    """The actions that plugins may ask of a running scheduler. This one only decides: asking changes nothing."""

    def spawn(
        self, work: Coroutine[Any, Any, None], name: str, on_end: Callable[[], None] = lambda: None
    ) -> bool:
        """Run `work` in the background, guarded: its failure is logged and costs nobody else anything.

        Return whether it will run at all; if so, `on_end` is called, also when it is cancelled before it began.
        """
        work.close()
        return False

    def activate(self, uids: Iterable[str], *, at_once: bool = True) -> None:
        """Try waiting pods again at once, or those that sleep once their backoff is over."""

    def queued(self, uid: str) -> PodInfo | None:
        """Return a pod that waits in the queue, with its requests; None when it does not."""
        return None

    def is_in_line(self, uid: str) -> bool:
        """Return whether a pod is in the queue, backs off, or is being tried: it sleeps behind no gate and for no
        event."""
        return True

    def sleeping(self) -> Sequence[PodInfo]:
        """Return the pods that were refused and wait for an event. Costs a look at each."""
        return ()

    def reject_waiting(self, uid: str, plugin: str, message: str) -> bool:
        """Turn down a pod that waits for Permit; whether there is one."""
        return False

    def allow_waiting(self, uid: str, plugin: str) -> bool:
        """Let a pod go that waits for Permit of this plugin; whether there is one."""
        return False

    def report_unscheduled(self, pod: Pod, message: str, nominated_node: str | None = None) -> None:
        """Say in the status of a pod, in the background, why it is not scheduled; `nominated_node` None leaves the
        nomination, "" clears it."""

    def evicting(self, preemptor: PodInfo, node_name: str, victims: Sequence[PodInfo]) -> None:
        """Tell who keeps records that pods are about to be deleted in favour of another."""

    def gang_record(self, pod: Pod, kind: RecordKind) -> None:
        """Tell who keeps records what happened to the whole gang of a pod."""

    def event(
        self,
        profile_name: str,
        obj: Object,
        kind: str,
        reason: str,
        message: str,
        *,
        action: str = SCHEDULING,
        related: Object | None = None,
    ) -> None:
        """Tell users what happened to an object; `kind` is Normal or Warning. With an empty name the first profile
        speaks for the scheduler. `action` is what it was doing, `related` for whom."""

    def enter_pod(self, old: Pod | None, pod: Pod) -> None:
        """Note that a pod that only the scheduler knows (a reserve pod) came or changed: it is queued, or counted on
        its node when it has one."""

    def remove_pod(self, pod: Pod) -> None:
        """Note that a pod that only the scheduler knows is gone."""


class Handle:
    """The framework's loan to a plugin for its life.

    `columns` are those that the plugin declared (`Plugin.columns_of`). `watch` may be called in the constructor
    only. `happened` reports an event that may lift refusals. `nominations` are pods that nodes are kept free for. A
    plugin's metrics go into `metrics.registry` and are served at `/metrics`. `network()` is the tree of the
    network, where that is followed and described; `serves` tells whether a profile has a scheduler name.
    """

    def __init__(
        self,
        table: NodeTable,
        clock: Clock,
        *,
        columns: Mapping[str, TableColumn] | None = None,
        cluster: Cluster | None = None,
        happened: Callable[[QueueingEvent], None] = lambda _: None,
        actions: Actions | None = None,
        nominations: Nominations | None = None,
        gates: FeatureGates | None = None,
        metrics: SchedulerMetrics | None = None,
        singletons: dict[type, Any] | None = None,
        network: Callable[[], TopologyTree | None] = lambda: None,
        serves: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.network = network
        self.serves = serves
        self.metrics = metrics if metrics is not None else SchedulerMetrics()
        self.table = table
        self.clock = clock
        self.columns = columns or {}
        self.happened = happened
        self.actions = actions or Actions()
        self.nominations = nominations if nominations is not None else Nominations()
        self.watches: list[Watch[Any]] = []
        self.forget_handlers: list[Callable[[PodInfo, str], None]] = []
        self.before_failures: list[Before] = []
        self.after_failures: list[After] = []
        self.gates = gates if gates is not None else FeatureGates.of(Component.SCHEDULER)
        self._cluster = cluster
        self._singletons = singletons if singletons is not None else {}
        self._profile: ProfileParts | None = None
        self._companions: dict[type[Any], tuple[Any, ...]] = {}

    @property
    def cluster(self) -> Cluster:
        """Return the API, for plugins that act (Bind, PreBind)."""
        assert self._cluster is not None, "this scheduler only decides"
        return self._cluster

    def shared(self, kind: type[V], make: "Callable[[Handle], V]") -> V:
        """Return the scheduler's one object of a kind, made with the handle of the first plugin that asks: for what the
        instances of a plugin in several profiles keep together."""
        found = self._singletons.get(kind)
        if found is None:
            found = self._singletons[kind] = make(self)
        return cast(V, found)

    def watch(self, watch: Watch[Any]) -> None:
        """Keep `watch` informed about all objects of its kind, from before the first pod is scheduled."""
        self.watches.append(watch)

    def changed(self, kinds: Sequence[ClusterEvent], old: Any, new: Any, row: int | None = None) -> None:
        """Report that an object came, changed or went: the first, second or third of `kinds`; where there is no third,
        its going helps nobody."""
        number = 0 if old is None else 1 if new is not None else 2
        if number < len(kinds):
            self.happened(QueueingEvent(kinds[number], row, old, new))

    def on_forget(self, handler: Callable[[PodInfo, str], None]) -> None:
        """Call `handler` with each pod whose placement on a node is undone, by whatever plugin."""
        self.forget_handlers.append(handler)

    def on_failure(self, handler: Before) -> None:
        """Ask `handler` about each failed attempt, before the scheduler queues the pod again and tells users."""
        self.before_failures.append(handler)

    def after_failure(self, handler: After) -> None:
        """Tell `handler` of each failed attempt, however it was handled."""
        self.after_failures.append(handler)

    @property
    def profile(self) -> "ProfileParts":
        """Return the profile of a plugin that asks for one of its own (`Plugin.per_profile`), once it is built."""
        assert self._profile is not None, "the plugin is not `per_profile`, or its profile is not built yet"
        return self._profile

    def join(self, profile: "ProfileParts") -> None:
        """Note that the plugin stands in this profile; called by the framework."""
        self._profile = profile
        self._companions.clear()

    def companions(self, kind: type[C]) -> tuple[C, ...]:
        """Plugins of the same profile that are of a kind (a capability), in order of creation."""
        found = self._companions.get(kind)
        if found is None:
            found = tuple(plugin for plugin in self.profile.plugins if isinstance(plugin, kind))
            self._companions[kind] = found
        return found


class ProfileParts(Protocol):
    """The profile that a plugin stands in, as far as plugins use it."""

    @property
    def name(self) -> str: ...

    @property
    def plugins(self) -> Sequence[object]:
        """Return the plugins of the profile, in order of creation."""
        ...
