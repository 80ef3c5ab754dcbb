"""Say what a node with reservations is to a pod: which of them it may use, whether it fits by one, how well, and why
they were not used. Source: behaviour/reservations 5 to 9."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from koordinator.api import node_affinity, pod_resources
from koordinator.api.resource_list import Amounts
from koordinator.api.resource_vector import texts
from koordinator.scheduler.plugin.capabilities import ApiAnswer, ApiRequest
from koordinator.scheduler.plugin.framework import Diagnosis
from koordinator.scheduler.plugin.status import (
    SUCCESS,
    RefusalCodes,
    Status,
    unresolvable,
    unschedulable,
)
from koordinator.scheduler.plugins.reservation import fit, matching, preallocation
from koordinator.scheduler.plugins.reservation.fit import (
    Fit,
    Ignored,
    Ints,
    ReservationNodeView,
    ReservationRequest,
)
from koordinator.scheduler.plugins.reservation.ledger import ReservationLedger, ReservationRecord
from koordinator.scheduler.plugins.reservation.matching import (
    Match,
    MatchOutcome,
    NodeCounts,
    RequiredReservations,
)
from koordinator.scheduler.plugins.reservation.owner_index import GroupNumbers
from koordinator.scheduler.plugins.reservation.preallocation import NominationCandidate
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

NONE_MATCHED = unresolvable(fit.NONE_MATCHED)
NONE_MEETS = unschedulable(fit.NONE_MEETS)


class OwnerState(RefusalCodes):
    """A pod that reservations concern: it may own some, requires one, or takes no notice of them."""

    other_code = 2  # NONE_MEETS

    def __init__(
        self, pod: PodInfo, required: RequiredReservations, groups: GroupNumbers, request: Ints
    ) -> None:
        super().__init__(NONE_MATCHED, NONE_MEETS)
        self.pod = pod
        self.required = required
        self.groups = groups
        self.asked = ReservationRequest(
            request=request,
            must_reserve=required.affinity is not None,
            name=required.affinity.name if required.affinity is not None else "",
            is_ignoring=required.is_ignoring,
        )
        self.requests: Amounts = pod_resources.requests(pod.pod) if required.exact_names else {}
        self.status = SUCCESS
        self.plugins: dict[str, Any] | None = None
        """States of the plugins that have a say about single reservations."""
        self.orders: dict[int, int] = {}
        """Smallest order among the nominees by row, where there is one."""


class NodeJudge:
    """Answers for single rows, from the book and the table as they stand."""

    def __init__(
        self,
        table: NodeTable,
        ledger: ReservationLedger,
        ignored: Ignored,
        *,
        omits_node_labels: bool,
        skips_node: bool,
    ) -> None:
        self._table = table
        self.ledger = ledger
        self.ignored = ignored
        self._omits_node_labels = omits_node_labels
        self._skips_node = skips_node

    def match(self, state: OwnerState, record: ReservationRecord, row: int) -> Match:
        """Return what a reservation is to the pod. Raises: QuantityError."""
        node_labels = None
        if not self._omits_node_labels:
            node = self._table.node_at(row)
            node_labels = node.metadata.labels if node is not None else {}
        return matching.match(
            state.pod.pod,
            state.required,
            state.requests,
            record.reservation,
            record.group.owners,
            node_labels,
        )

    def is_selected(self, state: OwnerState, row: int) -> bool:
        """Return whether node selector and required node affinity of the pod hold for the node of a row."""
        node = self._table.node_at(row)
        return node is not None and node_affinity.selects(state.pod.pod.spec, node)

    def matched(self, state: OwnerState, row: int) -> list[ReservationRecord]:
        """Return the reservations on a row that the pod may use, by order and name; of a pod that takes no notice of
        reservations all of them."""
        groups = state.groups
        found = []
        for record in self.ledger.at(row):
            if record.group.number not in groups and not state.asked.is_ignoring:
                continue
            if not record.availability.is_matchable and not state.asked.is_ignoring:
                continue
            if self.match(state, record, row).outcome in (MatchOutcome.MATCHED, MatchOutcome.IGNORED):
                found.append(record)
        if len(found) > 1:
            found.sort(key=lambda each: (not each.terms.order, each.terms.order, each.name))
        return found

    def view(self, state: OwnerState, row: int, matched: Sequence[ReservationRecord]) -> ReservationNodeView:
        """Return the node as it was before the matched reservations were given back, whether they are now or not."""
        table = self._table
        away = [each.rest(table.registry) for each in matched if not self.ledger.is_placed(each.uid)]
        return ReservationNodeView.of(table, row, state.asked.request, away, len(matched))

    def fit(
        self,
        state: OwnerState,
        row: int,
        matched: Sequence[ReservationRecord],
        usable: Sequence[ReservationRecord],
    ) -> Fit:
        """Return whether the node will do for the pod, by one of the `usable` reservations or beside all that match."""
        rooms = [record.amounts for record in usable]
        view = self.view(state, row, matched)
        return fit.fit(state.asked, view, rooms, self.ignored, skip_node=self._skips_node)

    def verdict(
        self, state: OwnerState, row: int, asked: Callable[[ReservationRecord | None], Status]
    ) -> Status:
        """Return what Filter says of a row; `asked` is what other plugins say of a single reservation, or of a pod that
        uses none."""
        matched = self.matched(state, row)
        refusals = {each.uid: status for each in matched if not (status := asked(each)).is_success}
        left = [each for each in matched if each.uid not in refusals]
        if refusals and not left and state.asked.must_reserve:
            return unschedulable(*dict.fromkeys(text for each in refusals.values() for text in each.reasons))
        found = self.fit(state, row, matched, left)
        if found.ok:
            does_without = found.room is None and bool(matched) and not state.asked.is_ignoring
            return asked(None) if does_without else SUCCESS
        return NONE_MATCHED if found.reasons == NONE_MATCHED.reasons else unschedulable(*found.reasons)

    def usable(self, state: OwnerState, row: int) -> list[ReservationRecord]:
        """Return the matched reservations that give the pod something and that it fits, each by itself."""
        matched = self.matched(state, row)
        if state.asked.is_ignoring or not matched:
            return []
        view = self.view(state, row, matched)
        alone = msgspec.structs.replace(state.asked, must_reserve=True)
        return [
            each
            for each in matched
            if fit.is_candidate(state.asked, each.amounts)
            and fit.fit(alone, view, [each.amounts], self.ignored).ok
        ]


def candidate_of(record: ReservationRecord, score: int) -> NominationCandidate:
    """Return a usable reservation as the nomination sees it."""
    return NominationCandidate(
        name=record.name,
        score=score,
        order=record.terms.order,
        is_once=record.terms.is_once,
        assigned=record.used_count,
    )


def score(state: OwnerState, record: ReservationRecord) -> int:
    """Return how full the pod would make a reservation, 0 to 100."""
    return preallocation.score(state.asked.request, record.amounts)


def reasons(judge: NodeJudge, state: OwnerState, found: Diagnosis) -> list[str]:
    """Return the texts for users, most of them with a number of reservations; none of those on nodes that the pod does
    not select."""
    rows = [row for row in sorted(judge.ledger.rows_of(state.groups)) if judge.is_selected(state, row)]
    counts = {str(row): _counts(judge, state, row, found) for row in rows}
    return matching.reasons(counts, state.asked.must_reserve)


def _counts(judge: NodeJudge, state: OwnerState, row: int, found: Diagnosis) -> NodeCounts:
    matches = [
        judge.match(state, record, row)
        for record in judge.ledger.at(row)
        if record.group.number in state.groups and record.availability.is_matchable
    ]
    outcomes = Counter(match.outcome for match in matches)
    taints = Counter(f"{{{m.taint.key}: {m.taint.value}}}" for m in matches if m.taint is not None)
    return NodeCounts(
        owner_matched=len(matches),
        name_matched=outcomes[MatchOutcome.MATCHED] if state.asked.name else 0,
        name_unmatched=outcomes[MatchOutcome.NAME_UNMATCHED],
        affinity_unmatched=outcomes[MatchOutcome.AFFINITY_UNMATCHED],
        unschedulable=outcomes[MatchOutcome.UNSCHEDULABLE],
        not_exact_matched=outcomes[MatchOutcome.NOT_EXACT_MATCHED],
        ignored=outcomes[MatchOutcome.IGNORED],
        taints=dict(taints),
        filter_reasons=list(found.status_of(row).reasons),
    )


_WORDS = {
    MatchOutcome.NAME_UNMATCHED: "is not the one that the pod names",
    MatchOutcome.UNSCHEDULABLE: "takes no new owners (spec.unschedulable, or it is being deleted)",
    MatchOutcome.AFFINITY_UNMATCHED: "is not selected by the pod's reservation affinity",
    MatchOutcome.NOT_EXACT_MATCHED: "does not hold exactly what the pod asks for",
}


def facts(judge: NodeJudge, state: OwnerState, row: int) -> tuple[str, ...]:
    """Return what each reservation on a node is to the pod, one sentence for each."""
    return tuple(
        f"reservation {record.name} {words(judge, state, record, row)}"
        for record in sorted(judge.ledger.at(row), key=lambda each: each.name)
    )


def words(judge: NodeJudge, state: OwnerState, record: ReservationRecord, row: int) -> str:
    """Return what a reservation on a row is to a pod, or why it is nothing: the rest of a sentence."""
    if record.group.owners.error:
        return f"can be used by nobody: {record.group.owners.error}"
    if record.group.number not in state.groups:
        return "is for other owners"
    if not record.availability.is_matchable:
        users = ", ".join(sorted(owner.key for owner in record.owners.values()))
        return f"is for one owner only, and used by {users or 'a pod that has ended'}"
    match = judge.match(state, record, row)
    if match.outcome is MatchOutcome.TAINT_UNTOLERATED and match.taint is not None:
        return (
            f"has the taint {match.taint.key}={match.taint.value}, which the pod's affinity does not tolerate"
        )
    if match.outcome in _WORDS:
        return _WORDS[match.outcome]
    found = judge.fit(state, row, [record], [record])
    if found.room:
        return "can be used by the pod"
    detail = fit.short_in_room(state.asked.request, record.amounts, judge.ignored, is_detailed=True)
    return f"is for the pod, but too small: {'; '.join(detail or found.reasons)}"


def of_node(table: NodeTable, ledger: ReservationLedger, request: ApiRequest) -> ApiAnswer:
    """Return what the endpoint says about the reservations on a node."""
    name = request.path["name"]
    row = table.row_of(name)
    if row is None:
        return ApiAnswer({"message": f"node {name} is not known"}, 500)
    there = sorted(ledger.at(row), key=lambda each: each.name)
    return ApiAnswer(
        {
            "items": [
                {
                    "name": record.name,
                    "uid": record.uid,
                    "available": record.availability.is_matchable,
                    "allocatable": texts(record.terms.allocatable),
                    "allocated": texts(record.allocated),
                    "owners": [{"name": owner.key, "uid": uid} for uid, owner in record.owners.items()],
                }
                for record in there
            ]
        }
    )
