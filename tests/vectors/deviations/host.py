"""What the reference answers in areas of the host's files, worked out from what we answer."""

from typing import Any

from tests.vectors.deviations.question import Ask, Case

_DISKS = ("blkio.cost.qos", "blkio.cost.model")


# cgroup-v2-convert


def without_disks_of_v2(case: Case, ask: Ask) -> Any:
    """The reference has no files of disks on cgroup v2."""
    is_one = case["op"] == "path" and case["version"] == 2 and case["resource"] in _DISKS
    return {"path": None} if is_one else None
