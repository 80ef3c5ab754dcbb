"""Disks, partitions, volume groups and mounts, from `/sys/block` and the mount table.

They say the same as lsblk, vgs, lvs and findmnt, without starting four processes, and with the right disk for
partitions of all kinds. Source: behaviour/koordlet-observe 5.11.
"""

import msgspec

from koordinator.host import mounts
from koordinator.host.errors import ContentError
from koordinator.host.files import Files, HostRoots


class LocalStorage(msgspec.Struct, frozen=True):
    """The places to which block devices and mounts lead; empty text where unknown."""

    numbers: dict[str, str]
    """Disk → `major:minor`."""
    partitions: dict[str, str]
    """Partition → disk."""
    volume_groups: dict[str, str]
    """Volume group on one physical volume → disk."""
    logical_volumes: dict[str, str]
    """Mapper device → volume group."""
    mounts: dict[str, str]
    """Mount point → source."""

    def disk_of(self, device: str) -> str:
        """Return the disk below a disk, partition or logical volume; empty when unknown."""
        if device in self.numbers:
            return device
        if device in self.partitions:
            return self.partitions[device]
        return self.volume_groups.get(self.logical_volumes.get(device, ""), "")


def mapper_device(group: str, volume: str) -> str:
    """Device of a logical volume; the mapper doubles dashes within names."""
    doubled = (name.replace("-", "--") for name in (group, volume))
    return f"/dev/mapper/{'-'.join(doubled)}"


_NO_DISKS = ("loop", "dm-", "md", "sr", "fd")
"""Block devices that lsblk does not call disks."""
_LVM_UUID = "LVM-"


def local_storage(files: Files, roots: HostRoots) -> LocalStorage:
    """Return where block devices and mounts of the host lead to.

    Raises: ContentError when the kernel lists no block devices at all.
    """
    base = f"{roots.sys}/block"
    names = files.names(base)
    if names is None:
        raise ContentError("/sys/block", "unreadable")
    numbers: dict[str, str] = {}
    partitions: dict[str, str] = {}
    for name in names:
        number = files.read(f"{base}/{name}/dev")
        if number is None or name.startswith(_NO_DISKS):
            continue
        numbers[f"/dev/{name}"] = number.strip()
        for part in files.names(f"{base}/{name}") or ():
            if files.exists(f"{base}/{name}/{part}/partition"):
                partitions[f"/dev/{part}"] = f"/dev/{name}"
    volume_groups, logical_volumes = _volumes(files, base, names, partitions)
    table = mounts.parse(_mountinfo(files, roots))
    return LocalStorage(
        numbers, partitions, volume_groups, logical_volumes, {m.point: m.source for m in table}
    )


def signature(files: Files, roots: HostRoots) -> object:
    """Something that differs when disks or mounts have changed; much cheaper than `local_storage`."""
    return tuple(files.names(f"{roots.sys}/block") or ()), _mountinfo(files, roots)


def _mountinfo(files: Files, roots: HostRoots) -> str:
    """Mounts of the host's first process, which a container sees when it shares the host's processes."""
    first = files.read(f"{roots.proc}/1/mountinfo")
    return first if first is not None else files.read(f"{roots.proc}/self/mountinfo") or ""


def _volumes(
    files: Files, base: str, names: list[str], partitions: dict[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Volume groups on one physical volume → disk, and mapper devices → volume group."""
    disks_of_group: dict[str, set[str]] = {}
    logical_volumes = {}
    for name in names:
        if not (files.read(f"{base}/{name}/dm/uuid") or "").startswith(_LVM_UUID):
            continue
        mapped = (files.read(f"{base}/{name}/dm/name") or "").strip()
        group, volume = _group_and_volume(mapped)
        if not volume:
            continue
        logical_volumes[mapper_device(group, volume)] = group
        below = {f"/dev/{slave}" for slave in files.names(f"{base}/{name}/slaves") or ()}
        disks_of_group.setdefault(group, set()).update(below)
    volume_groups = {}
    for group, devices in disks_of_group.items():
        if len(devices) == 1:
            (device,) = devices
            volume_groups[group] = partitions.get(device, device)
    return volume_groups, logical_volumes


def _group_and_volume(mapped: str) -> tuple[str, str]:
    """Return names within that of a mapper device: one dash separates them, doubled ones belong to the names."""
    group, _, volume = mapped.replace("--", "\0").partition("-")
    return group.replace("\0", "-"), volume.replace("\0", "-")
