"""The group that everything of a run is below, laid out as the kubelet does it; nothing of it stays behind."""

import os

from koordinator.host.cgroup_knobs import Knob, shares_of_milli
from koordinator.host.cgroups import Cgroups
from koordinator.local.processes.groups import GroupError, PodGroups
from koordinator.node_demo.plan import DemoError

_PREFIX = "koordinator-demo-"


def name() -> str:
    """Return the group of this process."""
    return f"{_PREFIX}{os.getpid()}"


async def remove_left_overs(cgroups: Cgroups) -> None:
    """Groups of runs that were killed. Raises: DemoError."""
    for each in cgroups.children("") or ():
        pid = each.removeprefix(_PREFIX)
        if each.startswith(_PREFIX) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            await remove(cgroups, each)


async def remove(cgroups: Cgroups, group: str) -> None:
    """Kill what runs in a group and remove it with all below. Raises: DemoError."""
    try:
        await PodGroups(cgroups, parent=group).remove(group)
    except GroupError as error:
        raise DemoError(str(error)) from error


def weigh(cgroups: Cgroups, cpus: int) -> None:
    """Give this run's group the weight that the kubelet gives the group of all pods. Raises: DemoError."""
    problem = cgroups.write(Knob.CPU_SHARES, name(), str(shares_of_milli(1_000 * cpus)))
    if problem is not None:
        raise DemoError(f"group {name()}: {problem}")
