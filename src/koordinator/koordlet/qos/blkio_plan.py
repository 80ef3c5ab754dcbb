"""Decide which groups get which limits on which disk: pure. Source: behaviour/koordlet-act 11.

Cgroup v1 limits each group by itself (its throttling has no hierarchy): a limit on the group of all best-effort pods,
or of one pod, holds nobody back, since the threads are in the groups of containers. So what a group may use is shared
out evenly among the containers that run in it. Cgroup v2 needs no such help.
"""

from collections.abc import Iterable, Mapping

import msgspec

from koordinator.api.annotations.koordlet import BLKIO_QOS
from koordinator.api.errors import ProtocolError
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.api.slo_qos import BlkIOQOS, BlockConfig, IOConfig, ResourceQOS, ResourceQOSStrategy
from koordinator.host.storage import LocalStorage
from koordinator.koordlet.node_pods import PodRecord

_RUNNING = "Running"

Disks = dict[str, IOConfig]
"""`major:minor` → settings."""


class DiskPlan(msgspec.Struct, frozen=True):
    """The limits that groups should have; a group that is not named should have nothing of ours."""

    groups: dict[str, Disks]
    """Groups of the best-effort class and of pods: limits and weight."""
    shares: dict[str, Disks]
    """Groups of containers: limits only, where limits do not reach down by themselves."""
    root: Disks
    """When a disk counts as full, and what its operations cost."""
    problems: tuple[str, ...]
    """What cannot be done, and why."""


class _Place(msgspec.Struct, frozen=True):
    """The place where disks are looked for."""

    storage: LocalStorage
    volumes: Mapping[str, str]
    kubelet: str


def plan(
    strategy: ResourceQOSStrategy,
    pods: Iterable[PodRecord],
    storage: LocalStorage,
    volumes: Mapping[str, str],
    *,
    best_effort: str,
    kubelet: str,
    is_flat: bool,
) -> DiskPlan:
    """`volumes` leads from `namespace/claim` to the volume; `kubelet` is its directory, `best_effort` the group of
    best-effort pods; `is_flat` says that limits do not reach down.
    """
    place = _Place(storage, volumes, kubelet)
    problems = [
        f"{name}.blkioQOS is not supported: only beClass, cgroupRoot and pods have limits"
        for name, section in (("lsrClass", strategy.lsr_class), ("lsClass", strategy.ls_class))
        if _blocks(section)
    ]
    groups: dict[str, Disks] = {}
    shares: dict[str, Disks] = {}
    known = list(pods)
    if be_limits := _disks("beClass", _blocks(strategy.be_class), place, None, problems):
        groups[best_effort] = be_limits
        if is_flat:
            leaves = [
                leaf for each in known if each.kube_qos is KubeQoS.BEST_EFFORT for leaf in _leaves(each)
            ]
            _share(shares, be_limits, leaves)
    for record in known:
        limits = _of_pod(record, place, problems)
        if limits:
            groups[record.group] = limits
            if is_flat:
                _share(shares, limits, _leaves(record))
    root = _disks("cgroupRoot", _blocks(strategy.cgroup_root), place, None, problems)
    return DiskPlan(groups, shares, root, tuple(problems))


def disk_of(block: BlockConfig, record: PodRecord | None, place: _Place) -> str:
    """Return number of the disk that a block names, for a pod's volume with the pod; empty when there is none."""
    storage = place.storage
    match block.type:
        case "device":
            device = storage.disk_of(block.name)
        case "volumegroup":
            device = storage.volume_groups.get(block.name, "")
        case "podvolume" if record is not None:
            volume = _volume_of(record, block.name, place.volumes)
            where = f"{place.kubelet}/pods/{record.uid}/volumes/kubernetes.io~csi/{volume}/mount"
            device = storage.disk_of(storage.mounts.get(where, "")) if volume else ""
        case _:
            return ""
    return storage.numbers.get(device, "")


def _volume_of(record: PodRecord, name: str, volumes: Mapping[str, str]) -> str:
    """Directory of a pod's volume: that of the bound volume, or its own name when it is part of the pod."""
    for volume in record.pod.spec.volumes:
        if volume.name == name:
            claim = volume.persistent_volume_claim
            if claim is not None:
                return volumes.get(f"{record.pod.metadata.namespace}/{claim.claim_name}", "")
            return volume.name if volume.csi is not None else ""
    return ""


def _of_pod(record: PodRecord, place: _Place, problems: list[str]) -> Disks:
    if record.pod.status.phase != _RUNNING or record.qos is QoSClass.NONE:
        return {}
    try:
        asked = BLKIO_QOS.read(record.pod.metadata.annotations, record.key)
    except ProtocolError as error:
        problems.append(str(error))
        return {}
    return _disks(record.key, asked.blocks if asked is not None else [], place, record, problems)


def _disks(
    who: str, blocks: Iterable[BlockConfig], place: _Place, record: PodRecord | None, problems: list[str]
) -> Disks:
    found: Disks = {}
    for block in blocks:
        number = disk_of(block, record, place)
        if number:
            found[number] = block.io_cfg
        else:
            problems.append(f"{who}: no disk for {block.type or 'block without type'} {block.name!r}")
    return found


def _blocks(section: ResourceQOS | None) -> list[BlockConfig]:
    settings: BlkIOQOS | None = section.blkio_qos if section is not None else None
    return settings.blocks if settings is not None and settings.enable else []


def _leaves(record: PodRecord) -> list[str]:
    return [container.group for container in record.containers if container.is_running]


def _share(shares: dict[str, Disks], limits: Disks, leaves: list[str]) -> None:
    """Give each leaf its part, or what it has already if that is less."""
    for leaf in leaves:
        own = shares.setdefault(leaf, {})
        for disk, whole in limits.items():
            old = own.get(disk, IOConfig())
            parts = len(leaves)
            own[disk] = IOConfig(
                read_iops=_least(old.read_iops, whole.read_iops, parts),
                write_iops=_least(old.write_iops, whole.write_iops, parts),
                read_bps=_least(old.read_bps, whole.read_bps, parts),
                write_bps=_least(old.write_bps, whole.write_bps, parts),
            )


def _least(old: int | None, whole: int | None, parts: int) -> int | None:
    if not whole or whole < 0:
        return old
    part = max(whole // parts, 1)
    return part if not old else min(old, part)
