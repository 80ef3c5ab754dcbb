"""The life of a Reservation: its pseudo pod, its status, its end, and where its events go."""

from typing import Any

import msgspec
import pytest

from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.reservation import Reservation
from koordinator.clock import parse_rfc3339
from koordinator.scheduler.plugins.reservation import lifecycle, objects
from koordinator.scheduler.plugins.reservation.lifecycle import NotActiveError, OwnerPod, ReservationAction

CREATED = "2026-03-01T12:00:00Z"
CREATED_S = parse_rfc3339(CREATED)


def reservation(status: dict[str, Any] | None = None, **spec: Any) -> Reservation:
    template = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}}
    whole = {"template": template, "owners": [{"object": {"name": "p"}}], "ttl": "1h", **spec}
    meta = {"name": "r", "uid": "u", "creationTimestamp": CREATED}
    return from_builtins({"metadata": meta, "spec": whole, "status": status or {}}, Reservation)


def bound(**spec: Any) -> Reservation:
    return reservation({"phase": "Available", "nodeName": "n", "allocatable": {"cpu": "2"}}, **spec)


def owner(uid: str = "p1", allocated: str | None = "u") -> OwnerPod:
    return OwnerPod(uid, "default", f"pod-{uid}", {}, allocated)


def test_a_second_pass_writes_nothing() -> None:
    first = lifecycle.sync(bound(allocateOnce=False), True, [owner("b"), owner("a")], CREATED_S)
    assert first.is_written

    again = lifecycle.sync(
        msgspec.structs.replace(bound(allocateOnce=False), status=first.status),
        True,
        [owner("a"), owner("b")],
        CREATED_S,
    )

    assert (again.is_written, again.status) == (False, first.status)


def test_a_reservation_whose_node_is_gone_ends_and_says_so() -> None:
    found = lifecycle.sync(bound(), False, [owner()], CREATED_S)
    assert (found.status.phase, found.reason) == (objects.FAILED, "node n is gone")


def test_pods_of_another_reservation_do_not_use_this_one() -> None:
    assert not lifecycle.sync(
        bound(), True, [owner(allocated="other"), owner(allocated=None)], CREATED_S
    ).is_written


def test_one_that_failed_meanwhile_is_not_bound() -> None:
    with pytest.raises(NotActiveError, match="not active"):
        lifecycle.bound(reservation({"phase": "Failed"}), "n", CREATED_S)


def test_a_scheduled_condition_is_not_taken_back_by_a_failed_attempt() -> None:
    placed = lifecycle.bound(reservation(), "n", CREATED_S)
    refused = lifecycle.unschedulable(
        msgspec.structs.replace(reservation(), status=placed), "full", CREATED_S + 5
    )

    assert [(each.type, each.status, each.message) for each in refused.conditions] == [
        ("Scheduled", "True", ""),
        ("Ready", "True", ""),
    ]
    assert refused.conditions[0].last_probe_time == "2026-03-01T12:00:05Z"


@pytest.mark.parametrize(("field", "text"), [("ttl", "soon"), ("expires", "tomorrow")])
def test_a_malformed_time_is_named(field: str, text: str) -> None:
    with pytest.raises(ProtocolError, match=f"r: spec.{field}"):
        lifecycle.sync(bound(**{field: text}), True, [], CREATED_S)


def test_the_pseudo_pod_of_a_resized_reservation_asks_for_what_is_held() -> None:
    pod = objects.reserve_pod(
        reservation({"phase": "Available", "nodeName": "n", "allocatable": {"cpu": "3"}})
    )

    assert [container.name for container in pod.spec.containers] == ["c", objects.FAKE_CONTAINER]
    assert pod.spec.containers[1].resources.limits == {"cpu": "3"}


def test_building_the_pseudo_pod_leaves_the_template_alone() -> None:
    template = {
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}
    }
    made = reservation(
        {"phase": "Available", "nodeName": "n2", "allocatable": {"cpu": "3"}}, template=template
    )

    objects.reserve_pod(made)

    assert made.spec.template == template


def test_a_binding_pod_is_not_queued_again() -> None:
    meta = msgspec.structs.replace(reservation().metadata, resource_version="2")
    newer = msgspec.structs.replace(reservation(), metadata=meta)
    assert lifecycle.updated(reservation(), newer, True, True, is_assumed=True) == []
    assert lifecycle.updated(reservation(), newer, True, True) == [ReservationAction.QUEUE_UPDATE]


def test_one_that_moved_to_another_node_is_cached_anew() -> None:
    moved = reservation({"phase": "Available", "nodeName": "n2"})
    assert lifecycle.updated(bound(), moved, True, True) == [
        ReservationAction.CACHE_DELETE,
        ReservationAction.CACHE_ADD,
    ]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [({"owners": []}, "owners"), ({"template": {}}, "template"), ({"ttl": None}, "ttl")],
)
def test_an_invalid_reservation_goes_nowhere_and_says_why(spec: dict[str, Any], reason: str) -> None:
    wrong = reservation(**spec)
    assert reason in objects.invalid_reason(wrong)
    assert lifecycle.added(wrong, True) == lifecycle.updated(bound(), wrong, True, True) == []


def test_amounts_have_their_units_and_only_those_above_zero_a_used_part() -> None:
    held = {"cpu": "2", "memory": "1Gi", "example.com/card": "0"}
    status = {"phase": "Available", "allocatable": held, "allocated": {"cpu": "500m"}}
    found = {(each.type, each.resource): each for each in lifecycle.resource_gauges(reservation(status))}
    used = {name: each.value for (kind, name), each in found.items() if kind == "utilization"}
    assert used == {"cpu": 0.25, "memory": 0.0}
    assert {name for kind, name in found if kind == "allocatable"} == set(held)
    assert {name: each.value for (kind, name), each in found.items() if kind == "allocated"} == {
        "cpu": 0.5,
        "memory": 0.0,
        "example.com/card": 0,
    }


def test_a_reservation_counts_in_its_phase_only() -> None:
    counts = {"Pending": 0, "Available": 0, "Succeeded": 0, "Failed": 0}
    assert lifecycle.phase_gauges(reservation()) == {**counts, "Pending": 1}
    for phase in counts:
        assert lifecycle.phase_gauges(reservation({"phase": phase})) == {**counts, phase: 1}
