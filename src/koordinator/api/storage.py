"""Typed views of volumes, claims and what storage drivers say about nodes."""

from typing import Any, ClassVar

from koordinator.api.affinity import LabelSelector, NodeSelector, TopologySelectorTerm
from koordinator.api.meta import Condition, Object, ObjectReference, Resource, ViewPart
from koordinator.api.quantity import RawQuantity, ResourceList
from koordinator.api.volumes import DiskSources, HostPathSource


class VolumeResources(ViewPart, frozen=True, kw_only=True):
    requests: ResourceList = {}
    limits: ResourceList = {}


class PersistentVolumeClaimSpec(ViewPart, frozen=True, kw_only=True):
    """`storage_class_name` None means the default class, "" means none."""

    access_modes: list[str] = []
    selector: LabelSelector | None = None
    resources: VolumeResources = VolumeResources()
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaimStatus(ViewPart, frozen=True, kw_only=True):
    """`phase` is Pending, Bound or Lost."""

    phase: str = ""
    access_modes: list[str] = []
    capacity: ResourceList = {}
    conditions: list[Condition] = []


class PersistentVolumeClaim(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="",
        version="v1",
        kind="PersistentVolumeClaim",
        plural="persistentvolumeclaims",
        short_names=("pvc",),
        subresources=("status",),
    )

    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class VolumeNodeAffinity(ViewPart, frozen=True, kw_only=True):
    required: NodeSelector | None = None


class CSIVolumeSource(ViewPart, frozen=True, kw_only=True):
    """A volume of a CSI driver; (`driver`, `volume_handle`) identifies it in the cluster."""

    driver: str = ""
    volume_handle: str = ""
    read_only: bool = False
    volume_attributes: dict[str, str] = {}


class LocalSource(ViewPart, frozen=True, kw_only=True):
    path: str = ""


class PersistentVolumeSpec(DiskSources, frozen=True, kw_only=True):
    """Exactly one source is set (sources that nobody reads are not kept)."""

    capacity: ResourceList = {}
    access_modes: list[str] = []
    claim_ref: ObjectReference | None = None
    storage_class_name: str = ""
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    persistent_volume_reclaim_policy: str = ""
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIVolumeSource | None = None
    local: LocalSource | None = None
    host_path: HostPathSource | None = None


class PersistentVolumeStatus(ViewPart, frozen=True, kw_only=True):
    """`phase` is Pending, Available, Bound, Released or Failed."""

    phase: str = ""
    reason: str = ""
    message: str = ""


class PersistentVolume(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="",
        version="v1",
        kind="PersistentVolume",
        plural="persistentvolumes",
        namespaced=False,
        short_names=("pv",),
        subresources=("status",),
    )

    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class StorageClass(Object, frozen=True, kw_only=True):
    """`volume_binding_mode` is Immediate (also when None) or WaitForFirstConsumer."""

    resource: ClassVar[Resource] = Resource(
        group="storage.k8s.io",
        version="v1",
        kind="StorageClass",
        plural="storageclasses",
        namespaced=False,
        short_names=("sc",),
    )

    provisioner: str = ""
    parameters: dict[str, str] = {}
    reclaim_policy: str | None = None
    volume_binding_mode: str | None = None
    allow_volume_expansion: bool | None = None
    allowed_topologies: list[TopologySelectorTerm] = []


class VolumeNodeResources(ViewPart, frozen=True, kw_only=True):
    """`count` is how many volumes of the driver a node can have; None means no limit."""

    count: int | None = None


class CSINodeDriver(ViewPart, frozen=True, kw_only=True):
    name: str = ""
    node_id: str = ""
    topology_keys: list[str] = []
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(ViewPart, frozen=True, kw_only=True):
    drivers: list[CSINodeDriver] = []


class CSINode(Object, frozen=True, kw_only=True):
    """CSI drivers of the node of the same name."""

    resource: ClassVar[Resource] = Resource(
        group="storage.k8s.io", version="v1", kind="CSINode", plural="csinodes", namespaced=False
    )

    spec: CSINodeSpec = CSINodeSpec()


class CSIDriverSpec(ViewPart, frozen=True, kw_only=True):
    attach_required: bool | None = None
    storage_capacity: bool | None = None
    prevent_pod_scheduling_if_missing: bool | None = None
    volume_lifecycle_modes: list[str] = []


class CSIDriver(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="storage.k8s.io", version="v1", kind="CSIDriver", plural="csidrivers", namespaced=False
    )

    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(Object, frozen=True, kw_only=True):
    """Space left for new volumes of a storage class on the nodes that `node_topology` selects."""

    resource: ClassVar[Resource] = Resource(
        group="storage.k8s.io", version="v1", kind="CSIStorageCapacity", plural="csistoragecapacities"
    )

    node_topology: LabelSelector | None = None
    storage_class_name: str = ""
    capacity: RawQuantity | None = None
    maximum_volume_size: RawQuantity | None = None


class VolumeAttachmentSource(ViewPart, frozen=True, kw_only=True):
    persistent_volume_name: str | None = None
    inline_volume_spec: dict[str, Any] | None = None


class VolumeAttachmentSpec(ViewPart, frozen=True, kw_only=True):
    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachmentStatus(ViewPart, frozen=True, kw_only=True):
    attached: bool = False


class VolumeAttachment(Object, frozen=True, kw_only=True):
    """A volume that is, or shall be, attached to a node."""

    resource: ClassVar[Resource] = Resource(
        group="storage.k8s.io",
        version="v1",
        kind="VolumeAttachment",
        plural="volumeattachments",
        namespaced=False,
        subresources=("status",),
    )

    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()
    status: VolumeAttachmentStatus = VolumeAttachmentStatus()
