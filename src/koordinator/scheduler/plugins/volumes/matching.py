"""Decide which volumes suit a claim, apart from where they are. Pure. Source: behaviour/scheduler B9 (Volumes)."""

from collections.abc import Iterable

from koordinator.api import label_selector, quantity
from koordinator.api.quantity import Quantity
from koordinator.api.storage import (
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from koordinator.scheduler.plugins.volumes.catalog import class_of, class_of_volume

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


def can_provision(storage_class: StorageClass | None) -> bool:
    """Return whether somebody makes volumes of the class on demand."""
    return storage_class is not None and storage_class.provisioner not in ("", NO_PROVISIONER)


def has_room(capacity: CSIStorageCapacity, storage_class: StorageClass, claim: PersistentVolumeClaim) -> bool:
    """Return whether a driver's report leaves room for the claim, on the nodes that it is about."""
    if capacity.storage_class_name != storage_class.metadata.name:
        return False
    limit = capacity.maximum_volume_size if capacity.maximum_volume_size is not None else capacity.capacity
    return limit is not None and quantity.of(limit) >= wanted_size(claim)
