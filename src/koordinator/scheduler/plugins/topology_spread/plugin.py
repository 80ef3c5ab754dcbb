"""PodTopologySpread on the node table. Source: spec 03, B1, B2 and B9."""

from collections.abc import Hashable, Iterable

import msgspec
import numpy as np

from koordinator.api.affinity import LabelSelector, LabelSelectorRequirement, NodeSelectorTerm
from koordinator.api.affinity import TopologySpreadConstraint as WireConstraint
from koordinator.api.core import Pod
from koordinator.scheduler.events import ClusterEvent, Happening
from koordinator.scheduler.framework import (
    FilterPlugin,
    Handle,
    Mask,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ReasonCodes,
    ScorePlugin,
    Scores,
)
from koordinator.scheduler.label_columns import ABSENT, LabelColumns
from koordinator.scheduler.nodes import Rows
from koordinator.scheduler.plugins.topology_spread import spread
from koordinator.scheduler.plugins.topology_spread.args import HARD, DefaultConstraint, SpreadArgs
from koordinator.scheduler.plugins.topology_spread.owners import Owners, selector_key
from koordinator.scheduler.pod_counts import PodCount, PodCounts
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.pod_terms import NamespaceLabels, PodTerm
from koordinator.scheduler.status import SKIP, SUCCESS, Reason, Status, unresolvable, unschedulable
from koordinator.scheduler.taint_columns import TaintColumns

HOSTNAME = "kubernetes.io/hostname"
_REFUSAL = "node(s) didn't match pod topology spread constraints"


class SpreadReason(Reason):
    OK = 0, SUCCESS
    MISSING_LABEL = 1, unresolvable(f"{_REFUSAL} (missing required label)")
    SKEW = 2, unschedulable(_REFUSAL)


class Constraint(msgspec.Struct, frozen=True, eq=False):
    """One constraint of a pod. `is_self` tells whether the pod itself counts."""

    key: str
    max_skew: int
    min_domains: int
    honors_affinity: bool
    honors_taints: bool
    term: PodTerm
    is_self: bool


class SpreadState(msgspec.Struct, eq=False):
    """A pod's constraints. `needs_keys`: nodes without one of the soft constraints' keys get no score."""

    pod: Pod
    hard: tuple[Constraint, ...]
    soft: tuple[Constraint, ...]
    needs_keys: bool
    domains: list[tuple[spread.Domains, int]] | None = None
    """Domains and global minimum per hard constraint, worked out on the first use."""
    counted: dict[tuple[bool, bool], Mask] = {}
    counted_version: Hashable = None


class PodTopologySpread(
    PreFilterPlugin[SpreadState],
    FilterPlugin[SpreadState],
    PreScorePlugin[SpreadState],
    ScorePlugin[SpreadState],
):
    name = "PodTopologySpread"
    args = SpreadArgs
    reasons = SpreadReason
    normalizes = True
    wakes_on = (
        ClusterEvent.ASSIGNED_POD_ADDED,
        ClusterEvent.ASSIGNED_POD_UPDATED,
        ClusterEvent.ASSIGNED_POD_DELETED,
        ClusterEvent.NODE_ADDED,
        ClusterEvent.NODE_DELETED,
        ClusterEvent.NODE_LABELS,
        ClusterEvent.NODE_TAINTS,
        ClusterEvent.POD_UPDATED,
    )

    def __init__(self, args: SpreadArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._defaults = args.defaults
        self._needs_default_keys = args.defaulting_type == "List"
        self._table = handle.table
        self._labels = LabelColumns(handle.table)
        self._taints = TaintColumns()
        self._counts = PodCounts(handle.table, NamespaceLabels(), counts_leaving=False)
        self.owners = Owners()
        for keeper in (self._labels, self._taints, self._counts):
            handle.table.add_keeper(keeper)
        if self._defaults:
            for watch in self.owners.watches():
                handle.watch(watch)

    # A pod

    def class_key(self, pod: PodInfo) -> Hashable:
        """Constraints look at who is there, and at the nodes that the pod may use."""
        meta, spec = pod.pod.metadata, pod.pod.spec
        if not spec.topology_spread_constraints:
            return ()
        constraints = [
            (msgspec.json.encode(wire), constraint.is_self, constraint.term.key)
            for wire, constraint in zip(spec.topology_spread_constraints, self._own(pod.pod), strict=True)
        ]
        return (meta.namespace, tuple(constraints), _placement_key(pod.pod))

    def live_key(self, pod: PodInfo) -> Hashable:
        if pod.pod.spec.topology_spread_constraints or not self._defaults:
            return ()
        selector = self.owners.selector_of(pod.pod)
        if selector is None:
            return ()
        meta = pod.pod.metadata
        term = PodTerm.of((selector,), (meta.namespace,))
        return (meta.namespace, selector_key(selector), term.has_labels(meta.labels), _placement_key(pod.pod))

    def prepare(self, pod: PodInfo) -> SpreadState:
        wires = pod.pod.spec.topology_spread_constraints
        if wires:
            constraints, needs_keys = list(self._own(pod.pod)), True
            hardness = [wire.when_unsatisfiable == HARD for wire in wires]
        else:
            constraints, needs_keys = list(self._default(pod.pod)), self._needs_default_keys
            hardness = [default.when_unsatisfiable == HARD for default in self._defaults]
        pairs = list(zip(constraints, hardness, strict=False))
        return SpreadState(
            pod=pod.pod,
            hard=tuple(constraint for constraint, is_hard in pairs if is_hard),
            soft=tuple(constraint for constraint, is_hard in pairs if not is_hard),
            needs_keys=needs_keys,
        )

    def _own(self, pod: Pod) -> Iterable[Constraint]:
        for wire in pod.spec.topology_spread_constraints:
            yield _constraint(pod, wire, _selectors(wire, pod), wire.min_domains or 1)

    def _default(self, pod: Pod) -> Iterable[Constraint]:
        selector = self.owners.selector_of(pod) if self._defaults else None
        for default in self._defaults if selector is not None else ():
            yield _constraint(pod, default, (selector,), 1)

    def epoch(self, state: SpreadState) -> Hashable:
        return self._versions(state.hard) if state.hard else None

    def normal_epoch(self, state: SpreadState) -> Hashable:
        return self._versions(state.soft) if state.soft else None

    def _versions(self, constraints: tuple[Constraint, ...]) -> Hashable:
        counts = tuple(self._count(constraint).version for constraint in constraints)
        return (*self._node_version(), counts)

    def _node_version(self) -> tuple[int, ...]:
        """Changes with the nodes that policies and keys include."""
        return (self._labels.version, self._taints.version, self._table.membership)

    def _count(self, constraint: Constraint) -> PodCount:
        return self._counts.count((constraint.term,))

    # Filter

    def pre_filter(self, state: SpreadState) -> PreFilterResult:
        return PreFilterResult() if state.hard else PreFilterResult(SKIP)

    def filter(self, state: SpreadState, rows: Rows) -> ReasonCodes:
        codes = np.zeros(rows.size, np.uint16)
        if state.domains is None:
            state.domains = self._domains(state)
        for constraint, (domains, minimum) in zip(state.hard, state.domains, strict=True):
            ids = self._labels.ids(constraint.key, rows)
            skew = domains.count_at(ids) + constraint.is_self - minimum
            found = np.where(skew > constraint.max_skew, SpreadReason.SKEW, SpreadReason.OK)
            found[ids == ABSENT] = SpreadReason.MISSING_LABEL
            codes = np.where(codes == 0, found, codes).astype(np.uint16)
        return codes

    def _domains(self, state: SpreadState) -> list[tuple[spread.Domains, int]]:
        rows = self._table.rows
        has_keys = self._has_keys(state.hard, rows)
        found = []
        for constraint in state.hard:
            is_counted = has_keys & self._included(state, constraint, rows)
            ids = self._labels.ids(constraint.key, rows)
            domains = spread.Domains(ids, self._count(constraint).at(rows), is_counted)
            found.append((domains, domains.minimum(constraint.min_domains)))
        return found

    def _has_keys(self, constraints: tuple[Constraint, ...], rows: Rows) -> Mask:
        mask = np.ones(rows.size, np.bool_)
        for constraint in constraints:
            mask &= self._labels.ids(constraint.key, rows) != ABSENT
        return mask

    def _included(self, state: SpreadState, constraint: Constraint, rows: Rows) -> Mask:
        """Nodes that count by the constraint's policies; `rows` are all nodes."""
        version = self._node_version()
        if state.counted_version != version:
            state.counted, state.counted_version = {}, version
        policies = (constraint.honors_affinity, constraint.honors_taints)
        mask = state.counted.get(policies)
        if mask is None:
            mask = np.ones(rows.size, np.bool_)
            if constraint.honors_affinity:
                mask &= self._may_use(state.pod, rows)
            if constraint.honors_taints:
                mask &= ~self._taints.keep_out(tuple(state.pod.spec.tolerations), rows)
            state.counted[policies] = mask
        return mask

    def _may_use(self, pod: Pod, rows: Rows) -> Mask:
        mask = self._labels.match_labels(pod.spec.node_selector.items(), rows)
        required = _required_terms(pod)
        return mask if required is None else mask & self._labels.match_terms(required, rows)

    # Score

    def pre_score(self, state: SpreadState) -> Status:
        return SUCCESS if state.soft else SKIP

    def score(self, state: SpreadState, rows: Rows) -> Scores:
        """All that counts is how the feasible nodes compare: see `normalize_at`."""
        return np.zeros(rows.size, np.int64)

    def normalize_at(self, state: SpreadState, scores: Scores, rows: Rows) -> Scores:
        everywhere = self._table.rows
        is_ignored = np.zeros(rows.size, np.bool_)
        counts_at_all = np.ones(everywhere.size, np.bool_)
        if state.needs_keys:
            is_ignored = ~self._has_keys(state.soft, rows)
            counts_at_all = self._has_keys(state.soft, everywhere)
        parts = []
        for constraint in state.soft:
            ids = self._labels.ids(constraint.key, rows)
            count = self._count(constraint)
            if constraint.key == HOSTNAME:
                domain_count = int(rows.size - is_ignored.sum())
                counts = count.at(rows)
            else:
                # A node without the key makes a domain of its own here, as upstream has it.
                domain_count = int(np.unique(ids[~is_ignored]).size)
                included = counts_at_all & self._included(state, constraint, everywhere)
                everywhere_ids = self._labels.ids(constraint.key, everywhere)
                domains = spread.Domains(everywhere_ids, count.at(everywhere), included)
                counts = domains.count_at(ids).astype(np.int32)
            parts.append((counts, ids != ABSENT, domain_count, constraint.max_skew))
        return spread.normalized(spread.raw_score(parts, rows.size), is_ignored)

    # Events

    def wakes(self, happening: Happening, pod: PodInfo) -> bool:
        """Any such change can shift counts or the emptiest domain; for pods, one that a constraint counts."""
        subjects = [each for each in (happening.old, happening.new) if isinstance(each, PodInfo)]
        if happening.event is ClusterEvent.POD_UPDATED or not subjects:
            return True
        if not pod.pod.spec.topology_spread_constraints:
            return True  # defaults follow the owner, in which pods of one class may differ
        state = self.prepare(pod)
        namespaces = NamespaceLabels()
        return any(c.term.matches(each.pod, namespaces) for c in state.hard for each in subjects)


def _constraint(
    pod: Pod,
    wire: WireConstraint | DefaultConstraint,
    selectors: tuple[LabelSelector | None, ...],
    min_domains: int,
) -> Constraint:
    term = PodTerm.of(selectors, (pod.metadata.namespace,))
    return Constraint(
        key=wire.topology_key,
        max_skew=wire.max_skew,
        min_domains=min_domains,
        honors_affinity=wire.node_affinity_policy != "Ignore",
        honors_taints=wire.node_taints_policy == "Honor",
        term=term,
        is_self=term.has_labels(pod.metadata.labels),
    )


def _selectors(wire: WireConstraint, pod: Pod) -> tuple[LabelSelector | None, ...]:
    """The constraint's selector and the pod's own values of its `matchLabelKeys`."""
    labels = pod.metadata.labels
    same = [
        LabelSelectorRequirement(key=key, operator="In", values=[labels[key]])
        for key in wire.match_label_keys
        if key in labels
    ]
    if wire.label_selector is None or not same:
        return (wire.label_selector,)
    return (wire.label_selector, LabelSelector(match_expressions=same))


def _required_terms(pod: Pod) -> list[NodeSelectorTerm] | None:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return None if required is None else required.node_selector_terms


def _placement_key(pod: Pod) -> Hashable:
    """What the inclusion policies look at in a pod."""
    terms = _required_terms(pod)
    return (
        tuple(sorted(pod.spec.node_selector.items())),
        None if terms is None else msgspec.json.encode(terms),
        tuple(pod.spec.tolerations),
    )
