"""Say what plugins answer, why a pod found no node, in the words that users of Kubernetes know, and what plugins want
written on a pod (or a Reservation) before it is bound. Source: behaviour/scheduler B4 and D1."""

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec

from koordinator.api.core import Pod


class Code(enum.IntEnum):
    """The next step after an answer; names as in the Kubernetes scheduling framework."""

    SUCCESS = 0
    ERROR = 1
    """Our fault or the API's: the pod is tried again after a backoff."""
    UNSCHEDULABLE = 2
    """No, but evicting pods could help."""
    UNSCHEDULABLE_AND_UNRESOLVABLE = 3
    """No, and evicting pods cannot help."""
    WAIT = 4
    """Permit only: bind later, when somebody allows it."""
    SKIP = 5
    """The plugin takes no part for this pod."""
    PENDING = 6
    """No, until an outside component acts; the pod is woken without a backoff."""

    @property
    def word(self) -> str:
        """Return the name that users know: `UnschedulableAndUnresolvable`."""
        return _WORDS[self]


_WORDS = tuple("".join(part.capitalize() for part in code.name.split("_")) for code in Code)
_SUCCESS = Code.SUCCESS
_REJECTED = frozenset((Code.UNSCHEDULABLE, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, Code.PENDING))


class Status(msgspec.Struct, frozen=True):
    """An answer. `plugin` is written by the framework, not by the plugin."""

    code: Code
    reasons: tuple[str, ...] = ()
    plugin: str = ""

    @property
    def is_success(self) -> bool:
        return self.code is _SUCCESS

    @property
    def is_skip(self) -> bool:
        return self.code is Code.SKIP

    @property
    def is_rejected(self) -> bool:
        """Return whether this is a refusal that a change in the cluster can lift (in contrast to an error)."""
        return self.code in _REJECTED

    @property
    def message(self) -> str:
        return ", ".join(self.reasons)

    def by(self, plugin: str) -> "Status":
        """Return the same answer with its author."""
        return Status(self.code, self.reasons, plugin)


SUCCESS = Status(Code.SUCCESS)
SKIP = Status(Code.SKIP)


def unschedulable(*reasons: str) -> Status:
    """Not on this node now; evicting pods may help."""
    return Status(Code.UNSCHEDULABLE, reasons)


def unresolvable(*reasons: str) -> Status:
    """Not on this node, whoever is evicted."""
    return Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reasons)


def error(*reasons: str) -> Status:
    """Our fault or that of something we asked: the pod is tried again with backoff."""
    return Status(Code.ERROR, reasons)


class Reason(enum.IntEnum):
    """The reason why a plugin refuses a node: a small code for arrays that carries its status. 0 is "no objection"."""

    status: Status

    def __new__(cls, number: int, status: Status = SUCCESS) -> Self:
        self = int.__new__(cls, number)
        self._value_, self.status = number, status
        return self


CODES_MAX = 40_000
"""Refusals that a class of pods tells apart; codes have two bytes."""


class RefusalCodes:
    """The refusals that a class of pods has met, each with a number, from `first_code` on; 0 is success. Once there are
    `CODES_MAX`, all further ones count as `other_code`."""

    first_code = other_code = 1

    def __init__(self, *known: Status) -> None:
        self.statuses = list(known)
        self._codes = {status: number for number, status in enumerate(known, self.first_code)}

    def code_of(self, status: Status) -> int:
        """Return the number of a refusal; 0 for success."""
        if status.is_success:
            return 0
        code = self._codes.get(status)
        if code is None:
            if len(self.statuses) == CODES_MAX:
                return self.other_code
            code = self._codes[status] = self.first_code + len(self.statuses)
            self.statuses.append(status)
        return code


NOTE_CHARS_MAX = 1024
NO_NODES = "no nodes available to schedule pods"


def fit_error(
    node_count: int, reasons: Mapping[str, int], pre_filter_message: str = "", post_filter_message: str = ""
) -> str:
    """`0/5 nodes are available: 3 Insufficient cpu, 2 node(s) were unschedulable.`

    `reasons` maps each reason to the number of nodes that have it; entries are sorted as texts. A rejection
    by PreFilter stands in place of them.
    """
    message = f"0/{node_count} nodes are available:"
    if pre_filter_message:
        message += f" {pre_filter_message}."
    elif reasons:
        message += f" {listed(reasons)}."
    return f"{message} {post_filter_message}" if post_filter_message else message


def listed(reasons: Mapping[str, int]) -> str:
    """`2 node(s) were unschedulable, 3 Insufficient cpu`."""
    return ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))


def count_reasons(refusals: Iterable[tuple[Status, int]]) -> dict[str, int]:
    """Return nodes per reason; a node that has several counts for each of them."""
    counts: Counter[str] = Counter()
    for status, nodes in refusals:
        for reason in status.reasons:
            counts[reason] += nodes
    return dict(counts)


def event_note(message: str) -> str:
    """Return the message as it fits an event: at most 1,024 characters, cut with ` ...`."""
    return message if len(message) <= NOTE_CHARS_MAX else message[: NOTE_CHARS_MAX - 4] + " ..."


def by_its_node(refusal: Status) -> Status:
    """Return the refusal of a pod that had a node already (Reserve, Permit) as it is told: of that one node. All other
    answers stay as they are."""
    if not (refusal.is_rejected and refusal.reasons):
        return refusal
    text = fit_error(1, count_reasons([(refusal, 1)]))
    return Status(refusal.code, (text,), refusal.plugin)


class SuggestionType(enum.StrEnum):
    """Upstream's suggestions."""

    EVICT_WORKLOAD_SELF = "EvictWorkloadSelf"
    WAITING_VICTIM_RELEASED = "WaitingVictimReleased"
    DELETE_CONFLICT_PVC = "DeleteConflictPVC"


class Suggestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """The change that would help; stands in the message to users and in the diagnosis. Source: behaviour/scheduler C2
    (PostFilter) and C6."""

    type: SuggestionType
    message: str = ""

    def __str__(self) -> str:
        return f"Suggestion: {{type: {self.type}, message: {self.message}}}"


class PodPatch:
    """The changes that PreBind plugins want written, collected.

    `annotations` and `labels` are set; None takes a key away. `add_finalizer` adds to those that the object
    has. `spec` and `status` are merged into the object's.
    """

    def __init__(self) -> None:
        self.annotations: dict[str, str | None] = {}
        self.labels: dict[str, str | None] = {}
        self.finalizers: list[str] = []
        self.spec: dict[str, Any] = {}
        self.status: dict[str, Any] = {}

    @property
    def is_empty(self) -> bool:
        """Return whether nobody wants anything written."""
        return not (self.annotations or self.labels or self.finalizers or self.spec or self.status)

    def add_finalizer(self, name: str) -> None:
        """Keep the object from vanishing until somebody takes the finalizer away."""
        if name not in self.finalizers:
            self.finalizers.append(name)

    def body(
        self,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        finalizers: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return the JSON merge patch for an object that has these; empty when there is nothing to write.

        Values that the object has already are left out. Finalizers are a list, which a merge patch replaces as a
        whole: the patch then holds all of them and is good for one version of the object only.
        """
        metadata: dict[str, Any] = {}
        for field, wanted, have in (
            ("annotations", self.annotations, annotations or {}),
            ("labels", self.labels, labels or {}),
        ):
            differing = {key: value for key, value in wanted.items() if have.get(key) != value}
            if differing:
                metadata[field] = differing
        missing = [name for name in self.finalizers if name not in finalizers]
        if missing:
            metadata["finalizers"] = [*finalizers, *missing]
        body: dict[str, Any] = {}
        if metadata:
            body["metadata"] = metadata
        if self.spec:
            body["spec"] = dict(self.spec)
        return body

    def status_body(self) -> dict[str, Any]:
        """Return the merge patch for the subresource `status`; empty when there is nothing to write."""
        return {"status": dict(self.status)} if self.status else {}


def observed(pod: Pod) -> dict[str, int]:
    """Return the member of a condition that says which generation of the pod it is about; servers before 1.33 have
    none."""
    return {"observedGeneration": pod.metadata.generation} if pod.metadata.generation else {}
