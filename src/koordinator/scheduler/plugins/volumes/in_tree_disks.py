"""Disks that Kubernetes once attached itself and CSI drivers attach now: which driver, and what a disk is called there.
Source: behaviour/scheduler B9."""

from koordinator.api.core import Pod
from koordinator.api.storage import PersistentVolume
from koordinator.api.volumes import DiskSources
from koordinator.scheduler.table.pod_info import PodInfo

Disk = tuple[str, str]
"""(driver, handle)"""

DRIVERS = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
}
"""By the provisioner that storage classes name."""
_EBS, _GCE, _AZURE, _CINDER = DRIVERS.values()
_ZONES = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone")


def attached_as(volume: PersistentVolume) -> Disk | None:
    """Return what a volume is to the driver that attaches it; None for volumes that no driver attaches."""
    csi = volume.spec.csi
    if csi is not None:
        return csi.driver, csi.volume_handle
    zones = (volume.metadata.labels.get(key, "") for key in _ZONES)
    return _disk(volume.spec, next(filter(None, zones), ""))


def disks_of(pod: Pod) -> tuple[Disk, ...]:
    """Return the disks that a pod names itself, without a claim."""
    return tuple([disk for volume in pod.spec.volumes if (disk := _disk(volume)) is not None])


def inline_disks(pod: PodInfo) -> tuple[Disk, ...]:
    """Return the same, to tell classes of pods apart."""
    return disks_of(pod.pod) if pod.pod.spec.volumes else ()


def _disk(source: DiskSources, zone: str = "") -> Disk | None:
    if (ebs := source.aws_elastic_block_store) is not None:
        # aws://us-east-1a/vol-1 is the same disk as vol-1.
        is_url = ebs.volume_id.startswith("aws://")
        return _EBS, ebs.volume_id.rpartition("/")[2] if is_url else ebs.volume_id
    if (gce := source.gce_persistent_disk) is not None:
        return _GCE, f"{zone}/{gce.pd_name}"
    if (azure := source.azure_disk) is not None:
        return _AZURE, azure.disk_uri
    if (cinder := source.cinder) is not None:
        return _CINDER, cinder.volume_id
    return None
