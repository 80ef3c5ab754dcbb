"""Areas `reservation-match`, `reservation-phase` and `reservation-allocate-policy`."""

import json
from typing import Any

import msgspec
import numpy as np

from koordinator.api import pod_resources, resource_list, resources
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.reservation import (
    RESERVATION_AFFINITY,
    RESERVATION_ALLOCATED,
    Reservation,
    ReservationCondition,
    ReservationOwner,
    ReservationStatus,
)
from koordinator.api.resource_list import sum_of
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.clock import parse_rfc3339
from koordinator.scheduler.loop.outcomes import event_message
from koordinator.scheduler.plugin.framework import default_normalize
from koordinator.scheduler.plugins.reservation import (
    fit,
    lifecycle,
    matching,
    objects,
    preallocation,
)
from koordinator.scheduler.plugins.reservation.fit import Ignored, ReservationAmounts, ReservationNodeView
from koordinator.scheduler.plugins.reservation.ledger import ReservationLedger
from koordinator.scheduler.plugins.reservation.matching import RequiredReservations, ReservationOwners
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import trial_of
from tests.vectors.compare import quantities, subset, tolerant

Case = dict[str, Any]
NOW_S = 1_700_000_000.0


def _reservation(case: Case, field: str = "reservation") -> Reservation:
    return from_builtins(case[field], Reservation)


def match_area(case: Case) -> Any:
    match case["op"]:
        case "owners":
            owners = ReservationOwners.of(from_builtins(each, ReservationOwner) for each in case["owners"])
            return {"matched": owners.match(from_builtins(case["pod"], Pod)), "invalid": bool(owners.error)}
        case "outcome":
            return _outcome(case)
        case "exactMatch":
            names = case.get("resourceNames") or ()
            sides = (resource_list.of(case.get(part) or {}) for part in ("podRequests", "allocatable"))
            return {"matched": matching.is_exact_match(names, *sides)}
        case "matchable":
            return _matchable(case)
        case "affinity":
            text = case.get("annotation")
            annotations = {} if text is None else {RESERVATION_AFFINITY.key: text}
            required = RequiredReservations.of(
                from_builtins({"metadata": {"name": "p", "annotations": annotations}}, Pod)
            )
            present = required.affinity is not None
            return {"present": present, "tolerateUnschedulable": required.tolerates_unschedulable}
        case "diagnose":
            nodes = {name: _counts(body) for name, body in case["nodes"].items()}
            return {"reasons": matching.reasons(nodes, case.get("hasAffinity", False))}
        case "event":
            message = event_message(case["message"])
            return {"report": message is not None, "message": message}
    return {"nominated": _nominate(case)}


def _outcome(case: Case) -> Any:
    pod, reservation = from_builtins(case["pod"], Pod), _reservation(case)
    status = msgspec.structs.replace(reservation.status, phase=objects.AVAILABLE, node_name="n")
    placed = msgspec.structs.replace(reservation, status=status)
    node_labels = None if case.get("omitNodeLabels") else case.get("nodeLabels") or {}
    requests = resource_list.of(case.get("podRequests") or {})
    owners = ReservationOwners.of(reservation.spec.owners)
    found = matching.match(pod, RequiredReservations.of(pod), requests, placed, owners, node_labels)
    return {"outcome": found.outcome.value}


def _matchable(case: Case) -> Any:
    assigned = case.get("assignedPods", 0)
    if "pod" in case:
        reservation = objects.operating_reservation(from_builtins(case["pod"], Pod))
    else:
        reservation = _reservation(case)
    found = matching.availability(reservation, ReservationOwners.of(reservation.spec.owners), assigned)
    return {
        "available": found.is_available,
        "unschedulable": found.is_unschedulable,
        "terminating": found.is_terminating,
        "matchable": found.is_matchable,
    }


def _counts(body: Case) -> matching.NodeCounts:
    """Counts by taint may have any name; their texts may lack the braces."""
    plain = {name: value for name, value in body.items() if not isinstance(value, dict)}
    taints = {
        text if text.startswith("{") else f"{{{text}}}": number
        for value in body.values()
        if isinstance(value, dict)
        for text, number in value.items()
    }
    return from_builtins({**plain, "taints": taints}, matching.NodeCounts)


def _nominate(case: Case) -> str | None:
    request = fit.ints(case.get("podRequests") or {})
    options = [
        preallocation.NominationCandidate(
            name=each["name"],
            score=preallocation.score(request, _room(each)),
            order=preallocation.order_of(each.get("order", "")),
            is_once=each.get("allocateOnce", True),
            assigned=each.get("assignedPods", 0),
        )
        for each in case.get("reservations") or ()
    ]
    return preallocation.nominate(options, case.get("hasAffinity", False), case.get("existing"))


def policy_area(case: Case) -> Any:
    match case["op"]:
        case "filter":
            return _filter(case)
        case "preAllocate":
            return _pre_allocate(case)
        case "reservationScore":
            room = _room(case["reservation"], case.get("preemptibleInReservation"))
            return {"score": preallocation.score(fit.ints(case.get("podRequests") or {}), room)}
        case "nodeScores":
            return _node_scores(case)
        case "restore":
            return _restore(case)
        case "ignoredResource":
            return {"ignored": _ignored(case, "resources", "groups").has(case["name"])}
        case "policyConflict":
            return {"conflict": fit.is_policy_conflict(case.get("incoming", ""), case.get("existing") or ())}
    return {"available": _wire(_room(case).available)}


def _node_scores(case: Case) -> Any:
    orders = {node: order for node, order in (case.get("orders") or {}).items() if order}
    nodes = sorted({*case["scores"], *orders})
    raw, preferred = preallocation.node_scores(
        np.array([case["scores"].get(node) or 0 for node in nodes], np.int64),
        np.array([orders.get(node, 0) for node in nodes], np.int64),
        nodes.__getitem__,
    )
    final = default_normalize(raw)
    return {
        "preferredNode": None if preferred is None else nodes[preferred],
        "raw": dict(zip(nodes, raw.tolist(), strict=True)),
        "normalised": dict(zip(nodes, final.tolist(), strict=True)),
    }


def _ignored(case: Case, names: str, groups: str) -> Ignored:
    return Ignored(frozenset(case.get(names) or ()), frozenset(case.get(groups) or ()))


def _room(body: Case, preemptible: Case | None = None) -> ReservationAmounts:
    """`preemptible`: what owners hold that are victims, which count no more while they are tried."""
    gone = fit.ints(preemptible or {})
    allocatable = fit.ints(body.get("allocatable") or {})
    allocated = {
        name: max(amount - gone.get(name, 0), 0)
        for name, amount in fit.ints(body.get("allocated") or {}).items()
    }
    # What victims leave beside what is reserved becomes free on the node, as the trial of a preemption has it.
    beside = {n: amount for n, amount in gone.items() if n != resources.PODS and n not in allocatable}
    return ReservationAmounts(
        name=body.get("name", ""),
        is_restricted=body.get("policy") == "Restricted",
        allocatable={**allocatable, **dict.fromkeys(beside, 0)},
        allocated={**allocated, **{name: -amount for name, amount in beside.items()}},
        kept=fit.ints(body.get("reserved") or {}),
        names=tuple(sorted(body.get("resourceNames") or ())),
        pods=body.get("assignedPods", 0) - gone.get("pods", 0),
    )


def _node(case: Case, matched: int) -> ReservationNodeView:
    """Reserve pods count with what their owners leave, and victims on the node do not count."""
    counted = fit.ints(case.get("nodeRequested") or {})
    less = (fit.ints(case.get(part) or {}) for part in ("matchedAllocated", "preemptibleOnNode"))
    return ReservationNodeView(
        allocatable=fit.ints(case.get("nodeAllocatable") or {}),
        requested=sum_of((counted, *({name: -amount for name, amount in part.items()} for part in less))),
        pods=case.get("podsOnNode", 0) - matched,
    )


def _filter(case: Case) -> Any:
    inside = case.get("preemptibleInReservations") or {}
    rooms = [_room(each, inside.get(each["name"])) for each in case.get("reservations") or ()]
    asked = fit.ReservationRequest(
        request=fit.ints(case.get("podRequests") or {}),
        must_reserve=case.get("requiredFromReservation", False),
        name=case.get("reservationName", ""),
        is_ignoring=case.get("reservationIgnored", False),
    )
    ignored = _ignored(case, "ignoredResources", "ignoredResourceGroups")
    found = fit.fit(asked, _node(case, len(rooms)), rooms, ignored, skip_node=case.get("skipFitsNode", False))
    return {"ok": found.ok, "reasons": list(found.reasons)}


def _pre_allocate(case: Case) -> Any:
    policy = preallocation.PreAllocationMode(
        is_multiple=case.get("multiple", False),
        is_required=case.get("required", False),
        prefers_none=case.get("preferNoPreAllocated", False),
    )
    candidates = [
        preallocation.PreAllocationCandidate(each["name"], fit.ints(each.get("requests") or {}))
        for each in case.get("candidates") or ()
    ]
    request = fit.ints(case["reservationRequests"])
    room = _room(case["reservation"])
    found = preallocation.pre_allocate(request, _node(case, 0), room, candidates, policy)
    if not found.ok:
        return {"ok": False, "reasons": list(found.reasons)}
    answer: Case = {"ok": True, "selected": list(found.selected)}
    return {**answer, "score": found.score} if policy.is_multiple else answer


def _restore(case: Case) -> Any:
    """The books of a node, and the node as the pod sees it; what the reference counts besides follows from them."""
    table = NodeTable(ResourceRegistry())
    ledger, matched, others = table.shared(ReservationLedger), [], []
    for number, requests in enumerate(case.get("plainPods") or ()):
        table.assign(_pod(f"plain-{number}", requests, table), "n")
    for body in case.get("reservations") or ():
        ledger.put(_held(body))
        table.assign(PodInfo.of(objects.reserve_pod(_held(body)), table.registry), "n")
        for number, requests in enumerate(body.get("owners") or ()):
            table.assign(_pod(f"{body['name']}-{number}", requests, table, body["name"]), "n")
        record = ledger.find(body["name"])
        assert record is not None
        (matched if body.get("matched", False) else others).append(record)
    with trial_of(table) as what_if:
        for record in matched:
            place = table.place_of(record.uid)
            assert place is not None
            what_if.take(place.pod)
        row = 0  # the only node
        final = {name: int(table.requested[at, row]) for at, name in enumerate(table.registry.names)}
    requested = sum_of((final, *(each.terms.allocatable for each in matched)))
    return {
        "initial": _wire(sum_of((requested, *(each.allocated for each in others)))),
        "podRequested": _wire(requested),
        "final": _wire(final),
        "matchedAllocated": _wire(sum_of(each.allocated for each in matched)),
    }


def _held(body: Case) -> Reservation:
    status = {"phase": "Available", "nodeName": "n", "allocatable": body.get("allocatable") or {}}
    spec = {"template": {"spec": {}}, "owners": [{}], "ttl": "0s", "allocateOnce": False}
    meta = {"name": body["name"], "uid": body["name"]}
    return from_builtins({"metadata": meta, "spec": spec, "status": status}, Reservation)


def _pod(name: str, requests: Case, table: NodeTable, room: str = "") -> PodInfo:
    used = {RESERVATION_ALLOCATED.key: json.dumps({"name": room, "uid": room})} if room else {}
    meta = {"name": name, "namespace": "default", "uid": name, "annotations": used}
    spec = {"nodeName": "n", "containers": [{"name": "c", "resources": {"requests": requests}}]}
    return PodInfo.of(from_builtins({"metadata": meta, "spec": spec}, Pod), table.registry)


def _wire(values: fit.Ints) -> Case:
    return {name: f"{number}m" if name == "cpu" else str(number) for name, number in values.items()}


def phase_area(case: Case) -> Any:
    match case["op"]:
        case "restrictedResources":
            return {"names": objects.restricted_names(case["allocatable"], case.get("options"))}
        case "route":
            return {"actions": [action.value for action in _route(case)]}
    reservation = _reservation(case)
    now_s = parse_rfc3339(case["now"]) if "now" in case else NOW_S
    match case["op"]:
        case "reservePod":
            return _reserve_pod(reservation)
        case "requests":
            return {"requests": resource_list.to_wire(objects.requests(reservation))}
        case "validate":
            return {"valid": not objects.invalid_reason(reservation)}
        case "states":
            return {
                "active": objects.is_active(reservation),
                "available": objects.is_available(reservation),
                "succeeded": reservation.status.phase == objects.SUCCEEDED,
                "failed": reservation.status.phase == objects.FAILED,
                "expired": objects.is_expired(reservation),
            }
        case "unschedulable":
            status = lifecycle.unschedulable(reservation, case["message"], now_s)
            changed = _changed_times(reservation.status, status)
            return {"phase": status.phase, "conditions": _conditions(status, True), "changedTimes": changed}
        case "bound":
            status = lifecycle.bound(reservation, case["nodeName"], now_s)
            return {
                "phase": status.phase,
                "nodeName": status.node_name,
                "allocatable": status.allocatable,
                "conditions": _conditions(status, True),
            }
        case "sync":
            return _sync(case, reservation, now_s)
        case "gc":
            keep_s = case["gcDurationSeconds"]
            return {"delete": lifecycle.is_garbage(reservation, case["nodeExists"], keep_s, now_s)}
    gauges = [msgspec.to_builtins(each) for each in lifecycle.resource_gauges(reservation)]
    return {"phase": lifecycle.phase_gauges(reservation), "resources": gauges}


def _reserve_pod(reservation: Reservation) -> Any:
    pod = objects.reserve_pod(reservation)
    return {
        "name": pod.metadata.name,
        "uid": pod.metadata.uid,
        "namespace": pod.metadata.namespace,
        "labels": pod.metadata.labels,
        "annotations": pod.metadata.annotations,
        "nodeName": pod.spec.node_name,
        "schedulerName": pod.spec.scheduler_name,
        "priority": pod.spec.priority,
        "phase": pod.status.phase,
        "requests": resource_list.to_wire(pod_resources.requests(pod)),
        "overhead": pod.spec.overhead,
        "containers": [container.name for container in pod.spec.containers],
        "preAllocation": reservation.spec.pre_allocation,
    }


def _conditions(status: ReservationStatus, with_message: bool) -> list[Case]:
    return [
        {"type": each.type, "status": each.status, "reason": each.reason}
        | ({"message": each.message} if with_message and each.message else {})
        for each in status.conditions
    ]


def _changed_times(old: ReservationStatus, new: ReservationStatus) -> list[str]:
    before = {each.type: each for each in old.conditions}
    none = ReservationCondition()
    fields = (("last_probe_time", "lastProbeTime"), ("last_transition_time", "lastTransitionTime"))
    return [
        f"{each.type}.{wire}"
        for each in new.conditions
        for field, wire in fields
        if getattr(each, field) != getattr(before.get(each.type, none), field)
    ]


def _sync(case: Case, reservation: Reservation, now_s: float) -> Any:
    pods = [
        lifecycle.OwnerPod(
            each["uid"],
            each["namespace"],
            each["name"],
            resource_list.of(each.get("requests") or {}),
            each.get("allocatedUID"),
        )
        for each in case.get("pods") or ()
    ]
    found = lifecycle.sync(reservation, case["nodeExists"], pods, now_s)
    status = found.status
    return {
        "written": found.is_written,
        "phase": status.phase,
        "conditions": _conditions(status, False),
        "currentOwners": [msgspec.to_builtins(owner) for owner in status.current_owners],
        "allocated": status.allocated,
        "requeueAfterSeconds": found.revisit_s,
    }


def _route(case: Case) -> list[lifecycle.ReservationAction]:
    mine = case.get("responsible", False)
    match case["event"]:
        case "add":
            return lifecycle.added(_reservation(case, "new"), mine)
        case "delete":
            return lifecycle.deleted(_reservation(case, "old" if case.get("old") else "new"), mine)
    old, new = _reservation(case, "old"), _reservation(case, "new")
    was_mine, is_mine = case.get("oldResponsible", mine), case.get("newResponsible", mine)
    return lifecycle.updated(old, new, was_mine, is_mine, case.get("assumed", False))


def same_match(expected: Any, actual: Any) -> bool:
    """Reasons of taints and of nodes may be permuted among themselves; the event's text counts when reported."""
    if "reasons" in expected:
        return sorted(expected["reasons"]) == sorted(actual["reasons"])
    return subset(expected, actual)


def same_policy(expected: Any, actual: Any) -> bool:
    """Amounts by value, zero being the same as missing; reasons of a success need not be said."""
    if "podRequested" in expected:
        return quantities(_without_zeros(expected), _without_zeros(actual))
    if "ok" in expected:
        return subset({"reasons": [], **expected} if expected["ok"] else expected, {"reasons": [], **actual})
    return quantities(expected, actual)


def _without_zeros(parts: Case) -> Case:
    return {
        part: resource_list.to_wire(resource_list.without_zeros(resource_list.of(listed)))
        for part, listed in parts.items()
    }


def same_phase(expected: Any, actual: Any) -> bool:
    """Quantities by value; gauges in any order, to six digits."""
    if "resources" in expected:
        by_name = tolerant(1e-5)
        return by_name(_sorted_gauges(expected), _sorted_gauges(actual))
    return quantities(expected, actual)


def _sorted_gauges(answer: Case) -> Case:
    return {
        **answer,
        "resources": sorted(answer["resources"], key=lambda each: (each["type"], each["resource"])),
    }


ADAPTERS = {
    "reservation-match": match_area,
    "reservation-phase": phase_area,
    "reservation-allocate-policy": policy_area,
}

COMPARE = {
    "reservation-match": same_match,
    "reservation-phase": same_phase,
    "reservation-allocate-policy": same_policy,
}
