"""Move a Reservation's status on: bound, refused, expired, used, collected; and which of the scheduler's stores an
event of it changes. Pure. Source: behaviour/reservations 4.1, 9 and 12."""

import enum
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from koordinator.api import duration, quantity, resource_list
from koordinator.api.errors import KoordinatorError, ProtocolError
from koordinator.api.meta import ObjectReference, find_condition
from koordinator.api.reservation import (
    RESIZE_ALLOCATABLE,
    Reservation,
    ReservationCondition,
    ReservationStatus,
)
from koordinator.api.resource_list import Amounts
from koordinator.api.scalars import ScalarError
from koordinator.clock import parse_rfc3339, rfc3339
from koordinator.scheduler.plugins.reservation import objects
from koordinator.scheduler.plugins.reservation.objects import (
    invalid_reason,
    is_available,
    is_terminated,
    is_unassigned,
)

REVISIT_MIN_S = 3.0
REVISIT_MAX_S = 15.0
GIB = 1 << 30


class NotActiveError(KoordinatorError):
    """The reservation ended while it was being placed."""


class OwnerPod(msgspec.Struct, frozen=True):
    """A pod on a node, and the reservation that its annotation names (None: none)."""

    uid: str
    namespace: str
    name: str
    requests: Amounts
    allocated_uid: str | None
    has_ended: bool = False
    node_name: str = ""

    @property
    def reference(self) -> ObjectReference:
        return ObjectReference(namespace=self.namespace, name=self.name, uid=self.uid)


class Sync(msgspec.Struct, frozen=True):
    """The status after a pass, whether it must be written, and when to look again (0: never)."""

    status: ReservationStatus
    is_written: bool
    revisit_s: float
    reason: str = ""


class ReservationGauge(msgspec.Struct, frozen=True):
    """One value of `scheduler_reservation_resource`."""

    type: str
    resource: str
    unit: str
    value: float


def unschedulable(reservation: Reservation, message: str, now_s: float) -> ReservationStatus:
    """Return the status after an attempt that found no node; the phase never changes by that."""
    now = rfc3339(now_s)
    refused = ReservationCondition(
        type=objects.SCHEDULED,
        status="False",
        reason=objects.UNSCHEDULABLE,
        message=message,
        last_probe_time=now,
        last_transition_time=now,
    )
    old = find_condition(reservation.status.conditions, objects.SCHEDULED)
    if old is not None and old.status == "True":
        refused = msgspec.structs.replace(old, last_probe_time=now)
    elif old is not None:
        refused = msgspec.structs.replace(refused, last_transition_time=old.last_transition_time)
    return _with_condition(reservation.status, refused)


def bound(reservation: Reservation, node: str, now_s: float) -> ReservationStatus:
    """Return the status once the reserve pod has its node. Raises: NotActiveError; ProtocolError, QuantityError for a
    malformed template or resize annotation."""
    if objects.is_terminated(reservation):
        raise NotActiveError("reservation is not active")
    amounts = objects.requests(reservation)
    resized = RESIZE_ALLOCATABLE.read(reservation.metadata.annotations, reservation.key)
    if resized is not None:
        amounts = {**amounts, **resource_list.of(resized.resources)}
    now = rfc3339(now_s)
    conditions = [
        ReservationCondition(
            type=kind, status="True", reason=reason, last_probe_time=now, last_transition_time=now
        )
        for kind, reason in ((objects.SCHEDULED, objects.SCHEDULED), (objects.READY, objects.AVAILABLE))
    ]
    return msgspec.structs.replace(
        reservation.status,
        phase=objects.AVAILABLE,
        node_name=node,
        allocatable=resource_list.to_wire(amounts),
        conditions=conditions,
    )


def sync(
    reservation: Reservation,
    node_exists: bool,
    pods: Sequence[OwnerPod],
    now_s: float,
    *,
    expires_pending: bool = False,
) -> Sync:
    """Return what a pass of the controller makes of it; `pods` are those on the reservation's node.

    `expires_pending`: its time also counts while it has no node.
    A pod that has ended uses nothing any more, except that it has used up a reservation for one.

    Raises: ProtocolError when times of the object are malformed.
    """
    status = reservation.status
    if objects.is_terminated(reservation):
        return Sync(status, False, 0.0)
    if not status.node_name and not expires_pending:
        return Sync(status, False, revisit_s(reservation, now_s))
    if reason := expiry_reason(reservation, node_exists, now_s):
        return Sync(_ended(reservation, objects.EXPIRED, now_s), True, 0.0, reason)
    is_once = objects.is_once(reservation)
    using = (pod for pod in pods if pod.allocated_uid == reservation.metadata.uid)
    owners = sorted((pod for pod in using if is_once or not pod.has_ended), key=lambda pod: pod.uid)
    held = resource_list.of(status.allocatable)
    allocated = resource_list.mask(resource_list.sum_of(owner.requests for owner in owners), held)
    current = [owner.reference for owner in owners]
    known = sorted(status.current_owners, key=lambda owner: owner.uid)
    if known == current and resource_list.of(status.allocated) == allocated:
        return Sync(status, False, revisit_s(reservation, now_s))
    used = _ended(reservation, objects.SUCCEEDED, now_s) if is_once else status
    changed = msgspec.structs.replace(
        used, current_owners=current, allocated=resource_list.to_wire(allocated)
    )
    is_over = changed.phase == objects.SUCCEEDED
    return Sync(changed, True, 0.0 if is_over else revisit_s(reservation, now_s), "the owners changed")


def difference(old: ReservationStatus, new: ReservationStatus) -> dict[str, Any]:
    """Return what a merge patch of the status says, by wire name; {} when both are the same."""
    was, now = msgspec.to_builtins(old), msgspec.to_builtins(new)
    changed = {key: now.get(key) for key in was.keys() | now.keys() if was.get(key) != now.get(key)}
    for key in ("allocatable", "allocated"):
        if changed.get(key):
            # A name that a merge patch leaves out would stay.
            changed[key] = {**dict.fromkeys(was.get(key, ())), **changed[key]}
    return changed


def expiry_reason(reservation: Reservation, node_exists: bool, now_s: float) -> str:
    """Return why the reservation ends now without having been used; empty when it does not. Raises: ProtocolError."""
    if not node_exists:
        return f"node {reservation.status.node_name} is gone"
    ttl_s, expires_s = _ttl_s(reservation), _time(reservation, "spec.expires", reservation.spec.expires)
    if ttl_s == 0.0:
        return ""
    if expires_s is not None and now_s > expires_s:
        return f"spec.expires {reservation.spec.expires} has passed"
    created_s = _created_s(reservation)
    if ttl_s is not None and created_s is not None and now_s - created_s > ttl_s:
        return f"it is older than spec.ttl {reservation.spec.ttl}"
    return ""


def end_s(reservation: Reservation) -> float | None:
    """Return when its time is over; None: never. Raises: ProtocolError."""
    ttl_s, created_s = _ttl_s(reservation), _created_s(reservation)
    if ttl_s == 0.0:
        return None
    expires_s = _time(reservation, "spec.expires", reservation.spec.expires)
    aged_s = created_s + ttl_s if ttl_s is not None and created_s is not None else None
    return min((each for each in (expires_s, aged_s) if each is not None), default=None)


def revisit_s(reservation: Reservation, now_s: float) -> float:
    """Return seconds until the next look at a reservation that has not ended; 0 when no time is set. Raises:
    ProtocolError."""
    end_s = _time(reservation, "spec.expires", reservation.spec.expires)
    ttl_s, created_s = _ttl_s(reservation), _created_s(reservation)
    if end_s is None and ttl_s and created_s is not None:
        end_s = created_s + ttl_s
    if end_s is None:
        return 0.0
    return min(max(end_s - now_s, REVISIT_MIN_S), REVISIT_MAX_S)


def is_garbage(reservation: Reservation, node_exists: bool, keep_s: float, now_s: float) -> bool:
    """Return whether an ended reservation can be deleted: it is old enough, or its node is gone. Raises:
    ProtocolError."""
    if not objects.is_terminated(reservation):
        return False
    if reservation.status.node_name and not node_exists:
        return True
    ended_s = _ended_s(reservation)
    return ended_s is not None and now_s - ended_s > keep_s


def _ended_s(reservation: Reservation) -> float | None:
    """Return when it ended, None where nobody can tell. Raises: ProtocolError."""
    is_used, conditions = reservation.status.phase == objects.SUCCEEDED, reservation.status.conditions
    if not is_used and not objects.is_expired(reservation):
        # Somebody else gave it up: since then nothing has changed.
        times = [each.last_transition_time or each.last_probe_time or "" for each in conditions]
        last = max(times, default="") or reservation.metadata.creation_timestamp
        return _time(reservation, "status.conditions", last)
    reason = objects.SUCCEEDED if is_used else objects.EXPIRED
    ended = next((each for each in conditions if each.reason == reason), None)
    if ended is None:
        return None
    text = ended.last_probe_time if is_used else ended.last_transition_time
    return _time(reservation, "status.conditions", text)


def phase_gauges(reservation: Reservation) -> dict[str, int]:
    """`scheduler_reservation_status_phase`: 1 for the current phase; none counts as Pending."""
    phase = reservation.status.phase or objects.PENDING
    phases = (objects.PENDING, objects.AVAILABLE, objects.SUCCEEDED, objects.FAILED)
    return {each: int(each == phase) for each in phases}


def resource_gauges(reservation: Reservation) -> list[ReservationGauge]:
    """`scheduler_reservation_resource`: what is reserved, used (none is 0), and the used part of each.
    Raises: QuantityError."""
    allocated = resource_list.of(reservation.status.allocated)
    gauges: list[ReservationGauge] = []
    for name, amount in resource_list.of(reservation.status.allocatable).items():
        unit, most = _in_unit(name, amount.milli)
        _, used = _in_unit(name, allocated.get(name, quantity.ZERO).milli)
        gauges.append(ReservationGauge("allocatable", name, unit, most))
        gauges.append(ReservationGauge("allocated", name, unit, used))
        if most > 0:
            gauges.append(ReservationGauge("utilization", name, "ratio", used / most))
    return gauges


def _in_unit(name: str, milli: int) -> tuple[str, float]:
    match name:
        case "cpu":
            return "core", milli / 1000
        case "memory":
            return "Gi", math.ceil(milli / 1000) / GIB
    return "raw", math.ceil(milli / 1000)


def _ended(reservation: Reservation, reason: str, now_s: float) -> ReservationStatus:
    """Return the status at the end: used (Succeeded) or expired (Failed)."""
    now = rfc3339(now_s)
    fresh = ReservationCondition(
        type=objects.READY, status="False", reason=reason, last_probe_time=now, last_transition_time=now
    )
    old = find_condition(reservation.status.conditions, objects.READY)
    is_kept = old is not None and (reason == objects.SUCCEEDED or old.status == "False")
    if old is not None and is_kept:
        fresh = msgspec.structs.replace(fresh, last_transition_time=old.last_transition_time)
    phase = objects.SUCCEEDED if reason == objects.SUCCEEDED else objects.FAILED
    return msgspec.structs.replace(_with_condition(reservation.status, fresh), phase=phase)


def _with_condition(status: ReservationStatus, new: ReservationCondition) -> ReservationStatus:
    """Return the status with the condition in place of the first one of its type, else appended."""
    kinds = [each.type for each in status.conditions]
    at = kinds.index(new.type) if new.type in kinds else len(kinds)
    conditions = [*status.conditions[:at], new, *status.conditions[at + 1 :]]
    return msgspec.structs.replace(status, conditions=conditions)


def _ttl_s(reservation: Reservation) -> float | None:
    if reservation.spec.ttl is None:
        return None
    try:
        return duration.parse(reservation.spec.ttl)
    except ScalarError as error:
        raise ProtocolError(reservation.key, "spec.ttl", str(error)) from error


def _created_s(reservation: Reservation) -> float | None:
    return _time(reservation, "metadata.creationTimestamp", reservation.metadata.creation_timestamp)


def _time(reservation: Reservation, field: str, text: str | None) -> float | None:
    try:
        return None if text is None else parse_rfc3339(text)
    except ValueError as error:
        raise ProtocolError(reservation.key, field, f"{text!r} is not an RFC 3339 time") from error


class ReservationAction(enum.Enum):
    """The action to take, in the order given: the queue holds those that wait, the cache those that hold room."""

    QUEUE_ADD = "queueAdd"
    QUEUE_UPDATE = "queueUpdate"
    QUEUE_DELETE = "queueDelete"
    CACHE_ADD = "cacheAdd"
    CACHE_UPDATE = "cacheUpdate"
    CACHE_DELETE = "cacheDelete"


def added(new: Reservation, is_mine: bool) -> list[ReservationAction]:
    """A reservation that was not known; `is_mine`: its reserve pod names this scheduler."""
    if invalid_reason(new):
        return []
    if is_available(new):
        return [ReservationAction.CACHE_ADD]
    return [ReservationAction.QUEUE_ADD] if is_unassigned(new) and is_mine else []


def deleted(old: Reservation, is_mine: bool) -> list[ReservationAction]:
    """A reservation that is gone."""
    cached = [ReservationAction.CACHE_DELETE] if old.status.node_name else []
    return cached + [ReservationAction.QUEUE_DELETE] * is_mine


def updated(
    old: Reservation, new: Reservation, was_mine: bool, is_mine: bool, is_assumed: bool = False
) -> list[ReservationAction]:
    """A reservation that changed; `is_assumed`: its reserve pod is being bound."""
    if invalid_reason(new):
        return []
    if is_available(old):
        return _from_available(old, new, was_mine, is_mine)
    if not is_unassigned(old):
        return []
    if is_available(new):
        return [ReservationAction.CACHE_ADD] + [ReservationAction.QUEUE_DELETE] * was_mine
    if is_terminated(new):
        return [ReservationAction.QUEUE_DELETE] * was_mine
    return _still_waiting(old, new, was_mine, is_mine, is_assumed) if is_unassigned(new) else []


def _from_available(
    old: Reservation, new: Reservation, was_mine: bool, is_mine: bool
) -> list[ReservationAction]:
    if is_available(new):
        is_same = (old.metadata.uid, old.status.node_name) == (new.metadata.uid, new.status.node_name)
        return (
            [ReservationAction.CACHE_UPDATE]
            if is_same
            else [ReservationAction.CACHE_DELETE, ReservationAction.CACHE_ADD]
        )
    if is_terminated(new):
        return [ReservationAction.CACHE_DELETE] + [ReservationAction.QUEUE_DELETE] * was_mine
    # The placement was rolled back.
    return (
        [ReservationAction.CACHE_DELETE] + [ReservationAction.QUEUE_ADD] * is_mine
        if is_unassigned(new)
        else []
    )


def _still_waiting(
    old: Reservation, new: Reservation, was_mine: bool, is_mine: bool, is_assumed: bool
) -> list[ReservationAction]:
    if was_mine and is_mine:
        is_same = old.metadata.resource_version == new.metadata.resource_version
        return [] if is_same or is_assumed else [ReservationAction.QUEUE_UPDATE]
    if is_mine:
        return [ReservationAction.QUEUE_ADD]
    return [ReservationAction.QUEUE_DELETE] * was_mine
