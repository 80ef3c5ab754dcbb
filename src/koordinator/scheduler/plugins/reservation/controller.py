"""Keep the statuses of Reservations (who uses them, and their end), delete those that ended long ago, and tell their
numbers to Prometheus. `lifecycle` decides what is to be done. Source: behaviour/reservations 12.

A restart loses nothing, as all is worked out from the objects of the API. Nothing ends because a cache is behind: the
API is asked for a node that seems to be gone, and a write is for the version that the decision was about.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from koordinator.api import labels, pod_labels, pod_resources
from koordinator.api.core import Node, Pod
from koordinator.api.errors import KoordinatorError, ProtocolError
from koordinator.api.reservation import RESERVATION_ALLOCATED, Reservation
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller
from koordinator.prometheus import GaugeOfObjects, Samples
from koordinator.scheduler.config.default_plugins import ReservationArgs
from koordinator.scheduler.plugin.capabilities import BackgroundController
from koordinator.scheduler.plugin.framework import Handle, Watch
from koordinator.scheduler.plugins.reservation import lifecycle, objects
from koordinator.scheduler.plugins.reservation.binding import take_name_off
from koordinator.scheduler.plugins.reservation.ledger import ReservationLedger
from koordinator.scheduler.plugins.reservation.lifecycle import OwnerPod
from koordinator.scheduler.table.columns import discard

log = logging.getLogger(__name__)

NAME = "ReservationController"
MANY_OWNERS_PERIOD_S = 1.0
"""The status of a reservation for many lists them all: it is written at most this often as they come and go."""
SLICE = 256
"""Reservations looked at for garbage before others have their turn."""


class ReservationKey(NamedTuple):
    """A reservation: another one of that name is not meant."""

    name: str
    uid: str

    @classmethod
    def of(cls, reservation: Reservation) -> "ReservationKey":
        return cls(reservation.metadata.name, reservation.metadata.uid)

    @classmethod
    def used_by(cls, pod: Pod | None) -> "ReservationKey | None":
        """Return the reservation that a pod on a node uses, ended pods included. Raises: ProtocolError."""
        if (
            pod is None
            or not pod.spec.node_name
            or labels.RESERVATION_ALLOCATED not in pod.metadata.annotations
        ):
            return None
        allocated = RESERVATION_ALLOCATED.read(pod.metadata.annotations, f"Pod {pod.key}")
        return cls(allocated.name, allocated.uid) if allocated is not None and allocated.uid else None


class ReservationBook:
    """The reservations, the pods that name them and the nodes, as the API last said."""

    def __init__(self) -> None:
        self.reservations: dict[str, Reservation] = {}
        """By name."""
        self.nodes: set[str] = set()
        self._on_node: defaultdict[str, set[ReservationKey]] = defaultdict(set)
        self._users: defaultdict[ReservationKey, dict[str, OwnerPod]] = defaultdict(dict)
        """By uid of the pod."""
        self._gone: dict[ReservationKey, OwnerPod] = {}
        """Pods that are gone and used up a reservation for one, until its status says so."""

    def find(self, key: ReservationKey) -> Reservation | None:
        """Return the very reservation; None when it is gone, or another one has its name."""
        found = self.reservations.get(key.name)
        return found if found is not None and found.metadata.uid == key.uid else None

    def put(self, reservation: Reservation) -> Reservation | None:
        """Return what had the name before."""
        former = self.drop(reservation.metadata.name)
        self.reservations[reservation.metadata.name] = reservation
        if reservation.status.node_name:
            self._on_node[reservation.status.node_name].add(ReservationKey.of(reservation))
        key = ReservationKey.of(reservation)
        if former is not None and (former.metadata.uid != key.uid or objects.is_terminated(reservation)):
            self.forget(ReservationKey.of(former))
        return former

    def drop(self, name: str) -> Reservation | None:
        """Return what had the name."""
        known = self.reservations.pop(name, None)
        if known is not None and known.status.node_name:
            discard(self._on_node, known.status.node_name, ReservationKey.of(known))
        return known

    def on_node(self, name: str) -> Sequence[ReservationKey]:
        """Return the reservations that were placed on a node, by name, ended ones included."""
        return sorted(self._on_node.get(name, ()))

    def owners(self, reservation: Reservation) -> list[OwnerPod]:
        """Return the pods on the reservation's node that name it, and who was there and used it up."""
        key = ReservationKey.of(reservation)
        users = list(self._users.get(key, {}).values())
        if not users and key in self._gone:
            users.append(self._gone[key])
        return [user for user in users if user.node_name == reservation.status.node_name]

    def strays(self, reservation: Reservation) -> list[OwnerPod]:
        """Return the pods that name a reservation and are on other nodes than it: an attempt to place it onto them was
        cut off."""
        on, users = reservation.status.node_name, self._users.get(ReservationKey.of(reservation), {})
        if not on or not reservation.spec.pre_allocation:
            return []
        return [user for user in users.values() if user.node_name != on]

    def is_spent(self, reservation: Reservation) -> bool:
        """Return whether it is for one owner, and that one has ended."""
        if not objects.is_once(reservation) or objects.is_terminated(reservation):
            return False
        return any(owner.has_ended for owner in self.owners(reservation))

    def users(self, key: ReservationKey) -> list[OwnerPod]:
        """Return the pods that name a reservation, wherever they are."""
        return list(self._users.get(key, {}).values())

    def add_user(self, key: ReservationKey, pod: Pod) -> None:
        """The pod has a node and names the reservation. Raises: QuantityError."""
        meta = pod.metadata
        self._users[key][meta.uid] = OwnerPod(
            meta.uid,
            meta.namespace,
            meta.name,
            pod_resources.requests(pod),
            key.uid,
            has_ended=pod_labels.is_terminated(pod),
            node_name=pod.spec.node_name,
        )

    def drop_user(self, key: ReservationKey, pod: Pod, *, is_gone: bool) -> None:
        """The pod is gone, or names another one."""
        users = self._users.get(key)
        user = users.pop(pod.metadata.uid, None) if users is not None else None
        if user is None:
            return
        if not users:
            del self._users[key]
        found = self.find(key)
        if is_gone and found is not None and objects.is_once(found) and not objects.is_terminated(found):
            self._gone[key] = msgspec.structs.replace(user, has_ended=True)

    def forget(self, key: ReservationKey) -> None:
        """The reservation has ended, or is gone: nobody asks who used it up."""
        self._gone.pop(key, None)


class ReservationController:
    """Follows reservations all the time, writes and deletes while it leads."""

    def __init__(self, args: ReservationArgs, handle: Handle) -> None:
        for name in _ineffective(args, handle):
            log.warning("%s has no effect", name)
        self._args = args
        self._handle = handle
        self._book = ReservationBook()
        self._ledger = handle.table.shared(ReservationLedger)
        self._gauges = _gauges(self._book) if args.resync_interval_seconds else ()
        for gauge in self._gauges:
            handle.metrics.registry.shared(gauge)
        self._running: Controller[ReservationKey] | None = None
        handle.watch(Watch.newest(Reservation, self._reservation_set, self._reservation_gone))
        handle.watch(Watch.newest(Node, self._node_set, self._node_gone))
        handle.watch(Watch.changes(Pod, self._pod_changed))

    @classmethod
    def of(cls, args: ReservationArgs, handle: Handle) -> "ReservationController":
        """Return the scheduler's one. Its arguments are those of the first profile."""
        return handle.shared(cls, lambda first: cls(args, first))

    def loops(self) -> Sequence[BackgroundController]:
        """Return the controllers that run beside scheduling."""
        found = [BackgroundController(NAME, self.run)]
        if self._args.gc_interval_seconds and not self._args.disable_garbage_collection:
            found.append(BackgroundController("Reservation garbage", self._collect))
        return found

    async def run(self) -> None:
        """Bring statuses up to date until cancelled."""
        controller = Controller(NAME, self._reconcile, workers=self._args.controller_workers)
        self._handle.metrics.queues.watch(NAME, controller.queue)
        for reservation in self._book.reservations.values():
            controller.queue.add(ReservationKey.of(reservation))
        self._running = controller
        try:
            await controller.run()
        finally:
            self._running = None

    # What happens

    def _reservation_set(self, reservation: Reservation) -> None:
        former = self._book.put(reservation)
        for gauge in self._gauges:
            gauge.changed((reservation.metadata.name,))
        self._ledger.spend(reservation.metadata.uid, self._book.is_spent(reservation))
        for key in dict.fromkeys(
            ReservationKey.of(each) for each in (former, reservation) if each is not None
        ):
            self._enqueue(key)

    def _reservation_gone(self, reservation: Reservation) -> None:
        key = ReservationKey.of(reservation)
        self._book.drop(reservation.metadata.name)
        self._book.forget(key)
        self._ledger.spend(key.uid, False)
        for gauge in self._gauges:
            gauge.gone(reservation.metadata.name)
        self._enqueue(key)

    def _node_set(self, node: Node) -> None:
        self._book.nodes.add(node.metadata.name)

    def _node_gone(self, node: Node) -> None:
        name = node.metadata.name
        self._book.nodes.discard(name)
        for key in self._book.on_node(name):
            self._enqueue(key)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        before, now = self._used_by(old), self._used_by(new)
        if before is not None and old is not None:
            self._book.drop_user(before, old, is_gone=new is None)
        if now is not None and new is not None:
            self._book.add_user(now, new)
        for key in dict.fromkeys(each for each in (before, now) if each is not None):
            self._owners_changed(key)

    def _used_by(self, pod: Pod | None) -> ReservationKey | None:
        try:
            return ReservationKey.used_by(pod)
        except KoordinatorError as error:
            log.warning("pod uses no reservation that anybody could read: %s", error)
            return None

    def _owners_changed(self, key: ReservationKey) -> None:
        reservation = self._book.find(key)
        if reservation is not None:
            self._ledger.spend(key.uid, self._book.is_spent(reservation))
        is_for_many = reservation is not None and not objects.is_once(reservation)
        self._enqueue(key, MANY_OWNERS_PERIOD_S if is_for_many else 0.0)

    def _enqueue(self, key: ReservationKey, delay_s: float = 0.0) -> None:
        if self._running is not None:
            self._running.queue.add_after(key, delay_s)

    # What is written

    async def _reconcile(self, key: ReservationKey) -> float | None:
        reservation = self._book.find(key)
        if reservation is None:
            await self._release(key)
            return None
        has_node = await self._has_node(reservation)
        now_s = self._handle.clock.now()
        try:
            wanted = lifecycle.sync(
                reservation,
                has_node,
                self._book.owners(reservation),
                now_s,
                expires_pending=self._args.expire_pending,
            )
        except KoordinatorError as error:  # only a change of the object mends it
            self._record_event(reservation, "Warning", "InvalidReservation", str(error))
            return None
        if wanted.is_written and await self._write(reservation, wanted):
            self._record_end(reservation, wanted)
        for stray in self._book.strays(reservation):
            await self._release_pod(key, stray)
        return wanted.revisit_s or None

    async def _has_node(self, reservation: Reservation) -> bool:
        """Return whether the node exists; when it seems not to, the API is asked. Raises: ApiError."""
        name = reservation.status.node_name
        if not name or name in self._book.nodes:
            return True
        try:
            await self._handle.cluster.get(Node, name)
        except errors.NotFound:
            return False
        return True

    async def _write(self, reservation: Reservation, wanted: lifecycle.Sync) -> bool:
        """Return whether it was written; not if the object is gone.

        Raises: ApiError, which brings the reservation back after a pause: Conflict when it is not what it was.
        """
        meta = reservation.metadata
        body: dict[str, Any] = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": lifecycle.difference(reservation.status, wanted.status),
        }
        try:
            stored = await self._handle.cluster.patch(Reservation, meta.name, body, subresource="status")
        except errors.NotFound:
            return False
        if self._book.reservations.get(meta.name) is reservation:
            self._book.put(stored)  # the watch has brought nothing newer meanwhile
        return True

    def _record_end(self, reservation: Reservation, wanted: lifecycle.Sync) -> None:
        match wanted.status.phase:
            case objects.FAILED:
                self._record_event(reservation, "Normal", objects.EXPIRED, f"Ended: {wanted.reason}")
            case objects.SUCCEEDED:
                owners = ", ".join(f"{each.namespace}/{each.name}" for each in wanted.status.current_owners)
                self._record_event(
                    reservation, "Normal", objects.SUCCEEDED, f"Used by {owners or 'a pod that is gone'}"
                )

    def _record_event(self, reservation: Reservation, kind: str, reason: str, message: str) -> None:
        self._handle.actions.event("", reservation, kind, reason, message, action="Reconciling")

    async def _release(self, key: ReservationKey) -> None:
        """Take the annotation from pods of a reservation that is deleted. Raises: ApiError."""
        if not self._handle.gates.is_on("CleanExpiredReservationAllocated") or not self._book.users(key):
            return
        if self._ledger.find(key.uid) is not None:
            return  # a pod in operating mode
        if not await self._is_served(key):
            for owner in self._book.users(key):
                await self._release_pod(key, owner)

    async def _is_served(self, key: ReservationKey) -> bool:
        """Return whether the API has the reservation: pods may be known before it. Raises: ApiError."""
        try:
            found = await self._handle.cluster.get(Reservation, key.name)
        except errors.NotFound:
            return False
        return found.metadata.uid == key.uid

    async def _release_pod(self, key: ReservationKey, owner: OwnerPod) -> None:
        try:
            await take_name_off(self._handle.cluster, owner.reference, key.uid)
        except (errors.NotFound, ProtocolError):
            return  # it is gone, or nobody can tell what it uses

    # Garbage

    async def _collect(self) -> None:
        """Delete what ended long ago, until cancelled."""
        while True:
            await asyncio.sleep(self._args.gc_interval_seconds)
            for number, reservation in enumerate(list(self._book.reservations.values())):
                if number % SLICE == SLICE - 1:
                    await asyncio.sleep(0)
                await self._collect_one(reservation)

    async def _collect_one(self, reservation: Reservation) -> None:
        if not objects.is_terminated(reservation):
            return
        meta, keep_s = reservation.metadata, float(self._args.gc_duration_seconds)
        try:
            has_node = await self._has_node(reservation)
            if lifecycle.is_garbage(reservation, has_node, keep_s, self._handle.clock.now()):
                await self._handle.cluster.delete(Reservation, meta.name, uid=meta.uid)
        except errors.NotFound:
            return
        except KoordinatorError as error:
            log.warning("reservation not collected: %s", error, extra={"reservation": meta.name})


def _ineffective(args: ReservationArgs, handle: Handle) -> Iterator[str]:
    """Yield settings that are made and do nothing here: what they are for is always so."""
    index = args.reservation_selector_index
    if index is not None and index.enabled:
        yield "argument reservationSelectorIndex of the plugin Reservation"
    if handle.gates.is_on("LazyReservationRestore"):
        yield "feature gate LazyReservationRestore"


def _gauges(book: ReservationBook) -> tuple[GaugeOfObjects, ...]:
    """Return the gauges of the numbers that `lifecycle` tells of each reservation."""

    def phases(name: str) -> Samples:
        found = book.reservations.get(name)
        gauges = lifecycle.phase_gauges(found) if found is not None else {}
        return [((name, phase), number) for phase, number in gauges.items()]

    def amounts(name: str) -> Samples:
        found = book.reservations.get(name)
        gauges = lifecycle.resource_gauges(found) if found is not None else ()
        return [((each.type, name, each.resource, each.unit), each.value) for each in gauges]

    return (
        GaugeOfObjects(
            "scheduler_reservation_status_phase",
            "1 for the phase of a reservation.",
            ("name", "phase"),
            phases,
        ),
        GaugeOfObjects(
            "scheduler_reservation_resource",
            "What reservations hold, what of it is used, and the share of it.",
            ("type", "name", "resource", "unit"),
            amounts,
        ),
    )
