"""Tell why the reservations of a pod were not used. Source: behaviour/reservations 9 (post-filter reasons)."""

from collections import Counter

from koordinator.api.resource_vector import texts
from koordinator.scheduler.plugin.capabilities import ApiAnswer, ApiRequest
from koordinator.scheduler.plugin.framework import Diagnosis
from koordinator.scheduler.plugin.status import SKIP, Status, unschedulable
from koordinator.scheduler.plugins.reservation import fit, matching
from koordinator.scheduler.plugins.reservation.ledger import ReservationLedger, ReservationRecord
from koordinator.scheduler.plugins.reservation.matching import Match, MatchOutcome, NodeCounts
from koordinator.scheduler.plugins.reservation.verdict import NodeJudge, OwnerState
from koordinator.scheduler.table.nodes import NodeTable


def reasons(judge: NodeJudge, ledger: ReservationLedger, state: OwnerState, found: Diagnosis) -> list[str]:
    """Return the texts for users, most of them with a number of reservations."""
    counts = {
        str(row): _counts(judge, ledger, state, row, found) for row in sorted(ledger.rows_of(state.groups))
    }
    return matching.reasons(counts, state.asked.must_reserve)


def status(texts: list[str]) -> Status:
    """Return what PostFilter says: nothing when reservations had no part in it."""
    return unschedulable(*texts) if texts else SKIP


def _counts(
    judge: NodeJudge, ledger: ReservationLedger, state: OwnerState, row: int, found: Diagnosis
) -> NodeCounts:
    matches = [match for _, match in _candidates(judge, ledger, state, row)]
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


def _candidates(
    judge: NodeJudge, ledger: ReservationLedger, state: OwnerState, row: int
) -> list[tuple[ReservationRecord, Match]]:
    """Return the reservations on a row that name the pod as an owner and can take one more."""
    return [
        (record, judge.match(state, record, row))
        for record in ledger.at(row)
        if record.group.number in state.groups and record.availability.is_matchable
    ]


_WORDS = {
    MatchOutcome.NAME_UNMATCHED: "is not the one that the pod names",
    MatchOutcome.UNSCHEDULABLE: "takes no new owners (spec.unschedulable, or it is being deleted)",
    MatchOutcome.AFFINITY_UNMATCHED: "is not selected by the pod's reservation affinity",
    MatchOutcome.NOT_EXACT_MATCHED: "does not hold exactly what the pod asks for",
}


def facts(judge: NodeJudge, ledger: ReservationLedger, state: OwnerState, row: int) -> tuple[str, ...]:
    """Return what each reservation on a node is to the pod, one sentence for each."""
    return tuple(
        f"reservation {record.name} {words(judge, state, record, row)}"
        for record in sorted(ledger.at(row), key=lambda each: each.name)
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
    found = judge.fit(state, row, [record])
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
