"""Reservations of a replay: those that hold room keep it, those that wait are placed before the first pod, and owners
use them as in a running scheduler, whose decisions about their statuses are carried out here.

Time does not pass for them: none expires during a replay.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from koordinator.api import pod_resources
from koordinator.api.core import Pod
from koordinator.api.reservation import Reservation, ReservationStatus
from koordinator.clock import Clock
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Placed, Unplaced
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import Watch
from koordinator.scheduler.plugins.reservation import lifecycle, objects
from koordinator.scheduler.plugins.reservation.lifecycle import OwnerPod
from koordinator.scheduler.plugins.reservation.plugin import ReservationPlugin
from koordinator.scheduler.table.pod_info import PodInfo


class ReservationOutcome(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fate of the reservations: `held` had a node at the start, `placed` found one, `unplaced` (name → why) did
    not. `pods_inside` pods were placed in them."""

    held: int = 0
    placed: int = 0
    unplaced: dict[str, str] = {}
    pods_inside: int = 0


class ReplayReservations:
    """Reserve pods enter and leave the node table as their Reservations change."""

    def __init__(self, engine: Engine, clock: Clock, happened: Callable[[QueueingEvent], None]) -> None:
        self._engine = engine
        self._clock = clock
        self._happened = happened
        self._objects: dict[str, Reservation] = {}
        self._owners: dict[str, list[OwnerPod]] = {}
        self._waiting: dict[str, PodInfo] = {}
        self._watches: list[Watch[Any]] = [
            watch for handle in engine.handles for watch in handle.watches if watch.view is Reservation
        ]
        self.outcome = ReservationOutcome()

    # What plugins ask for

    def enter_pod(self, pod: Pod) -> None:
        """A reserve pod waits, or holds its node."""
        info = PodInfo.of(pod, self._engine.table.registry)
        if info.node_name:
            self._waiting.pop(info.uid, None)
            self._engine.table.assign(info, info.node_name)
        else:
            self._waiting[info.uid] = info

    def remove_pod(self, pod: Pod) -> None:
        """A reserve pod holds nothing any more."""
        self._waiting.pop(pod.metadata.uid, None)
        place = self._engine.table.place_of(pod.metadata.uid)
        if place is not None:
            self._engine.table.unassign(pod.metadata.uid)
            self._happened(QueueingEvent(ClusterEvent.ASSIGNED_POD_DELETED, place.row, place.pod, None))

    # What happens

    def begin(self, reservations: Sequence[Reservation]) -> None:
        """The nodes are there: reservations that have one hold their room, the others are placed if they fit."""
        for each in reservations:
            self._objects[each.metadata.uid] = each
            for watch in self._watches:
                watch.on_add(each)
        held, placed = sum(map(objects.is_available, reservations)), 0
        unplaced: dict[str, str] = {}
        for info in list(self._waiting.values()):
            profile = self._engine.profiles[info.pod.spec.scheduler_name]
            result = self._engine.cycle.run(profile, info, profile.class_key(info), 1, self._clock.now())
            match result:
                case Placed():
                    placed += 1
                    self.bound(result)
                case Unplaced():
                    unplaced[self._objects[info.uid].metadata.name] = result.status.message
        self.outcome = ReservationOutcome(held=held, placed=placed, unplaced=unplaced)

    def bound(self, placed: Placed) -> None:
        """A pod is on its node: a reserve pod, an owner, or one that reservations do not concern."""
        info = placed.pod
        if (own := self._objects.get(info.uid)) is not None:
            self._change(own, lifecycle.bound(own, placed.node_name, self._clock.now()))
            return
        profile = self._engine.profiles[info.pod.spec.scheduler_name]
        plugin = profile.find(ReservationPlugin) if self._objects else None
        used = self._objects.get(plugin.ledger.used_by(info.uid) or "") if plugin is not None else None
        if used is None:
            return
        self.outcome = msgspec.structs.replace(self.outcome, pods_inside=self.outcome.pods_inside + 1)
        meta, uid = info.pod.metadata, used.metadata.uid
        owner = OwnerPod(info.uid, meta.namespace, meta.name, pod_resources.requests(info.pod), uid)
        owners = self._owners.setdefault(uid, [])
        owners.append(owner)
        if objects.is_once(used):
            self._change(used, lifecycle.sync(used, True, owners, self._clock.now()).status)

    def _change(self, old: Reservation, status: ReservationStatus) -> None:
        new = msgspec.structs.replace(old, status=status)
        self._objects[old.metadata.uid] = new
        for watch in self._watches:
            watch.on_update(old, new)
