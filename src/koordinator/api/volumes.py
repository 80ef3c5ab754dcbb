"""Volumes of a pod, as far as scheduling and the node agent read them."""

from typing import Any

from koordinator.api.meta import ViewPart
from koordinator.api.quantity import RawQuantity


class PersistentVolumeClaimSource(ViewPart, frozen=True, kw_only=True):
    claim_name: str = ""
    read_only: bool = False


class EphemeralSource(ViewPart, frozen=True, kw_only=True):
    """A claim named `<pod>-<volume>` made for the pod; the template is kept whole."""

    volume_claim_template: dict[str, Any] = {}


class HostPathSource(ViewPart, frozen=True, kw_only=True):
    path: str = ""
    type: str | None = None


class EmptyDirSource(ViewPart, frozen=True, kw_only=True):
    medium: str = ""
    size_limit: RawQuantity | None = None


class ObjectSource(ViewPart, frozen=True, kw_only=True):
    """A ConfigMap (`name`) or a Secret (`secret_name`) mounted as files."""

    name: str = ""
    secret_name: str = ""
    optional: bool | None = None


class GCEPersistentDiskSource(ViewPart, frozen=True, kw_only=True):
    pd_name: str = ""
    read_only: bool = False


class AWSElasticBlockStoreSource(ViewPart, frozen=True, kw_only=True):
    volume_id: str = ""
    read_only: bool = False


class AzureDiskSource(ViewPart, frozen=True, kw_only=True):
    disk_name: str = ""
    disk_uri: str = ""


class CinderSource(ViewPart, frozen=True, kw_only=True):
    volume_id: str = ""


class RBDSource(ViewPart, frozen=True, kw_only=True):
    """A Ceph block image; the field is named `monitors` in pods and volumes alike."""

    monitors: list[str] = []
    pool: str = ""
    image: str = ""
    read_only: bool = False


class ISCSISource(ViewPart, frozen=True, kw_only=True):
    target_portal: str = ""
    iqn: str = ""
    lun: int = 0
    read_only: bool = False


class InlineCSISource(ViewPart, frozen=True, kw_only=True):
    """A CSI volume that lives and dies with the pod."""

    driver: str = ""
    read_only: bool | None = None


class DiskSources(ViewPart, frozen=True, kw_only=True):
    """Disks that Kubernetes attaches without a CSI driver."""

    gce_persistent_disk: GCEPersistentDiskSource | None = None
    aws_elastic_block_store: AWSElasticBlockStoreSource | None = None
    azure_disk: AzureDiskSource | None = None
    cinder: CinderSource | None = None
    rbd: RBDSource | None = None
    iscsi: ISCSISource | None = None


class Volume(DiskSources, frozen=True, kw_only=True):
    """A named volume; exactly one source is set (sources that nobody reads are not kept)."""

    name: str = ""
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    ephemeral: EphemeralSource | None = None
    host_path: HostPathSource | None = None
    empty_dir: EmptyDirSource | None = None
    config_map: ObjectSource | None = None
    secret: ObjectSource | None = None
    csi: InlineCSISource | None = None


class VolumeMount(ViewPart, frozen=True, kw_only=True):
    name: str = ""
    mount_path: str = ""
    sub_path: str = ""
    read_only: bool = False


class VolumeDevice(ViewPart, frozen=True, kw_only=True):
    name: str = ""
    device_path: str = ""
