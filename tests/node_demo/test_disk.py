"""Which disk a folder is on."""

import os
from pathlib import Path

from koordinator.host.cgroup_knobs import Knob
from koordinator.node_demo import disk
from koordinator.node_demo.disk import WholeDisk


def sys_tree(root: Path, number: int, is_partition: bool) -> str:
    """A device tree with one disk that has the given device number, or a partition with it."""
    whole = root / "devices" / "vda"
    whole.mkdir(parents=True)
    (whole / "dev").write_text("254:0\n")
    device = whole
    if is_partition:
        device = whole / "vda1"
        device.mkdir()
        (device / "partition").write_text("1\n")
        (device / "dev").write_text("254:1\n")
    (root / "dev" / "block").mkdir(parents=True)
    (root / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}").symlink_to(device)
    return str(root)


def test_a_folder_on_a_partition_is_on_the_whole_disk(tmp_path: Path) -> None:
    sys = sys_tree(tmp_path / "sys", os.stat(tmp_path).st_dev, is_partition=True)

    assert disk.disk_of(tmp_path, sys) == WholeDisk("/dev/vda", "254:0")


def test_a_folder_on_a_whole_disk_is_on_that(tmp_path: Path) -> None:
    sys = sys_tree(tmp_path / "sys", os.stat(tmp_path).st_dev, is_partition=False)

    assert disk.disk_of(tmp_path, sys) == WholeDisk("/dev/vda", "254:0")


def test_a_folder_in_memory_is_on_no_disk(tmp_path: Path) -> None:
    assert disk.disk_of(tmp_path, str(tmp_path / "sys")) is None


def test_batch_pods_share_the_limits() -> None:
    limits = WholeDisk("/dev/vda", "254:0").limits(2)

    assert limits[Knob.BLKIO_WRITE_BPS] == f"254:0 {disk.LIMIT_BPS // 2}"
    assert limits[Knob.BLKIO_READ_IOPS] == f"254:0 {disk.LIMIT_IOPS // 2}"
