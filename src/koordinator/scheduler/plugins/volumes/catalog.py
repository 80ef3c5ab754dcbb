"""Claims, volumes and what storage drivers say, as the plugins see them; which volumes suit a claim, apart from where
they are; and volumes promised to pods: remembered from Reserve on, written at PreBind, waited for until bound. Source:
behaviour/scheduler B9 (Volumes)."""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from koordinator.api import label_selector, quantity
from koordinator.api.core import Pod
from koordinator.api.meta import Object, ObjectMeta, ObjectReference, reference
from koordinator.api.quantity import Quantity
from koordinator.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from koordinator.cluster import errors
from koordinator.cluster.informer import key_of
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent, newest
from koordinator.scheduler.plugin.framework import FilterPlugin, Handle, S, Watch
from koordinator.scheduler.plugin.status import SUCCESS, Status, error
from koordinator.scheduler.table.columns import discard
from koordinator.scheduler.table.label_columns import LabelColumns
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo

T = TypeVar("T", bound=Object)

ClaimKey = tuple[str, str]
"""(namespace, name)"""


CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"


class VolumeClaimUse(msgspec.Struct, frozen=True):
    """A claim that a pod uses; that of an ephemeral volume has to belong to the pod."""

    key: ClaimKey
    is_ephemeral: bool


class VolumeCatalog:
    """Objects of the kinds that a plugin asked for. `version` grows with every change of any of them."""

    def __init__(self, handle: Handle, views: Iterable[type[Object]]) -> None:
        self.version = 0
        self.on_change: Callable[[Any, Any], None] = lambda old, new: None
        self._handle = handle
        self._objects: dict[type[Object], dict[ClaimKey, Any]] = {view: {} for view in views}
        self._free: dict[str, dict[str, PersistentVolume]] = {}
        self._meant: dict[ClaimKey, dict[str, PersistentVolume]] = {}
        for view in self._objects:
            handle.watch(Watch.changes(view, self._set))

    def all(self, view: type[T]) -> Iterable[T]:
        """Return all objects of a kind, in order of arrival."""
        return self._objects[view].values()

    def find(self, view: type[T], name: str, namespace: str = "") -> T | None:
        found: T | None = self._objects[view].get((namespace, name))
        return found

    def claim(self, key: ClaimKey) -> PersistentVolumeClaim | None:
        return self.find(PersistentVolumeClaim, key[1], key[0])

    def volume(self, name: str) -> PersistentVolume | None:
        return self.find(PersistentVolume, name)

    def free_volumes(self, class_name: str) -> Iterable[PersistentVolume]:
        """Volumes of a class that name no claim."""
        return self._free.get(class_name, {}).values()

    def meant_for(self, claim: ClaimKey) -> Iterable[PersistentVolume]:
        """Volumes that name a claim of this name."""
        return self._meant.get(claim, {}).values()

    def storage_class(self, name: str) -> StorageClass | None:
        return self.find(StorageClass, name)

    def _set(self, old: Any, new: Any) -> None:
        obj = newest(old, new)
        of_kind = self._objects[type(obj)]
        key = key_of(obj)
        if new is None:
            of_kind.pop(key, None)
        else:
            of_kind[key] = new
        if isinstance(obj, PersistentVolume):
            self._index(old, new)
        self.version += 1
        self.on_change(old, new)
        self._handle.happened(QueueingEvent(ClusterEvent.STORAGE, None, old, new))

    def _index(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        """File a volume under the claim that it names, or under its class."""
        for volume, is_new in ((old, False), (new, True)):
            if volume is None:
                continue
            ref, name = volume.spec.claim_ref, volume.metadata.name
            groups: dict[Any, dict[str, PersistentVolume]] = self._free if ref is None else self._meant
            group = class_of_volume(volume) if ref is None else (ref.namespace, ref.name)
            if is_new:
                groups.setdefault(group, {})[name] = volume
            else:
                discard(groups, group, name)


_HELPS_BY_GOING = (CSINode, CSIDriver, VolumeAttachment)
"""Objects that only restrict."""


def helps(event: QueueingEvent, pod: Pod, kinds: Iterable[type[Object]]) -> bool:
    """Return whether a change of storage can help a pod of a plugin that looks at these kinds: one of its claims came
    or changed, or anything else there came, changed, or stopped to restrict."""
    subject = newest(event.old, event.new)
    if not isinstance(subject, tuple(kinds)):
        return False
    if event.new is None:
        return isinstance(subject, _HELPS_BY_GOING)
    if not isinstance(subject, PersistentVolumeClaim):
        return True
    key = key_of(subject)
    return any(use.key == key for use in claims_of(pod))


def claims_of(pod: Pod) -> tuple[VolumeClaimUse, ...]:
    """Return the claims that a pod uses, in the order of its volumes."""
    if not pod.spec.volumes:
        return ()
    namespace = pod.metadata.namespace
    found = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            found.append(
                VolumeClaimUse((namespace, volume.persistent_volume_claim.claim_name), is_ephemeral=False)
            )
        elif volume.ephemeral is not None:
            name = f"{pod.metadata.name}-{volume.name}"
            found.append(VolumeClaimUse((namespace, name), is_ephemeral=True))
    return tuple(found)


def class_key_of(pod: PodInfo) -> Hashable:
    """Return what pods must have in common to be told the same about volumes: their claims; of ephemeral volumes nobody
    else has any."""
    if not pod.pod.spec.volumes:
        return ()
    claims = claims_of(pod.pod)
    return (claims, pod.uid if any(use.is_ephemeral for use in claims) else "")


class VolumePlugin(FilterPlugin[S]):
    """A filter that looks at the volumes of pods."""

    kinds: ClassVar[tuple[type[Object], ...]]
    """The objects of storage that it looks at."""
    fewer_pods_help = True

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._catalog = VolumeCatalog(handle, self.kinds)

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        """Nodes that let the pod pass help, and what is learnt about claims, volumes, classes and drivers."""
        if event.kind is ClusterEvent.STORAGE:
            return helps(event, pod.pod, self.kinds)
        return super().wakes(event, pod)


class HasRefusal(Protocol):
    """The state of a pod, and why no node can reach its volumes."""

    @property
    def refusal(self) -> Status: ...


R = TypeVar("R", bound=HasRefusal)


class VolumeReachPlugin(VolumePlugin[R]):
    """A filter that refuses nodes which do not reach a pod's volumes."""

    keyed_by = (class_key_of,)
    wakes_for_row = True
    wakes_on = (
        ClusterEvent.NODE_ADDED,
        ClusterEvent.NODE_LABELS,
        ClusterEvent.STORAGE,
        ClusterEvent.POD_UPDATED,
    )

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._labels = handle.table.shared(LabelColumns)

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        if event.kind is not ClusterEvent.STORAGE and not self.prepare(pod).refusal.is_success:
            return False
        return super().wakes(event, pod)


def class_of(claim: PersistentVolumeClaim) -> str:
    """Name of the claim's storage class, "" for none; an annotation that is there counts, also with nothing in it."""
    return claim.metadata.annotations.get(CLASS_ANNOTATION, claim.spec.storage_class_name) or ""


def class_of_volume(volume: PersistentVolume) -> str:
    return volume.metadata.annotations.get(CLASS_ANNOTATION, volume.spec.storage_class_name)


def is_bound(claim: PersistentVolumeClaim) -> bool:
    """Return whether claim and volume know each other for good."""
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def not_found(claim: str) -> str:
    return f'persistentvolumeclaim "{claim}" not found'


def not_owned(claim: PersistentVolumeClaim, pod: Pod) -> str:
    return f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)"


STORAGE = "storage"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
_FILESYSTEM = "Filesystem"


def wanted_size(claim: PersistentVolumeClaim) -> Quantity:
    """Bytes that the claim asks for, 0 when it does not say."""
    return quantity.of(claim.spec.resources.requests.get(STORAGE, 0))


def size_of(volume: PersistentVolume) -> Quantity:
    """Bytes that the volume holds, 0 when it does not say."""
    return quantity.of(volume.spec.capacity.get(STORAGE, 0))


def is_meant_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Return whether the volume names the claim."""
    ref, meta = volume.spec.claim_ref, claim.metadata
    return (
        ref is not None
        and (ref.namespace, ref.name) == (meta.namespace, meta.name)
        and ref.uid in ("", meta.uid)
    )


def could_serve(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Size, mode, attributes and life allow it, whoever the volume is for."""
    if volume.metadata.deletion_timestamp is not None or size_of(volume) < wanted_size(claim):
        return False
    if (volume.spec.volume_attributes_class_name or "") != (claim.spec.volume_attributes_class_name or ""):
        return False
    return (volume.spec.volume_mode or _FILESYSTEM) == (claim.spec.volume_mode or _FILESYSTEM)


def is_free_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Return whether a volume that is nobody's may become the claim's."""
    selector = claim.spec.selector
    return (
        volume.spec.claim_ref is None
        and volume.status.phase == "Available"
        and class_of_volume(volume) == class_of(claim)
        and set(claim.spec.access_modes) <= set(volume.spec.access_modes)
        and (selector is None or label_selector.matches(selector, volume.metadata.labels))
        and could_serve(volume, claim)
    )


def free_volumes(claim: PersistentVolumeClaim, volumes: Iterable[PersistentVolume]) -> list[PersistentVolume]:
    """Volumes that the claim may take, the smallest first."""
    found = [volume for volume in volumes if is_free_for(volume, claim)]
    return sorted(found, key=lambda volume: (size_of(volume), volume.metadata.name))


def can_provision(storage_class: StorageClass) -> bool:
    """Return whether somebody makes volumes of the class on demand."""
    return storage_class.provisioner not in ("", NO_PROVISIONER)


def has_room(capacity: CSIStorageCapacity, storage_class: StorageClass, claim: PersistentVolumeClaim) -> bool:
    """Return whether a driver's report leaves room for the claim, on the nodes that it is about."""
    if capacity.storage_class_name != storage_class.metadata.name:
        return False
    limit = capacity.maximum_volume_size if capacity.maximum_volume_size is not None else capacity.capacity
    return limit is not None and quantity.of(limit) >= wanted_size(claim)


SELECTED_NODE = "volume.kubernetes.io/selected-node"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"


class PodVolumes(msgspec.Struct, frozen=True):
    """The needs of a pod: claims to give to existing volumes, and claims to have volumes made for."""

    static: list[tuple[PersistentVolumeClaim, PersistentVolume]] = []
    dynamic: list[PersistentVolumeClaim] = []


class AssumedClaims(RowKeeper):
    """The promises to claims that are not written yet, whichever profile made them. `version` grows with changes."""

    def __init__(self, table: NodeTable) -> None:
        self.version = 0
        self.claim_of: dict[str, ObjectReference] = {}
        """By name of the volume."""
        self.volume_of: dict[ClaimKey, str] = {}
        self.node_of: dict[ClaimKey, str] = {}


class AssumedVolumes:
    """Plans of pods that have a node and are not bound yet."""

    def __init__(
        self, handle: Handle, catalog: VolumeCatalog, promises: AssumedClaims, timeout_s: float
    ) -> None:
        self._handle = handle
        self._promises = promises
        self._catalog = catalog
        self._timeout_s = timeout_s
        self._plans: dict[str, PodVolumes] = {}
        self._waiting: list[asyncio.Event] = []
        catalog.on_change = self._changed

    # What others see

    def meant_for(self, claim: PersistentVolumeClaim) -> list[PersistentVolume]:
        """Volumes that name a claim of this name, as if the promise were written already."""
        key = key_of(claim)
        found = list(self._catalog.meant_for(key))
        name = self._promises.volume_of.get(key)
        volume = self._catalog.volume(name) if name is not None else None
        if volume is not None and volume.spec.claim_ref is None:
            promised = self._promises.claim_of[volume.metadata.name]
            spec = msgspec.structs.replace(volume.spec, claim_ref=promised)
            found.append(msgspec.structs.replace(volume, spec=spec))
        return found

    def free_volumes(self, class_name: str) -> list[PersistentVolume]:
        """Volumes of a class that are promised to nobody."""
        promised = self._promises.claim_of
        return [each for each in self._catalog.free_volumes(class_name) if each.metadata.name not in promised]

    def selected_node(self, claim: PersistentVolumeClaim) -> str:
        """Return the node for which the claim's volume is made, "" before it is known."""
        promised = self._promises.node_of.get(key_of(claim), "")
        return promised or claim.metadata.annotations.get(SELECTED_NODE, "")

    # A pod

    def make(self, uid: str, plan: PodVolumes, node_name: str) -> None:
        """Promise the volumes of a plan."""
        self._plans[uid] = plan
        for claim, volume in plan.static:
            self._promises.claim_of[volume.metadata.name] = reference(claim)
            self._promises.volume_of[key_of(claim)] = volume.metadata.name
        for claim in plan.dynamic:
            self._promises.node_of[key_of(claim)] = node_name
        self._promises.version += 1

    def withdraw(self, uid: str) -> None:
        """Take the promises back; what was written stays, and the next attempt finds it."""
        plan = self._plans.pop(uid, None)
        if plan is None:
            return
        for claim, volume in plan.static:
            self._promises.claim_of.pop(volume.metadata.name, None)
            self._promises.volume_of.pop(key_of(claim), None)
        for claim in plan.dynamic:
            self._promises.node_of.pop(key_of(claim), None)
        self._promises.version += 1

    async def fulfil(self, pod: PodInfo, claims: Sequence[ObjectMeta], node_name: str) -> Status:
        """Write the plan and wait until all claims are bound."""
        plan = self._plans.get(pod.uid)
        if plan is None:
            return SUCCESS
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await self._fulfil(plan, claims, node_name)
        except TimeoutError:
            return error(f"binding volumes: not bound after {self._timeout_s:g}s (bindTimeoutSeconds)")
        except errors.ApiError as failure:
            return error(f"binding volumes: {failure.message}")
        if status.is_success:
            self.withdraw(pod.uid)
        return status

    async def _fulfil(self, plan: PodVolumes, claims: Sequence[ObjectMeta], node_name: str) -> Status:
        for claim, volume in plan.static:
            await self._write_volume(claim, volume)
        annotated: dict[ClaimKey, str] = {}
        for claim in plan.dynamic:
            if claim.metadata.annotations.get(SELECTED_NODE) != node_name:
                written = await self._write_claim(claim, node_name)
                annotated[key_of(written)] = written.metadata.resource_version
        changed = asyncio.Event()
        self._waiting.append(changed)
        try:
            while True:
                changed.clear()
                status = self._progress(claims, annotated, plan)
                if status is not None:
                    return status
                await changed.wait()
        finally:
            self._waiting.remove(changed)

    def _progress(
        self, claims: Sequence[ObjectMeta], annotated: dict[ClaimKey, str], plan: PodVolumes
    ) -> Status | None:
        """Success when all claims are bound, an error when they never will be, None while they may."""
        is_done = True
        for meta in claims:
            key = (meta.namespace, meta.name)
            claim = self._catalog.claim(key)
            if claim is None or claim.metadata.uid != meta.uid:
                return error(f'binding volumes: persistentvolumeclaim "{meta.name}" is gone')
            if is_bound(claim):
                continue
            is_done = False
            if claim.metadata.resource_version == annotated.get(key):
                annotated.pop(key)  # from here on, a missing annotation means that the driver gave up
            is_dynamic = any(each.metadata.uid == meta.uid for each in plan.dynamic)
            if is_dynamic and key not in annotated and SELECTED_NODE not in claim.metadata.annotations:
                return error(f'binding volumes: provisioning failed for PVC "{meta.name}"')
        return SUCCESS if is_done else None

    async def _write_volume(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        meta = volume.metadata
        body: dict[str, Any] = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "spec": {"claimRef": msgspec.to_builtins(reference(claim))},
        }
        if volume.spec.claim_ref is None:
            body["metadata"]["annotations"] = {BOUND_BY_CONTROLLER: "yes"}
        await self._handle.cluster.patch(PersistentVolume, meta.name, body)

    async def _write_claim(self, claim: PersistentVolumeClaim, node_name: str) -> PersistentVolumeClaim:
        meta = claim.metadata
        body = {"metadata": {"uid": meta.uid, "annotations": {SELECTED_NODE: node_name}}}
        return await self._handle.cluster.patch(PersistentVolumeClaim, meta.name, body, meta.namespace)

    def _changed(self, old: Any, new: Any) -> None:
        for event in self._waiting:
            event.set()
