"""Keep the claims, the devices that they have, and what is promised and not written yet.

One per node table, whichever profiles use it, so that nobody gives a device away twice.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from koordinator.api.core import Pod
from koordinator.api.dra import RESERVATIONS_MAX, AllocationResult, DeviceClass, ResourceClaim
from koordinator.scheduler.plugins.dynamic_resources.inventory import DeviceKey, Inventory
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper

ClaimKey = tuple[str, str]
"""(namespace, name)"""

Find = Callable[[ClaimKey], ResourceClaim | None]


class ClaimError(Exception):
    """The claims of a pod cannot be told or used yet."""


class ClaimUse(msgspec.Struct, frozen=True):
    """A claim under the pod's own name for it; a generated one has to belong to the pod."""

    name: str
    key: ClaimKey
    is_generated: bool


def claim_names(pod: Pod) -> tuple[tuple[str, str | None], ...]:
    """Return what says which claims a pod uses, in the order of its spec: all that may change while it waits."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    return tuple(
        (each.name, each.resource_claim_name or made.get(each.name)) for each in pod.spec.resource_claims
    )


def uses_of(pod: Pod) -> Iterator[ClaimUse]:
    """Yield the pod's claims. Raises: ClaimError when a claim has not been made yet."""
    namespace, name = pod.metadata.namespace, pod.metadata.name
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    for each in pod.spec.resource_claims:
        if each.resource_claim_name is not None:
            yield ClaimUse(each.name, (namespace, each.resource_claim_name), is_generated=False)
        elif each.resource_claim_template_name is None:
            reason = f'pod "{namespace}/{name}", spec.resourceClaim "{each.name}"'
            raise ClaimError(f"{reason}: none of the supported fields are set")
        elif each.name not in made:
            raise ClaimError(f'pod "{namespace}/{name}": ResourceClaim not created yet')
        elif (claim_name := made[each.name]) is not None:
            yield ClaimUse(each.name, (namespace, claim_name), is_generated=True)


def claims_of(pod: Pod, find: Find) -> list[tuple[ClaimUse, ResourceClaim]]:
    """Return the pod's claims as they are. Raises: ClaimError."""
    found = []
    for use in uses_of(pod):
        claim = find(use.key)
        if claim is None:
            raise ClaimError(f'could not find ResourceClaim "{use.key[0]}/{use.key[1]}"')
        if claim.metadata.deletion_timestamp is not None:
            raise ClaimError(f'resourceclaim "{use.key[1]}" is being deleted')
        if use.is_generated and not belongs_to(claim, pod):
            raise ClaimError(
                f"ResourceClaim {claim.key} was not created for pod {pod.key} (pod is not owner)"
            )
        found.append((use, claim))
    return found


def objection(pod: Pod, find: Find) -> str:
    """Return why the pod's claims cannot be used; "" when they can."""
    try:
        claims_of(pod, find)
    except ClaimError as error:
        return str(error)
    return ""


def belongs_to(claim: ResourceClaim, pod: Pod) -> bool:
    """Return whether the claim was made for the pod."""
    return any(
        owner.controller and owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references
    )


def is_reserved_for(claim: ResourceClaim, uid: str) -> bool:
    return any(consumer.uid == uid for consumer in claim.status.reserved_for)


def can_be_reserved(claim: ResourceClaim) -> bool:
    """Return whether one more pod may use the claim."""
    return len(claim.status.reserved_for) < RESERVATIONS_MAX


class Promise(msgspec.Struct, eq=False):
    """Devices promised to a claim. `allocation` is what is to be written; `written_version` is the claim's version
    that has it, 0 before it is written; `is_doubtful`: nobody knows whether it was written."""

    claim: ResourceClaim
    devices: tuple[DeviceKey, ...]
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
        self._held: dict[ClaimKey, tuple[DeviceKey, ...]] = {}
        self._promises: dict[str, Promise] = {}
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
        held = () if new is None else devices_of(new.status.allocation)
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
        if promise is None or not promise.written_version:
            return
        version = _number(claim.metadata.resource_version)
        if claim.status.allocation is not None or version >= promise.written_version:
            self._drop(claim.metadata.uid)

    # Promises

    @property
    def promises(self) -> Iterable[Promise]:
        """All that are not confirmed yet."""
        return self._promises.values()

    def is_promised(self, uid: str) -> bool:
        """Return whether devices of the claim are on their way."""
        return uid in self._promises

    def promise(
        self, claim: ResourceClaim, devices: Iterable[DeviceKey], allocation: dict[str, Any]
    ) -> Promise:
        """Give devices to a claim that has none."""
        uid = claim.metadata.uid
        assert uid not in self._promises, claim.key
        promise = self._promises[uid] = Promise(claim, tuple(devices), allocation)
        self.inventory.take(promise.devices, 1)
        self.version += 1
        return promise

    def withdraw(self, promise: Promise) -> None:
        """Take a promise back, unless it is, or may be, written: the API will say what became of it."""
        if (
            not (promise.written_version or promise.is_doubtful)
            and self._promises.get(promise.claim.metadata.uid) is promise
        ):
            self._drop(promise.claim.metadata.uid)

    def written(self, promise: Promise, written: ResourceClaim) -> None:
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


def devices_of(allocation: AllocationResult | None) -> tuple[DeviceKey, ...]:
    """Devices that nobody else can have; administrators look at devices without taking them."""
    if allocation is None:
        return ()
    return tuple(
        (each.driver, each.pool, each.device) for each in allocation.devices.results if not each.admin_access
    )


def _number(version: str) -> int:
    """Versions are compared as numbers, as Kubernetes allows for its own kinds; others count as the oldest."""
    return int(version) if version.isdigit() else 0
