"""Tell the borrower how a lent pod is: statuses as patches. Pure. Source: behaviour/tidal 5."""

from collections.abc import Iterable, Mapping
from typing import Any

from koordinator import clock
from koordinator.virtual_node.objects import Json, PodDocument

RECLAIMED, OUT_OF_HOLE, REFUSED, WAITING = "Reclaimed", "OutOfHole", "NotSupported", "MissingObjects"
"""Reasons of a pod's status: the lender wanted its room back; no node of the lender has room; the lender takes no such
pods; what it refers to is not there."""

KILLED_EXIT_CODE = 137
_PASSED = (
    "phase",
    "reason",
    "message",
    "startTime",
    "hostIP",
    "hostIPs",
    "podIP",
    "podIPs",
    "containerStatuses",
    "initContainerStatuses",
)
_OF_BORROWER = ("PodScheduled", "DisruptionTarget")
"""Conditions that the borrower's components write about its pod."""


def mirrored(borrowed: PodDocument, lent: PodDocument) -> Json | None:
    """Return the status that the borrower's pod lacks; None when it says all."""
    status, now = lent.status, borrowed.status
    wanted: Json = {name: status.get(name) for name in _PASSED}
    if not wanted["phase"]:
        wanted["phase"] = "Pending"
    wanted["conditions"] = _conditions(borrowed, status.get("conditions") or [])
    return _difference(now, wanted)


def waits(borrowed: PodDocument, reason: str, message: str) -> Json | None:
    """Return the status of a pod that is not in the lender yet; None when it says so already."""
    return _difference(borrowed.status, {"phase": "Pending", "reason": reason, "message": message})


def failed(borrowed: PodDocument, reason: str, message: str, now_s: float) -> Json:
    """Return the status of a pod that has ended without doing its work, so that its owner makes another one.

    A reclaimed pod is the target of a disruption, which Jobs need not count as a failure of theirs.
    """
    now = clock.rfc3339(now_s)
    status: Json = {"phase": "Failed", "reason": reason, "message": message}
    before = {one["type"]: one for one in borrowed.status.get("conditions") or []}
    for kind in ("Ready", "ContainersReady"):
        if kind in before:
            said = {"status": "False", "reason": "PodFailed", "lastTransitionTime": now}
            before[kind] = {"type": kind, **said}
    if reason == RECLAIMED:
        before["DisruptionTarget"] = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": now,
        }
    status["conditions"] = list(before.values())
    for name in ("containerStatuses", "initContainerStatuses"):
        if statuses := borrowed.status.get(name):
            status[name] = [_ended(one, reason, now) for one in statuses]
    return {"status": status}


def _ended(container: Mapping[str, Any], reason: str, now: str) -> Json:
    """Return the status of a container when its pod is no more; one that had ended by itself keeps its end."""
    state = container.get("state") or {}
    if state.get("terminated"):
        return dict(container)
    started = (state.get("running") or {}).get("startedAt")
    end = {"exitCode": KILLED_EXIT_CODE, "reason": reason, "finishedAt": now}
    if started:
        end["startedAt"] = started
    return {**container, "ready": False, "started": False, "state": {"terminated": end}}


def _conditions(borrowed: PodDocument, lent: Iterable[Mapping[str, Any]]) -> list[Json]:
    """Return the lender's conditions, and those of the borrower's own components as they are."""
    before = {one["type"]: one for one in borrowed.status.get("conditions") or []}
    gates = [one["conditionType"] for one in borrowed.spec.get("readinessGates") or []]
    kept = [before[kind] for kind in (*_OF_BORROWER, *gates) if kind in before]
    names = {one["type"] for one in kept}
    told = []
    for one in lent:
        if one["type"] == "PodScheduled" or one["type"] in names:
            continue
        condition = {key: value for key, value in one.items() if key != "observedGeneration"}
        if one["type"] == "Ready" and one["status"] == "True":
            condition |= _gated(gates, before)
        told.append(condition)
    return [*kept, *told]


def _gated(gates: Iterable[str], before: Mapping[str, Mapping[str, Any]]) -> Json:
    """Return what readiness gates, which only the borrower knows, change about readiness."""
    closed = [gate for gate in gates if before.get(gate, {}).get("status") != "True"]
    if not closed:
        return {}
    return {
        "status": "False",
        "reason": "ReadinessGatesNotReady",
        "message": f"readiness gates are not true: {', '.join(closed)}",
    }


def _difference(now: Mapping[str, Any], wanted: Mapping[str, Any]) -> Json | None:
    """Return a merge patch of what is other than wanted; None when nothing is. None as a value means absent."""
    changes = {name: value for name, value in wanted.items() if (now.get(name) or None) != (value or None)}
    return {"status": changes} if changes else None
