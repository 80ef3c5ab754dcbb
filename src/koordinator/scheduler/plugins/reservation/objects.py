"""Read what a Reservation is and asks for: states, and the pseudo pod that is placed for it. Pure.
Source: behaviour/reservations 3 and 4."""

from collections.abc import Sequence
from typing import Any

from koordinator.api import labels, pod_resources, resource_list
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.labels import parse_int32
from koordinator.api.meta import find_condition, is_condition_true
from koordinator.api.reservation import OWNERS, Reservation, ReservationSpec, ReservationStatus
from koordinator.api.resource_list import Amounts
from koordinator.api.scalars import ScalarError

PENDING, AVAILABLE, WAITING, SUCCEEDED, FAILED = "Pending", "Available", "Waiting", "Succeeded", "Failed"
SCHEDULED, READY = "Scheduled", "Ready"
EXPIRED, UNSCHEDULABLE = "Expired", "Unschedulable"

PRIORITY_MAX = 2**31 - 1
"""Priority of a reserve pod that names none: never preempted by accident."""

FAKE_CONTAINER = "__internal_fake_container__"
DEFAULT_SCHEDULER = "default-scheduler"
DEFAULT_NAMESPACE = "default"
ALIGNED = "Aligned"
"""The policy of pods that are reservations."""


def invalid_reason(reservation: Reservation) -> str:
    """Return why the object is neither queued nor cached; empty when it is well."""
    spec = reservation.spec
    if not spec.template:
        return "spec.template is missing"
    if not spec.owners:
        return "spec.owners names nobody"
    if spec.ttl is None and spec.expires is None:
        return "neither spec.ttl nor spec.expires is set"
    return ""


def is_terminated(reservation: Reservation) -> bool:
    """Return whether it holds nothing any more."""
    return reservation.status.phase in (FAILED, SUCCEEDED)


def is_unassigned(reservation: Reservation) -> bool:
    """Return whether it waits for a node."""
    return not reservation.status.node_name and not is_terminated(reservation)


def is_available(reservation: Reservation) -> bool:
    """Return whether it holds room on a node."""
    return reservation.status.phase == AVAILABLE and bool(reservation.status.node_name)


def is_active(reservation: Reservation) -> bool:
    """Return whether it is on a node and not at its end."""
    return reservation.status.phase in (AVAILABLE, WAITING) and bool(reservation.status.node_name)


def is_expired(reservation: Reservation) -> bool:
    """Return whether it ended by its time or with its node."""
    ready = find_condition(reservation.status.conditions, READY)
    is_late = ready is not None and ready.status == "False" and ready.reason == EXPIRED
    return reservation.status.phase == FAILED and is_late


def is_once(reservation: Reservation) -> bool:
    """Return whether the first owner takes it all."""
    return reservation.spec.allocate_once is not False


def template_pod(reservation: Reservation) -> Pod:
    """Return the pod template as a pod, as written. Raises: ProtocolError when the template is no pod template."""
    template = reservation.spec.template
    return from_builtins({key: template[key] for key in ("metadata", "spec") if template.get(key)}, Pod)


def requests(reservation: Reservation) -> Amounts:
    """Return what the Reservation holds, or asks for while it holds nothing. Raises: ProtocolError, QuantityError."""
    if is_available(reservation):
        return resource_list.of(reservation.status.allocatable)
    return pod_resources.requests(template_pod(reservation))


def restricted_names(allocatable: Sequence[str], options: Sequence[str] | None) -> list[str]:
    """Return the resources that a Restricted reservation restricts: those of its options, all if they name none of
    it."""
    chosen = [name for name in allocatable if name in (options or ())]
    return sorted(chosen or allocatable)


def reserve_pod(reservation: Reservation) -> Pod:
    """Return the pod that is scheduled in the Reservation's place; it never reaches the API server.
    Raises: ProtocolError, QuantityError."""
    meta, spec = reservation.metadata, dict(reservation.spec.template.get("spec") or {})
    template_meta = reservation.spec.template.get("metadata") or {}
    annotations = {**(template_meta.get("annotations") or {}), **meta.annotations}
    annotations |= {labels.RESERVE_POD: "true", labels.RESERVATION_NAME: meta.name}
    if reservation.spec.pre_allocation:
        annotations[labels.IS_PRE_ALLOCATION] = "true"
    if wanted_node := spec.pop("nodeName", ""):
        annotations[labels.RESERVATION_NODE] = wanted_node
    if reservation.status.node_name:
        spec["nodeName"] = reservation.status.node_name
    if spec.get("priority") is None:
        spec["priority"] = _labelled_priority(reservation)
    spec["schedulerName"] = spec.get("schedulerName") or DEFAULT_SCHEDULER
    _hold_allocatable(reservation, spec)
    body = {
        "metadata": {
            "name": meta.uid,
            "uid": meta.uid,
            "namespace": template_meta.get("namespace") or DEFAULT_NAMESPACE,
            "labels": {**(template_meta.get("labels") or {}), **meta.labels},
            "annotations": annotations,
        },
        "spec": spec,
        "status": {"phase": reservation.status.phase} if is_terminated(reservation) else {},
    }
    return from_builtins(body, Pod)


def operating_reservation(pod: Pod) -> Reservation:
    """Return the reservation that a pod in operating mode Reservation is: of its own requests, for one owner, available
    while it is Running and Ready. Raises: ProtocolError, QuantityError."""
    is_held = pod.status.phase == "Running" and is_condition_true(pod.status.conditions, READY)
    return Reservation(
        metadata=pod.metadata,
        spec=ReservationSpec(
            owners=OWNERS.read(pod.metadata.annotations, f"Pod {pod.key}") or [],
            allocate_once=True,
            allocate_policy=ALIGNED,
        ),
        status=ReservationStatus(
            phase=AVAILABLE if is_held else PENDING,
            node_name=pod.spec.node_name,
            allocatable=resource_list.to_wire(pod_resources.requests(pod)),
        ),
    )


def _labelled_priority(reservation: Reservation) -> int:
    try:
        return parse_int32(reservation.metadata.labels.get(labels.PRIORITY, ""))
    except ScalarError:
        return PRIORITY_MAX


def _hold_allocatable(reservation: Reservation, spec: dict[str, Any]) -> None:
    """Let an Available reservation ask for what it holds, if that is not what its template asks for."""
    if not is_available(reservation):
        return
    asked = pod_resources.requests(template_pod(reservation))
    held = resource_list.of(reservation.status.allocatable)
    if asked == held:
        return
    amounts = resource_list.to_wire({**asked, **held})
    fake = {"name": FAKE_CONTAINER, "resources": {"requests": amounts, "limits": amounts}}
    bare = {"overhead", "resources"}
    for field in ("containers", "initContainers"):
        spec[field] = [{k: v for k, v in each.items() if k not in bare} for each in spec.get(field) or ()]
    spec["containers"].append(fake)
    for field in bare:
        spec.pop(field, None)
