"""The disk that batch hammers, and the limits that keep it usable for the service."""

import os
from pathlib import Path

import msgspec

from koordinator.host.cgroup_knobs import Knob

LIMIT_BPS = 50 * 2**20
"""Bytes per second, each way, that batch may move."""
LIMIT_IOPS = 1_000
"""Operations per second, each way."""


class WholeDisk(msgspec.Struct, frozen=True):
    """A whole disk: its name below /dev, and its number as the kernel writes it."""

    name: str
    number: str

    def limits(self, pods: int) -> dict[Knob, str]:
        """Values of the throttling knobs of one of so many groups (v1)."""
        return {
            Knob.BLKIO_READ_BPS: f"{self.number} {LIMIT_BPS // pods}",
            Knob.BLKIO_WRITE_BPS: f"{self.number} {LIMIT_BPS // pods}",
            Knob.BLKIO_READ_IOPS: f"{self.number} {LIMIT_IOPS // pods}",
            Knob.BLKIO_WRITE_IOPS: f"{self.number} {LIMIT_IOPS // pods}",
        }


def disk_of(path: Path, sys: str = "/sys") -> WholeDisk | None:
    """Return the disk that a directory is on; None when that is no single disk (memory, network, overlay)."""
    number = os.stat(path).st_dev
    device = Path(f"{sys}/dev/block/{os.major(number)}:{os.minor(number)}")
    try:
        device = device.resolve(strict=True)
        if (device / "partition").exists():
            device = device.parent
        return WholeDisk(f"/dev/{device.name}", (device / "dev").read_text(encoding="utf-8").strip())
    except OSError:
        return None
