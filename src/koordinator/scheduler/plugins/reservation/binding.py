"""Write what became of a Reservation: bound to a node, or why it found none. Source: behaviour/reservations 9."""

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Any

import msgspec

from koordinator.api.core import Pod
from koordinator.api.errors import KoordinatorError, ProtocolError
from koordinator.api.reservation import Reservation, ReservationStatus
from koordinator.cluster import backoff, errors
from koordinator.scheduler.plugin.events import BINDING, SCHEDULING
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugin.handle import SchedulingFailure
from koordinator.scheduler.plugin.status import SUCCESS, Status, error, event_note
from koordinator.scheduler.plugins.default_binder import RETRY_PAUSES_S
from koordinator.scheduler.plugins.reservation import lifecycle, objects
from koordinator.scheduler.plugins.reservation.allocation import AllocationWriter
from koordinator.scheduler.plugins.reservation.store import ReservationStore

log = logging.getLogger(__name__)

_OWNED = ("phase", "nodeName", "allocatable", "conditions")
"""The fields of the status that placing writes; owners and their use are the controller's."""


class ReservationWriter:
    """Statuses of Reservations that are placed: one write at a time for those that failed, the latest of each."""

    def __init__(self, handle: Handle, store: ReservationStore) -> None:
        self._handle = handle
        self._store = store
        # Spreads retries; nothing that is decided depends on it.
        self._rng = random.Random(0)
        self.owners = AllocationWriter(handle, store.ledger, self._rng)
        self._refused: dict[str, str] = {}
        self._is_writing = False

    async def bind(
        self, uid: str, node_name: str, profile_name: str, taken: Sequence[Pod] | None = None
    ) -> Status:
        """Write that a Reservation has its node, and before that on running pods there that it takes over (None: it is
        not one that might) that they use it."""
        known = self._store.find(uid)
        if known is None:
            return error("reservation is gone")
        try:
            if taken is not None:
                await self.owners.take_over(taken, known, node_name)
            bound = await self._bind(known, node_name)
        except (errors.ApiError, KoordinatorError) as failure:
            await self.owners.let_go(taken or (), known)
            return error(str(failure))
        text = f"Successfully assigned {bound.metadata.name} to {node_name}"
        self._handle.actions.event(profile_name, bound, "Normal", "Scheduled", text, action=BINDING)
        return SUCCESS

    async def _bind(self, known: Reservation, node_name: str) -> Reservation:
        """Raises: ApiError, and what `_bound` raises."""
        for pause_s in RETRY_PAUSES_S:
            try:
                return await self._write(known, lambda live: self._bound(live, node_name))
            except errors.ApiError as failure:
                # Nobody answered: it may have its node all the same, and its room is kept until that is known.
                if failure.code < 500:
                    raise
                await asyncio.sleep(pause_s)
        return await self._write(known, lambda live: self._bound(live, node_name))

    def _bound(self, live: Reservation, node_name: str) -> ReservationStatus:
        """Raises: NotActiveError when it has ended, or is on another node already; ProtocolError, QuantityError."""
        on = live.status.node_name
        if on and on != node_name:
            raise lifecycle.NotActiveError(f"reservation is already assigned to node {on}")
        if on and objects.is_available(live):
            return live.status  # an earlier write arrived, and its answer did not
        return lifecycle.bound(live, node_name, self._handle.clock.now())

    def report_unscheduled(self, failure: SchedulingFailure) -> None:
        """Tell users of a Reservation why it found no node."""
        uid, message = failure.pod.uid, failure.status.message
        known = self._store.find(uid)
        if known is None or not objects.is_unassigned(known):
            return
        if known.spec.pre_allocation:
            self.owners.let_go_of(known)
        note = event_note(message)
        self._handle.actions.event(
            failure.profile_name, known, "Warning", "FailedScheduling", note, action=SCHEDULING
        )
        self._refused[uid] = message
        if not self._is_writing:
            self._is_writing = self._handle.actions.spawn(
                self._write_refused(), "conditions of reservations", self._written
            )

    def _written(self) -> None:
        self._is_writing = False

    async def _write_refused(self) -> None:
        while self._refused:
            uid = next(iter(self._refused))
            message = self._refused.pop(uid)
            known = self._store.find(uid)
            if known is None or not objects.is_unassigned(known):
                continue
            try:
                await self._write(known, lambda live, text=message: self._unscheduled(live, text))
            except errors.NotFound:
                continue  # nobody is left to tell
            except (errors.ApiError, ProtocolError) as problem:
                # The next failed attempt writes again; the event tells the user meanwhile.
                log.warning("condition not written: %s", problem, extra={"reservation": known.metadata.name})

    def _unscheduled(self, live: Reservation, message: str) -> ReservationStatus:
        if not objects.is_unassigned(live):
            return live.status
        return lifecycle.unschedulable(live, message, self._handle.clock.now())

    async def _write(self, known: Reservation, decide: Any) -> Reservation:
        """Patch what `decide` makes of the status, of this version and no other; decided again after a conflict.
        Raises: ApiError, and what `decide` raises."""
        cluster, uid = self._handle.cluster, known.metadata.uid
        # With resizing, plugins have just written how much it holds: what is cached may not have that.
        latest: Reservation | None = None if self._handle.gates.is_on("ResizePod") else known

        async def attempt() -> Reservation:
            nonlocal latest
            live, latest = latest, None
            if live is None:
                live = await cluster.get(Reservation, known.metadata.name)
            if live.metadata.uid != uid:
                raise lifecycle.NotActiveError("reservation is gone")
            wanted = _fields(decide(live))
            body = {name: value for name, value in wanted.items() if value != _fields(live.status).get(name)}
            if not body:
                return live
            meta = {"uid": uid, "resourceVersion": live.metadata.resource_version}
            return await cluster.patch(
                Reservation, known.metadata.name, {"metadata": meta, "status": body}, subresource="status"
            )

        return await backoff.retry_on_conflict(attempt, self._rng, on=backoff.LOST_RACE_OR_CONNECTION)


def _fields(status: ReservationStatus) -> dict[str, Any]:
    whole: dict[str, Any] = msgspec.to_builtins(status)
    return {name: whole.get(name) for name in _OWNED}
