"""The plugin interface: the extension points of the Kubernetes scheduling framework over rows of nodes.

A plugin implements the extension points that it inherits from (`FilterPlugin`, `ScorePlugin`, ...). Filter
and Score take a set of rows of the node table and answer with one number per row. `prepare` makes, once per
pod, the plugin's own typed state that these calls get.

Nothing here reads a clock or does I/O, except for PreBind and Bind, which are coroutines.
"""

import abc
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.handle import Actions as Actions
from koordinator.scheduler.plugin.handle import Handle as Handle
from koordinator.scheduler.plugin.handle import Watch as Watch
from koordinator.scheduler.plugin.status import (
    SKIP,
    SUCCESS,
    PodPatch,
    Reason,
    Status,
    Suggestion,
    SuggestionType,
)
from koordinator.scheduler.table.columns import BY_PLACEMENT, ColumnSpec, RowChange, Rows
from koordinator.scheduler.table.pod_info import KeyPart, PodInfo

ReasonCodes = npt.NDArray[np.uint16]
"""One per row: 0 lets the row pass, anything else is a number that `FilterPlugin.refusal` explains.

Two bytes, not one: NodeResourcesFit names every resource that is short, so a code is a set of resources.
"""

_PASSES: ReasonCodes = np.zeros(1 << 17, np.uint16)
_PASSES.setflags(write=False)


def passes(rows: Rows) -> ReasonCodes:
    """Return the answer (rows,) of a filter that lets all rows pass, made without effort; to be read only."""
    return _PASSES[: rows.size] if rows.size <= _PASSES.size else np.zeros(rows.size, np.uint16)


def is_pass(codes: ReasonCodes) -> bool:
    """Return whether `codes` (rows,) are what `passes` answers."""
    return codes.base is _PASSES


Scores = npt.NDArray[np.int64]
"""One per row; `columns.no_points` where all are 0."""

Mask = npt.NDArray[np.bool_]

SCORE_MAX = 100

ENTRY_POINTS = "koordinator.scheduler.plugins"
"""Group of entry points under which packages offer plugins; the entry's name is the plugin's."""

S = TypeVar("S")


class NoArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of plugins that have none."""


class QueueingHintIndex(abc.ABC):
    """Many refused pods side by side, so that an event is compared with all of them at once."""

    @abc.abstractmethod
    def put(self, slot: int, pod: PodInfo) -> None:
        """Note that a pod (for all of its class) sleeps at `slot`."""

    @abc.abstractmethod
    def clear(self, slot: int) -> None:
        """Nobody sleeps there any more."""

    @abc.abstractmethod
    def may_wake(self, event: QueueingEvent, slot_count: int) -> Mask:
        """(slot_count,): slots where `Plugin.wakes` has to be asked; the others it would refuse."""


class Plugin(abc.ABC, Generic[S]):
    """The declarations that every plugin makes before it runs.

    `reads` says which kinds of changes on a row can alter what Filter and Score answer for it; a row is
    looked at again only after such a change. `per_profile` asks for an instance per profile even where
    several have equal arguments: for plugins that work with others of their profile (`Handle.companions`).
    """

    name: ClassVar[str]
    args: ClassVar[type[msgspec.Struct]] = NoArgs
    reads: ClassVar[RowChange] = RowChange.NODE
    wakes_on: ClassVar[tuple[ClusterEvent, ...]] = ()
    per_profile: ClassVar[bool] = False
    keyed_by: ClassVar[tuple[KeyPart, ...]] = ()
    """The `class_key` in parts that other plugins have, too: a profile asks for each of them once."""
    wakes_for_row: ClassVar[bool] = False
    """True where an own `wakes` is about the node of the event only: then cheap filters have to let the pod onto
    that node, too, before it is woken."""

    def __init__(self, args: Any, handle: Handle) -> None:
        self.handle = handle

    @classmethod
    def columns_of(cls, args: Any) -> tuple[ColumnSpec, ...]:
        """Return the columns that the plugin keeps in the node table."""
        return ()

    def class_key(self, pod: PodInfo) -> Hashable:
        """Return all that Filter and Score look at in a pod: equal keys get equal answers on every row.

        A plugin that has a `prepare` and neither `class_key` nor `keyed_by` has its pods evaluated one by one:
        correct, and slower.
        """
        return tuple([part(pod) for part in self.keyed_by])

    def live_key(self, pod: PodInfo) -> Hashable:
        """Return what `class_key` cannot tell when a pod is queued: how it relates to what is in the cluster now.

        Asked before each cycle, so it has to be fast for pods that are no concern of the plugin.
        """
        return ()

    def sleep_key(self, pod: PodInfo) -> Hashable:
        """Tells refused pods of a class apart that not the same events can help: asked when this plugin refused."""
        return ()

    def prepare(self, pod: PodInfo) -> S:
        """Return the plugin's state for this pod; it holds for all pods with the same `class_key` and `live_key`."""
        return None  # type: ignore[return-value]

    def epoch(self, state: S) -> Hashable:
        """Changes when Filter or the raw scores of rows may differ although nothing changed on these rows. None when
        that cannot be, for pods of this state: then nobody asks again."""
        return None

    def normal_epoch(self, state: S) -> Hashable:
        """Changes when `normalize_at` may answer differently although no raw score did."""
        return None

    def looks_further(self) -> bool:
        """Return whether pods elsewhere may matter to the plugin's answer about a node."""
        return type(self).epoch is not Plugin.epoch or type(self).live_key is not Plugin.live_key

    def foresees(self, state: S) -> bool:
        """Return whether `filter_ahead` and `score_ahead` tell what Filter and Score will answer once more pods of
        the class are on a row, where the pod itself is all that changes there.

        A keeper of columns that does more on such a placement than was foreseen logs the row as changed.
        """
        return not self.reads & BY_PLACEMENT

    def refresh(self, now_s: float) -> None:
        """Before each cycle: bring columns that depend on the time up to date, logging changed rows."""

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        """Return whether an event (one of `wakes_on`) can lift this plugin's refusal of `pod`.

        True costs a cycle in vain at worst; a wrong False leaves the pod waiting for minutes. Of updates of
        the pod itself (`POD_UPDATED`), only those are asked about that `is_relevant_update` notices.
        """
        return True

    def is_relevant_update(self, old: PodInfo, new: PodInfo) -> bool:
        """Return whether an update of a waiting pod changed what this plugin looks at in it."""
        return self.class_key(old) != self.class_key(new) or self.live_key(old) != self.live_key(new)

    def wake_index(self) -> QueueingHintIndex | None:
        """For plugins that refuse many different pods, and whose events are frequent."""
        return None

    def aside(self, pod: PodInfo, row: int) -> contextlib.AbstractContextManager[str]:
        """Within: as if a pod had never been on its row, as far as a trial of the table does not see to that
        (measurements). For explanations; the text tells what remains of the pod all the same, if anything."""
        return contextlib.nullcontext("")


PluginType = type[Plugin[Any]]


class PreEnqueuePlugin(Plugin[S]):
    """Decides whether a pod may enter the queue at all."""

    @abc.abstractmethod
    def pre_enqueue(self, pod: PodInfo) -> Status:
        """Success, or a rejection: the pod is gated until it is updated, or until one of the plugin's events
        (`wakes_on`) for which `wakes` says yes; then it is asked again."""

    def look(self, pod: PodInfo) -> Status:
        """Return what `pre_enqueue` would answer now. For explanations: nothing may follow from having been asked."""
        return self.pre_enqueue(pod)


class QueueSortPlugin(Plugin[S]):
    """Orders the queue; exactly one per scheduler."""

    @abc.abstractmethod
    def sort_key(self, pod: PodInfo, queued_s: float) -> tuple[Any, ...]:
        """Smaller keys leave the queue first. `queued_s` is when the pod entered it."""


class PreFilterResult(msgspec.Struct, frozen=True):
    """Success, Skip (this plugin's Filter is left out) or a rejection of the pod as a whole.

    `node_names`, when given, are the only nodes that can come into question.
    """

    status: Status = SUCCESS
    node_names: frozenset[str] | None = None


class PreFilterPlugin(Plugin[S]):
    """Looks at the pod once, before the nodes."""

    @abc.abstractmethod
    def pre_filter(self, state: S) -> PreFilterResult: ...


class Relief(msgspec.Struct, frozen=True):
    """A change outside the pod, and the rows that a Filter then lets pass. `kind` names the sort of change,
    `change` tells it to people."""

    kind: str
    change: str
    rows: tuple[int, ...]


class FilterPlugin(Plugin[S]):
    """Refuses nodes."""

    reasons: ClassVar[type[Reason] | None] = None
    foresees_everywhere: ClassVar[bool] = True
    """True where `filter_ahead` of a plugin that `foresees` is right on all rows; otherwise it refuses what it cannot
    tell."""
    fewer_pods_help: ClassVar[bool] = False
    """True where taking pods away (from anywhere) never turns a pass into a refusal: preemption then need not ask
    again about nodes that pass as they are."""

    @abc.abstractmethod
    def filter(self, state: S, rows: Rows) -> ReasonCodes:
        """Return a reason code per row (rows,), 0 for those where the pod can run."""

    def detail(self, state: S, rows: Rows, codes: ReasonCodes) -> ReasonCodes:
        """Return codes (rows,) that tell more, for rows that this plugin refused; asked when somebody wants the words.

        The status code (`Code`) of a refusal must not change by that.
        """
        return codes

    def filter_ahead(self, state: S, rows: Rows, ahead: I64) -> ReasonCodes:
        """Filter as `filter` does, with as many more pods of this class on each row as `ahead` (rows,) says; asked when
        the plugin `foresees`. Rows ascend, each once, or they descend and come several times."""
        return self.filter(state, rows)

    def refusal(self, state: S, code: int) -> Status:
        """Return what a code means."""
        assert self.reasons is not None, f"{self.name} needs `reasons` or its own `refusal`"
        return self.reasons(code).status

    def pods_matter(self, state: S, rows: Rows) -> Mask:
        """Return a mask (rows,) of where the answer may be another one without some of the pods there. Said of too
        many, it only makes preemption slower."""
        return np.ones(rows.size, np.bool_)

    def facts(self, state: S, row: int) -> tuple[str, ...]:
        """Return the facts behind the answer for one row, for people (`koordinator explain`)."""
        return ()

    def reliefs(self, state: S, rows: Rows) -> Sequence[Relief]:
        """Return changes that would lift this plugin's refusal of some of `rows` (rows,), all of which it refuses;
        computed, not guessed. Nothing when it cannot tell."""
        return ()

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        """Return whether this Filter lets the pod onto the node of the event now, where the event is about one node."""
        row = event.row
        if row is None or self.handle.table.node_at(row) is None:
            return row is None
        return bool(self.filter(self.prepare(pod), np.array([row], np.intp))[0] == 0)


class Diagnosis(Protocol):
    """The reason why no node was found, as PostFilter plugins see it."""

    @property
    def rejected_by(self) -> frozenset[str]: ...

    @property
    def profile_name(self) -> str: ...

    @property
    def suggestion(self) -> Suggestion | None: ...

    def status_of(self, row: int) -> Status:
        """Return why the node was refused in this cycle."""
        ...

    def check(self, row: int) -> Status:
        """Return what the filters say about a node as the table stands at this moment (`NodeTable.trial`)."""
        ...

    def unresolvable_rows(self) -> Mask:
        """(capacity,): rows that no eviction can help."""
        ...

    def wake_by(self, plugin_name: str) -> None:
        """Events that a PostFilter plugin waits for wake the pod, too."""
        ...

    def suggest(self, kind: SuggestionType, message: str) -> None:
        """Tell users what would help, behind what PostFilter plugins say. The first suggestion counts."""
        ...

    def fit_error(self, post_filter_message: str) -> str:
        """Return why no node took the pod, in the words that users see."""
        ...

    def feasible_rows(self) -> Mask:
        """(capacity,): rows that passed all filters in this cycle, if they are not kept free for others: what the pod
        was refused for has nothing to do with them."""
        ...

    def class_key(self, pod: PodInfo) -> Hashable:
        """Equal for pods that get the same answers at this moment."""
        ...

    def about(self, pod: PodInfo) -> "Diagnosis":
        """Return the same for another pod, as the table stands at this moment."""
        ...

    def active_filters(self) -> "Sequence[tuple[FilterPlugin[Any], Any]] | None":
        """Return the filters that take part, in order, with their states; None when the pod was refused as a whole."""
        ...


class PostFilterResult(msgspec.Struct, frozen=True):
    """Success when the plugin made room (`nominated_node` set; None leaves the nomination alone). After an unresolvable
    refusal no other plugin is asked."""

    status: Status
    nominated_node: str | None = None
    later: "Later | None" = None
    """The result proper, when somebody outside has to be asked first."""


Later = Callable[[], Awaitable[PostFilterResult]]


class PreemptionOffer(msgspec.Struct, frozen=True):
    """Pods whose eviction would make room on a node; `violations` counts budgets that forbid it."""

    node_name: str
    pods: tuple[PodInfo, ...]
    violations: int = 0


class Outlook(msgspec.Struct, frozen=True):
    """The foreseen answer of `post_filter`, and the ways to make room that it chose from, best first."""

    result: PostFilterResult
    offers: tuple[PreemptionOffer, ...] = ()


class PostFilterPlugin(Plugin[S]):
    """Acts when no node passed the filters (preemption)."""

    def eviction_index(self, plugins: Mapping[str, Plugin[Any]]) -> QueueingHintIndex | None:
        """Return an index of refused pods whose `may_wake` tells who would have room on the node of an event if pods
        were gone that this plugin evicts; None when it evicts nobody there. `plugins`: those of the profile by name."""
        return None

    @abc.abstractmethod
    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult: ...

    def outlook(self, pod: PodInfo, diagnosis: Diagnosis) -> Outlook:
        """Return what `post_filter` would do now, without doing it. Plugins that do not say are left out."""
        return Outlook(PostFilterResult(SKIP))


class PreScorePlugin(Plugin[S]):
    """Decides whether the plugin's Score takes part."""

    def pre_score(self, state: S) -> Status:
        return SUCCESS


class ScorePlugin(Plugin[S]):
    """Prefers nodes: higher is better, at most `SCORE_MAX` after normalisation.

    `normalizes` is set by plugins whose final score of a row depends on the other feasible rows;
    `normalizes_by_highest` besides by those where that is `default_normalize`: on their highest raw score only.
    """

    normalizes: ClassVar[bool] = False
    normalizes_by_highest: ClassVar[bool] = False

    def scores(self, state: S) -> bool:
        """Return whether any score of such pods may differ from 0; else `score` need not be asked, as if the plugin
        skipped in PreScore."""
        return True

    @abc.abstractmethod
    def score(self, state: S, rows: Rows) -> Scores:
        """Return a raw score for each of `rows`: (rows,)."""
        ...

    def score_ahead(self, state: S, rows: Rows, ahead: I64) -> Scores:
        """Score as `score` does, with as many more pods of this class on each row as `ahead` (rows,) says; asked when
        the plugin `foresees`. Rows ascend, each once, or they descend and come several times."""
        return self.score(state, rows)

    def normalize(self, state: S, scores: Scores) -> Scores:
        """Return final scores (rows,) from the raw ones of all feasible rows. Where these are all 0, what they become
        must not depend on how many there are."""
        return scores

    def normalize_at(self, state: S, scores: Scores, rows: Rows) -> Scores:
        """Normalize `scores` (rows,) as `normalize` does, for plugins that compare the feasible `rows` themselves
        (topology domains)."""
        return self.normalize(state, scores)


class ReservePlugin(Plugin[S]):
    """Books exact resources on the chosen node. `unreserve` is idempotent and may come without `reserve`."""

    in_rehearsals: ClassVar[bool] = False
    """True where `reserve` and `unreserve` touch nothing but books in memory and undo each other to the
    last trace: then they are called for pods, too, that only a rehearsal places (`NodeTable.rehearsal`)."""

    def reserves(self, state: S) -> bool:
        """Return whether `reserve` may book anything for such pods. For explanations."""
        return type(self).reserve is not ReservePlugin.reserve

    def reserve(self, state: S, pod: PodInfo, row: int) -> Status:
        return SUCCESS

    def unreserve(self, state: S, pod: PodInfo, node_name: str) -> None:
        pass


class PermitResult(msgspec.Struct, frozen=True):
    """Success, a rejection, or WAIT for at most `timeout_s` for somebody's permission."""

    status: Status = SUCCESS
    timeout_s: float = 0.0


class PermitPlugin(Plugin[S]):
    """Holds a pod back between Reserve and Bind."""

    @abc.abstractmethod
    def permit(self, state: S, pod: PodInfo, node_name: str) -> PermitResult: ...


class PreBindPlugin(Plugin[S]):
    """Prepares the binding; what shall be written on the pod goes into `patch`."""

    def is_slow(self, state: S, pod: PodInfo) -> bool:
        """Return whether `pre_bind` waits for somebody else, perhaps for minutes: others are bound meanwhile."""
        return False

    @abc.abstractmethod
    async def pre_bind(self, state: S, pod: PodInfo, node_name: str, patch: PodPatch) -> Status: ...


class BindPlugin(Plugin[S]):
    """Binds the pod, or answers Skip to leave it to the next one."""

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        return SKIP


class PostBindPlugin(Plugin[S]):
    """Called after a pod is bound."""

    @abc.abstractmethod
    def post_bind(self, pod: PodInfo, node_name: str) -> None: ...


def default_normalize(scores: Scores, *, reverse: bool = False) -> Scores:
    """Return scores (rows,) scaled so that the largest becomes 100, rounded down; `reverse` mirrors them. Source: the
    framework's DefaultNormalizeScore (behaviour/scheduler B2)."""
    highest = int(scores.max(initial=0))
    if highest == 0:
        return np.full(scores.shape, SCORE_MAX if reverse else 0, np.int64)
    scaled = scores * SCORE_MAX // highest
    return SCORE_MAX - scaled if reverse else scaled
