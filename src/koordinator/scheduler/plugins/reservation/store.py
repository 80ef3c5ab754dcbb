"""Follow Reservations: those that wait enter the queue as reserve pods, those that hold room the node table and the
ledger. Source: behaviour/reservations 4.1.

One per scheduler, however many profiles have the plugin.
"""

import asyncio
import logging
from functools import partial

from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.api.reservation import Reservation
from koordinator.scheduler.plugin.framework import Handle, Watch
from koordinator.scheduler.plugin.reservation_capabilities import (
    ReservePods,
)
from koordinator.scheduler.plugin.status import event_note
from koordinator.scheduler.plugins.reservation import lifecycle, objects, pre_allocated
from koordinator.scheduler.plugins.reservation.ledger import ReservationLedger
from koordinator.scheduler.plugins.reservation.lifecycle import ReservationAction
from koordinator.scheduler.plugins.reservation.pre_allocated import CandidatePods

log = logging.getLogger(__name__)


class ReservationStore:
    """Reservations as the API last said, and their reserve pods."""

    def __init__(self, handle: Handle) -> None:
        self.ledger = handle.table.shared(ReservationLedger)
        self.candidates = handle.table.shared(CandidatePods)
        self.candidates.on_change = partial(handle.actions.activate, at_once=False)
        self._handle = handle
        self._followed = ReservePods.of(handle)
        self._objects: dict[str, Reservation] = {}
        self._pods: dict[str, Pod] = {}
        self._changed_groups: set[int] = set()
        """Owner groups with reservations that came or changed, and whose sleeping pods were not woken yet."""
        self._is_waking = False
        self.ledger.on_offer = self._may_help
        handle.watch(Watch(Reservation, self._added, self._updated, self._deleted))

    def find(self, uid: str) -> Reservation | None:
        """Return a Reservation that exists."""
        return self._objects.get(uid)

    def reserve_pod(self, uid: str) -> Pod | None:
        """Return the reserve pod of a Reservation as it is now; None when it is gone, has ended, or is none."""
        pod = self._pods.get(uid)
        if pod is None and (found := self._objects.get(uid)) is not None and not objects.is_terminated(found):
            pod = self._pods[uid] = objects.reserve_pod(found)
        return pod

    # Events

    def _added(self, new: Reservation) -> None:
        self._keep(new)
        self._carry_out(lifecycle.added(new, self._is_mine(new)), new, new)

    def _updated(self, old: Reservation, new: Reservation) -> None:
        if old.metadata.uid != new.metadata.uid:
            self._deleted(old)
            self._added(new)
            return
        if objects.invalid_reason(new):
            log.warning(
                "update ignored: %s", objects.invalid_reason(new), extra={"reservation": new.metadata.name}
            )
            return
        self._keep(new)
        place = self._handle.table.place_of(new.metadata.uid)
        is_assumed = place is not None and place.assumed
        mine = self._is_mine(old), self._is_mine(new)
        self._carry_out(lifecycle.updated(old, new, *mine, is_assumed), old, new)

    def _deleted(self, old: Reservation) -> None:
        actions = lifecycle.deleted(old, self._is_mine(old))
        self._carry_out(actions, old, old)
        uid = old.metadata.uid
        self.candidates.leave(uid)
        self._objects.pop(uid, None)
        self._pods.pop(uid, None)

    def _keep(self, reservation: Reservation) -> None:
        uid = reservation.metadata.uid
        self._objects[uid] = reservation
        self._pods.pop(uid, None)
        if pre_allocated.is_pre_allocating(reservation) and not objects.invalid_reason(reservation):
            self.candidates.wait(reservation)
        else:
            self.candidates.leave(uid)

    def _is_mine(self, reservation: Reservation) -> bool:
        spec = reservation.spec.template.get("spec") or {}
        return self._handle.serves(spec.get("schedulerName") or objects.DEFAULT_SCHEDULER)

    def _carry_out(self, actions: list[ReservationAction], old: Reservation, new: Reservation) -> None:
        try:
            for action in actions:
                self._take(action, old, new)
        except (ProtocolError, QuantityError) as problem:
            log.warning("reservation not readable: %s", problem, extra={"reservation": new.metadata.name})
            self._handle.actions.event("", new, "Warning", "FailedScheduling", event_note(str(problem)))

    def _take(self, action: ReservationAction, old: Reservation, new: Reservation) -> None:
        uid, enter = new.metadata.uid, self._handle.actions.enter_pod
        match action:
            case ReservationAction.QUEUE_ADD | ReservationAction.QUEUE_UPDATE:
                pod = objects.reserve_pod(new)
                self._followed.set(pod)
                enter(None, pod)
            case ReservationAction.CACHE_ADD | ReservationAction.CACHE_UPDATE:
                pod = objects.reserve_pod(new)
                self.ledger.put(new)
                self._followed.set(pod)
                enter(None, pod)
                self._may_help(uid)
            case ReservationAction.CACHE_DELETE:
                self.ledger.remove(uid)
                self._remove(old)
            case ReservationAction.QUEUE_DELETE:
                if not objects.is_available(new):  # else it has left the queue for its node
                    self._remove(new)

    def _remove(self, reservation: Reservation) -> None:
        place = self._handle.table.place_of(reservation.metadata.uid)
        pod = place.pod.pod if place is not None else objects.reserve_pod(reservation)
        self._followed.remove(pod)
        self._handle.actions.remove_pod(pod)

    def _may_help(self, uid: str) -> None:
        """Wake the sleeping pods that a Reservation is for, those of many Reservations at once."""
        record = self.ledger.find(uid)
        if record is None:
            return
        self._changed_groups.add(record.group.number)
        if not self._is_waking:
            self._is_waking = self._handle.actions.spawn(
                self._wake(), "pods that reservations are for", self._woken
            )

    def _woken(self) -> None:
        self._is_waking = False

    async def _wake(self) -> None:
        await asyncio.sleep(0)
        actions, changed = self._handle.actions, set(self._changed_groups)
        self._changed_groups.clear()
        actions.activate(
            [pod.uid for pod in actions.sleeping() if not changed.isdisjoint(self.ledger.index.of(pod))],
            at_once=False,
        )
