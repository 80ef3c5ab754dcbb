"""The extension points of Reservation. Source: behaviour/reservations.

`store` follows the objects, `ledger` keeps who uses what, `verdict` judges single nodes; a pod that no reservation
concerns has no state and costs a glance at its labels.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from koordinator.api import labels, pod_labels
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.api.reservation import RESERVATION_ALLOCATED, Reservation, ReservationAllocated
from koordinator.api.resource_vector import I64
from koordinator.scheduler.config.default_plugins import ReservationArgs
from koordinator.scheduler.plugin.capabilities import (
    ApiProvider,
    BackgroundController,
    ControllerProvider,
    Endpoint,
    NodeTransformer,
)
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import (
    SCORE_MAX,
    BindPlugin,
    Diagnosis,
    FilterPlugin,
    Handle,
    Mask,
    Outlook,
    PostFilterPlugin,
    PostFilterResult,
    PreBindPlugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ReasonCodes,
    ReservePlugin,
    ScorePlugin,
    Scores,
    default_normalize,
)
from koordinator.scheduler.plugin.handle import Handling, SchedulingFailure
from koordinator.scheduler.plugin.reservation_capabilities import (
    Nomination,
    ReservationNominator,
    ReservationScorePlugin,
    ReservePodProvider,
)
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, PodPatch, Status, error, unschedulable
from koordinator.scheduler.plugins.preemption.plugin import Preemptor
from koordinator.scheduler.plugins.reservation import objects, pre_allocated, preallocation, verdict
from koordinator.scheduler.plugins.reservation.binding import ReservationWriter
from koordinator.scheduler.plugins.reservation.controller import ReservationController
from koordinator.scheduler.plugins.reservation.fit import Ignored
from koordinator.scheduler.plugins.reservation.ledger import ReservationRecord
from koordinator.scheduler.plugins.reservation.matching import RequiredReservations
from koordinator.scheduler.plugins.reservation.owner_index import NO_GROUPS
from koordinator.scheduler.plugins.reservation.pre_allocated import (
    PreAllocationState,
    PreAllocator,
    ReserveState,
    is_pre_allocating,
    positions,
)
from koordinator.scheduler.plugins.reservation.store import ReservationStore
from koordinator.scheduler.plugins.reservation.verdict import NONE_MATCHED, NodeJudge, OwnerState
from koordinator.scheduler.table.columns import RowChange, Rows
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial

_PLAIN = Nomination()
_ANNOTATIONS = (labels.RESERVATION_AFFINITY, labels.EXACT_MATCH_RESERVATION)

State = OwnerState | ReserveState | None


class ReservationPlugin(
    PreFilterPlugin[State],
    FilterPlugin[State],
    PostFilterPlugin[State],
    PreScorePlugin[State],
    ScorePlugin[State],
    ReservePlugin[State],
    PreBindPlugin[State],
    BindPlugin[State],
    NodeTransformer[State],
    ReservationNominator[State],
    ReservePodProvider[State],
    ReservationScorePlugin[State],
    ControllerProvider[State],
    ApiProvider[State],
):
    """Places Reservations as if they were pods, and lets their owners use the room."""

    name = "Reservation"
    args = ReservationArgs
    per_profile = True
    in_rehearsals = True
    reads = RowChange.NODE | RowChange.PODS
    normalizes = True
    wakes_on = (
        ClusterEvent.ASSIGNED_POD_DELETED,
        ClusterEvent.ASSIGNED_POD_UPDATED,
        ClusterEvent.NODE_ADDED,
        ClusterEvent.NODE_ALLOCATABLE,
        ClusterEvent.NODE_LABELS,
        ClusterEvent.POD_UPDATED,
        # What others say of a reservation; they themselves judge events by what nodes are to strangers.
        ClusterEvent.DEVICE_ADDED,
        ClusterEvent.DEVICE_UPDATED,
        ClusterEvent.NODE_TOPOLOGY_ADDED,
        ClusterEvent.NODE_TOPOLOGY_UPDATED,
    )

    def __init__(self, args: ReservationArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._table = handle.table
        self.store = handle.shared(ReservationStore, ReservationStore)
        self.ledger = self.store.ledger
        gates = handle.gates
        self.judge = NodeJudge(
            handle.table,
            self.ledger,
            Ignored(frozenset(args.ignored_resources), frozenset(args.ignored_resource_groups)),
            omits_node_labels=gates.is_on("OmitNodeLabelsForReservation"),
            skips_node=gates.is_on("SkipReservationFitsNode"),
        )
        self._nominated: dict[str, tuple[str, str]] = {}
        """Pod → its node, and the uid of the reservation that it is to use there."""
        self._pre = PreAllocator(
            handle.table, self.store.candidates, args.pre_allocation_config, self.judge.ignored
        )
        self._chosen: dict[str, list[PodInfo]] = {}
        """Reserve pod → the pods that it is to take over on its node."""
        percentage, absolute = args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute
        self._preemptor = (
            Preemptor(handle, self.name, percentage, absolute) if args.enable_preemption else None
        )
        self._writer = ReservationWriter(handle, self.store)
        self._controller = ReservationController.of(args, handle)
        handle.on_failure(self._failed)

    # A pod

    def class_key(self, pod: PodInfo) -> Hashable:
        annotations = pod.pod.metadata.annotations
        if pod_labels.is_reserve_pod(annotations):
            state = self._reserve_state(pod)
            single = pod.uid if state.pre is not None else ""
            return (labels.RESERVE_POD, state.node_name, state.policy, single)
        is_ignoring = pod_labels.is_reservation_ignored(pod.pod.metadata.labels)
        is_operating = pod_labels.is_operating_as_reservation(pod.pod.metadata.labels)
        if not (is_ignoring or is_operating) and not any(key in annotations for key in _ANNOTATIONS):
            return None
        return (is_ignoring, is_operating, pod.request_key, *(annotations.get(key) for key in _ANNOTATIONS))

    def live_key(self, pod: PodInfo) -> Hashable:
        annotations = pod.pod.metadata.annotations
        if labels.IS_PRE_ALLOCATION in annotations:
            found = self.store.find(pod.uid)
            return (self.store.candidates.version, found and found.metadata.resource_version)
        if not len(self.ledger) or pod_labels.is_reserve_pod(annotations):
            return NO_GROUPS
        return self.ledger.index.of(pod)

    def prepare(self, pod: PodInfo) -> State:
        annotations = pod.pod.metadata.annotations
        if pod_labels.is_reserve_pod(annotations):
            return self._reserve_state(pod)
        is_ignoring = pod_labels.is_reservation_ignored(pod.pod.metadata.labels)
        groups = self.ledger.index.of(pod)
        if not groups and labels.RESERVATION_AFFINITY not in annotations and not is_ignoring:
            is_operating = pod_labels.is_operating_as_reservation(pod.pod.metadata.labels)
            return ReserveState("", objects.ALIGNED) if is_operating else None
        request = self._table.registry.named(pod.requests)
        try:
            return OwnerState(pod, RequiredReservations.of(pod.pod), groups, request)
        except (ProtocolError, QuantityError) as problem:
            state = OwnerState(pod, RequiredReservations(False, None, ()), NO_GROUPS, request)
            state.status = error(str(problem))
            return state

    def _reserve_state(self, pod: PodInfo) -> ReserveState:
        found = self.store.find(pod.uid)
        policy, pre = found.spec.allocate_policy if found is not None else "", None
        if found is not None and is_pre_allocating(found):
            pre = self._pre.state(found, self._table.registry.named(pod.requests))
        return ReserveState(pod.pod.metadata.annotations.get(labels.RESERVATION_NODE, ""), policy, pre)

    def pre_filter(self, state: State) -> PreFilterResult:
        if state is None:
            return PreFilterResult(SKIP)
        if isinstance(state, OwnerState):
            return PreFilterResult(state.status)
        return PreFilterResult(state.pre.status) if state.pre is not None else PreFilterResult()

    # Nodes as the pod may use them

    def shows_nodes(self, state: State) -> bool:
        if isinstance(state, OwnerState):
            return bool(state.groups) or state.asked.is_ignoring
        return state is not None and state.pre is not None

    def shown_rows(self, state: State) -> Collection[int]:
        if isinstance(state, OwnerState):
            return self._rows_with_own(state)
        return self._pre.rows(state.pre) if state is not None and state.pre is not None else ()

    def show(self, state: State, row: int, what_if: Trial) -> None:
        uids: list[str] = []
        if isinstance(state, OwnerState):
            uids = [record.uid for record in self.judge.matched(state, row)]
        elif state is not None and state.pre is not None:
            uids = [each.pod.uid for each in self._pre.candidates(state.pre, row)]
        for uid in uids:
            place = self._table.place_of(uid)
            if place is not None:
                what_if.take(place.pod)

    def _rows_with_own(self, state: OwnerState) -> Collection[int]:
        return self.ledger.rows if state.asked.is_ignoring else self.ledger.rows_of(state.groups)

    # Filter

    def filter(self, state: State, rows: Rows) -> ReasonCodes:
        if isinstance(state, OwnerState):
            return self._filter_owner(state, rows)
        if state is None:
            return np.zeros(rows.size, np.uint16)
        return pre_allocated.filter_rows(state, rows, self.ledger, self._pre, self._table.row_of)

    def _filter_owner(self, state: OwnerState, rows: Rows) -> ReasonCodes:
        is_needed = state.asked.must_reserve and not state.asked.is_ignoring
        none = state.code_of(NONE_MATCHED) if is_needed else 0
        codes = np.full(rows.size, none, np.uint16)
        for index in positions(rows, self._rows_with_own(state)):
            row = int(rows[index])
            asked = partial(self._asked, state, state.pod, row)
            codes[index] = state.code_of(self.judge.verdict(state, row, asked))
        return codes

    def _asked(self, state: OwnerState, pod: PodInfo, row: int, record: ReservationRecord | None) -> Status:
        """Return what other plugins say of a reservation, or of doing without any."""
        states = self._states(state, pod)
        if state.asked.is_ignoring or not states:
            return SUCCESS
        extensions = self.handle.profile.extensions  # type: ignore[attr-defined]
        reservation = record.reservation if record is not None else None
        status: Status = extensions.filter_reservation(states, pod, reservation, row)
        return status

    def refusal(self, state: State, code: int) -> Status:
        assert state is not None, code
        return state.statuses[code - 1]

    def pods_matter(self, state: State, rows: Rows) -> Mask:
        matter = np.zeros(rows.size, np.bool_)
        if isinstance(state, OwnerState):
            matter[positions(rows, self._rows_with_own(state))] = True
        elif state is not None and state.pre is not None:
            matter[:] = True
        return matter

    def foresees(self, state: State) -> bool:
        """A reserve pod changes nothing here before its Reservation is available, and then the ledger logs the row."""
        return state is None or (isinstance(state, ReserveState) and state.pre is None)

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        if event.kind is ClusterEvent.POD_UPDATED:
            return event.old is None or event.new is None or self.is_relevant_update(event.old, event.new)
        state = self.prepare(pod)
        if state is None:
            return False
        if isinstance(state, ReserveState) or event.row is None or state.asked.is_ignoring:
            return True
        is_new = event.kind is ClusterEvent.NODE_ADDED and not state.asked.must_reserve
        return is_new or bool(self.judge.matched(state, event.row))

    def sleep_key(self, pod: PodInfo) -> Hashable:
        return self.live_key(pod)

    def facts(self, state: State, row: int) -> tuple[str, ...]:
        return verdict.facts(self.judge, state, row) if isinstance(state, OwnerState) else ()

    # PostFilter

    def post_filter(self, pod: PodInfo, found: Diagnosis) -> PostFilterResult:
        state, is_reserve = self.prepare(pod), pod_labels.is_reserve_pod(pod.pod.metadata.annotations)
        if is_reserve and self._preemptor is not None:
            result, candidates = self._preemptor.attempt(pod, found)
            self._preemptor.evict(pod, candidates.best, found.profile_name)
            return result
        if not isinstance(state, OwnerState):
            return PostFilterResult(SKIP)
        found.wake_by(self.name)  # other filters judge events by what nodes are to strangers
        reasons = verdict.reasons(self.judge, state, found)
        return PostFilterResult(unschedulable(*reasons) if reasons else SKIP)

    def outlook(self, pod: PodInfo, diagnosis: Diagnosis) -> Outlook:
        if self._preemptor is None or not pod_labels.is_reserve_pod(pod.pod.metadata.annotations):
            return super().outlook(pod, diagnosis)
        return self._preemptor.outlook(pod, diagnosis)

    # Score and nomination

    def pre_score(self, state: State) -> Status:
        if isinstance(state, ReserveState):
            return SUCCESS if state.pre is not None and state.pre.is_multiple else SKIP
        is_concerned = isinstance(state, OwnerState) and self.shows_nodes(state)
        return SUCCESS if is_concerned and not state.asked.is_ignoring else SKIP  # type: ignore[union-attr]

    def score(self, state: State, rows: Rows) -> Scores:
        scores = np.zeros(rows.size, np.int64)
        if not isinstance(state, OwnerState):
            if state is not None and state.pre is not None:
                scores[:] = SCORE_MAX
                for index in positions(rows, self._pre.rows(state.pre)):
                    scores[index] = self._pre.score(state.pre, int(rows[index]))
            return scores
        for index in positions(rows, self._rows_with_own(state)):
            row = int(rows[index])
            state.orders.pop(row, None)
            record = self._choice(state, state.pod, row, None)
            if record is not None:
                scores[index] = verdict.score(state, record)
                if record.terms.order:
                    state.orders[row] = record.terms.order
        return scores

    def normalize(self, state: State, scores: Scores) -> Scores:
        return default_normalize(scores) if isinstance(state, OwnerState) else scores

    def normalize_at(self, state: State, scores: Scores, rows: Rows) -> Scores:
        if not isinstance(state, OwnerState):
            return scores
        if state.orders:
            orders: I64 = np.array([state.orders.get(row, 0) for row in rows.tolist()], np.int64)
            scores, _ = preallocation.node_scores(scores, orders, lambda i: self._table.name_of(int(rows[i])))
        return default_normalize(scores)

    def normal_epoch(self, state: State) -> Hashable:
        return tuple(state.orders.items()) if isinstance(state, OwnerState) else None

    def score_reservation(self, state: State, pod: PodInfo, reservation: Reservation, row: int) -> int:
        record = self.ledger.find(reservation.metadata.uid)
        return verdict.score(state, record) if record is not None and isinstance(state, OwnerState) else 0

    def _choice(
        self, state: OwnerState, pod: PodInfo, row: int, existing: str | None
    ) -> ReservationRecord | None:
        """Return the reservation on a row that the pod is to use; None for none."""
        usable = {
            each.name: each
            for each in self.judge.usable(state, row)
            if self._asked(state, pod, row, each).is_success
        }
        if not usable:
            return None
        scores: Mapping[str, int] = {}
        if len(usable) > 1:
            extensions = self.handle.profile.extensions  # type: ignore[attr-defined]
            reservations = [each.reservation for each in usable.values()]
            scores = extensions.score_reservations(self._states(state, pod), pod, reservations, row)
        options = [verdict.candidate_of(each, scores.get(each.uid, 0)) for each in usable.values()]
        name = preallocation.nominate(options, state.asked.must_reserve, existing)
        return usable[name] if name is not None else None

    def _states(self, state: OwnerState, pod: PodInfo) -> dict[str, Any]:
        """Return the states of the plugins that have a say about single reservations."""
        if state.plugins is None:
            extensions = self.handle.profile.extensions  # type: ignore[attr-defined]
            asked = (*extensions.reservation_filters, *extensions.reservation_scorers)
            state.plugins = {p.name: state if p is self else p.prepare(pod) for p in asked}
        return state.plugins

    def nominate(self, state: State, pod: PodInfo, row: int) -> Nomination:
        if isinstance(state, ReserveState) and state.pre is not None:
            return self._choose_taken_over(state.pre, pod, row)
        if not isinstance(state, OwnerState) or state.asked.is_ignoring:
            return _PLAIN
        node_name = self._table.name_of(row)
        known = self._nominated.get(pod.uid)
        former = self.ledger.find(known[1]) if known is not None and known[0] == node_name else None
        record = self._choice(state, pod, row, former.name if former is not None else None)
        if record is None:
            self._nominated.pop(pod.uid, None)
            return Nomination(NONE_MATCHED) if state.asked.must_reserve else _PLAIN
        self._nominated[pod.uid] = node_name, record.uid
        return Nomination(reservation=record.reservation)

    def _choose_taken_over(self, pre: PreAllocationState, pod: PodInfo, row: int) -> Nomination:
        """Remember which pods a reserve pod takes over, those that hold what it asks for besides amounts."""
        extensions = self.handle.profile.extensions  # type: ignore[attr-defined]
        states = {
            each.name: None if each is self else each.prepare(pod) for each in extensions.reservation_filters
        }

        def refusal(pods: list[PodInfo]) -> Status:
            self._chosen[pod.uid] = pods
            status: Status = extensions.filter_pre_allocation(states, pod, row)
            return status

        chosen = self._pre.choose(pre, row, refusal)
        if isinstance(chosen, Status):
            self._chosen.pop(pod.uid, None)
            return Nomination(chosen)
        self._chosen[pod.uid] = chosen
        return _PLAIN

    def pre_allocated(self, uid: str) -> Sequence[PodInfo]:
        return self._chosen.get(uid) or self.store.candidates.claimed(uid)

    def nominated(self, uid: str, node_name: str) -> Reservation | None:
        found = self._nominated.get(uid)
        if found is None or found[0] != node_name:
            return None
        record = self.ledger.find(found[1])
        return record.reservation if record is not None else None

    def forget_nominated(self, uid: str) -> None:
        self._nominated.pop(uid, None)
        self._chosen.pop(uid, None)

    # Reserve, PreBind, Bind

    def reserves(self, state: State) -> bool:
        return isinstance(state, OwnerState) or (state is not None and state.pre is not None)

    def reserve(self, state: State, pod: PodInfo, row: int) -> Status:
        if isinstance(state, ReserveState):
            if state.pre is not None:
                self.store.candidates.claim(pod.uid, self._chosen.pop(pod.uid, ()))
            return SUCCESS
        found = self._nominated.get(pod.uid)
        if found is None or found[0] != self._table.name_of(row):
            return SUCCESS
        record = self.ledger.find(found[1])
        if record is None:
            return error("cannot find target reservation")
        if record.availability.is_terminating:
            return error("target reservation is terminating")
        self.ledger.use(pod, record.uid)
        return SUCCESS

    def unreserve(self, state: State, pod: PodInfo, node_name: str) -> None:
        self.store.candidates.release(pod.uid)
        written = self.ledger.drop(pod.uid)
        if written:
            self._writer.owners.take_back(pod.pod, written, node_name)

    async def pre_bind(self, state: State, pod: PodInfo, node_name: str, patch: PodPatch) -> Status:
        uid = self.ledger.used_by(pod.uid)
        if uid is not None:
            await self._writer.owners.taken_back(pod.uid)
        record = self.ledger.find(uid) if uid is not None else None
        if uid is not None and record is None:
            return error("cannot find target reservation")
        if record is not None:
            allocated = ReservationAllocated(name=record.name, uid=record.uid)
            patch.annotations[labels.RESERVATION_ALLOCATED] = RESERVATION_ALLOCATED.encode(allocated)
            self.ledger.wrote(pod.uid)
        elif labels.RESERVATION_ALLOCATED in pod.pod.metadata.annotations:
            # Left from an attempt that did not succeed: it uses no reservation.
            patch.annotations[labels.RESERVATION_ALLOCATED] = None
        return SUCCESS

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        if not pod_labels.is_reserve_pod(pod.pod.metadata.annotations):
            return SKIP
        is_taking = labels.IS_PRE_ALLOCATION in pod.pod.metadata.annotations
        taken = [each.pod for each in self.store.candidates.claimed(pod.uid)] if is_taking else None
        return await self._writer.bind(pod.uid, node_name, self.handle.profile.name, taken)

    def _failed(self, failure: SchedulingFailure) -> Handling:
        if failure.profile_name != self.handle.profile.name:
            return Handling.GO_ON
        if not pod_labels.is_reserve_pod(failure.pod.pod.metadata.annotations):
            return Handling.GO_ON
        self._writer.report_unscheduled(failure)
        return Handling.QUIETLY

    # Reservations

    def reserve_pod(self, uid: str) -> Pod | None:
        return self.store.reserve_pod(uid)

    def reservation_for(self, uid: str) -> Reservation | None:
        return self.store.find(uid)

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (Endpoint("nodeReservations/{name}", partial(verdict.of_node, self._table, self.ledger)),)

    def controllers(self) -> Sequence[BackgroundController]:
        return self._controller.loops()
