"""Keep the claims, the devices that they have, what is promised and not written yet, and write it to the API.

One per node table, whichever profiles use it, so that nobody gives a device away twice.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from koordinator.api.core import Pod
from koordinator.api.dra import FINALIZER, RESERVATIONS_MAX, AllocationResult, DeviceClass, ResourceClaim
from koordinator.api.meta import is_controlled_by
from koordinator.clock import rfc3339
from koordinator.cluster import errors
from koordinator.cluster.protocol import PatchType
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugin.status import SUCCESS, Status, error
from koordinator.scheduler.plugins.dynamic_resources import binding_conditions
from koordinator.scheduler.plugins.dynamic_resources.binding_conditions import ClaimReadiness, Readiness
from koordinator.scheduler.plugins.dynamic_resources.consumable_capacity import amounts_of
from koordinator.scheduler.plugins.dynamic_resources.inventory import Inventory
from koordinator.scheduler.plugins.dynamic_resources.slice_devices import DeviceUse
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo

ClaimKey = tuple[str, str]
"""(namespace, name)"""

Find = Callable[[ClaimKey], ResourceClaim | None]


class ClaimError(Exception):
    """The claims of a pod are not known, or cannot be used yet."""


def claim_names(pod: Pod) -> tuple[tuple[str, str | None], ...]:
    """Return what says which claims a pod uses, in the order of its spec: all that may change while it waits."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    return tuple(
        (each.name, each.resource_claim_name or made.get(each.name)) for each in pod.spec.resource_claims
    )


def claims_of(pod: Pod, find: Find) -> list[ResourceClaim]:
    """Return the pod's claims as they are; a generated one has to belong to the pod. Raises: ClaimError when a claim is
    not there yet, or cannot be used."""
    namespace, found = pod.metadata.namespace, []
    for each, (_, name) in zip(pod.spec.resource_claims, claim_names(pod), strict=True):
        is_generated = each.resource_claim_name is None
        if is_generated and each.resource_claim_template_name is None:
            reason = f'pod "{pod.key}", spec.resourceClaim "{each.name}"'
            raise ClaimError(f"{reason}: none of the supported fields are set")
        if name is None:
            if any(made.name == each.name for made in pod.status.resource_claim_statuses):
                continue  # the template says that the pod needs none
            raise ClaimError(f'pod "{pod.key}": ResourceClaim not created yet')
        claim = find((namespace, name))
        if claim is None:
            raise ClaimError(f'could not find ResourceClaim "{namespace}/{name}"')
        if claim.metadata.deletion_timestamp is not None:
            raise ClaimError(f'resourceclaim "{name}" is being deleted')
        if is_generated and not is_controlled_by(claim, pod):
            raise ClaimError(
                f"ResourceClaim {claim.key} was not created for pod {pod.key} (pod is not owner)"
            )
        found.append(claim)
    return found


def objection(pod: Pod, find: Find) -> str:
    """Return why the pod's claims cannot be used; "" when they can."""
    try:
        claims_of(pod, find)
    except ClaimError as error:
        return str(error)
    return ""


def is_reserved_for(claim: ResourceClaim, uid: str) -> bool:
    return any(consumer.uid == uid for consumer in claim.status.reserved_for)


def can_be_reserved(claim: ResourceClaim) -> bool:
    """Return whether one more pod may use the claim."""
    return len(claim.status.reserved_for) < RESERVATIONS_MAX


class InFlightAllocation(msgspec.Struct, eq=False):
    """Devices promised to a claim. `allocation` is what is to be written; `written_version` is the claim's version
    that has it, 0 before it is written; `is_doubtful`: nobody knows whether it was written."""

    claim: ResourceClaim
    devices: tuple[DeviceUse, ...]
    allocation: dict[str, Any]
    written_version: int = 0
    is_doubtful: bool = False


class ClaimAllocations(RowKeeper):
    """`version` grows with every change of claims, classes and promises."""

    def __init__(self, table: NodeTable) -> None:
        self.version = 0
        self.inventory = table.shared(Inventory)
        self._claims: dict[ClaimKey, ResourceClaim] = {}
        self._classes: dict[str, DeviceClass] = {}
        self._held: dict[ClaimKey, tuple[DeviceUse, ...]] = {}
        self._promises: dict[str, InFlightAllocation] = {}
        """By uid of the claim."""

    # What others say

    def claim(self, key: ClaimKey) -> ResourceClaim | None:
        return self._claims.get(key)

    def device_class(self, name: str) -> DeviceClass | None:
        return self._classes.get(name)

    def set_class(self, name: str, new: DeviceClass | None) -> None:
        if new is None:
            self._classes.pop(name, None)
        else:
            self._classes[name] = new
        self.version += 1

    def set_claim(self, key: ClaimKey, new: ResourceClaim | None) -> None:
        """A claim came, changed or (None) went. Telling it twice does no harm."""
        old = self._claims.get(key)
        if old is new:
            return
        if new is None:
            self._claims.pop(key, None)
        else:
            self._claims[key] = new
        is_shared = self.inventory.gates.is_on("DRAConsumableCapacity")
        held = () if new is None else devices_of(new.status.allocation, may_share=is_shared)
        before = self._held.pop(key, ())
        if held:
            self._held[key] = held
        if held != before:
            self.inventory.take(held, 1)
            self.inventory.take(before, -1)
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._drop(old.metadata.uid)
        if new is not None:
            self._confirm(new)
        self.version += 1

    def _confirm(self, claim: ResourceClaim) -> None:
        """The API shows what we wrote, or something later: the promise is kept."""
        promise = self._promises.get(claim.metadata.uid)
        if promise is None:
            return
        is_seen = 0 < promise.written_version <= _number(claim.metadata.resource_version)
        if claim.status.allocation is not None or is_seen:
            self._drop(claim.metadata.uid)

    # Allocations in flight

    @property
    def promises(self) -> Iterable[InFlightAllocation]:
        """All that are not confirmed yet."""
        return self._promises.values()

    def is_promised(self, uid: str) -> bool:
        """Return whether devices of the claim are on their way."""
        return uid in self._promises

    def promise(
        self, claim: ResourceClaim, devices: Iterable[DeviceUse], allocation: dict[str, Any]
    ) -> InFlightAllocation:
        """Give devices to a claim that has none."""
        uid = claim.metadata.uid
        assert uid not in self._promises, claim.key
        promise = self._promises[uid] = InFlightAllocation(claim, tuple(devices), allocation)
        self.inventory.take(promise.devices, 1)
        self.version += 1
        return promise

    def withdraw(self, promise: InFlightAllocation) -> None:
        """Take a promise back, unless it is, or may be, written: the API will say what became of it."""
        if (
            not (promise.written_version or promise.is_doubtful)
            and self._promises.get(promise.claim.metadata.uid) is promise
        ):
            self._drop(promise.claim.metadata.uid)

    def written(self, promise: InFlightAllocation, written: ResourceClaim) -> None:
        """The API took the allocation."""
        promise.is_doubtful = False
        promise.written_version = max(1, _number(written.metadata.resource_version))
        meta = written.metadata
        known = self._claims.get((meta.namespace, meta.name))
        if known is None or known.metadata.uid != meta.uid:
            self._drop(meta.uid)  # gone meanwhile
        else:
            self._confirm(known)

    def _drop(self, uid: str) -> None:
        promise = self._promises.pop(uid, None)
        if promise is not None:
            self.inventory.take(promise.devices, -1)
            self.version += 1


def devices_of(allocation: AllocationResult | None, *, may_share: bool) -> tuple[DeviceUse, ...]:
    """Devices and shares that nobody else can have; administrators look at devices without taking them."""
    if allocation is None:
        return ()
    return tuple(
        DeviceUse(
            (each.driver, each.pool, each.device),
            amounts_of(each.consumed_capacity) if may_share and each.share_id is not None else None,
        )
        for each in allocation.devices.results
        if not each.admin_access
    )


def _number(version: str) -> int:
    """Versions are compared as numbers, as Kubernetes allows for its own kinds; others count as the oldest."""
    return int(version) if version.isdigit() else 0


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
    promise: InFlightAllocation | None


class ClaimWriter:
    """Writes claims for pods, and takes back what it wrote for pods that were not bound after all."""

    def __init__(self, handle: Handle, books: ClaimAllocations, timeout_s: float) -> None:
        self._handle = handle
        self._books = books
        self._timeout_s = timeout_s
        self._booked: dict[str, tuple[ClaimInUse, ...]] = {}
        """By uid of the pod, from Reserve until its claims are written."""
        self._changes: dict[ClaimKey, asyncio.Event] = {}
        """Claims whose devices are waited for; set when the claim changes."""
        self._leaving: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
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

    def claim_changed(self, key: ClaimKey) -> None:
        """Wake who waits for a claim's devices."""
        changed = self._changes.pop(key, None)
        if changed is not None:
            changed.set()

    async def wait_for_devices(self, pod: PodInfo, keys: Sequence[ClaimKey], node_name: str) -> Status:
        """Wait until the devices of all claims are ready, `timeout_s` at most."""
        text = f"waiting for binding conditions for device on node {node_name}"
        is_recorded = False
        try:
            async with asyncio.timeout(self._timeout_s):
                for key in keys:
                    while (found := self._readiness(key)).state is Readiness.PENDING:
                        if found.is_with_driver and not is_recorded:
                            is_recorded = True
                            self._handle.actions.event(
                                "", pod.pod, "Normal", "BindingConditionsPending", text
                            )
                        await self._changes.setdefault(key, asyncio.Event()).wait()
                    if found.is_lost:
                        return error(found.problem)
        except TimeoutError:
            return error("device binding timeout")
        return SUCCESS

    def _readiness(self, key: ClaimKey) -> ClaimReadiness:
        claim = self._books.claim(key)
        if claim is None:
            return ClaimReadiness(Readiness.FAILED, f"claim {key[0]}/{key[1]} got deleted in the meantime")
        return binding_conditions.readiness(claim, self._timeout_s, self._handle.clock.now())

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

    async def _write_once(
        self, pod: PodInfo, claim: ResourceClaim, promise: InFlightAllocation | None
    ) -> None:
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
            status["allocation"] = self._stamped(promise.allocation)
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

    def _stamped(self, allocation: dict[str, Any]) -> dict[str, Any]:
        """With the time, which says when devices that have to be made ready are late."""
        if not self._books.inventory.gates.is_on("DRADeviceBindingConditions"):
            return allocation
        return {**allocation, "allocationTimestamp": rfc3339(self._handle.clock.now())}

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
            self._handle.actions.spawn(self._give_up(pod, keys), f"claims of {pod.key}")
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

    async def _settle(self, promise: InFlightAllocation) -> None:
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
