"""Write on pods which reservation they use, and take it off again. Source: behaviour/reservations 9 and 10."""

import asyncio
import logging
import random
from collections.abc import Collection
from weakref import WeakValueDictionary

from koordinator.api import pod_labels
from koordinator.api.core import Pod
from koordinator.api.errors import KoordinatorError
from koordinator.api.meta import ObjectMeta
from koordinator.api.reservation import RESERVATION_ALLOCATED, Reservation, ReservationAllocated
from koordinator.cluster import backoff, errors
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugins.default_binder import RETRY_PAUSES_S
from koordinator.scheduler.plugins.reservation import lifecycle, objects
from koordinator.scheduler.plugins.reservation.ledger import ReservationLedger

log = logging.getLogger(__name__)


class AllocationWriter:
    """The annotation of pods, whoever bound them: each write is for the pod and the version that were looked at."""

    def __init__(self, handle: Handle, ledger: ReservationLedger, rng: random.Random) -> None:
        self._handle = handle
        self._ledger = ledger
        self._rng = rng
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks of Reservations: what one attempt takes over, the end of the one before must not let go."""

    async def take_over(self, pods: Collection[Pod], reservation: Reservation, node_name: str) -> None:
        """Let running pods use a Reservation that is about to get their node, and no others.

        Returns once the scheduler itself has seen it, so that nobody takes their room for unused when the Reservation
        becomes Available. Raises: ApiError, ProtocolError; NotActiveError when one of them may not use it any more.
        """
        async with self._lock(reservation.metadata.uid):
            await self._take_over_all(pods, reservation, node_name)

    async def _take_over_all(self, pods: Collection[Pod], reservation: Reservation, node_name: str) -> None:
        uid, chosen = reservation.metadata.uid, {pod.metadata.uid for pod in pods}
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
                await self._annotate(live, RESERVATION_ALLOCATED.encode(allocated))

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
        if pods:
            async with self._lock(reservation.metadata.uid):
                await self._let_go(pods, reservation.metadata)

    async def _let_go(self, pods: Collection[Pod], meta: ObjectMeta) -> None:
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
        self._handle.actions.spawn(self._take_back(pod, uid, node_name), f"annotation of {pod.key}")

    async def _take_back(self, pod: Pod, uid: str, node_name: str) -> None:
        try:
            await self._release(pod, uid, node_name)
        except (errors.ApiError, KoordinatorError) as problem:
            # The next attempt writes what it uses then, or takes the name off.
            log.warning("annotation not taken back: %s", problem, extra={"pod": pod.key})

    async def _release(self, pod: Pod, uid: str, node_name: str) -> None:
        """Take the name off unless the pod is bound to this node, whatever the binding's answer was. Raises: ApiError,
        ProtocolError."""
        cluster, meta = self._handle.cluster, pod.metadata

        async def attempt() -> None:
            live = await cluster.get(Pod, meta.name, meta.namespace)
            allocated = RESERVATION_ALLOCATED.read(live.metadata.annotations, live.key)
            is_bound = bool(node_name) and live.spec.node_name == node_name
            if live.metadata.uid == meta.uid and not is_bound and allocated and allocated.uid == uid:
                await self._annotate(live, None)

        try:
            await backoff.retry_on_conflict(attempt, self._rng, on=backoff.LOST_RACE_OR_CONNECTION)
        except errors.NotFound:
            return

    async def _annotate(self, live: Pod, text: str | None) -> None:
        meta = live.metadata
        guard = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        body = {"metadata": {**guard, "annotations": {RESERVATION_ALLOCATED.key: text}}}
        await self._handle.cluster.patch(Pod, meta.name, body, meta.namespace)
