"""A stage without a cluster and without an agent: groups laid out as the kubelet does, knobs set here.

Shows what this kernel can do at best, and what an agent has to reach.
"""

import asyncio
import os
import signal

from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import Files
from koordinator.local.node_demo.commands import Commands
from koordinator.local.node_demo.disk import Disk
from koordinator.local.node_demo.errors import DemoError
from koordinator.local.node_demo.plan import Hog, Mode
from koordinator.local.node_demo.stage import BATCH_PODS, SERVICE_REQUEST_MILLI, Setting

PREFIX = "koordinator-demo-"
_V2_CONTROLLERS = ("cpu", "cpuset", "memory", "io")
_BEST_EFFORT_SHARES = 2  # what the kubelet gives the class
_DEPTH_MAX = 4
_REMOVAL_TRIES = 100
_REMOVAL_PAUSE_S = 0.02


class ByHand:
    """Implements `stage.Stage` below a group of its own."""

    def __init__(self, cgroups: Cgroups, files: Files, commands: Commands, disk: Disk | None) -> None:
        self._cgroups = cgroups
        self._files = files
        self._commands = commands
        self._disk = disk
        self._root = f"{PREFIX}{os.getpid()}"
        self._service = f"{self._root}/burstable/service"
        self._running: dict[str, list[asyncio.subprocess.Process]] = {}

    async def open(self) -> None:
        """Make the groups and start the service."""
        for name in self._cgroups.children("") or ():
            pid = name.removeprefix(PREFIX)
            if name.startswith(PREFIX) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                await self._remove(name)  # left over by a run that was killed
        if self._cgroups.version == V2:
            self._delegate("")
        for group in (self._root, f"{self._root}/burstable", f"{self._root}/besteffort"):
            self._make(group)
        self._set(f"{self._root}/burstable", Knob.CPU_SHARES, 2 * _shares(SERVICE_REQUEST_MILLI))
        self._set(f"{self._root}/besteffort", Knob.CPU_SHARES, _BEST_EFFORT_SHARES)
        self._make(self._service)
        self._set(self._service, Knob.CPU_SHARES, _shares(SERVICE_REQUEST_MILLI))
        await self._start(self._service, self._commands.service())

    async def enter(self, mode: Mode, hog: Hog) -> Setting:
        """Batch as ordinary pods with equal shares, or best-effort with the knobs that protect services."""
        for group in [group for group in self._running if group != self._service]:
            await self._remove(group)
        groups = (
            [self._batch_group(mode, number) for number in range(BATCH_PODS)]
            if mode is not Mode.ALONE
            else []
        )
        evidence: dict[str, str] = {}
        if mode is Mode.MANAGED:
            evidence |= self._set(f"{self._root}/besteffort", Knob.CPU_IDLE, 1)
        for number, group in enumerate(groups):
            self._make(group)
            if mode is Mode.UNMANAGED:
                self._set(group, Knob.CPU_SHARES, _shares(SERVICE_REQUEST_MILLI // BATCH_PODS))
            elif hog is Hog.DISK and self._disk is not None and self._cgroups.version == V1:
                for knob, limit in self._disk.limits(BATCH_PODS).items():
                    evidence |= self._set(group, knob, limit)
            await self._start(group, self._commands.hog(hog, number))
        return Setting(
            port=self._commands.port,
            service_group=self._service,
            batch_groups=groups,
            counters=[self._commands.counters(hog, number) for number in range(len(groups))],
            agents=[],
            evidence=evidence,
        )

    async def close(self) -> None:
        """End all processes and remove the groups."""
        await self._remove(self._root)
        self._running.clear()

    def _batch_group(self, mode: Mode, number: int) -> str:
        parent = "burstable" if mode is Mode.UNMANAGED else "besteffort"
        return f"{self._root}/{parent}/batch-{number}"

    def _make(self, group: str) -> None:
        problem = self._cgroups.create(group)
        if problem is not None and not self._cgroups.exists(group):
            raise DemoError(f"group {group} cannot be made: {problem}")
        if self._cgroups.version == V2:
            if group.count("/") < 2:
                self._delegate(group)
            return
        parent = self._cgroups.directory(os.path.dirname(group), "cpuset")
        for file in ("cpuset.cpus", "cpuset.mems"):  # empty at first on v1: nobody may enter
            text = self._files.read(f"{parent}/{file}") or ""
            self._files.write(f"{self._cgroups.directory(group, 'cpuset')}/{file}", text.strip())

    def _delegate(self, group: str) -> None:
        for controller in _V2_CONTROLLERS:
            self._files.write(f"{self._cgroups.directory(group)}/cgroup.subtree_control", f"+{controller}")

    def _set(self, group: str, knob: Knob, value: int | str) -> dict[str, str]:
        problem = self._cgroups.write(knob, group, str(value))
        if problem is not None:
            raise DemoError(f"{knob} of {group} cannot be set to {value}: {problem}")
        return {self._cgroups.path(knob, group): (self._cgroups.read(knob, group) or "").strip()}

    async def _start(self, group: str, command: list[str]) -> None:
        process = await asyncio.create_subprocess_exec(*command, start_new_session=True)
        self._running.setdefault(group, []).append(process)
        problem = self._cgroups.move(process.pid, group)
        if problem is not None:
            raise DemoError(f"{command[0]} cannot enter group {group}: {problem}")

    async def _remove(self, group: str) -> None:
        below = sorted(self._cgroups.walk(group, _DEPTH_MAX), key=lambda each: -each.count("/"))
        for _ in range(_REMOVAL_TRIES):
            for each in below:
                for pid in self._cgroups.procs(each) or ():
                    if pid > 1:
                        os.kill(pid, signal.SIGKILL)
            for each in below:
                for process in self._running.get(each, ()):
                    await process.wait()
            if all(self._cgroups.remove(each) is None for each in below):
                break
            await asyncio.sleep(_REMOVAL_PAUSE_S)
        else:
            raise DemoError(f"group {group} cannot be removed")
        for each in below:
            self._running.pop(each, None)


def _shares(milli: int) -> int:
    return milli * 1_024 // 1_000
