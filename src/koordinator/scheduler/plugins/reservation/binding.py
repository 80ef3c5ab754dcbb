"""Write what became of a Reservation: bound to a node, or why it found none; and on pods which one they use.
Source: behaviour/reservations 9 and 10."""

import asyncio
import logging
import random
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from koordinator.api import pod_labels
from koordinator.api.core import Pod
from koordinator.api.errors import KoordinatorError, ProtocolError
from koordinator.api.meta import ObjectReference
from koordinator.api.reservation import (
    RESERVATION_ALLOCATED,
    Reservation,
    ReservationAllocated,
    ReservationStatus,
    without_allocated,
)
from koordinator.cluster import backoff, errors
from koordinator.cluster.protocol import Cluster
from koordinator.scheduler.plugin.events import BINDING, SCHEDULING
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugin.handle import SchedulingFailure
from koordinator.scheduler.plugin.status import SUCCESS, Status, error, event_note
from koordinator.scheduler.plugins.default_binder import RETRY_PAUSES_S
from koordinator.scheduler.plugins.reservation import lifecycle, objects
from koordinator.scheduler.plugins.reservation.ledger import ReservationLedger
from koordinator.scheduler.plugins.reservation.store import ReservationStore


class AllocationWriter:
    """The annotation of pods, whoever bound them: each write is for the pod and the version that were looked at."""

    def __init__(self, handle: Handle, ledger: ReservationLedger, rng: random.Random) -> None:
        self._handle = handle
        self._ledger = ledger
        self._rng = rng
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks of Reservations: what one attempt takes over, the end of the one before must not let go."""
        self._taking_back: dict[str, asyncio.Event] = {}
        """Pods (uid) off which a name is being taken: the end of that."""

    async def take_over(self, pods: Collection[Pod], reservation: Reservation, node_name: str) -> None:
        """Let running pods use a Reservation that is about to get their node, and no others.

        Returns once the scheduler itself has seen it, so that nobody takes their room for unused when the Reservation
        becomes Available. Raises: ApiError, ProtocolError; NotActiveError when one of them may not use it any more.
        """
        uid, chosen = reservation.metadata.uid, {pod.metadata.uid for pod in pods}
        async with self._lock(uid):
            for other in self._ledger.users_of(uid):
                if other.uid not in chosen:  # left by an attempt that a restart cut off
                    await self._release(other.pod, uid, "")
            for pod in pods:
                await self._take_over(pod, reservation, node_name)
            for pause_s in (*RETRY_PAUSES_S, None):
                if all(self._ledger.used_by(each) == uid for each in chosen):
                    return
                if pause_s is None or any(not self._ledger.is_placed(each) for each in chosen):
                    break
                await asyncio.sleep(pause_s)
            raise lifecycle.NotActiveError("not seen to use the reservation")

    async def _take_over(self, pod: Pod, reservation: Reservation, node_name: str) -> None:
        cluster, meta, uid = self._handle.cluster, pod.metadata, reservation.metadata.uid

        async def attempt() -> None:
            live = await cluster.get(Pod, meta.name, meta.namespace)
            used = RESERVATION_ALLOCATED.read(live.metadata.annotations, live.key)
            is_there = live.metadata.uid == meta.uid and live.spec.node_name == node_name
            if not is_there or pod_labels.is_terminated(live):
                raise lifecycle.NotActiveError(f"pod {pod.key} does not run on node {node_name} any more")
            if used is not None and used.uid != uid:
                raise lifecycle.NotActiveError(f"pod {pod.key} uses reservation {used.name}")
            if used is None:
                allocated = ReservationAllocated(name=reservation.metadata.name, uid=uid)
                await _annotate(cluster, live, RESERVATION_ALLOCATED.encode(allocated))

        await backoff.retry_on_conflict(attempt, self._rng, on=backoff.LOST_RACE_OR_CONNECTION)

    def _lock(self, uid: str) -> asyncio.Lock:
        return self._locks.setdefault(uid, asyncio.Lock())

    def let_go_of(self, reservation: Reservation) -> None:
        """Have no pod use a Reservation that was not placed, in the background."""
        pods = [each.pod for each in self._ledger.users_of(reservation.metadata.uid)]
        if pods:
            name = f"pods of reservation {reservation.metadata.name}"
            self._handle.actions.spawn(self.let_go(pods, reservation), name)

    async def let_go(self, pods: Collection[Pod], reservation: Reservation) -> None:
        """Undo `take_over` of a Reservation that did not get the node; the pods stay where they are."""
        meta = reservation.metadata
        if not pods:
            return
        async with self._lock(meta.uid):
            try:
                live = await self._handle.cluster.get(Reservation, meta.name)
                if live.metadata.uid == meta.uid and objects.is_available(live):
                    return  # it got it all the same
            except errors.NotFound:
                pass
            except (errors.ApiError, KoordinatorError) as problem:
                # The next attempt of the Reservation takes them over, or lets them go.
                log.warning("pods not let go: %s", problem, extra={"reservation": meta.name})
                return
            for pod in pods:
                await self._take_back(pod, meta.uid, "")

    def take_back(self, pod: Pod, uid: str, node_name: str) -> None:
        """Take the name of a reservation off a pod that was not bound after all, in the background."""
        over, pod_uid = asyncio.Event(), pod.metadata.uid

        def ended() -> None:
            self._taking_back.pop(pod_uid, None)
            over.set()

        work = self._take_back(pod, uid, node_name)
        if self._handle.actions.spawn(work, f"annotation of {pod.key}", ended):
            self._taking_back[pod_uid] = over

    async def taken_back(self, pod_uid: str) -> None:
        """Return once nothing is being taken off a pod: a name that is written again, the same as before, would be no
        change of the pod, and be taken off, too."""
        over = self._taking_back.get(pod_uid)
        if over is not None:
            await over.wait()

    async def _take_back(self, pod: Pod, uid: str, node_name: str) -> None:
        try:
            await self._release(pod, uid, node_name)
        except (errors.ApiError, KoordinatorError) as problem:
            # The next attempt writes what it uses then, or takes the name off.
            log.warning("annotation not taken back: %s", problem, extra={"pod": pod.key})

    async def _release(self, pod: Pod, uid: str, node_name: str) -> None:
        """Take the name off unless the pod is bound to this node, whatever the binding's answer was. Raises: ApiError,
        ProtocolError."""
        meta = pod.metadata
        reference = ObjectReference(namespace=meta.namespace, name=meta.name, uid=meta.uid)
        attempt = partial(take_name_off, self._handle.cluster, reference, uid, node_name)
        try:
            await backoff.retry_on_conflict(attempt, self._rng, on=backoff.LOST_RACE_OR_CONNECTION)
        except errors.NotFound:
            return


async def take_name_off(cluster: Cluster, pod: ObjectReference, uid: str, bound_to: str = "") -> None:
    """Have a pod name the reservation `uid` no more, unless it is bound to a node. Raises: ApiError, ProtocolError."""
    live = await cluster.get(Pod, pod.name, pod.namespace)
    is_bound = bool(bound_to) and live.spec.node_name == bound_to
    if live.metadata.uid != pod.uid or is_bound:
        return
    if without_allocated(live.metadata.annotations, uid, live.key) is not None:
        await _annotate(cluster, live, None)


async def _annotate(cluster: Cluster, live: Pod, text: str | None) -> None:
    meta = live.metadata
    guard = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    body = {"metadata": {**guard, "annotations": {RESERVATION_ALLOCATED.key: text}}}
    await cluster.patch(Pod, meta.name, body, meta.namespace)


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
            changed = lifecycle.difference(live.status, decide(live))
            body = {name: changed[name] for name in _OWNED if name in changed}
            if not body:
                return live
            meta = {"uid": uid, "resourceVersion": live.metadata.resource_version}
            return await cluster.patch(
                Reservation, known.metadata.name, {"metadata": meta, "status": body}, subresource="status"
            )

        return await backoff.retry_on_conflict(attempt, self._rng, on=backoff.LOST_RACE_OR_CONNECTION)
