"""Answers of hooks as updates of groups. Pure."""

from collections.abc import Iterator

from koordinator.host.cgroup_knobs import Knob
from koordinator.koordlet.hooks.contexts import Response
from koordinator.koordlet.writing.update_plan import Update


def updates_of(response: Response, group: str, reason: str) -> Iterator[Update]:
    """What the files of a group should say; what no file holds (environment, mounts, devices) is left out."""
    for knob, value in (
        (Knob.CPU_SHARES, response.shares),
        (Knob.CPU_QUOTA, response.quota_us),
        (Knob.CPUSET, response.cpuset or None),
        (Knob.MEMORY_LIMIT, response.memory_bytes),
        (Knob.CPU_BVT, response.bvt),
        (Knob.CPU_IDLE, response.cpu_idle),
        (Knob.NET_CLASS, response.net_class_id),
    ):
        if value is not None:
            yield Update(group, knob, str(value), reason)
