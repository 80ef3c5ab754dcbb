"""Disks, partitions, logical volumes and mounts from `/sys/block` and the mount table.

The same as the outputs of lsblk, vgs, lvs and findmnt say (`storage.parse`), without starting four processes, and with
the right disk for partitions of all kinds. Source: behaviour/koordlet-observe 5.11.
"""

from koordinator.host import mounts, storage
from koordinator.host.errors import ContentError
from koordinator.host.files import Files
from koordinator.host.roots import HostRoots
from koordinator.host.storage import LocalStorage

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
        logical_volumes[storage.mapper_device(group, volume)] = group
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
