"""Say which nodes a reserve pod may go to, and place Reservations onto running pods that will leave: which pods may be
taken over where, whether a node will do by them, and which are chosen. `preallocation` decides for a single node.
Source: behaviour/reservations 7 and 10.

Candidates are kept per group of Reservations with equal owners, and those marked for everybody once, as pods come and
go: an attempt looks at the rows that have any.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec
import numpy as np

from koordinator.api import labels, pod_labels, pod_resources
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.api.reservation import RESERVATION_ALLOCATED, Reservation, ReservationOwner
from koordinator.api.scalars import ScalarError, parse_int
from koordinator.scheduler.config.default_plugins import PreAllocationConfig
from koordinator.scheduler.plugin.framework import ReasonCodes
from koordinator.scheduler.plugin.status import SUCCESS, RefusalCodes, Status, unresolvable, unschedulable
from koordinator.scheduler.plugins.reservation import fit, matching, objects, preallocation
from koordinator.scheduler.plugins.reservation.fit import Ignored, ReservationAmounts, ReservationNodeView
from koordinator.scheduler.plugins.reservation.ledger import ReservationLedger
from koordinator.scheduler.plugins.reservation.matching import MatchOutcome, RequiredReservations
from koordinator.scheduler.plugins.reservation.owner_index import OwnerGroup, OwnerIndex
from koordinator.scheduler.plugins.reservation.preallocation import (
    Asked,
    PreAllocation,
    PreAllocationCandidate,
    PreAllocationMode,
    nobody_asked,
)
from koordinator.scheduler.table.columns import Rows, discard
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo

CLUSTER = "Cluster"
NO_CANDIDATE = unresolvable("node(s) no pod match reservation with pre allocation required")
UNSUPPORTED = unresolvable("node(s) reservation pre allocation is unsupported with current attributes")
NO_CLUSTER_MODE = unresolvable("reservation requires cluster mode pre-allocation which is disabled")

OfRow = dict[str, PodInfo]


class CandidatePods(RowKeeper):
    """Running pods that Reservations may be placed onto, by row."""

    in_trials = False
    in_takes = False

    def __init__(self, table: NodeTable) -> None:
        self.version = 0
        """Grows with every change."""
        self.on_change: Callable[[Iterable[str]], None] | None = None
        """Called with the Reservations for which there is a candidate more."""
        self._table = table
        self._index = OwnerIndex()
        self._waiting: dict[str, OwnerGroup] = {}
        self._uids: dict[int, set[str]] = {}
        """Group → the Reservations that wait."""
        self._of_group: dict[int, dict[int, OfRow]] = {}
        self._marked: dict[str, dict[int, OfRow]] = {}
        """Label that marks pods for everybody → those that carry it."""
        self._claims: dict[str, dict[str, PodInfo]] = {}
        """Reservation → the pods that it takes over where it is being placed."""
        self._known: dict[str, list[dict[int, OfRow]]] = {}
        """Candidate → where it is kept."""

    def mark_by(self, label_key: str) -> None:
        """Follow the pods that carry the label, too."""
        if label_key not in self._marked:
            self._marked[label_key] = {}
            self._follow_all(lambda pod: True)

    def wait(self, reservation: Reservation) -> None:
        """Follow candidates for a Reservation that is to be placed."""
        uid = reservation.metadata.uid
        # Only entries with a label selector can tell candidates.
        owners: list[ReservationOwner] = [
            each for each in reservation.spec.owners if each.label_selector is not None
        ]
        known = self._waiting.get(uid)
        if known is not None and known.key == msgspec.json.encode(owners):
            return
        self.leave(uid)
        group = self._waiting[uid] = self._index.join(owners)
        self._uids.setdefault(group.number, set()).add(uid)
        if group.number not in self._of_group:
            self._of_group[group.number] = {}
            self._follow_all(lambda pod: group.number in self._index.of(pod))

    def leave(self, uid: str) -> None:
        """Follow none for it any more."""
        self._claims.pop(uid, None)
        group = self._waiting.pop(uid, None)
        if group is None:
            return
        self._index.leave(group)
        self._uids[group.number].discard(uid)
        if not group.member_count:
            left = self._of_group[group.number]
            for row, pod in [(row, pod) for row, pods in left.items() for pod in pods.values()]:
                self._follow(row, pod)
            del self._of_group[group.number], self._uids[group.number]

    def of(self, reservation: Reservation, label_key: str) -> dict[int, OfRow]:
        """Return the candidates by row; matching is still to be looked at. `label_key` marks those of cluster mode."""
        if is_of_cluster(reservation):
            return self._marked.get(label_key, {})
        group = self._waiting.get(reservation.metadata.uid)
        return self._of_group[group.number] if group is not None else {}

    def claim(self, uid: str, pods: Iterable[PodInfo]) -> None:
        """Keep pods for a Reservation that is being placed onto them."""
        self._claims[uid] = {pod.uid: pod for pod in pods}

    def release(self, uid: str) -> None:
        """Undo `claim`."""
        self._claims.pop(uid, None)

    def claimed(self, uid: str) -> list[PodInfo]:
        """Return the pods that are kept for a Reservation."""
        return list(self._claims.get(uid, {}).values())

    def is_claimed(self, pod_uid: str, uid: str) -> bool:
        """Return whether a pod is kept for another Reservation than this one."""
        return any(pod_uid in pods for other, pods in self._claims.items() if other != uid)

    # Pods

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        self._follow(row, pod)

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        self._follow(row, new)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        self._drop(row, pod.uid)

    def _follow_all(self, wanted: Callable[[PodInfo], bool]) -> None:
        for place in self._table.places():
            if wanted(place.pod):
                self._follow(place.row, place.pod)

    def _follow(self, row: int, pod: PodInfo) -> None:
        if not self._waiting and not self._marked:
            return
        was_known = self._drop(row, pod.uid)
        place, meta = self._table.place_of(pod.uid), pod.pod.metadata
        if place is None or place.assumed or pod_labels.is_reserve_pod(meta.annotations):
            return
        numbers = self._index.of(pod)
        kept = [self._of_group[number] for number in numbers]
        marked = [kept for key, kept in self._marked.items() if meta.labels.get(key) == "true"]
        kept += marked
        if not kept:
            return
        for by_row in kept:
            by_row.setdefault(row, {})[pod.uid] = pod
        self._known[pod.uid] = kept
        self.version += 1
        if not was_known and self.on_change is not None:
            wanted = (
                self._waiting if marked else sorted({uid for each in numbers for uid in self._uids[each]})
            )
            self.on_change(wanted)

    def _drop(self, row: int, uid: str) -> bool:
        """Return whether it was a candidate."""
        kept = self._known.pop(uid, None)
        for by_row in kept or ():
            discard(by_row, row, uid)
        self.version += kept is not None
        return kept is not None


class Candidate(msgspec.Struct, frozen=True):
    """A pod that accepts the Reservation, and how important it is to take it over first."""

    pod: PodInfo
    amounts: PreAllocationCandidate
    rank: tuple[int, str]


class PreAllocationState:
    """A reserve pod that may be placed onto running pods."""

    def __init__(self, reservation: Reservation, request: fit.Ints, status: Status) -> None:
        """Raises: ProtocolError, QuantityError when the template cannot be read."""
        self.reservation = reservation
        self.request = request
        self.status = status
        names = tuple(sorted(request))
        self.room = ReservationAmounts(
            name=reservation.metadata.name, is_restricted=True, allocatable=request, names=names
        )
        policy = reservation.spec.pre_allocation_policy
        self.is_multiple = policy is not None and policy.enable_multiple
        self.is_required = reservation.metadata.labels.get(labels.PRE_ALLOCATION_REQUIRED) == "true"


class PreAllocator:
    """Answers for single rows."""

    def __init__(
        self, table: NodeTable, pods: CandidatePods, args: PreAllocationConfig | None, ignored: Ignored
    ) -> None:
        self._table = table
        self._args = args or PreAllocationConfig()
        self._ignored = ignored
        self.pods = pods
        self._label_key = self._args.cluster_label_key or labels.POD_IS_PRE_ALLOCATABLE
        if self._args.enable_cluster_mode:
            pods.mark_by(self._label_key)

    def state(self, reservation: Reservation, request: fit.Ints) -> PreAllocationState:
        """Return the state of a reserve pod with spec.preAllocation."""
        status = SUCCESS
        if reservation.spec.allocate_policy != "Restricted":
            status = UNSUPPORTED
        elif is_of_cluster(reservation) and not self._args.enable_cluster_mode:
            status = NO_CLUSTER_MODE
        return PreAllocationState(reservation, request, status)

    def rows(self, state: PreAllocationState) -> Collection[int]:
        """Return the rows with pods that may be taken over."""
        return self._of(state).keys() if state.status.is_success else ()

    def candidates(self, state: PreAllocationState, row: int) -> list[Candidate]:
        """Return the pods on a row that accept the Reservation, the first to take over first."""
        found = []
        for pod in self._of(state).get(row, {}).values():
            try:
                if not self._accepts(state, pod, row):
                    continue
            except (ProtocolError, QuantityError):
                continue  # nobody can tell what it says of reservations: it is left alone
            amounts = self._table.registry.named(pod.requests)
            first = (
                _priority(pod.pod, self._args.cluster_priority_annotation_key)
                if is_of_cluster(state.reservation)
                else preallocation.score(amounts, state.room)
            )
            found.append(Candidate(pod, PreAllocationCandidate(pod.uid, amounts), (-first, pod.uid)))
        return sorted(found, key=lambda each: each.rank)

    def _of(self, state: PreAllocationState) -> dict[int, OfRow]:
        return self.pods.of(state.reservation, self._label_key)

    def _accepts(self, state: PreAllocationState, pod: PodInfo, row: int) -> bool:
        reservation, annotations = state.reservation, pod.pod.metadata.annotations
        used = RESERVATION_ALLOCATED.read(annotations, f"Pod {pod.key}")
        if used is not None and used.uid != reservation.metadata.uid:
            return False
        if self.pods.is_claimed(pod.uid, reservation.metadata.uid):
            return False
        node = self._table.node_at(row)
        required = RequiredReservations.of(pod.pod)
        requests = pod_resources.requests(pod.pod)
        node_labels = node.metadata.labels if node is not None else {}
        found = matching.match_requirements(required, requests, reservation, node_labels)
        return found.outcome is MatchOutcome.MATCHED

    def decide(
        self,
        state: PreAllocationState,
        row: int,
        candidates: list[Candidate],
        *,
        is_required: bool,
        asked: Asked = nobody_asked,
    ) -> PreAllocation:
        """Return whether the node will do, whether the candidates are counted there at the moment or not."""
        mode = PreAllocationMode(
            is_multiple=state.is_multiple,
            is_required=is_required,
            prefers_none=self._args.prefer_no_pre_allocated_pods,
        )
        amounts = [each.amounts for each in candidates]
        view = self._view(state, row, candidates)
        return preallocation.pre_allocate(
            state.request, view, state.room, amounts, mode, self._ignored, asked
        )

    def refusal(self, state: PreAllocationState, row: int) -> Status:
        """Return what Filter says of a row."""
        candidates = self.candidates(state, row)
        if state.is_required and not candidates:
            return NO_CANDIDATE
        found = self.decide(state, row, candidates, is_required=state.is_required)
        return SUCCESS if found.ok else unschedulable(*found.reasons)

    def score(self, state: PreAllocationState, row: int) -> int:
        """Return the score of a node where several may be taken over, 0 to 100."""
        return self.decide(state, row, self.candidates(state, row), is_required=state.is_required).score

    def choose(
        self, state: PreAllocationState, row: int, refusal: Callable[[list[PodInfo]], Status]
    ) -> list[PodInfo] | Status:
        """Return the pods that the Reservation takes over on its node, none for free room alone. `refusal`: what others
        say of pods together."""
        candidates = self.candidates(state, row)

        def asked(names: tuple[str, ...]) -> Sequence[str]:
            return refusal([each.pod for each in candidates if each.amounts.name in names]).reasons

        found = self.decide(state, row, candidates, is_required=state.is_required, asked=asked)
        if not found.ok:
            return unschedulable(*found.reasons)
        chosen = [each for each in candidates if each.amounts.name in found.selected]
        if state.is_multiple:
            return [each.pod for each in chosen]
        able = [each for each in chosen if self.decide(state, row, [each], is_required=True, asked=asked).ok]
        best = max(able, key=lambda each: preallocation.score(each.amounts.request, state.room), default=None)
        return [best.pod] if best is not None else []

    def _view(self, state: PreAllocationState, row: int, candidates: list[Candidate]) -> ReservationNodeView:
        """Return the node with all pods on it."""
        away = [each.pod for each in candidates if self._table.place_of(each.pod.uid) is None]
        return ReservationNodeView.of(self._table, row, state.request, away)


def is_of_cluster(reservation: Reservation) -> bool:
    """Return whether candidates are marked by a label, whoever the owners are."""
    policy = reservation.spec.pre_allocation_policy
    return policy is not None and policy.mode == CLUSTER


def is_pre_allocating(reservation: Reservation) -> bool:
    """Return whether it waits for a node that may still be full."""
    return reservation.spec.pre_allocation and objects.is_unassigned(reservation)


def _priority(pod: Pod, key: str) -> int:
    try:
        return parse_int(pod.metadata.annotations.get(key or labels.PRE_ALLOCATABLE_PRIORITY, ""))
    except ScalarError:
        return 0


OTHER_NODE = unresolvable("node(s) didn't match the nodeName specified by reservation")
CONFLICT = unresolvable("node(s) reservation allocate policy conflict")
FEW = 64
"""Up to so many rows are looked up one by one."""


class ReserveState(RefusalCodes):
    """A reserve pod: the node that its template names, the policy of its Reservation, and which pods it may take over
    (`pre`; None: it needs free room). Or a pod that will be a reservation itself, which goes wherever it fits."""

    def __init__(self, node_name: str, policy: str, pre: PreAllocationState | None = None) -> None:
        super().__init__()
        self.node_name = node_name
        self.policy = policy
        self.pre = pre


def filter_rows(
    state: ReserveState,
    rows: Rows,
    ledger: ReservationLedger,
    pre_allocator: PreAllocator,
    row_of: Callable[[str], int | None],
) -> ReasonCodes:
    """Return the refusal of each row, (rows,), 0 for none."""
    codes = np.zeros(rows.size, np.uint16)
    if state.node_name:
        row = row_of(state.node_name)
        codes[rows != (-1 if row is None else row)] = state.code_of(OTHER_NODE)
    for index in positions(rows, ledger.rows):
        there = ledger.at(int(rows[index]))
        policies = [r.reservation.spec.allocate_policy for r in there if r.availability.is_matchable]
        if codes[index] == 0 and fit.is_policy_conflict(state.policy, policies):
            codes[index] = state.code_of(CONFLICT)
    if state.pre is not None:
        _filter_pre_allocating(state, state.pre, rows, codes, pre_allocator)
    return codes


def _filter_pre_allocating(
    state: ReserveState,
    pre: PreAllocationState,
    rows: Rows,
    codes: ReasonCodes,
    pre_allocator: PreAllocator,
) -> None:
    """Enter in `codes` (rows,) what the pods say that may be taken over."""
    has_candidates = np.zeros(rows.size, np.bool_)
    has_candidates[positions(rows, pre_allocator.rows(pre))] = True
    if pre.is_required:
        codes[~has_candidates & (codes == 0)] = state.code_of(NO_CANDIDATE)
    for index in np.flatnonzero(has_candidates & (codes == 0)).tolist():
        codes[index] = state.code_of(pre_allocator.refusal(pre, int(rows[index])))


def positions(rows: Rows, wanted: Collection[int]) -> list[int]:
    """Return the positions in `rows` (rows,) of those that are wanted."""
    if not wanted:
        return []
    if rows.size <= FEW:
        return [index for index, row in enumerate(rows.tolist()) if row in wanted]
    found: list[int] = np.flatnonzero(np.isin(rows, np.fromiter(wanted, np.intp, len(wanted)))).tolist()
    return found
