"""Which reservations a pod may use."""

from typing import Any

import pytest

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.reservation import Reservation
from koordinator.scheduler.plugins.reservation.matching import (
    Match,
    MatchOutcome,
    NodeCounts,
    RequiredReservations,
    ReservationOwners,
    match,
)


def pod(affinity: str | None = None, **metadata: Any) -> Pod:
    annotations = {} if affinity is None else {labels.RESERVATION_AFFINITY: affinity}
    return from_builtins({"metadata": {"name": "p", "annotations": annotations, **metadata}}, Pod)


def outcome(of: Pod, node_labels: dict[str, str] | None = None, **spec: Any) -> Match:
    body = {"metadata": {"name": "r", "labels": {"pool": "a"}}, "spec": {"owners": [{}], **spec}}
    made = from_builtins(body, Reservation)
    return match(
        of, RequiredReservations.of(of), {}, made, ReservationOwners.of(made.spec.owners), node_labels
    )


def test_labels_of_a_reservation_hide_those_of_its_node() -> None:
    wants_a = pod('{"reservationSelector": {"pool": "a", "zone": "z"}}')
    assert outcome(wants_a, {"pool": "b", "zone": "z"}).outcome is MatchOutcome.MATCHED
    assert outcome(wants_a, None).outcome is MatchOutcome.AFFINITY_UNMATCHED


def test_the_first_taint_that_is_not_borne_is_named() -> None:
    taints = [
        {"key": "soft", "effect": "PreferNoSchedule"},
        {"key": "k", "value": "v", "effect": "NoExecute"},
    ]
    found = outcome(pod("{}"), taints=taints)
    assert found.outcome is MatchOutcome.TAINT_UNTOLERATED
    assert found.taint is not None
    assert (found.taint.key, found.taint.value) == ("k", "v")


def test_one_invalid_owner_makes_nobody_an_owner() -> None:
    bad = {"labelSelector": {"matchExpressions": [{"key": "k", "operator": "Is"}]}}
    assert outcome(pod(), owners=[{}, bad]).outcome is MatchOutcome.OWNER_UNMATCHED


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('{"key": "n", "operator": "Gt", "values": ["4"]}', MatchOutcome.MATCHED),
        ('{"key": "n", "operator": "Lt", "values": ["5"]}', MatchOutcome.AFFINITY_UNMATCHED),
        ('{"key": "none", "operator": "NotIn", "values": ["5"]}', MatchOutcome.MATCHED),
        ('{"key": "none", "operator": "Exists"}', MatchOutcome.AFFINITY_UNMATCHED),
    ],
)
def test_terms_have_the_meaning_of_node_selectors(expression: str, expected: MatchOutcome) -> None:
    terms = f'{{"reservationSelectorTerms": [{{"matchExpressions": [{expression}]}}]}}'
    wanting = pod(f'{{"requiredDuringSchedulingIgnoredDuringExecution": {terms}}}')
    assert outcome(wanting, {"n": "5"}).outcome is expected


@pytest.mark.parametrize(
    "requirement", ['"In"', '"Exists", "values": ["x"]', '"Gt", "values": ["x"]', '"Is"']
)
def test_a_term_that_cannot_be_is_an_error_of_the_pod(requirement: str) -> None:
    terms = f'{{"reservationSelectorTerms": [{{"matchExpressions": [{{"key": "k", "operator": {requirement}}}]}}]}}'
    with pytest.raises(ProtocolError, match=r"p: .*reservation-affinity"):
        RequiredReservations.of(pod(f'{{"requiredDuringSchedulingIgnoredDuringExecution": {terms}}}'))


def test_reservations_that_nothing_else_kept_out_are_left_to_the_node() -> None:
    counts = NodeCounts(
        owner_matched=40,
        name_matched=3,
        name_unmatched=2,
        affinity_unmatched=3,
        unschedulable=4,
        not_exact_matched=5,
        ignored=7,
        taints={"a": 1, "b": 2},
        filter_reasons=["Insufficient cpu"],
    )
    assert counts.left == 40 - 2 - 3 - 4 - 5 - 1 - 2
