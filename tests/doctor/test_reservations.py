"""Checks of reservations and of the pods that use or want one."""

import json
from typing import Any

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.meta import Object
from koordinator.api.reservation import Reservation
from koordinator.doctor.checks.all import examine
from koordinator.doctor.finding import Finding, FindingSeverity
from tests.doctor.builders import at, decoded, healthy, snapshot

OLD_S = 3_600.0


def reservation(
    name: str = "room", *, seconds_ago: float = OLD_S, status: dict[str, Any] | None = None, **spec: Any
) -> Reservation:
    containers = [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]
    whole = {
        "template": {"spec": {"containers": containers}},
        "owners": [{"labelSelector": {"matchLabels": {"app": name}}}],
        "ttl": "24h",
        **spec,
    }
    meta = {"creationTimestamp": at(seconds_ago), "uid": f"uid-{name}"}
    return decoded(Reservation, {"metadata": meta, "spec": whole, "status": status or {}}, name=name)


def available(
    name: str = "room", *, node: str = "node-0", owners: tuple[str, ...] = (), **more: Any
) -> Reservation:
    current = [{"name": each, "namespace": "default", "uid": each} for each in owners]
    status = {"phase": "Available", "nodeName": node, "allocatable": {"cpu": "2"}, "currentOwners": current}
    return reservation(name, status=status, **more)


def pod(
    name: str,
    *,
    app: str = "",
    node: str = "",
    of: str = "",
    affinity: Any = None,
    seconds_ago: float = OLD_S,
) -> Pod:
    annotations = {}
    if of:
        annotations[labels.RESERVATION_ALLOCATED] = json.dumps({"name": of, "uid": f"uid-{of}"})
    if affinity is not None:
        annotations[labels.RESERVATION_AFFINITY] = (
            affinity if isinstance(affinity, str) else json.dumps(affinity)
        )
    body = {
        "metadata": {
            "creationTimestamp": at(seconds_ago),
            "labels": {"app": app} if app else {},
            "annotations": annotations,
        },
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        "status": {"phase": "Running" if node else "Pending"},
    }
    return decoded(Pod, body, name=name, namespace="default")


def reported(*objects: Object) -> list[Finding]:
    found = healthy()
    for obj in objects:
        found.setdefault(type(obj), []).append(obj)
    return list(examine(snapshot(found), ["reservations"]).findings)


def the_one(*objects: Object) -> Finding:
    (found,) = reported(*objects)
    assert found.why and found.remedy
    return found


def test_reservations_that_are_used_new_or_over_are_fine() -> None:
    used = pod("p", app="room", node="node-0", of="room")
    assert reported(available(owners=("p",)), used) == []
    assert reported(available(seconds_ago=60)) == []
    assert reported(reservation(seconds_ago=60)) == []
    assert reported(reservation(status={"phase": "Succeeded", "nodeName": "node-0"}), used) == []
    assert reported(pod("p", node="node-0", of="deleted")) == [], "who used one up keeps the annotation"


def test_one_without_a_node_tells_what_the_scheduler_said() -> None:
    said = {"type": "Scheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient cpu."}
    found = the_one(reservation(status={"phase": "Pending", "conditions": [said]}))
    assert found.problem == "it has had no node for 60 minutes"
    assert found.why == said["message"]
    late = the_one(reservation(ttl="10m"))
    assert "no scheduler has said why" in late.why and "never ends" in late.why


def test_one_that_nobody_uses_tells_whether_there_is_anybody() -> None:
    assert (
        "it is for no pod that exists" in the_one(available(), pod("other", app="x", node="node-0")).problem
    )
    beside = the_one(available(), pod("p", app="room", node="node-0"))
    assert (beside.severity, "run without it: default/p" in beside.problem) == (FindingSeverity.NOTICE, True)
    waiting = the_one(available(), pod("p", app="room"))
    assert (waiting.severity, "wait: default/p" in waiting.problem) == (FindingSeverity.WARNING, True)


def test_one_that_should_have_ended_is_an_error() -> None:
    assert "older than spec.ttl 30m" in the_one(available(owners=("p",), ttl="30m")).problem
    assert "node gone is gone" in the_one(available(owners=("p",), node="gone")).problem
    just_now = reservation(
        status={"phase": "Available", "nodeName": "node-0", "currentOwners": [{"name": "p"}]}, expires=at(30)
    )
    assert reported(just_now) == []


def test_what_cannot_be_read_is_named() -> None:
    assert "spec.ttl" in the_one(available(ttl="soon")).problem
    odd = [{"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}]
    assert "spec.owners cannot be read" in the_one(reservation(owners=odd)).problem
    assert "spec.template is missing" in the_one(reservation(template={})).problem


def test_annotations_that_are_no_longer_true_are_found() -> None:
    failed = reservation("late", status={"phase": "Failed", "nodeName": "node-0"})
    assert the_one(failed, pod("p", node="node-0", of="late")).severity is FindingSeverity.NOTICE
    assert (
        "on another node"
        in the_one(available("far", node="node-0", owners=("q",)), pod("p", node="node-1", of="far")).problem
    )
    assert "have no node" in the_one(available(owners=("q",)), pod("p", of="room")).problem
    assert reported(available(owners=("q",)), pod("p", of="room", seconds_ago=10)) == []
    broken = pod("p", node="node-0")
    broken.metadata.annotations[labels.RESERVATION_ALLOCATED] = "{"
    assert "cannot be read" in the_one(broken).problem


def test_pods_that_require_what_is_not_there_are_errors() -> None:
    assert "which does not exist" in the_one(pod("p", affinity={"name": "nope"})).problem
    over = reservation("over", status={"phase": "Succeeded"})
    assert "has ended (Succeeded)" in the_one(over, pod("p", affinity={"name": "over"})).problem
    assert "cannot be read" in the_one(pod("p", affinity="{")).problem
    assert reported(pod("p", affinity={"reservationSelector": {"pool": "a"}})) == []
    assert reported(available(owners=("q",)), pod("p", affinity={"name": "room"})) == []
