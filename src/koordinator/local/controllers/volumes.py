"""Binds claims to volumes, makes volumes on demand, and takes them back.

Source: kube-controller-manager's persistent volume controller. Volumes of the class `standard` are made here:
they stand for storage that every node reaches, with nothing behind them (hollow nodes run no processes).
"""

import logging
from typing import Any

import msgspec

from koordinator.api.meta import ObjectReference, reference
from koordinator.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory, Key, key_of
from koordinator.cluster.protocol import Cluster, get_if_there, patch_same
from koordinator.scheduler.plugins.volumes import catalog

log = logging.getLogger(__name__)

PROVISIONER = "hollow.koordinator.sh/volume"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
ASKED_PROVISIONER = (
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
)
WORKERS = 4


def standard_class() -> dict[str, Any]:
    """Return the default StorageClass of a local cluster."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "standard", "annotations": {DEFAULT_CLASS: "true"}},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def is_waiting_for_consumer(claim: PersistentVolumeClaim, storage_class: StorageClass | None) -> bool:
    """Return whether the scheduler must choose a node before anything is done for the claim."""
    waits = storage_class is not None and storage_class.volume_binding_mode == "WaitForFirstConsumer"
    return waits and SELECTED_NODE not in claim.metadata.annotations


def new_volume(claim: PersistentVolumeClaim, storage_class: StorageClass) -> dict[str, Any]:
    """Return the volume made for a claim, already promised to it."""
    return {
        "metadata": {
            "name": f"pvc-{claim.metadata.uid}",
            "annotations": {PROVISIONED_BY: PROVISIONER},
        },
        "spec": {
            "capacity": {"storage": claim.spec.resources.requests.get("storage", "0")},
            "accessModes": list(claim.spec.access_modes),
            "volumeMode": claim.spec.volume_mode or "Filesystem",
            "storageClassName": storage_class.metadata.name,
            "persistentVolumeReclaimPolicy": storage_class.reclaim_policy or "Delete",
            "claimRef": _claim_reference(claim),
            "csi": {"driver": PROVISIONER, "volumeHandle": claim.metadata.uid},
        },
    }


class VolumeController(ControllerLoop):
    """The loop; its keys are claims ("namespace", "name") and volumes ("", "name")."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._claims = factory.informer(PersistentVolumeClaim)
        self._volumes = factory.informer(PersistentVolume)
        self._classes = factory.informer(StorageClass)
        self._controller: Controller[Key] = Controller("persistent volumes", self._reconcile, workers=WORKERS)
        self._controller.watch(self._claims, lambda claim: [key_of(claim), *_volume_key(claim)])
        self._controller.watch(self._volumes, lambda volume: [key_of(volume), *_claim_key(volume)])
        self._volumes.add_handler(None, self._on_volume)
        self._classes.add_handler(lambda _: self._queue_waiting())
        self._informers = [self._claims, self._volumes, self._classes]

    def _on_volume(self, old: PersistentVolume, new: PersistentVolume) -> None:
        if new.status.phase == "Available" and old.status.phase != "Available":
            self._queue_waiting()

    def _queue_waiting(self) -> None:
        for claim in self._claims.objects.values():
            if not claim.spec.volume_name:
                self._controller.queue.add(key_of(claim))

    async def _reconcile(self, key: Key) -> None:
        try:
            if key[0]:
                await self._reconcile_claim(key)
            else:
                await self._reconcile_volume(key[1])
        except errors.NotFound:
            return  # gone meanwhile: its deletion is on the way to us

    # Claims

    async def _reconcile_claim(self, key: Key) -> None:
        claim = self._claims.get(key[1], key[0])
        if claim is None or claim.metadata.deletion_timestamp is not None:
            return
        if claim.spec.volume_name:
            await self._complete(claim)
            return
        if claim.spec.storage_class_name is None:
            await self._give_default_class(claim)
            return
        volume = self._volume_for(claim)
        if volume is not None:
            await self._bind(claim, volume)
            return
        storage_class = self._classes.get(claim.spec.storage_class_name)
        if is_waiting_for_consumer(claim, storage_class):
            self._events.normal(
                claim, "WaitForFirstConsumer", "waiting for first consumer to be created before binding"
            )
        elif storage_class is not None and storage_class.provisioner == PROVISIONER:
            await self._provision(claim, storage_class)
        elif storage_class is None and claim.spec.storage_class_name:
            missing = f'storageclass.storage.k8s.io "{claim.spec.storage_class_name}" not found'
            self._events.warning(claim, "ProvisioningFailed", missing)
        elif storage_class is None:
            self._events.normal(
                claim,
                "FailedBinding",
                "no persistent volumes available for this claim and no storage class is set",
            )
        elif not catalog.can_provision(storage_class):
            why = f"no volume plugin matched name: {storage_class.provisioner}"
            self._events.warning(claim, "ProvisioningFailed", why)
        else:
            await self._ask_provisioner(claim, storage_class.provisioner)
        if not claim.status.phase:
            await self._set_phase(claim, {"phase": "Pending"})

    def _volume_for(self, claim: PersistentVolumeClaim) -> PersistentVolume | None:
        """Return a volume promised to the claim, else the smallest free one, unless a consumer must come first."""
        volumes = self._volumes.objects.values()
        promised = next((volume for volume in volumes if catalog.is_meant_for(volume, claim)), None)
        if promised is not None:
            return promised if catalog.could_serve(promised, claim) else None
        if is_waiting_for_consumer(claim, self._classes.get(claim.spec.storage_class_name or "")):
            return None
        return next(iter(catalog.free_volumes(claim, volumes)), None)

    async def _give_default_class(self, claim: PersistentVolumeClaim) -> None:
        defaults = [
            found
            for found in self._classes.objects.values()
            if found.metadata.annotations.get(DEFAULT_CLASS) == "true"
        ]
        if defaults:
            newest = max(
                defaults, key=lambda found: (found.metadata.creation_timestamp or "", found.metadata.name)
            )
            patch = {"spec": {"storageClassName": newest.metadata.name}}
            await patch_same(self._cluster, claim, patch, any_version=True)

    async def _provision(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> None:
        body = new_volume(claim, storage_class)
        try:
            await self._cluster.create(PersistentVolume, body)
        except errors.AlreadyExists:
            return  # our cache is behind: its event brings us back
        name = body["metadata"]["name"]
        self._events.normal(claim, "ProvisioningSucceeded", f"Successfully provisioned volume {name}")

    async def _ask_provisioner(self, claim: PersistentVolumeClaim, name: str) -> None:
        """Tell the provisioner of somebody else that it is to make a volume."""
        marks = dict.fromkeys(ASKED_PROVISIONER, name)
        if not marks.items() <= claim.metadata.annotations.items():
            await patch_same(self._cluster, claim, {"metadata": {"annotations": marks}}, any_version=True)
        self._events.normal(
            claim,
            "ExternalProvisioning",
            f"Waiting for a volume to be created either by the external provisioner '{name}' or manually by the system "
            "administrator. If volume creation is delayed, please verify that the provisioner is running and correctly "
            "registered.",
        )

    async def _bind(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        ref = volume.spec.claim_ref
        if ref is None or ref.uid != claim.metadata.uid:
            marks = {BOUND_BY_CONTROLLER: "yes"} if ref is None else {}
            # Two claims may want one volume: only the version that we saw free may be taken.
            taken = {"metadata": {"annotations": marks}, "spec": {"claimRef": _claim_reference(claim)}}
            await patch_same(self._cluster, volume, taken)
        annotations = {BIND_COMPLETED: "yes", BOUND_BY_CONTROLLER: "yes"}
        patch = {"metadata": {"annotations": annotations}, "spec": {"volumeName": volume.metadata.name}}
        await patch_same(self._cluster, claim, patch, any_version=True)

    async def _complete(self, claim: PersistentVolumeClaim) -> None:
        """Write the status of a claim that names its volume."""
        volume = self._volumes.get(claim.spec.volume_name)
        if volume is None:
            if claim.status.phase == "Bound":
                await self._set_phase(claim, {"phase": "Lost"})
            return
        if volume.spec.claim_ref is None or not catalog.is_meant_for(volume, claim):
            if catalog.is_free_for(volume, claim):
                await self._bind(claim, volume)
            return
        wanted = {
            "phase": "Bound",
            "accessModes": list(volume.spec.access_modes),
            "capacity": dict(volume.spec.capacity),
        }
        status = claim.status
        if (status.phase, status.access_modes, status.capacity) != tuple(wanted.values()):
            await self._set_phase(claim, wanted)

    async def _set_phase(self, claim: PersistentVolumeClaim, status: dict[str, Any]) -> None:
        await patch_same(self._cluster, claim, {"status": status}, "status", any_version=True)

    # Volumes

    async def _reconcile_volume(self, name: str) -> None:
        volume = self._volumes.get(name)
        if volume is None or volume.metadata.deletion_timestamp is not None:
            return
        ref = volume.spec.claim_ref
        if ref is None or not ref.uid:
            await self._set_volume_phase(volume, "Available")
            return
        claim = self._claims.get(ref.name, ref.namespace)
        if claim is not None and claim.metadata.uid == ref.uid:
            if claim.spec.volume_name == name:
                await self._set_volume_phase(volume, "Bound")
            return
        if await self._is_claim_gone(ref):
            await self._reclaim(volume)

    async def _is_claim_gone(self, ref: ObjectReference) -> bool:
        """Asked of the API, not of our cache: what is deleted by mistake here would be data."""
        found = await get_if_there(self._cluster, PersistentVolumeClaim, ref.name, ref.namespace)
        return found is None or found.metadata.uid != ref.uid

    async def _reclaim(self, volume: PersistentVolume) -> None:
        is_ours = volume.metadata.annotations.get(PROVISIONED_BY) == PROVISIONER
        if volume.spec.persistent_volume_reclaim_policy == "Delete" and is_ours:
            await self._cluster.delete(PersistentVolume, volume.metadata.name, uid=volume.metadata.uid)
            log.info("volume deleted", extra={"volume": volume.metadata.name})
            return
        await self._set_volume_phase(volume, "Released")

    async def _set_volume_phase(self, volume: PersistentVolume, phase: str) -> None:
        if volume.status.phase != phase:
            patch = {"status": {"phase": phase}}
            await patch_same(self._cluster, volume, patch, "status", any_version=True)


def _claim_reference(claim: PersistentVolumeClaim) -> dict[str, Any]:
    """Return the reference to the claim that a volume belongs to, whatever its version."""
    found: dict[str, Any] = msgspec.to_builtins(
        msgspec.structs.replace(reference(claim), resource_version="")
    )
    return found


def _volume_key(claim: PersistentVolumeClaim) -> list[Key]:
    names = {claim.spec.volume_name, f"pvc-{claim.metadata.uid}"} - {""}
    return [("", name) for name in sorted(names)]


def _claim_key(volume: PersistentVolume) -> list[Key]:
    ref = volume.spec.claim_ref
    return [(ref.namespace, ref.name)] if ref is not None else []
