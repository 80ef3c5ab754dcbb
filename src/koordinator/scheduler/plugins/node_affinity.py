"""NodeAffinity: node selectors, required and preferred affinity. Source: behaviour/scheduler B1, B2 and B9."""

from collections.abc import Sequence

import msgspec
import numpy as np

from koordinator.api.affinity import NodeAffinity as NodeAffinityTerms
from koordinator.api.affinity import NodeSelectorTerm, PreferredSchedulingTerm
from koordinator.scheduler.plugin.events import ClusterEvent
from koordinator.scheduler.plugin.framework import (
    FilterPlugin,
    Handle,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ReasonCodes,
    ScorePlugin,
    Scores,
    default_normalize,
)
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Reason, Status, unresolvable
from koordinator.scheduler.table import pod_info
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.label_columns import NAME_FIELD, LabelColumns
from koordinator.scheduler.table.pod_info import PodInfo


class AffinityReason(Reason):
    OK = 0, SUCCESS
    POD = 1, unresolvable("node(s) didn't match Pod's node affinity/selector")
    ENFORCED = 2, unresolvable("node(s) didn't match scheduler-enforced node affinity")


class NodeAffinityArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`added_affinity` holds for every pod of the profile, besides its own."""

    added_affinity: NodeAffinityTerms | None = None


class AffinityState(msgspec.Struct, frozen=True):
    """The demand of a pod on node labels; `required` is None when it requires nothing by affinity."""

    selector: tuple[tuple[str, str], ...]
    required: tuple[NodeSelectorTerm, ...] | None
    preferred: tuple[PreferredSchedulingTerm, ...]


class NodeAffinity(
    PreFilterPlugin[AffinityState],
    FilterPlugin[AffinityState],
    PreScorePlugin[AffinityState],
    ScorePlugin[AffinityState],
):
    name = "NodeAffinity"
    keyed_by = (pod_info.node_selection,)
    args = NodeAffinityArgs
    reasons = AffinityReason
    normalizes = True
    wakes_on = (ClusterEvent.NODE_ADDED, ClusterEvent.NODE_LABELS, ClusterEvent.POD_UPDATED)

    def __init__(self, args: NodeAffinityArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._labels = handle.table.shared(LabelColumns)
        added = args.added_affinity or NodeAffinityTerms()
        enforced = added.required_during_scheduling_ignored_during_execution
        self._enforced = None if enforced is None else tuple(enforced.node_selector_terms)
        self._added_preferred = tuple(added.preferred_during_scheduling_ignored_during_execution)

    def prepare(self, pod: PodInfo) -> AffinityState:
        spec = pod.pod.spec
        affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        affinity = affinity or NodeAffinityTerms()
        required = affinity.required_during_scheduling_ignored_during_execution
        preferred = affinity.preferred_during_scheduling_ignored_during_execution
        return AffinityState(
            selector=tuple(sorted(spec.node_selector.items())),
            required=None if required is None else tuple(required.node_selector_terms),
            preferred=tuple(preferred),
        )

    def pre_filter(self, state: AffinityState) -> PreFilterResult:
        if not state.selector and state.required is None and self._enforced is None:
            return PreFilterResult(SKIP)
        names = pinned_names(state.required or ())
        if names is None:
            return PreFilterResult()
        if not names:
            return PreFilterResult(unresolvable("pod affinity terms conflict"))
        return PreFilterResult(node_names=names)

    def filter(self, state: AffinityState, rows: Rows) -> ReasonCodes:
        codes = np.zeros(rows.size, np.uint16)
        if state.selector:
            codes[~self._labels.match_labels(state.selector, rows)] = AffinityReason.POD
        if state.required is not None:
            codes[~self._labels.match_terms(state.required, rows)] = AffinityReason.POD
        # What the administrator enforces is told first.
        if self._enforced is not None:
            codes[~self._labels.match_terms(self._enforced, rows)] = AffinityReason.ENFORCED
        return codes

    def pre_score(self, state: AffinityState) -> Status:
        return SUCCESS if state.preferred or self._added_preferred else SKIP

    def score(self, state: AffinityState, rows: Rows) -> Scores:
        scores = np.zeros(rows.size, np.int64)
        for term in (*state.preferred, *self._added_preferred):
            scores += term.weight * self._labels.match_term(term.preference, rows)
        return scores

    def normalize(self, state: AffinityState, scores: Scores) -> Scores:
        return default_normalize(scores)


def pinned_names(terms: Sequence[NodeSelectorTerm]) -> frozenset[str] | None:
    """The only nodes that can match when every term pins the node's name; None when some term does not.

    A union over the terms of what all pins inside a term have in common.
    """
    union: frozenset[str] = frozenset()
    for term in terms:
        pins = [
            frozenset(field.values)
            for field in term.match_fields
            if field.key == NAME_FIELD and field.operator == "In"
        ]
        if not pins:
            return None
        union |= frozenset.intersection(*pins)
    return union if terms else None
