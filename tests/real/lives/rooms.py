"""Stands in for the scheduler of Reservations in lives under a descheduler: the same client code on both sides."""

import asyncio
import contextlib
from typing import Any

from koordinator.api.core import Pod
from koordinator.api.meta import Object, controller_of
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.reservation import Reservation, ReservationOwner
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster

PLACE_S = 4.0
"""One room after the other: koord-descheduler, which looks every three seconds, has used the first before the next."""
FULL = "0/3 nodes are available: 3 Insufficient cpu."


def namespace_of(obj: Object) -> str:
    """The namespace that a Reservation or a job is about."""
    if isinstance(obj, PodMigrationJob):
        return obj.metadata.labels.get("life") or obj.spec.pod_ref.namespace
    if isinstance(obj, Reservation):
        owners = [each.controller or each.object for each in obj.spec.owners]
        return obj.metadata.labels.get("life") or next((each.namespace for each in owners if each), "")
    return obj.metadata.namespace


class Rooms:
    """Gives Reservations of a life a node as `fate` says: place, same (the node of the pod that goes), hold, refuse,
    fail, expire (those that have a node and no owner). Pods take the rooms that are meant for them."""

    def __init__(self, cluster: Cluster, nodes: dict[str, None]) -> None:
        self._cluster, self._nodes = cluster, nodes
        self.fate = "place"
        self._known: dict[str, Reservation] = {}
        self._taken: dict[str, Reservation] = {}
        """By pod."""
        self._queue: asyncio.Queue[str] = asyncio.Queue()

    def note(self, room: Reservation) -> None:
        self._known[room.metadata.name] = room
        self._queue.put_nowait(room.metadata.name)

    def wake_all(self) -> None:
        for name in self._known:
            self._queue.put_nowait(name)

    async def run(self) -> None:
        while True:
            name = await self._queue.get()
            with contextlib.suppress(errors.NotFound, errors.Conflict, errors.Invalid):
                if (status := self._wanted(self._known[name])) is not None:
                    await self._write(self._known[name], status)
                    await asyncio.sleep(PLACE_S)

    def _wanted(self, room: Reservation) -> dict[str, Any] | None:
        phase, fate = room.status.phase, self.fate
        if phase == "Available" and fate == "expire" and not self._is_taken(room):
            return {
                "phase": "Failed",
                "conditions": [
                    _condition("Scheduled", True, "Scheduled"),
                    _condition("Ready", False, "Expired"),
                ],
            }
        if phase not in ("", "Pending") or fate in ("hold", "expire"):
            return None
        if fate in ("refuse", "fail"):
            phase = {"refuse": "Pending", "fail": "Failed"}[fate]
            is_told = [each.reason for each in room.status.conditions] == ["Unschedulable"]
            if is_told and phase == room.status.phase:
                return None
            return {"phase": phase, "conditions": [_condition("Scheduled", False, "Unschedulable", FULL)]}
        places = [*self._nodes]
        left = next(
            (each for each in places if f"'{each}'" in str(room.spec.template.get("spec"))), places[-1]
        )
        node = places[(places.index(left) + (fate != "same")) % len(places)]
        conditions = [_condition("Scheduled", True, "Scheduled"), _condition("Ready", True, "Available")]
        return {"phase": "Available", "nodeName": node, "conditions": conditions}

    async def take(self, pod: Pod) -> str:
        """The node of a room that is meant for the pod; from now on the room is taken."""
        meta = pod.metadata
        if meta.uid in self._taken:  # by a pod that is not yet seen on its node
            return self._taken[meta.uid].status.node_name
        for room in self._free(pod):
            self._taken[meta.uid] = room
            owner = {"kind": "Pod", "namespace": meta.namespace, "name": meta.name, "uid": meta.uid}
            with contextlib.suppress(errors.NotFound):
                await self._write(room, {"phase": "Succeeded", "currentOwners": [owner]})
                return room.status.node_name
        return ""

    def has_room(self, pod: Pod) -> bool:
        return bool(self._free(pod))

    def _free(self, pod: Pod) -> list[Reservation]:
        found = [
            room
            for room in self._known.values()
            if not self._is_taken(room)
            and room.status.phase == "Available"
            and any(_is_for(owner, pod) for owner in room.spec.owners)
        ]
        return sorted(found, key=lambda room: (room.metadata.creation_timestamp or "", room.status.node_name))

    def _is_taken(self, room: Reservation) -> bool:
        return any(each.metadata.uid == room.metadata.uid for each in self._taken.values())

    async def _write(self, room: Reservation, status: dict[str, Any]) -> None:
        patch = {"metadata": {"uid": room.metadata.uid}, "status": status}
        self._known[room.metadata.name] = await self._cluster.patch(
            Reservation, room.metadata.name, patch, subresource="status"
        )


def _is_for(owner: ReservationOwner, pod: Pod) -> bool:
    controller, selector = controller_of(pod), owner.label_selector
    if selector is not None:
        return selector.match_labels.items() <= pod.metadata.labels.items()
    uid = controller.uid if controller is not None and owner.controller is not None else pod.metadata.uid
    wanted = owner.controller or owner.object
    return wanted is not None and wanted.uid == uid


def _condition(kind: str, holds: bool, reason: str, message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": str(holds), "reason": reason, "message": message}
