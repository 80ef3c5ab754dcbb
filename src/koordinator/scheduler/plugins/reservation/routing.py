"""Decide which of the scheduler's stores an event of a Reservation changes. Pure. Source: behaviour/reservations
4.1.
"""

import enum

from koordinator.api.reservation import Reservation
from koordinator.scheduler.plugins.reservation.objects import (
    invalid_reason,
    is_available,
    is_terminated,
    is_unassigned,
)


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
