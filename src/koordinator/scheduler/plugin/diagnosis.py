"""Say why a pod found no node, in the words that users of Kubernetes know. Source: behaviour/scheduler B4."""

import enum
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from koordinator.scheduler.plugin.status import Status

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


class SuggestionType(enum.StrEnum):
    """Upstream's suggestions."""

    EVICT_WORKLOAD_SELF = "EvictWorkloadSelf"
    WAITING_VICTIM_RELEASED = "WaitingVictimReleased"
    DELETE_CONFLICT_PVC = "DeleteConflictPVC"


class Suggestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """The change that would help; stands in the message to users and in the diagnosis.

    Source: behaviour/scheduler C2 (PostFilter) and C6.
    """

    type: SuggestionType
    message: str = ""

    def __str__(self) -> str:
        return f"Suggestion: {{type: {self.type}, message: {self.message}}}"
