"""What lsblk, vgs, lvs and findmnt tell of disks and mounts: `host.storage` must find the same by itself."""

import re

from koordinator.host.errors import ContentError
from koordinator.host.storage import LocalStorage, mapper_device

LSBLK = ("lsblk", "-P", "-o", "NAME,TYPE,MAJ:MIN")
MINORS_PER_DISK = 16
"""SCSI and virtio disks number their partitions within blocks of 16 minors."""

_PAIR = re.compile(r'([A-Z:]+)="((?:[^"\\]|\\.)*)"')


def parse(lsblk: str, vgs: str, lvs: str, findmnt: str) -> LocalStorage:
    """Return the storage that the outputs of these tools describe; vgs has columns vg_name, pv_count and
    pv_name, lvs lv_name and vg_name.

    Raises: ContentError when any line does not fit, since a part of it could mislead.
    """
    numbers, partitions = _blocks(lsblk)
    volume_groups = {}
    for line in _lines(vgs):
        name, volumes, device = _words("vgs", line, 3)
        if volumes == "1":
            volume_groups[name] = device if device in numbers else partitions.get(device, "")
    logical_volumes = {}
    for line in _lines(lvs):
        volume, group = _words("lvs", line, 2)
        logical_volumes[mapper_device(group, volume)] = group
    mounts = {}
    for line in _lines(findmnt):
        pairs = _pairs("findmnt", line, ("TARGET", "SOURCE"))
        mounts[pairs["TARGET"]] = pairs["SOURCE"]
    return LocalStorage(numbers, partitions, volume_groups, logical_volumes, mounts)


def _blocks(lsblk: str) -> tuple[dict[str, str], dict[str, str]]:
    """Numbers of disks, and the disks of partitions, of those named before; other kinds of devices are left out."""
    disks: dict[str, str] = {}
    disk_of_number: dict[str, str] = {}
    partitions: dict[str, str] = {}
    for line in _lines(lsblk):
        pairs = _pairs("lsblk", line, ("NAME", "TYPE", "MAJ:MIN"))
        device, number = f"/dev/{pairs['NAME']}", pairs["MAJ:MIN"]
        if pairs["TYPE"] == "disk":
            disks[device] = number
            disk_of_number[number] = device
        elif pairs["TYPE"] == "part":
            partitions[device] = disk_of_number.get(_disk_number(number), "")
    return disks, partitions


def _disk_number(number: str) -> str:
    major, separator, minor = number.partition(":")
    if not separator or not minor.isdigit():
        raise ContentError("lsblk", f"{number[:40]!r} is not major:minor")
    return f"{major}:{int(minor) // MINORS_PER_DISK * MINORS_PER_DISK}"


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _words(source: str, line: str, expected: int) -> list[str]:
    words = line.split()
    if len(words) != expected:
        raise ContentError(source, f"{len(words)} words in {line[:60]!r}, expected {expected}")
    return words


def _pairs(source: str, line: str, names: tuple[str, ...]) -> dict[str, str]:
    pairs = dict(_PAIR.findall(line))
    missing = [name for name in names if name not in pairs]
    if missing:
        raise ContentError(source, f"no {missing[0]} in {line[:60]!r}")
    return pairs
