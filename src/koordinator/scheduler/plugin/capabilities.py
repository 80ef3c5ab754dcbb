"""Define what plugins may do beyond the stock extension points: Koordinator's extension of the framework.

A plugin has a capability by inheriting from its class, next to the extension points of `framework`. Each
profile finds out once which of its plugins have which (`extensions.Extensions`), so that a profile without
them pays nothing. Source: behaviour/scheduler part C.

Transformers run once per class of pods, as `Plugin.prepare` does: what they answer may depend on what the plugin's
`class_key`, `live_key` and `epoch` tell, and on nothing else. Only PreFilter, Filter and Score see what they
change; the pod itself is what Reserve counts and Bind binds.

A capability that is asked about a pod gets the plugin's state for it. A state of None means that the plugin
has no opinion: `find_one_node` and `prefer_nodes` are then not asked at all.
"""

import abc
import random
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.api.reservation import Reservation
from koordinator.cluster.backoff import Backoff, BackoffPolicy
from koordinator.cluster.supervise import Guard, supervise
from koordinator.scheduler.plugin.framework import Diagnosis, Plugin, PreFilterResult, S
from koordinator.scheduler.plugin.status import SUCCESS, PodPatch, Status, Suggestion
from koordinator.scheduler.table.columns import RowChange
from koordinator.scheduler.table.nodes import RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial


def ignores_pods(plugin: Plugin[Any]) -> bool:
    """Return whether a trial with other pods on the nodes gets the same answers from the plugin."""
    if plugin.looks_further():
        return False
    is_kept_out = isinstance(plugin, RowKeeper) and not plugin.in_trials
    return is_kept_out or not plugin.reads & RowChange.PODS


# Transformers


class PreFilterTransformer(Plugin[S]):
    """Changes pods before PreFilter and hears its result; where the plugin is enabled at preFilter."""

    def before_pre_filter(self, pod: PodInfo, what_if: Trial) -> PodInfo | Status:
        """Return the pod as PreFilter, Filter and Score shall see it (`pod` itself: no change), or why the attempt
        ends.

        Nodes are changed through `what_if`: pods taken off nodes, or counted on them, for this pod alone.
        """
        return pod

    def after_pre_filter(self, state: S, pod: PodInfo, result: PreFilterResult) -> Status:
        """Hears what all PreFilter plugins said together; anything but success ends the attempt."""
        return SUCCESS


class NodeTransformer(Plugin[S]):
    """Shows single nodes to pods otherwise than they are; where the plugin is enabled at preFilter.

    All that it shows of a row depends on its state for the pod and on that row, whose changes are logged: then only
    changed rows have to be shown again.
    """

    @abc.abstractmethod
    def shows_nodes(self, state: S) -> bool:
        """Return whether there may be such nodes for the pod; others cost nothing."""

    @abc.abstractmethod
    def shown_rows(self, state: S) -> Collection[int]:
        """Return all rows that have to be shown otherwise."""

    @abc.abstractmethod
    def show(self, state: S, row: int, what_if: Trial) -> None:
        """Move pods of a row, of any row, for as long as the pod is compared with it."""


class FilterTransformer(Plugin[S]):
    """Changes what Filter and Score see; where the plugin is enabled at filter."""

    @abc.abstractmethod
    def before_filter(self, state: S, pod: PodInfo, what_if: Trial) -> PodInfo | Status:
        """Return the pod as Filter and Score shall see it, or why the attempt ends; `what_if` as before PreFilter.

        Unless the pod changes, other plugins keep the states that they prepared before.
        """


class PostFilterTransformer(Plugin[S]):
    """Called with the result of PostFilter; where the plugin is enabled at postFilter."""

    @abc.abstractmethod
    def after_post_filter(self, pod: PodInfo, diagnosis: Diagnosis, status: Status) -> None:
        """`status` is success when room was made, else why not."""


# Attempts


class JobRefusal(msgspec.Struct, frozen=True):
    """The reason why the attempt of a pod ends that cannot be placed with its whole job. `verdict` is what the
    nodes said.

    PostFilter plugins get `status` as the refusal of its plugin; `rejected_by` are all whose events can lift it
    when they ask about the pod `about`.
    """

    status: Status
    rejected_by: frozenset[str]
    about: PodInfo
    verdict: "JobVerdict"


class SharedFailure(msgspec.Struct, frozen=True):
    """The reason why a pod fails with another one: nodes and PostFilter plugins were asked about that one. `message`
    stands for what nodes say, `post_filter_message` is what came of making room."""

    message: str
    by: str
    post_filter_message: str = ""
    suggestion: Suggestion | None = None

    @property
    def post_filter_text(self) -> str:
        """Return the text that follows the message."""
        return ", ".join(filter(None, (self.post_filter_message, str(self.suggestion or ""))))


class AttemptPlugin(Plugin[S]):
    """Decides at the start of each attempt whether the pod may be tried now; where the plugin is enabled at
    preFilter. Unlike PreFilter, whose answers equal pods share, it is asked about every single pod."""

    @abc.abstractmethod
    def begin_attempt(self, pod: PodInfo) -> Status | JobRefusal | SharedFailure:
        """Success, or why this attempt ends before any node is chosen."""


class JobRoomPlugin(Plugin[S]):
    """Knows limits that pods meet together: who places pods all or none asks before it places the first of them."""

    @abc.abstractmethod
    def room_for(self, pods: Iterable[PodInfo]) -> Status:
        """Success, or why there is no room for all of them. Pods that hold a place take no more. Costs a look at
        each pod."""

    @abc.abstractmethod
    def rivals(self, pod: PodInfo) -> Iterable[str]:
        """uids of the pods on nodes that use up what limits this one: room for it is made where they are."""


# Making room


class ReviewedVictims(msgspec.Struct, frozen=True):
    """The remainder of one option to preempt: uids of the pods to evict from a node, and how many budgets forbid it."""

    uids: list[str]
    violations: int


class PreemptionReviewer(Protocol):
    """Somebody outside who has a say in preemptions (HTTP extenders)."""

    def preempts(self, pod: PodInfo) -> bool:
        """Return whether to be asked about this pod."""
        ...

    async def reconsider(
        self, pod: PodInfo, victims: dict[str, tuple[list[PodInfo], int]]
    ) -> Mapping[str, ReviewedVictims] | Status:
        """Return what is left of the options (node → pods to evict, budgets violated), or why nobody can tell."""
        ...


class ReviewedPreemption(Plugin[S]):
    """Makes room by evictions in which somebody outside has a say; where the plugin is enabled at postFilter."""

    @abc.abstractmethod
    def review_by(self, reviewer: PreemptionReviewer) -> None:
        """Ask `reviewer` from now on, before anybody is evicted."""


# Choosing nodes


class Quorum(msgspec.Struct, frozen=True):
    """Pods of a plan (by uid) of which at least `minimum` have to be placed."""

    uids: frozenset[str]
    minimum: int


class PlacementPlan(msgspec.Struct, frozen=True):
    """Pods that are placed together, in the order in which they are tried. `nodes` maps uids to node names; pods
    that it leaves out go where the engine finds best.

    All have to be placed, except that of a quorum's pods some may be left out: they wait on. `falls_back`: when
    the plan fails, the pod in whose cycle it was made is tried as if there was none.
    """

    pods: tuple[PodInfo, ...] = ()
    nodes: Mapping[str, str] = {}
    quorums: tuple[Quorum, ...] = ()
    falls_back: bool = False


class JobVerdict(Protocol):
    """The answers of nodes to a job whose members are placed together."""

    @property
    def must_layer(self) -> str:
        """Return the layer of the network of which one place has to hold the job; empty for the whole cluster."""
        ...

    def status_of(self, row: int) -> Status:
        """Return why a node does not take the whole job; success where it does."""
        ...

    def slots_of(self, row: int) -> int:
        """Return how many members a node takes by itself."""
        ...


class FoundNode(msgspec.Struct, frozen=True):
    """Skip (no opinion), a refusal, or success with a plan.

    Success without a plan restricts the pod to `node_name`. A plan that leaves the pod's own node open counts
    only where plans are carried out at once (gate EnableInlineBatchSchedule, no extenders). With a refusal,
    `rejected_by` are further plugins whose events can lift it, and `verdict` what the nodes said to the whole job.
    """

    status: Status
    node_name: str = ""
    plan: PlacementPlan | None = None
    rejected_by: frozenset[str] = frozenset()
    verdict: JobVerdict | None = None
    is_revisable: bool = False
    """The next attempt may get another node: one whose node refuses it is repeated after a backoff."""


class FindOneNodePlugin(Plugin[S]):
    """Knows the node of a pod before Filter is asked. The first of a profile that has an opinion counts."""

    @abc.abstractmethod
    def find_one_node(self, state: S, pod: PodInfo, result: PreFilterResult) -> FoundNode:
        """Asked after PreFilter, whose result may have narrowed the nodes."""


class PreferredNodes(msgspec.Struct, frozen=True):
    """Success with names in the order in which they are tried, or Skip."""

    status: Status
    node_names: tuple[str, ...] = ()


class PreferNodesPlugin(Plugin[S]):
    """Names nodes that are tried before all others. The first of a profile counts."""

    @abc.abstractmethod
    def prefer_nodes(self, state: S, pod: PodInfo, result: PreFilterResult) -> PreferredNodes:
        """Asked after PreFilter. The first named node that passes all filters takes the pod."""


class NextPodPlugin(Plugin[S]):
    """Chooses the next pod instead of the queue. Of several plugins the first that wants a pod counts."""

    @abc.abstractmethod
    def next_pod(self) -> str | None:
        """uid of a waiting pod, None to leave it to the queue. Of one that does not wait nothing comes, and the
        plugin is asked again: it must not name the same one for ever."""

    def brings_others(self, pod: PodInfo) -> bool:
        """Return whether others are tried with the pod: after a failure it then waits until its backoff is over, as
        each attempt costs as many cycles as there are pods, whatever events there were."""
        return False


class ResizePodPlugin(Plugin[S]):
    """Changes what a pod counts for once its node is known; behind the gate ResizePod."""

    @abc.abstractmethod
    def resize(self, state: S, pod: PodInfo, node_name: str) -> PodInfo | Status:
        """Return the pod as it shall be counted (`pod` itself: no change), or why it cannot be placed."""


# Storing


class PreBindExtension(Plugin[S]):
    """Stores what PreBind plugins collected, with one call. In preBind order, the first that does not skip."""

    @abc.abstractmethod
    async def apply_patch(self, pod: PodInfo, patch: PodPatch) -> Status:
        """Success (also when there is nothing to store), Skip, or why it is not stored."""

    @abc.abstractmethod
    async def apply_reservation_patch(self, reservation: Reservation, patch: PodPatch) -> Status:
        """Patch as `apply_patch` does, for a Reservation that was placed as if it were a pod."""


# Work beside scheduling


class BackgroundController(msgspec.Struct, frozen=True):
    """A loop that runs until cancelled, on the leader only. Whatever it raises is logged and it starts anew."""

    name: str
    run: Callable[[], Awaitable[None]]


class ControllerProvider(Plugin[S]):
    """Brings loops: garbage, statuses, quotas. Once per plugin name, however many profiles have the plugin."""

    @abc.abstractmethod
    def controllers(self) -> Sequence[BackgroundController]: ...


class ApiRequest(msgspec.Struct, frozen=True):
    """A call of an endpoint: `path` are the variables in its path, `query` those behind the question mark."""

    path: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    body: bytes = b""


class ApiAnswer(msgspec.Struct, frozen=True):
    """`body` is encoded as JSON."""

    body: Any
    status: int = 200


class Endpoint(msgspec.Struct, frozen=True):
    """A route below `/apis/v1/plugins/<Plugin>/`: `path` such as `node/{name}`, without a leading slash."""

    path: str
    answer: Callable[[ApiRequest], ApiAnswer]
    method: str = "GET"


class ApiProvider(Plugin[S]):
    """Answers questions over HTTP, on the leader only. Once per plugin name."""

    @abc.abstractmethod
    def endpoints(self) -> Sequence[Endpoint]: ...


# Choosing and running these loops. Source: behaviour/scheduler A2 and C11

RESTARTS = BackoffPolicy(initial_s=1.0, max_s=60.0, factor=2.0, jitter_ratio=0.1)


class ControllerFilterError(KoordinatorError, ValueError):
    """The flag `--controller-plugins` cannot be understood."""

    def __init__(self, entry: str, reason: str) -> None:
        super().__init__(entry, reason)
        self.entry, self.reason = entry, reason

    def __str__(self) -> str:
        return f"controller plugins: {self.entry!r}: {self.reason}"


class ControllerFilter(msgspec.Struct, frozen=True):
    """Plugins whose controllers run: all but `unwanted` with `*`, else only `wanted`. "No" wins over "yes"."""

    wanted: frozenset[str] = frozenset()
    unwanted: frozenset[str] = frozenset()
    all: bool = True

    @classmethod
    def of(cls, entries: Iterable[str], known: Container[str] | None = None) -> Self:
        """From the entries of the flag: `*`, `Name`, `-Name`. `known` are names that plugins have.
        Raises: ControllerFilterError for empty entries and names that no plugin has."""
        wanted: set[str] = set()
        unwanted: set[str] = set()
        for entry in map(str.strip, entries):
            into, name = (unwanted, entry[1:]) if entry.startswith("-") else (wanted, entry)
            if not name:
                raise ControllerFilterError(entry, "expected *, a plugin's name, or -name")
            if known is not None and name != "*" and name not in known:
                raise ControllerFilterError(entry, f"no plugin with controllers is called {name!r}")
            into.add(name)
        return cls(frozenset(wanted - {"*"}), frozenset(unwanted), "*" in wanted)

    def allows(self, plugin: str) -> bool:
        """Return whether the controllers of the plugin run."""
        if plugin in self.unwanted or "*" in self.unwanted:
            return False
        return self.all or plugin in self.wanted


ALL_CONTROLLERS = ControllerFilter()


async def run_for_ever(controller: BackgroundController, rng: random.Random) -> None:
    """Run the loop until cancelled; one that fails or returns starts anew after a growing pause."""
    backoff = Backoff(RESTARTS, rng)

    async def once() -> float:
        await controller.run()
        return backoff.next_s(None)

    await supervise(once, backoff, Guard(f"controller {controller.name}"))
