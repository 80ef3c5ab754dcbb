"""PodTopologySpread on the node table. Source: behaviour/scheduler B1, B2 and B9."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.core import Node, Pod
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import (
    SCORE_MAX,
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
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Reason, Status, unresolvable, unschedulable
from koordinator.scheduler.plugins.topology_spread import constraints
from koordinator.scheduler.plugins.topology_spread.constraints import (
    UNCONSTRAINED,
    Constraint,
    Constraints,
    Inclusion,
    Inclusions,
    OwnerSelectors,
    SpreadArgs,
    placement_key,
)
from koordinator.scheduler.table.columns import Recent, RowChange, Rows, at
from koordinator.scheduler.table.domain_counts import DomainCounts, Topology
from koordinator.scheduler.table.label_columns import ABSENT, LabelColumns
from koordinator.scheduler.table.nodes import F64
from koordinator.scheduler.table.pod_counts import NamespaceLabels, PodCount, PodCounts, PodKinds
from koordinator.scheduler.table.pod_info import PodInfo

Ids = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int32] | npt.NDArray[np.int64]


class Frame(msgspec.Struct, frozen=True, eq=False):
    """The feasible nodes as the soft constraints see them, one entry per constraint: `ids` (rows,) of the node's
    domain, `missing_key` (rows,) where there is none (None: nowhere), and how many domains there are. `is_ignored`
    (rows,): nodes that get no score; None: all do. `stamp` tells for which state of the nodes' labels that holds."""

    rows: Rows
    stamp: Hashable
    ids: tuple[Ids, ...]
    missing_key: tuple[Mask | None, ...]
    is_ignored: Mask | None
    domain_counts: tuple[int, ...]


def frame_of(
    rows: Rows, stamp: Hashable, ids: Sequence[Ids], is_host: Sequence[bool], *, needs_keys: bool
) -> Frame:
    """Return the frame of `rows` (rows,) with one `ids` (rows,) per constraint; `is_host`: for hostnames each node
    counts as a domain, whatever its label. Source: behaviour/scheduler B2 and B9."""
    missing_key = tuple([mask if (mask := its_ids == ABSENT).any() else None for its_ids in ids])
    is_ignored: Mask | None = None
    for lacks in missing_key if needs_keys else ():
        if lacks is not None:
            is_ignored = lacks if is_ignored is None else is_ignored | lacks
    scored_count = rows.size - (0 if is_ignored is None else int(np.count_nonzero(is_ignored)))
    counts = [
        scored_count if host else _distinct(its_ids if is_ignored is None else its_ids[~is_ignored])
        for its_ids, host in zip(ids, is_host, strict=True)
    ]
    # Copies: label columns change in place.
    copies = tuple(its_ids.copy() for its_ids in ids)
    return Frame(rows, stamp, copies, missing_key, is_ignored, tuple(counts))


def _distinct(ids: Ids) -> int:
    """Return how many domains; a node without the key makes one of its own, as upstream has it."""
    seen = np.zeros(int(ids.max(initial=-1)) + 2, np.bool_)
    seen[ids] = True
    return int(np.count_nonzero(seen))


def score_part(counts: Counts, domain_count: int, max_skew: int) -> F64:
    """Return what a constraint adds to the raw score (rows,): count·ln(domains + 2) + maxSkew − 1."""
    return np.asarray(counts * math.log(domain_count + 2) + (max_skew - 1), np.float64)


def normalized(raw: F64, is_ignored: Mask | None) -> Scores:
    """Return scores (rows,), 100 for the emptiest: ⌊100·(max + min − s)/max⌋ over nodes that are not ignored, which get
    0."""
    # Half up: sums are never negative, so cutting off is rounding down.
    rounded = (raw + 0.5).astype(np.int64)
    taking_part = rounded if is_ignored is None else rounded[~is_ignored]
    if taking_part.size == 0:
        return np.zeros(raw.size, np.int64)
    highest, lowest = int(taking_part.max()), int(taking_part.min())
    if highest > 0:
        scores = SCORE_MAX * (highest + lowest - rounded) // highest
    else:
        scores = np.full(raw.size, SCORE_MAX, np.int64)
    if is_ignored is not None:
        scores[is_ignored] = 0
    return scores


_NAMESPACES = NamespaceLabels()
"""Constraints name one namespace; its labels do not matter."""


def pod_helps(event: QueueingEvent, hard: Iterable[Constraint]) -> bool:
    """Return whether a pod that came, changed or went on a node counts for a constraint now and did not before, or the
    other way round. One pod more can raise the minimum, one less can empty a domain. Source: behaviour/scheduler B5."""
    return any(_counts(constraint, event.old) != _counts(constraint, event.new) for constraint in hard)


def _counts(constraint: Constraint, pod: object) -> bool:
    if not isinstance(pod, PodInfo) or pod.pod.metadata.deletion_timestamp is not None:
        return False
    return constraint.term.matches(pod.pod, _NAMESPACES)


def node_helps(event: QueueingEvent, hard: Iterable[Constraint], keys: Iterable[str]) -> bool:
    """Return whether it helps that a node came, changed or went. `keys`: labels that decide where and whether it
    counts."""
    old, new = event.old, event.new
    match event.kind:
        case ClusterEvent.NODE_TAINTS:
            return any(constraint.policy.honors_taints for constraint in hard)
        case ClusterEvent.NODE_LABELS if isinstance(old, Node) and isinstance(new, Node):
            before, after = old.metadata.labels, new.metadata.labels
            return any(before.get(key) != after.get(key) for key in keys)
    node = new if isinstance(new, Node) else old
    if not isinstance(node, Node):
        return True
    return all(constraint.key in node.metadata.labels for constraint in hard)


HOSTNAME = "kubernetes.io/hostname"
SHAPES_MAX = 16_384
"""Distinct sets of labels and constraints of pods remembered with what they mean."""
FRAMES_MAX = 32
"""Views of all nodes by soft constraints' keys; about 4 bytes per node and key."""
_REFUSAL = "node(s) didn't match pod topology spread constraints"


class SpreadReason(Reason):
    OK = 0, SUCCESS
    MISSING_LABEL = 1, unresolvable(f"{_REFUSAL} (missing required label)")
    SKEW = 2, unschedulable(_REFUSAL)


class SpreadState(msgspec.Struct, eq=False):
    """A pod's constraints, each with the nodes that count for it."""

    hard: tuple[tuple[Constraint, Inclusion], ...]
    soft: tuple[tuple[Constraint, Inclusion], ...]
    needs_keys: bool
    frame: Frame | None = None
    """Feasible nodes as the score needs them, as long as they are the same."""


_UNCONSTRAINED = SpreadState((), (), needs_keys=False)


class DerivedConstraints:
    """The constraints that follow for pods from the selectors of their namespace, as long as these are the same: at
    most `size_max` in all."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._size = 0
        self._namespaces: dict[str, tuple[int, dict[Hashable, Constraints]]] = {}

    def __len__(self) -> int:
        return self._size

    def get(
        self, namespace: str, version: int, key: Hashable, make: Callable[[], Constraints]
    ) -> Constraints:
        """Return what is remembered of this version of the namespace's selectors, made when there is nothing."""
        kept = self._namespaces.get(namespace)
        if kept is None or kept[0] != version:
            self._size -= len(kept[1]) if kept is not None else 0
            kept = self._namespaces[namespace] = (version, {})
        found = kept[1].get(key)
        if found is None:
            if self._size >= self._size_max:
                self._namespaces = {namespace: (version, {})}
                self._size = 0
                kept = self._namespaces[namespace]
            found = kept[1][key] = make()
            self._size += 1
        return found


class PodTopologySpread(
    PreFilterPlugin[SpreadState],
    FilterPlugin[SpreadState],
    PreScorePlugin[SpreadState],
    ScorePlugin[SpreadState],
):
    """Pods of a kind evenly over domains.

    Where one node is a domain of its own (hostname), a pod that comes changes Filter's answer for its node
    only, unless the emptiest domain is another: that is what `reads` says, and `epoch` covers the rest.
    """

    name = "PodTopologySpread"
    args = SpreadArgs
    reasons = SpreadReason
    normalizes = True
    reads = RowChange.NODE | RowChange.PODS
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
        table = self._table = handle.table
        self._frames: Recent[Frame] = Recent(FRAMES_MAX)
        self._labels = table.shared(LabelColumns)
        self._topology = Topology(table, self._labels)
        self._counts = PodCounts(
            table.shared(PodKinds), NamespaceLabels(), self._topology, counts_leaving=False
        )
        self._inclusions = Inclusions(table, self._labels)
        self._own: Recent[Constraints] = Recent(SHAPES_MAX)
        self._derived = DerivedConstraints(SHAPES_MAX)
        self.owners = OwnerSelectors()
        if self._defaults:
            for watch in self.owners.watches():
                handle.watch(watch)

    # A pod

    def class_key(self, pod: PodInfo) -> Hashable:
        """Constraints look at who is there, and at the nodes that the pod may use."""
        return self._own_constraints(pod).key if pod.pod.spec.topology_spread_constraints else ()

    def live_key(self, pod: PodInfo) -> Hashable:
        if pod.pod.spec.topology_spread_constraints or not self._defaults:
            return ()
        return self._default_constraints(pod).key

    def prepare(self, pod: PodInfo) -> SpreadState:
        found = self._constraints(pod)
        if found is UNCONSTRAINED:
            return _UNCONSTRAINED
        return SpreadState(
            hard=tuple((each, self._inclusions.of(pod.pod, each.policy)) for each in found.hard),
            soft=tuple((each, self._inclusions.of(pod.pod, each.policy)) for each in found.soft),
            needs_keys=found.needs_keys,
        )

    def _constraints(self, pod: PodInfo) -> Constraints:
        if pod.pod.spec.topology_spread_constraints:
            return self._own_constraints(pod)
        return self._default_constraints(pod) if self._defaults else UNCONSTRAINED

    def _own_constraints(self, pod: PodInfo) -> Constraints:
        wire = msgspec.json.encode(pod.pod.spec.topology_spread_constraints)
        key = (pod.labelled, wire, placement_key(pod.pod, True, True))
        return self._own.get(key, lambda: constraints.of_pod(pod.pod))

    def _default_constraints(self, pod: PodInfo) -> Constraints:
        """Pods with equal labels under one controller have the same, until some selector changes."""
        meta = pod.pod.metadata
        version = self.owners.version(meta.namespace)
        if version == 0:
            return UNCONSTRAINED  # there was never anything in the namespace that selects pods
        owner = next((ref for ref in meta.owner_references if ref.controller), None)
        key = (
            pod.labelled,
            None if owner is None else (owner.api_version, owner.kind, owner.name),
            placement_key(pod.pod, True, True),
        )
        return self._derived.get(meta.namespace, version, key, lambda: self._derive(pod.pod))

    def _derive(self, pod: Pod) -> Constraints:
        selectors = self.owners.selectors_of(pod)
        if not selectors:
            return UNCONSTRAINED
        return constraints.of_defaults(pod, self._defaults, selectors, needs_keys=self._needs_default_keys)

    def epoch(self, state: SpreadState) -> Hashable:
        """Return which domains of several nodes are too full, and how full the emptiest of all is."""
        if not state.hard:
            return None
        found: list[Hashable] = []
        for constraint, included in state.hard:
            domains = self._domains(constraint, included)
            limit = self._limit(constraint, domains)
            is_full = domains.by_value[domains.layout.shared] > limit
            found.append((domains.layout.version, limit, is_full.tobytes()))
        return tuple(found)

    def normal_epoch(self, state: SpreadState) -> Hashable:
        return tuple(
            [
                (self._count(constraint).version, self._topology.layout(constraint.key, included).version)
                for constraint, included in state.soft
            ]
        )

    def _count(self, constraint: Constraint) -> PodCount:
        return self._counts.count((constraint.term,))

    def _domains(self, constraint: Constraint, included: Inclusion) -> DomainCounts:
        return self._topology.domains(self._count(constraint), constraint.key, included)

    # Filter

    def pre_filter(self, state: SpreadState) -> PreFilterResult:
        return PreFilterResult() if state.hard else PreFilterResult(SKIP)

    def filter(self, state: SpreadState, rows: Rows) -> ReasonCodes:
        codes = np.zeros(rows.size, np.uint16)
        for constraint, included in state.hard:
            domains = self._domains(constraint, included)
            ids = at(domains.layout.ids, rows)
            limit = self._limit(constraint, domains)
            found = (domains.by_value.take(ids) > limit) * np.uint16(SpreadReason.SKEW)
            found[ids == ABSENT] = SpreadReason.MISSING_LABEL
            codes = found if not codes.any() else np.where(codes == 0, found, codes)
        return codes

    def facts(self, state: SpreadState, row: int) -> tuple[str, ...]:
        return tuple([self._fact(constraint, included, row) for constraint, included in state.hard])

    def _fact(self, constraint: Constraint, included: Inclusion, row: int) -> str:
        domains, key = self._domains(constraint, included), constraint.key
        slot = int(domains.layout.ids[row])
        if slot == ABSENT:
            return f"has no label {key}"
        count, lowest = int(domains.by_value[slot]), domains.lowest
        of_what = f"fewest in any {key}: {lowest}"
        if domains.layout.domain_count < constraint.min_domains:
            lowest = 0
            of_what = f"{domains.layout.domain_count} of {constraint.min_domains} required {key}, so the fewest are 0"
        skew = count + constraint.is_self - lowest
        value = self._labels.column(key).values[slot]
        return f"{key}={value}: {count} such pods, {of_what}; skew {skew} with this pod, maxSkew {constraint.max_skew}"

    def pods_matter(self, state: SpreadState, rows: Rows) -> Mask:
        """Return where pods are that a constraint counts."""
        return np.isin(rows, [row for constraint, _ in state.hard for row in self._count(constraint).rows])

    def _limit(self, constraint: Constraint, domains: DomainCounts) -> int:
        """More pods than this in a domain are too many for one more."""
        is_enough = domains.layout.domain_count >= constraint.min_domains
        lowest = domains.lowest if is_enough else 0
        return constraint.max_skew + lowest - constraint.is_self

    # Score

    def pre_score(self, state: SpreadState) -> Status:
        return SUCCESS if state.soft else SKIP

    def score(self, state: SpreadState, rows: Rows) -> Scores:
        """All that counts is how the feasible nodes compare: see `normalize_at`."""
        return np.zeros(rows.size, np.int64)

    def normalize_at(self, state: SpreadState, scores: Scores, rows: Rows) -> Scores:
        frame = self._frame(state, rows)
        total: F64 | None = None
        for index, (constraint, included) in enumerate(state.soft):
            part = self._part(constraint, included, frame, index)
            total = part if total is None else total + part
        assert total is not None, "pods without soft constraints skip the score"
        return normalized(total, frame.is_ignored)

    def _part(self, constraint: Constraint, included: Inclusion, frame: Frame, index: int) -> F64:
        """Return what a constraint adds to the raw score of each row; nothing where its key is lacking."""
        size = frame.domain_counts[index]
        if constraint.key == HOSTNAME:
            counts = at(self._topology.per_row(self._count(constraint)), frame.rows)
            part = score_part(counts, size, constraint.max_skew)
            if (missing_key := frame.missing_key[index]) is not None:
                part[missing_key] = 0.0
            return part
        by_domain = score_part(self._domains(constraint, included).by_value, size, constraint.max_skew)
        by_domain[ABSENT] = 0.0
        return by_domain.take(frame.ids[index])

    def _frame(self, state: SpreadState, rows: Rows) -> Frame:
        """Kept while the same rows are feasible; that of all nodes is shared by all pods with such keys."""
        keys = [constraint.key for constraint, _ in state.soft]
        stamp = tuple([self._labels.column(key).version for key in keys])
        frame = state.frame
        if frame is not None and frame.rows is rows and frame.stamp == stamp:
            return frame
        if rows.size == self._table.node_count:
            name = (tuple(keys), state.needs_keys, stamp, self._table.membership)
            return self._frames.get(name, lambda: self._new_frame(keys, stamp, self._table.rows, state))
        state.frame = self._new_frame(keys, stamp, rows, state)
        return state.frame

    def _new_frame(self, keys: list[str], stamp: Hashable, rows: Rows, state: SpreadState) -> Frame:
        ids = [self._labels.ids(key, rows) for key in keys]
        is_host = [key == HOSTNAME for key in keys]
        return frame_of(rows, stamp, ids, is_host, needs_keys=state.needs_keys)

    # Events

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        if event.kind is ClusterEvent.POD_UPDATED:
            return True
        if not pod.pod.spec.topology_spread_constraints:
            return True  # defaults follow the owner, in which pods of one class may differ
        hard = self._own_constraints(pod).hard
        if isinstance(event.old, PodInfo) or isinstance(event.new, PodInfo):
            return pod_helps(event, hard)
        keys = {key for each in hard for key in self._inclusions.of(pod.pod, each.policy).keys}
        return node_helps(event, hard, keys)
