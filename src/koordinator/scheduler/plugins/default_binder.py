"""DefaultBinder posts the binding; DefaultPreBind stores what PreBind plugins wrote on a pod or a Reservation.

One request carries the results of all plugins (CPUs, devices, the reservation used). Only a plugin that touches the
status costs a second one, as the API takes that through a subresource. Source: behaviour/scheduler B1 and D1.
"""

import asyncio
import random
from typing import Any, TypeVar

from koordinator.api.core import Pod
from koordinator.api.meta import Object
from koordinator.api.reservation import Reservation
from koordinator.cluster import backoff, errors
from koordinator.scheduler.plugin.capabilities import PreBindExtension
from koordinator.scheduler.plugin.framework import BindPlugin, Handle, PreBindPlugin
from koordinator.scheduler.plugin.status import SUCCESS, PodPatch, Status, error
from koordinator.scheduler.table.pod_info import PodInfo

RETRY_PAUSES_S = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses before each look at a pod whose binding was left without an answer. Together they outlast a restart
of the API server; the node stays booked meanwhile, so that its room is not given away twice."""


class DefaultBinder(BindPlugin[None]):
    """Posts `pods/binding`. An answer that got lost is found out by looking at the pod; as a pod can be bound
    only once, asking again is safe."""

    name = "DefaultBinder"

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        failure = await self._post(pod, node_name)
        for pause_s in RETRY_PAUSES_S:
            if failure is None:
                return SUCCESS
            if not _is_open(failure):
                break
            await asyncio.sleep(pause_s)
            try:
                fate = await self._fate(pod, node_name)
            except errors.ApiError:
                continue  # nobody answers yet
            if fate is not None:
                return fate
            if isinstance(failure, errors.Conflict):
                break  # refused for another reason
            failure = await self._post(pod, node_name)
        return SUCCESS if failure is None else error(failure.message)

    async def _post(self, pod: PodInfo, node_name: str) -> errors.ApiError | None:
        """Post the binding and return why it failed."""
        meta = pod.pod.metadata
        try:
            await self.handle.cluster.bind(meta.namespace, meta.name, node_name, uid=meta.uid)
        except errors.ApiError as failure:
            return failure
        return None

    async def _fate(self, pod: PodInfo, node_name: str) -> Status | None:
        """Return what became of the pod; None when it can still be bound. Raises: ApiError."""
        table = self.handle.table
        place = table.place_of(pod.uid)
        if place is not None and not place.assumed:  # the watch was faster
            return _taken(pod, table.name_of(place.row), node_name)
        meta = pod.pod.metadata
        try:
            live = await self.handle.cluster.get(Pod, meta.name, meta.namespace)
        except errors.NotFound:
            return error(f"pod {pod.key} is gone")
        if live.metadata.uid != meta.uid:
            return error(f"pod {pod.key} is gone")
        if live.spec.node_name:
            return _taken(pod, live.spec.node_name, node_name)
        if live.metadata.deletion_timestamp is not None:
            return error(f"pod {pod.key} is being deleted")
        return None


def _taken(pod: PodInfo, by: str, node_name: str) -> Status:
    """Return the end for a pod that is assigned: to the node that we meant, or to another."""
    return SUCCESS if by == node_name else error(f"pod {pod.key} is already assigned to node {by}")


def _is_open(failure: errors.ApiError) -> bool:
    """Return whether the pod may be bound nevertheless: nobody answered, or it is said to be bound already."""
    return failure.code >= 500 or isinstance(failure, errors.Conflict)


T = TypeVar("T", bound=Object)

POD_IS_DELETED = "pod is being deleted"
RESERVATION_IS_DELETED = "reservation is being deleted"


class DefaultPreBind(PreBindPlugin[None], PreBindExtension[None]):
    """Patches with retries after conflicts, throttling and broken connections; nothing to write, no call."""

    name = "DefaultPreBind"

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        # Spreads retries of concurrent bindings; nothing that is decided depends on it.
        self._rng = random.Random(0)

    async def pre_bind(self, state: None, pod: PodInfo, node_name: str, patch: PodPatch) -> Status:
        """Nothing: the patch is stored when all PreBind plugins have had their say."""
        return SUCCESS

    async def apply_patch(self, pod: PodInfo, patch: PodPatch) -> Status:
        return await self._store(pod.pod, patch, POD_IS_DELETED)

    async def apply_reservation_patch(self, reservation: Reservation, patch: PodPatch) -> Status:
        return await self._store(reservation, patch, RESERVATION_IS_DELETED)

    async def _store(self, obj: Object, patch: PodPatch, deleted: str) -> Status:
        if patch.is_empty:  # as for most pods
            return SUCCESS
        for subresource in ("", "status"):
            try:
                patched = await self._patch(obj, patch, subresource)
            except errors.ApiError as failure:
                return error(failure.message)
            if patched is not None and patched.metadata.deletion_timestamp is not None:
                return error(deleted)
        return SUCCESS

    async def _patch(self, obj: T, patch: PodPatch, subresource: str) -> T | None:
        """Return the object as it is afterwards; None when there was nothing to write."""
        view, meta = type(obj), obj.metadata
        # What an attempt before wrote may be something else by now, or gone, and not have come back to us yet.
        is_written = any(key in meta.annotations for key in patch.annotations)
        known: T | None = None if is_written else obj

        async def attempt() -> T | None:
            nonlocal known
            if known is None:
                known = await self.handle.cluster.get(view, meta.name, meta.namespace)
            body = _body(known, meta.uid, patch, subresource)
            if not body:
                return None
            known = None  # whoever fails reads afresh
            return await self.handle.cluster.patch(
                view, meta.name, body, meta.namespace, subresource=subresource
            )

        return await backoff.retry_on_conflict(attempt, self._rng, on=backoff.LOST_RACE_OR_CONNECTION)


def _body(obj: Object, uid: str, patch: PodPatch, subresource: str) -> dict[str, Any]:
    """Return the patch with what guards it: the object's uid, and its version where lists are replaced."""
    meta = obj.metadata
    if subresource:
        body = patch.status_body()
    else:
        body = patch.body(meta.annotations, meta.labels, meta.finalizers)
    if not body:
        return {}
    guarded = body.setdefault("metadata", {})
    if uid:
        guarded["uid"] = uid
    if "finalizers" in guarded:
        guarded["resourceVersion"] = meta.resource_version
    return body
