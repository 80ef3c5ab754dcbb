"""DefaultPreBind stores what PreBind plugins wrote on a pod or a Reservation. Source: behaviour/scheduler D1.

One request carries the results of all plugins (CPUs, devices, the reservation used). Only a plugin that
touches the status costs a second one, as the API takes that through a subresource.
"""

import random
from typing import Any, TypeVar

from koordinator.api.meta import Object
from koordinator.api.reservation import Reservation
from koordinator.cluster import errors, retry
from koordinator.scheduler.plugin.capabilities import PreBindExtension
from koordinator.scheduler.plugin.framework import Handle, PreBindPlugin
from koordinator.scheduler.plugin.pod_patch import PodPatch
from koordinator.scheduler.plugin.status import SUCCESS, Status, error
from koordinator.scheduler.table.pod_info import PodInfo

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
        """The object as it is afterwards; None when there was nothing to write."""
        view, meta = type(obj), obj.metadata
        known: T | None = obj

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

        return await retry.retry_on_conflict(attempt, self._rng, on=retry.LOST_RACE_OR_CONNECTION)


def _body(obj: Object, uid: str, patch: PodPatch, subresource: str) -> dict[str, Any]:
    """The patch with what guards it: the object's uid, and its version where lists are replaced."""
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
