"""The extension points of NodeNUMAResource. Source: behaviour/numa-cpu.

`books` keeps what pods hold, `bulk` answers for many nodes at once from columns, `admission` for one node exactly.
"""

import logging
from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

import numpy as np

from koordinator.api import labels, pod_labels, priority, qos, resource_vector
from koordinator.api.annotations import placement as wire
from koordinator.api.annotations.placement import NUMATopologyPolicy, ResourceSpec
from koordinator.api.errors import ProtocolError
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.reservation import Reservation
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.capabilities import ApiProvider, Endpoint
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent, newest
from koordinator.scheduler.plugin.framework import (
    FilterPlugin,
    Handle,
    Mask,
    PreBindPlugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ReasonCodes,
    Relief,
    ReservePlugin,
    ScorePlugin,
    Scores,
    Watch,
)
from koordinator.scheduler.plugin.reservation_capabilities import (
    ReservationChoice,
    ReservationFilterPlugin,
    ReservationPreBindPlugin,
    nominated_reservation,
    pre_allocated_pods,
)
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, PodPatch, Status, error
from koordinator.scheduler.plugins.node_numa_resource import (
    admission,
    bulk,
    explained,
    holdings,
    node_view,
    policy,
    score,
)
from koordinator.scheduler.plugins.node_numa_resource.admission import NUMAPlacement, NUMAPodTerms, OtherHints
from koordinator.scheduler.plugins.node_numa_resource.allocations import NodeNUMARecord, NUMAAllocations
from koordinator.scheduler.plugins.node_numa_resource.bulk import FIRST_OWN_CODE, NUMAReason, NUMARequest
from koordinator.scheduler.plugins.node_numa_resource.hint_merge import NUMATopologyHintProvider
from koordinator.scheduler.plugins.node_numa_resource.pod_state import NUMAState, Provider, TableAmounts
from koordinator.scheduler.plugins.node_numa_resource.policy import (
    BoundCPUUsage,
    NodeNUMAResourceArgs,
    PodPlan,
)
from koordinator.scheduler.plugins.node_numa_resource.reservations import ReservedNode
from koordinator.scheduler.plugins.node_numa_resource.score import NodeUsage
from koordinator.scheduler.plugins.node_numa_resource.topology_options import options_of
from koordinator.scheduler.table.columns import RowChange, Rows
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

FEW = 8
"""Up to so many rows are judged one by one: array operations cost as much as that whatever they do."""
_SPECIAL_QOS = ("LSE", "LSR")


TOPOLOGY_EVENTS = (
    ClusterEvent.NODE_TOPOLOGY_ADDED,
    ClusterEvent.NODE_TOPOLOGY_UPDATED,
    ClusterEvent.NODE_TOPOLOGY_DELETED,
)


class NodeNUMAResource(
    PreFilterPlugin[NUMAState],
    FilterPlugin[NUMAState],
    PreScorePlugin[NUMAState],
    ScorePlugin[NUMAState],
    ReservePlugin[NUMAState],
    PreBindPlugin[NUMAState],
    ReservationFilterPlugin[NUMAState],
    ReservationPreBindPlugin[NUMAState],
    ApiProvider[NUMAState],
):
    """Gives pods CPUs of their own and keeps their resources on few NUMA nodes."""

    name = "NodeNUMAResource"
    args = NodeNUMAResourceArgs
    per_profile = True
    in_rehearsals = True
    reads = RowChange.NODE | RowChange.PODS
    reasons = NUMAReason
    wakes_for_row = True
    wakes_on = (
        *TOPOLOGY_EVENTS,
        ClusterEvent.ASSIGNED_POD_DELETED,
        # Upstream does not listen to these, and leaves pods waiting for minutes.
        ClusterEvent.ASSIGNED_POD_UPDATED,
        ClusterEvent.NODE_ADDED,
        ClusterEvent.NODE_ALLOCATABLE,
        ClusterEvent.NODE_LABELS,
        ClusterEvent.NODE_ANNOTATIONS,
        ClusterEvent.POD_UPDATED,
    )

    def __init__(self, args: NodeNUMAResourceArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._args = args
        self._table = handle.table
        self._amounts = TableAmounts(handle.table, args.scoring_strategy)
        self.books = handle.table.shared(NUMAAllocations)
        handle.watch(Watch.changes(NodeResourceTopology, self.set_report))

    # A pod

    def class_key(self, pod: PodInfo) -> Hashable:
        annotations = pod.pod.metadata.annotations
        spec = annotations.get(labels.RESOURCE_SPEC, "")
        numa = annotations.get(labels.NUMA_TOPOLOGY_SPEC, "")
        qos_class = pod.pod.metadata.labels.get(labels.QOS_CLASS, "")
        chosen = ""
        if labels.SCHEDULING_HINT in annotations or labels.DEPRECATED_SCHEDULING_HINT in annotations:
            chosen = annotations.get(labels.RESOURCE_STATUS, "")
        if qos_class in _SPECIAL_QOS:
            return pod.request_key, spec, numa, chosen, qos.raw(pod.pod), priority.default(pod.pod)
        return pod.request_key, spec, numa, chosen

    def prepare(self, pod: PodInfo) -> NUMAState:
        requests = self._table.registry.named(pod.requests)
        plan = policy.plan_pod(pod.pod, self._args.default_cpu_bind_policy, requests)
        chosen = None
        try:
            chosen = explained.designated_for(pod.pod, pod.uid)
        except ProtocolError as problem:
            plan = PodPlan(status=error(str(problem)))
        return NUMAState(pod, plan, chosen, tuple(self._providers(pod)))

    def _providers(self, pod: PodInfo) -> Iterator[Provider]:
        """Other plugins that have an opinion, with their states for the pod."""
        for provider in self.handle.companions(NUMATopologyHintProvider):  # type: ignore[type-abstract]
            state = provider.prepare(pod)
            if state is not None:
                yield provider, state

    def pre_filter(self, state: NUMAState) -> PreFilterResult:
        if not state.plan.status.is_success:
            return PreFilterResult(state.plan.status)
        if self._is_ordinary(state) and not self.books.special_count:
            return PreFilterResult(SKIP)
        return PreFilterResult()

    def _is_ordinary(self, state: NUMAState) -> bool:
        """Return whether nodes without policies of their own need not be asked."""
        return state.chosen is None and self._demand(state).is_ordinary

    def _demand(self, state: NUMAState) -> NUMARequest:
        """Return the demand in terms of the columns, which may have learned more resources."""
        columns = self.books.columns
        if state.demand is None or state.demand_width != len(columns.resources):
            state.demand = NUMARequest.of(state.plan, columns)
            state.demand_width = len(columns.resources)
        return state.demand

    # Filter

    def filter(self, state: NUMAState, rows: Rows) -> ReasonCodes:
        self.books.sync()
        if rows.size <= FEW and not state.needs_trial:
            return np.array([self._code_at(state, row) for row in rows.tolist()], np.uint16)
        cpu = self._amounts.cpu(rows) if self.books.columns.traits.has_ratio else None
        judgement = bulk.judge(self.books.columns, self._demand(state), rows, cpu)
        codes, is_open = judgement.codes, judgement.is_open
        if state.chosen is not None:
            codes[:], is_open = 0, np.ones(rows.size, np.bool_)
        elif state.providers:
            is_open = self._under_policy(state, rows) & ((codes == 0) | (codes == NUMAReason.UNALIGNED))
        for i in np.flatnonzero(is_open).tolist():
            codes[i] = state.code_of(self._verdict(state, int(rows[i])))
        return codes

    def _code_at(self, state: NUMAState, row: int) -> int:
        """Filter for one row."""
        record = self.books.at(row)
        terms = self._terms(state, record)
        status = node_view.judge(record.view, terms, self._usage(row))
        if status is not None:
            return state.code_of(status)
        if terms.is_known:
            has_room = node_view.has_room(record.view, terms)
            if not has_room or terms.policy is NUMATopologyPolicy.SINGLE_NUMA_NODE:
                return NUMAReason.UNALIGNED
        return state.code_of(self._verdict(state, row))

    def _terms(self, state: NUMAState, record: NodeNUMARecord) -> NUMAPodTerms:
        terms = state.terms.get(record.kind)
        if terms is None:
            terms = state.terms[record.kind] = admission.terms_of(state.plan, record.facts)
        return terms

    def detail(self, state: NUMAState, rows: Rows, codes: ReasonCodes) -> ReasonCodes:
        """Return exact words (rows,) for rows where the columns told that no NUMA nodes can be chosen."""
        self.books.sync()
        detailed = codes.copy()
        for i in np.flatnonzero(codes == NUMAReason.UNALIGNED).tolist():
            detailed[i] = state.code_of(self._verdict(state, int(rows[i]))) or NUMAReason.UNALIGNED
        return detailed

    def refusal(self, state: NUMAState, code: int) -> Status:
        return state.statuses[code - FIRST_OWN_CODE] if code >= FIRST_OWN_CODE else NUMAReason(code).status

    def pods_matter(self, state: NUMAState, rows: Rows) -> Mask:
        if state.chosen is not None:
            return np.ones(rows.size, np.bool_)
        return bulk.pods_matter(self.books.columns, self._demand(state), rows)

    def _under_policy(self, state: NUMAState, rows: Rows) -> Any:
        return (self.books.columns.at(rows).numa_policy > 0) | (self._demand(state).own_policy > 0)

    def _verdict(self, state: NUMAState, row: int) -> Status:
        """Return what a trial on the node says; one tells it for all nodes that are alike as far as the pod goes."""
        record = self.books.at(row)
        terms = self._terms(state, record)
        key = None if state.needs_trial else node_view.verdict_key(record.view, terms)
        if key is None:
            return self._tried(state, row).status
        full_key = (record.kind, key, self._usage(row))
        return state.verdicts.get(full_key, lambda: self.trial(state, state.pod, row).status)

    def _tried(self, state: NUMAState, row: int) -> NUMAPlacement:
        """Try the pod on the node; equal nodes share one trial."""
        if state.needs_trial:
            return self.trial(state, state.pod, row)
        key = (self.books.columns.signature(row, self.books.at(row).facts), self._usage(row))
        return state.trials.get(key, lambda: self.trial(state, state.pod, row))

    def trial(
        self,
        state: NUMAState,
        pod: PodInfo,
        row: int,
        *,
        is_filtered: bool = False,
        use: ReservedNode | None = None,
        choice: ReservationChoice | None = None,
    ) -> NUMAPlacement:
        """Return what the pod would get on a node, or why nothing. `is_filtered`: Filter compares amplified CPU, which
        counts the pod by now or the reservation that it uses; `use`: that reservation; `choice`: the same for the other
        plugins."""
        record = self.books.at(row)
        others = [
            OtherHints(
                partial(provider.numa_hints, provided, pod, row, choice),
                partial(provider.try_numa, provided, pod, row, choice=choice),
            )
            for provider, provided in state.providers
        ]
        if state.chosen is not None:
            return explained.place(state.plan, record.facts, record.node_allocation, state.chosen, others)
        usage = self._usage(row) if not is_filtered else None
        seen = use or ReservedNode(record.node_allocation)
        terms, strategy = self._terms(state, record), self._args.numa_scoring_strategy
        return admission.place(terms, record.facts, seen.node_allocation, usage, strategy, seen.use, others)

    def _usage(self, row: int) -> BoundCPUUsage | None:
        """Return the CPU of a node, where it is amplified."""
        record = self.books.at(row)
        if record.facts.cpu_ratio <= 1:
            return None
        cpu = resource_vector.CPU_COLUMN
        return BoundCPUUsage(
            int(self._table.allocatable[cpu, row]),
            int(self._table.requested[cpu, row]),
            record.view.pinned_count,
        )

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        if event.kind is ClusterEvent.POD_UPDATED:
            old, new = event.old, event.new
            return old is None or new is None or bool(self.class_key(old) != self.class_key(new))
        if not self.prepare(pod).plan.status.is_success:
            return False
        return super().wakes(event, pod)

    # Score

    def pre_score(self, state: NUMAState) -> Status:
        return SKIP if state.plan.status.is_skip else SUCCESS

    def scores(self, state: NUMAState) -> bool:
        return not state.plan.status.is_skip

    def score(self, state: NUMAState, rows: Rows) -> Scores:
        if self.foresees(state):
            return self._plain_score(state, rows, 1)
        self.books.sync()
        if rows.size <= FEW and not state.needs_trial:
            return np.array([self._points_at(state, row) for row in rows.tolist()], np.int64)
        points, is_open = bulk.score(
            self.books.columns, self._demand(state), rows, self._amounts.over(rows), self._args
        )
        if state.chosen is not None:
            is_open = np.ones(rows.size, np.bool_)
        elif state.providers:
            is_open = self._under_policy(state, rows)
        for i in () if is_open is None else np.flatnonzero(is_open).tolist():
            points[i] = self.exact_score(state, int(rows[i]))
        return points

    def _points_at(self, state: NUMAState, row: int) -> int:
        """Score of one row."""
        record = self.books.at(row)
        allocatable, requested = self._amounts.at(row)
        terms = self._terms(state, record)
        points = node_view.points(record.view, terms, allocatable, requested, self._args)
        return self.exact_score(state, row) if points is None else points

    def exact_score(self, state: NUMAState, row: int) -> int:
        """Return the score of one node, from what the pod would get there."""
        placement = self._tried(state, row)
        if not placement.status.is_success:
            return 0
        record = self.books.at(row)
        usage = NodeUsage(*self._amounts.at(row), record.facts.cpu_ratio, record.view.pinned_count)
        requests, binds_cpus = state.plan.requests, placement.binding.binds_cpus
        if not placement.policy:
            return score.node_score(self._args.scoring_strategy, usage, requests, binds_cpus=binds_cpus)
        zones, allocated = record.facts.zones, record.view.allocated
        return score.numa_score(
            self._args.scoring_strategy, usage, zones, allocated, requests, placement.allocation
        )

    def foresees(self, state: NUMAState) -> bool:
        """Pods that ask for nothing special, where no node has a policy: then only requests count."""
        return self._is_ordinary(state) and not self.books.special_count

    def filter_ahead(self, state: NUMAState, rows: Rows, ahead: I64) -> ReasonCodes:
        return np.zeros(rows.size, np.uint16)

    def score_ahead(self, state: NUMAState, rows: Rows, ahead: I64) -> Scores:
        return self._plain_score(state, rows, ahead + 1)

    def _plain_score(self, state: NUMAState, rows: Rows, copies: int | I64) -> Scores:
        """Score where only requests count, with that many pods like this one on each row."""
        if state.scored is None:
            state.scored = self._amounts.scored(state.plan.requests)
        return self._amounts.plain_score(self._demand(state), state.scored, rows, copies)

    # Reserve and PreBind

    def reserves(self, state: NUMAState) -> bool:
        return not (state.plan.status.is_skip or self.foresees(state))

    def reserve(self, state: NUMAState, pod: PodInfo, row: int) -> Status:
        if state.plan.status.is_skip or (self._is_ordinary(state) and self.books.at(row).facts.is_plain):
            return SUCCESS
        reservation = nominated_reservation(self.handle, pod.uid, self._table.name_of(row))
        placement = self._reservable(state, pod, row, self._use(pod, row, reservation))
        if not placement.status.is_success:
            return placement.status
        uid = reservation.metadata.uid if reservation is not None else ""
        self.books.reserve(row, pod, placement, state.plan.exclusive, uid)
        self.books.take_over(pod.uid, row, pre_allocated_pods(self.handle, pod.uid))
        return SUCCESS

    def _reservable(
        self, state: NUMAState, pod: PodInfo, row: int, use: ReservedNode | None
    ) -> NUMAPlacement:
        """Return what the pod gets, which is among the row's requests by now."""
        if use is not None:
            return self.trial(state, pod, row, is_filtered=True, use=use)
        if not state.needs_trial:
            self.books.sync()
            record = self.books.at(row)
            terms, strategy = self._terms(state, record), self._args.numa_scoring_strategy
            found = node_view.place(record.view, record.node_allocation, terms, None, strategy)
            if found is not None:
                return found
        return self.trial(state, pod, row, is_filtered=True)

    # Reservations

    def _use(self, pod: PodInfo, row: int, reservation: Reservation | None) -> ReservedNode | None:
        """Return a node as a pod sees it that uses one of its reservations or ignores them all, or a reserve pod that
        takes over running pods; None when these hold nothing of ours."""
        record = self.books.at(row)
        topology = record.facts.options.cpus
        if reservation is None:
            takes_over = not pod_labels.is_reservation_ignored(pod.pod.metadata.labels)
            parts = record.held.rests()
            if takes_over:
                taken = self.books.held_by(row, pre_allocated_pods(self.handle, pod.uid))
                parts = [each.holding for each in taken]
            return ReservedNode.of_all(record.node_allocation, parts, topology, takes_over=takes_over)
        found = self.books.reserved_by(row, reservation.metadata.uid)
        is_restricted = reservation.spec.allocate_policy == "Restricted"
        return ReservedNode.of(*found, topology, is_restricted=is_restricted) if found is not None else None

    def filter_reservation(
        self, state: NUMAState, pod: PodInfo, reservation: Reservation, row: int
    ) -> Status:
        return self._using(state, pod, row, reservation)

    def filter_without(self, state: NUMAState, pod: PodInfo, row: int) -> Status:
        return self._using(state, pod, row, None)

    def _using(self, state: NUMAState, pod: PodInfo, row: int, reservation: Reservation | None) -> Status:
        """Return whether the node will do for a pod that uses this reservation, and leaves all others alone."""
        if state.plan.status.is_skip:
            return SUCCESS
        record, whole = self.books.at(row), self.books.with_reservations(row)
        use = self._use(pod, row, reservation) if reservation is not None else None
        is_joint = bool(state.providers and self._terms(state, record).policy)
        if use is None and not is_joint and whole is record.node_allocation:
            return SUCCESS  # it is as Filter saw it
        use, choice = use or ReservedNode(whole), ReservationChoice(reservation)
        return self.trial(state, pod, row, is_filtered=True, use=use, choice=choice).status

    def filter_pre_allocation(self, state: NUMAState, pod: PodInfo, row: int) -> Status:
        use = self._use(pod, row, None) if not state.plan.status.is_skip else None
        return self.trial(state, pod, row, is_filtered=True, use=use).status if use is not None else SUCCESS

    async def pre_bind_reservation(
        self, state: NUMAState, reservation: Reservation, node_name: str, patch: PodPatch
    ) -> Status:
        place = self._table.place_of(reservation.metadata.uid)
        return SUCCESS if place is None else await self.pre_bind(state, place.pod, node_name, patch)

    def unreserve(self, state: NUMAState, pod: PodInfo, node_name: str) -> None:
        self.books.unreserve(pod.uid)

    async def pre_bind(self, state: NUMAState, pod: PodInfo, node_name: str, patch: PodPatch) -> Status:
        annotations = pod.pod.metadata.annotations
        placement = self.books.reserved(pod.uid)
        if placement is None or placement.is_empty:
            if labels.RESOURCE_STATUS in annotations:
                # Left from an attempt that did not succeed: it would bind CPUs that are not the pod's.
                patch.annotations[labels.RESOURCE_STATUS] = wire.RESOURCE_STATUS.encode(wire.ResourceStatus())
            return SUCCESS
        if placement.breaks_exclusivity:
            self.handle.actions.event(self.handle.profile.name, pod.pod, "Warning", *_SHARES_NUMA_NODES)
        if placement.binding.binds_cpus:
            spec = wire.RESOURCE_SPEC.read(annotations, pod.key) or ResourceSpec()
            completed = policy.completed_spec(spec, placement.binding)
            if completed != spec:
                patch.annotations[labels.RESOURCE_SPEC] = wire.RESOURCE_SPEC.encode(completed)
        status = holdings.status_of(placement.allocation)
        patch.annotations[labels.RESOURCE_STATUS] = wire.RESOURCE_STATUS.encode(status)
        return SUCCESS

    # Reports

    def set_report(self, old: NodeResourceTopology | None, new: NodeResourceTopology | None) -> None:
        """Take in what is reported of a node's CPUs and NUMA nodes; None when nothing was before, or is any more. CPUs
        that its pods hold stay known."""
        name = newest(old, new).metadata.name
        options = options_of(new, self.books.topologies) if new is not None else None
        for problem in options.problems if options is not None else ():
            log.warning("part of a topology report invalid: %s", problem, extra={"node": name})
        if self.books.set_report(name, options):
            self.handle.changed(TOPOLOGY_EVENTS, old, new, self._table.row_of(name))

    # For people

    def facts(self, state: NUMAState, row: int) -> tuple[str, ...]:
        """Return what the pod asks for there, and what is free of the node, by NUMA node."""
        self.books.sync()
        record = self.books.at(row)
        return explained.facts(self._terms(state, record), record.view)

    def reliefs(self, state: NUMAState, rows: Rows) -> list[Relief]:
        if state.needs_trial:
            return []
        self.books.sync()
        records = [(row, self.books.at(row)) for row in rows.tolist()]
        name_of = self._table.name_of
        return explained.reliefs(
            (row, name_of(row), self._terms(state, record), record.view) for row, record in records
        )

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (Endpoint("nodes/{name}", partial(explained.answer, self._table, self.books)),)


_SHARES_NUMA_NODES = (
    "NUMANodeShared",
    "no NUMA node was free of pods that reach beyond it: the policy BestEffort takes what there is; "
    "SingleNUMANode or Restricted would wait",
)
