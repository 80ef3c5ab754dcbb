"""The filters of what a node is: its name, its cordon, its taints, its labels, and the ports in use there.
Source: behaviour/scheduler B1, B2 and B9."""

from collections.abc import Hashable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import isolation, labels, node_affinity, tolerations
from koordinator.api.affinity import NodeAffinity as NodeAffinityTerms
from koordinator.api.affinity import NodeSelectorTerm, PreferredSchedulingTerm, Taint
from koordinator.api.resource_vector import I64
from koordinator.api.tolerations import Tolerations
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
    passes,
)
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Reason, Status, unresolvable, unschedulable
from koordinator.scheduler.table import pod_info
from koordinator.scheduler.table.columns import Recent, RowChange, Rows, at, no_points, tally_in
from koordinator.scheduler.table.label_columns import NAME_FIELD, LabelColumns, TaintColumns
from koordinator.scheduler.table.nodes import RowKeeper
from koordinator.scheduler.table.pod_info import HOST_PORTS, NODE_NAME, HostPort, PodInfo


class NodeNameReason(Reason):
    OK = 0, SUCCESS
    OTHER_NODE = 1, unresolvable("node(s) didn't match the requested node name")


class NodeName(FilterPlugin[str]):
    name = "NodeName"
    keyed_by = (NODE_NAME,)
    reasons = NodeNameReason
    wakes_on = (ClusterEvent.NODE_ADDED,)

    def prepare(self, pod: PodInfo) -> str:
        return pod.node_name

    def filter(self, state: str, rows: Rows) -> ReasonCodes:
        if not state:
            return passes(rows)
        wanted = self.handle.table.row_of(state)
        return np.where(rows == wanted, NodeNameReason.OK, NodeNameReason.OTHER_NODE).astype(np.uint16)


UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect=tolerations.NO_SCHEDULE)


class UnschedulableReason(Reason):
    OK = 0, SUCCESS
    UNSCHEDULABLE = 1, unresolvable("node(s) were unschedulable")


class NodeUnschedulable(FilterPlugin[bool]):
    """The state says whether the pod tolerates cordoned nodes."""

    name = "NodeUnschedulable"
    keyed_by = (pod_info.tolerations,)
    reasons = UnschedulableReason
    wakes_on = (ClusterEvent.NODE_ADDED, ClusterEvent.NODE_TAINTS, ClusterEvent.POD_UPDATED)

    def prepare(self, pod: PodInfo) -> bool:
        return tolerations.is_tolerated(pod.pod.spec.tolerations, UNSCHEDULABLE_TAINT)

    def filter(self, state: bool, rows: Rows) -> ReasonCodes:
        if state:
            return passes(rows)
        is_unschedulable = at(self.handle.table.is_unschedulable, rows)
        return is_unschedulable.astype(np.uint16) if np.count_nonzero(is_unschedulable) else passes(rows)


class TaintReason(Reason):
    OK = 0, SUCCESS
    UNTOLERATED = 1, unresolvable("node(s) had untolerated taint(s)")


TOLERATIONS_MAX = 256
"""Lists of tolerations whose meaning is remembered: pods that differ in all else mostly tolerate the same."""


class TaintState(msgspec.Struct):
    """Tolerations and what they mean for each known set of taints (grows with the sets), for all pods with them."""

    tolerations: Tolerations
    codes: npt.NDArray[np.uint16]
    counts: npt.NDArray[np.int64]
    refuses: bool = False
    prefers: bool = False
    """Whether any known set refuses the pod, or is one that it would rather avoid."""


class TaintToleration(FilterPlugin[TaintState], PreScorePlugin[TaintState], ScorePlugin[TaintState]):
    name = "TaintToleration"
    keyed_by = (pod_info.tolerations,)
    reasons = TaintReason
    normalizes = True
    wakes_on = (ClusterEvent.NODE_ADDED, ClusterEvent.NODE_TAINTS, ClusterEvent.POD_UPDATED)

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._taints = handle.table.shared(TaintColumns)
        self._states: Recent[TaintState] = Recent(TOLERATIONS_MAX)

    def prepare(self, pod: PodInfo) -> TaintState:
        bears = tuple(pod.pod.spec.tolerations)
        return self._states.get(
            bears, lambda: TaintState(bears, np.zeros(0, np.uint16), np.zeros(0, np.int64))
        )

    def filter(self, state: TaintState, rows: Rows) -> ReasonCodes:
        self._judge_new_sets(state)
        return state.codes.take(at(self._taints.numbers, rows)) if state.refuses else passes(rows)

    def facts(self, state: TaintState, row: int) -> tuple[str, ...]:
        taints = self._taints.sets[int(self._taints.numbers[row])]
        hard = [taint for taint in taints if tolerations.keeps_out(state.tolerations, (taint,))]
        return tuple(f"{tolerations.text_of(taint)} is not tolerated" for taint in hard)

    def score(self, state: TaintState, rows: Rows) -> Scores:
        self._judge_new_sets(state)
        if not state.prefers:
            return no_points(rows)
        return state.counts.take(at(self._taints.numbers, rows))

    def normalize(self, state: TaintState, scores: Scores) -> Scores:
        return default_normalize(scores, reverse=True)

    def _judge_new_sets(self, state: TaintState) -> None:
        new = self._taints.sets[state.codes.size :]
        if new:
            codes = [tolerations.keeps_out(state.tolerations, taints) for taints in new]
            counts = [tolerations.untolerated_preferences(state.tolerations, taints) for taints in new]
            state.codes = np.concatenate([state.codes, np.array(codes, np.uint16)])
            state.counts = np.concatenate([state.counts, np.array(counts, np.int64)])
            state.refuses = bool(state.codes.any())
            state.prefers = bool(state.counts.any())


class AffinityReason(Reason):
    OK = 0, SUCCESS
    POD = 1, unresolvable("node(s) didn't match Pod's node affinity/selector")
    ENFORCED = 2, unresolvable("node(s) didn't match scheduler-enforced node affinity")


class NodeAffinityArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`added_affinity` holds for every pod of the profile, besides its own; a condition in it that can never hold would
    keep all of them from all nodes."""

    added_affinity: NodeAffinityTerms | None = None

    def __post_init__(self) -> None:
        enforced, preferred = _terms_of(self.added_affinity)
        try:
            node_affinity.check_terms([*(enforced or ()), *(each.preference for each in preferred)])
        except ValueError as error:
            raise ValueError(f"addedAffinity: {error}") from None


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
        self._enforced, self._added_preferred = _terms_of(args.added_affinity)

    def prepare(self, pod: PodInfo) -> AffinityState:
        spec = pod.pod.spec
        required, preferred = _terms_of(spec.affinity.node_affinity if spec.affinity is not None else None)
        return AffinityState(tuple(sorted(spec.node_selector.items())), required, preferred)

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


def _terms_of(
    affinity: NodeAffinityTerms | None,
) -> tuple[tuple[NodeSelectorTerm, ...] | None, tuple[PreferredSchedulingTerm, ...]]:
    """Return what is required of nodes, None for nothing, and what is preferred."""
    if affinity is None:
        return None, ()
    required = affinity.required_during_scheduling_ignored_during_execution
    preferred = affinity.preferred_during_scheduling_ignored_during_execution
    return None if required is None else tuple(required.node_selector_terms), tuple(preferred)


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


ANY_ADDRESS = "0.0.0.0"


class PortReason(Reason):
    OK = 0, SUCCESS
    TAKEN = 1, unschedulable("node(s) didn't have free ports for the requested pod ports")


class NodePorts(PreFilterPlugin[tuple[HostPort, ...]], FilterPlugin[tuple[HostPort, ...]], RowKeeper):
    name = "NodePorts"
    keyed_by = (HOST_PORTS,)
    fewer_pods_help = True
    reasons = PortReason
    reads = RowChange.NODE | RowChange.PODS
    wakes_on = (ClusterEvent.ASSIGNED_POD_DELETED, ClusterEvent.NODE_ADDED, ClusterEvent.POD_UPDATED)

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._used: dict[tuple[str, int], dict[tuple[int, str], int]] = {}
        """Protocol and port → row and address → pods."""

    def prepare(self, pod: PodInfo) -> tuple[HostPort, ...]:
        return pod.host_ports

    def pre_filter(self, state: tuple[HostPort, ...]) -> PreFilterResult:
        return PreFilterResult() if state else PreFilterResult(SKIP)

    def filter(self, state: tuple[HostPort, ...], rows: Rows) -> ReasonCodes:
        taken = {
            row
            for address, protocol, port in state
            for row, theirs in self._used.get((protocol, port), ())
            if collide(address, theirs)
        }
        return np.isin(rows, sorted(taken)).astype(np.uint16)

    def foresees(self, state: tuple[HostPort, ...]) -> bool:
        return True

    def filter_ahead(self, state: tuple[HostPort, ...], rows: Rows, ahead: I64) -> ReasonCodes:
        return self.filter(state, rows) | (ahead > 0)

    def facts(self, state: tuple[HostPort, ...], row: int) -> tuple[str, ...]:
        return tuple(
            f"port {port}/{protocol} of {their_address} is taken by pod {pod.key}"
            for pod in self.handle.table.pods_at(row).values()
            for their_address, their_protocol, their_port in pod.host_ports
            for address, protocol, port in state
            if (protocol, port) == (their_protocol, their_port) and collide(address, their_address)
        )

    # Who uses what

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        self._count(row, pod, 1)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        self._count(row, pod, -1)

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        if old.host_ports != new.host_ports:
            self._count(row, old, -1)
            self._count(row, new, 1)

    def _count(self, row: int, pod: PodInfo, change: int) -> None:
        for address, protocol, port in pod.host_ports:
            tally_in(self._used, (protocol, port), (row, address), change)


def collide(one: str, other: str) -> bool:
    """Return whether a port cannot be used at both addresses; 0.0.0.0 stands for all of them."""
    return one == other or ANY_ADDRESS in (one, other)


class IsolationReason(Reason):
    OK = 0, SUCCESS
    BROKEN = 1, unresolvable("node(s) whose agent found that the required isolation does not work")
    UNPROVEN = 2, unresolvable("node(s) whose agent has not proven the required isolation")


def required_text(pod: PodInfo) -> Hashable:
    """Return what a pod requires, as it is written."""
    meta = pod.pod.metadata
    key = labels.REQUIRES_ISOLATION
    return meta.annotations.get(key, "") or meta.labels.get(key, "")


class RequiresIsolation(FilterPlugin[tuple[str, ...]]):
    """The state has the labels of nodes that count. Kinds that nobody knows are proven nowhere."""

    name = "RequiresIsolation"
    keyed_by = (required_text,)
    reasons = IsolationReason
    wakes_on = (ClusterEvent.NODE_ADDED, ClusterEvent.NODE_LABELS, ClusterEvent.POD_UPDATED)

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._labels = handle.table.shared(LabelColumns)

    def prepare(self, pod: PodInfo) -> tuple[str, ...]:
        words = str(required_text(pod)).replace(".", ",").split(",")
        return tuple(isolation.label_of(word.strip()) for word in words if word.strip())

    def filter(self, state: tuple[str, ...], rows: Rows) -> ReasonCodes:
        if not state:
            return passes(rows)
        codes = np.zeros(rows.size, np.uint16)
        codes[~self._labels.match_labels([(key, isolation.WORKS) for key in state], rows)] = (
            IsolationReason.UNPROVEN
        )
        for key in state:
            codes[self._labels.match_labels([(key, isolation.BROKEN)], rows)] = IsolationReason.BROKEN
        return codes

    def facts(self, state: tuple[str, ...], row: int) -> tuple[str, ...]:
        rows = np.array([row])
        return tuple(
            f"{key} is not {isolation.WORKS}"
            for key in state
            if not self._labels.match_labels([(key, isolation.WORKS)], rows)[0]
        )
