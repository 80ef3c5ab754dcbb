"""Claims written to the API: devices and users of a claim before its pod is bound, and what is taken back."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from koordinator.api.core import Pod
from koordinator.api.dra import FINALIZER, ResourceClaim
from koordinator.cluster import errors
from koordinator.cluster.protocol import PatchType
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugin.status import SUCCESS, Status, error
from koordinator.scheduler.plugins.dynamic_resources.claim_allocations import (
    ClaimAllocations,
    ClaimKey,
    Promise,
    can_be_reserved,
    is_reserved_for,
)
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

TRIES_MAX = 5
"""Writes of one claim when others write it at the same time."""
SETTLE_S = (1.0, 2.0, 4.0, 8.0)
"""Pauses before looking what became of a write that got no answer: as long as a binding is looked after."""

_NO_ANSWER = (errors.Timeout, errors.ServiceUnavailable, errors.InternalError)


class WriteError(Exception):
    """A claim cannot be written; the pod is tried again."""


class ClaimInUse(msgspec.Struct, frozen=True):
    """A claim that a pod on its way uses; `promise` is None when it has its devices already."""

    key: ClaimKey
    uid: str
    promise: Promise | None


class ClaimWriter:
    """Writes claims for pods, and takes back what it wrote for pods that were not bound after all."""

    def __init__(self, handle: Handle, books: ClaimAllocations, timeout_s: float) -> None:
        self._handle = handle
        self._books = books
        self._timeout_s = timeout_s
        self._booked: dict[str, tuple[ClaimInUse, ...]] = {}
        """By uid of the pod, from Reserve until its claims are written."""
        self._leaving: dict[str, asyncio.Event] = {}
        """Pods whose reservations of an earlier attempt are being taken back; set when that is over."""

    def book(self, pod: PodInfo, booked: Sequence[ClaimInUse]) -> None:
        self._booked[pod.uid] = tuple(booked)

    async def write(self, pod: PodInfo) -> Status:
        """Write all claims of a pod that was given its devices."""
        for booked in self._booked.get(pod.uid, ()):
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._write(pod, booked)
            except TimeoutError:
                return error(f"claim {booked.key[0]}/{booked.key[1]}: not written within bindingTimeout")
            except WriteError as problem:
                return error(str(problem))
            except errors.ApiError as problem:
                what = "allocation and reservation" if booked.promise is not None else "reservation"
                return error(f"add {what} to claim {booked.key[0]}/{booked.key[1]}: {problem.message}")
        self._booked.pop(pod.uid, None)
        return SUCCESS

    async def _write(self, pod: PodInfo, booked: ClaimInUse) -> None:
        namespace, name = booked.key
        if (leaving := self._leaving.get(pod.uid)) is not None:
            await leaving.wait()
        claim = self._books.claim(booked.key)
        if claim is not None and is_reserved_for(claim, pod.uid):
            # By an earlier attempt; that may have been taken back since.
            claim = await self._handle.cluster.get(ResourceClaim, name, namespace)
        for _ in range(TRIES_MAX):
            if claim is None or claim.metadata.uid != booked.uid:
                raise WriteError(f"claim {namespace}/{name} got deleted in the meantime")
            try:
                await self._write_once(pod, claim, booked.promise)
                return
            except (errors.Conflict, *_NO_ANSWER) as problem:
                if isinstance(problem, errors.NotFound):
                    raise
                claim = await self._handle.cluster.get(ResourceClaim, name, namespace)
                if self._is_done(pod, claim, booked):
                    return
        raise WriteError(f"claim {namespace}/{name} is changed by others all the time")

    def _is_done(self, pod: PodInfo, claim: ResourceClaim, booked: ClaimInUse) -> bool:
        """Return whether a write that seemed to fail was carried out."""
        if claim.metadata.uid != booked.uid or not is_reserved_for(claim, pod.uid):
            return False
        if booked.promise is not None and booked.promise.is_doubtful:
            self._books.written(booked.promise, claim)
        return True

    async def _write_once(self, pod: PodInfo, claim: ResourceClaim, promise: Promise | None) -> None:
        """Raises: WriteError; Conflict when the claim changed meanwhile."""
        if claim.metadata.deletion_timestamp is not None:
            raise WriteError(f"claim {claim.key} got deleted in the meantime")
        status: dict[str, Any] = {}
        if promise is not None:
            if claim.status.allocation is not None:
                raise WriteError(f"claim {claim.key} got allocated elsewhere in the meantime")
            if FINALIZER not in claim.metadata.finalizers:
                finalizers = {"finalizers": [*claim.metadata.finalizers, FINALIZER]}
                claim = await self._patch(claim, {"metadata": finalizers}, "")
            status["allocation"] = promise.allocation
        elif claim.status.allocation is None:
            raise WriteError(f"claim {claim.key} got deallocated in the meantime")
        elif is_reserved_for(claim, pod.uid):
            return
        if not can_be_reserved(claim):
            raise WriteError(f"claim {claim.key} is used by too many pods")
        meta = pod.pod.metadata
        user = {"resource": "pods", "name": meta.name, "uid": meta.uid}
        status["reservedFor"] = [*(msgspec.to_builtins(each) for each in claim.status.reserved_for), user]
        if promise is not None:
            promise.is_doubtful = True
        try:
            written = await self._patch(claim, {"status": status}, "status")
        except errors.ApiError as problem:
            if promise is not None and not isinstance(problem, _NO_ANSWER):
                promise.is_doubtful = False
            raise
        if promise is not None:
            self._books.written(promise, written)

    async def _patch(self, claim: ResourceClaim, patch: dict[str, Any], subresource: str) -> ResourceClaim:
        meta = claim.metadata
        guard = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        body = {**patch, "metadata": {**patch.get("metadata", {}), **guard}}
        return await self._handle.cluster.patch(
            ResourceClaim, meta.name, body, meta.namespace, subresource=subresource
        )

    # Taking back

    def take_back(self, pod: PodInfo, keys: Sequence[ClaimKey]) -> bool:
        """The pod is not bound after all; whether a promise was taken back."""
        booked = self._booked.pop(pod.uid, None)
        promises = [each.promise for each in booked or () if each.promise is not None]
        for promise in promises:
            self._books.withdraw(promise)
            if promise.is_doubtful:
                self._handle.actions.spawn(self._settle(promise), f"claim {promise.claim.key}")
        if booked is None or any(promise.written_version for promise in promises) or self._is_user(pod, keys):
            work = self._give_up(pod, keys)
            self._handle.actions.spawn(work, f"claims of {pod.key}")
        return bool(promises)

    def _is_user(self, pod: PodInfo, keys: Sequence[ClaimKey]) -> bool:
        claims = (self._books.claim(key) for key in keys)
        return any(claim is not None and is_reserved_for(claim, pod.uid) for claim in claims)

    async def _give_up(self, pod: PodInfo, keys: Sequence[ClaimKey]) -> None:
        """The claims are not the pod's any more; they keep their devices, for others or its next attempt."""
        over = self._leaving[pod.uid] = asyncio.Event()
        try:
            for key in keys:
                await self._leave(pod, key)
        except errors.NotFound:
            return  # the pod is gone: the claim controller looks after its claims
        finally:
            over.set()
            if self._leaving.get(pod.uid) is over:
                del self._leaving[pod.uid]

    async def _leave(self, pod: PodInfo, key: ClaimKey) -> None:
        """Take a pod off a claim, unless it was bound after all. Raises: NotFound when there is no such pod."""
        (namespace, name), cluster = key, self._handle.cluster
        live = await cluster.get(Pod, pod.pod.metadata.name, namespace)
        if live.spec.node_name or pod.uid in self._booked:
            return
        try:
            claim = await cluster.get(ResourceClaim, name, namespace)
            if claim.status.allocation is None or not is_reserved_for(claim, pod.uid):
                return
            patch = {
                "metadata": {"uid": claim.metadata.uid},
                "status": {"reservedFor": [{"$patch": "delete", "uid": pod.uid}]},
            }
            await cluster.patch(
                ResourceClaim, name, patch, namespace, patch_type=PatchType.STRATEGIC, subresource="status"
            )
        except (errors.NotFound, errors.Conflict):
            return  # gone, and another one has its name

    async def _settle(self, promise: Promise) -> None:
        """Find out what became of a write that got no answer."""
        meta = promise.claim.metadata
        for pause_s in SETTLE_S:
            await asyncio.sleep(pause_s)
            if not promise.is_doubtful:
                return
            try:
                claim = await self._handle.cluster.get(ResourceClaim, meta.name, meta.namespace)
            except errors.NotFound:
                break
            except errors.ApiError:
                continue
            if claim.metadata.uid != meta.uid:
                break
            if claim.status.allocation is not None:
                self._books.written(promise, claim)
                return
        promise.is_doubtful = False
        self._books.withdraw(promise)

    async def deallocate(self, claim: ResourceClaim) -> None:
        """Give back the devices of a claim that nobody uses; nothing happens when it changed meanwhile."""
        status: dict[str, Any] = {"allocation": None, "reservedFor": None, "devices": None}
        try:
            await self._patch(claim, {"status": status}, "status")
        except (errors.NotFound, errors.Conflict) as reason:
            log.debug("claim not deallocated", extra={"claim": claim.key, "reason": reason.message})
        else:
            log.info("claim deallocated: its devices are on other nodes", extra={"claim": claim.key})
