"""End everything that runs in a group of processes, also what is started meanwhile."""

import asyncio
import os
import signal

from koordinator.host.cgroup_knobs import V2
from koordinator.host.host import Host

DEPTH_MAX = 8
ROUNDS_MAX = 20
PAUSE_S = 0.02
"""Between two rounds: 0.4 s in all, after which what is left hangs in the kernel and ends when that lets go of it."""

_KILL = "cgroup.kill"


async def kill_group(host: Host, group: str) -> str:
    """Kill the processes of a group and of those below it; return what was wrong, empty when all got the signal.

    A process may start others until it is gone, so the lists are read again until they are empty. From Linux 5.14 on
    the kernel itself does that for groups of v2 (`cgroup.kill`).
    """
    for round_number in range(ROUNDS_MAX):
        pids = members(host, group)
        if not pids:
            return "" if round_number else f"no process runs in {group}"
        if hidden := [pid for pid in pids if pid <= 1]:
            return f"processes of {group} are not in this PID namespace ({len(hidden)} of {len(pids)})"
        if problem := _signal(host, group, pids):
            return problem
        await asyncio.sleep(PAUSE_S)
    return ""


def members(host: Host, group: str) -> list[int]:
    """Return the ids of all processes of a group and of those below it; none when it is gone."""
    return [pid for each in host.cgroups.walk(group, DEPTH_MAX) for pid in host.cgroups.procs(each) or ()]


def _signal(host: Host, group: str, pids: list[int]) -> str:
    if host.cgroups.version == V2:
        path = f"{host.cgroups.directory(group)}/{_KILL}"
        if host.files.exists(path):
            problem = host.files.write(path, "1")
            return str(problem) if problem is not None else ""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended by itself
        except OSError as error:
            return f"process {pid} of {group}: {os.strerror(error.errno or 0)}"
    return ""
