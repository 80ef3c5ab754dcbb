"""Sandboxes and containers that were made by CRI calls: processes in groups, as those of pods are."""

import asyncio
import contextlib
import os
import secrets
import signal
import tempfile
from collections.abc import Callable
from typing import IO

from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroup_layout import ContainerID, Runtime
from koordinator.host.cri_messages import (
    ContainerConfig,
    ContainerState,
    LinuxContainerResources,
    LinuxPodSandboxConfig,
    PodSandboxConfig,
)
from koordinator.host.errors import HostError
from koordinator.host.machine import Processes
from koordinator.local.processes import groups, launch
from koordinator.local.processes.groups import GroupError, PodGroups
from koordinator.local.processes.launch import Exit, Process

_KNOBS = (
    ("cpu_shares", Knob.CPU_SHARES),
    ("cpu_period", Knob.CPU_PERIOD),
    ("cpu_quota", Knob.CPU_QUOTA),
    ("memory_limit_in_bytes", Knob.MEMORY_LIMIT),
    ("cpuset_cpus", Knob.CPUSET),
)
Start = Callable[[list[str], IO[bytes], IO[bytes]], Process]
"""Starts a command with files for its output and its errors."""
EXEC_BYTES_MAX = 8 * 1024 * 1024
"""Limit of each stream of a command, as containerd has it; the rest is dropped."""


class CallRefused(HostError):
    """A call cannot be carried out."""


class NodeServices:
    """The means of this node."""

    def __init__(self, kept: PodGroups, processes: Processes) -> None:
        self.groups = kept
        self.processes = processes

    def pod_group(self, config: PodSandboxConfig) -> str:
        """Return the group of a pod: its `cgroup_parent` below this node's, or one by its UID.

        Raises: CallRefused.
        """
        wanted = (config.linux or LinuxPodSandboxConfig()).cgroup_parent.strip("/")
        if not wanted:
            uid = config.metadata.uid if config.metadata is not None else ""
            wanted = f"{self.groups.root.removeprefix(self.groups.parent).strip('/')}/pod{uid or secrets.token_hex(8)}"
        path = cgroup_layout.join(self.groups.parent, wanted)
        if ".." in path.split("/") or not path.startswith(f"{self.groups.root}/"):
            raise CallRefused(
                f"cgroup parent {wanted!r} is not below {self.groups.root!r}, the pods of this node"
            )
        return path

    def group_in(self, pod_group: str, own_id: str) -> str:
        """Return the group of a container, made. Raises: GroupError."""
        group = self.groups.container_group(pod_group, ContainerID(Runtime.CONTAINERD, own_id))
        self.groups.make(group, can_hold_groups=False)
        return group

    def enter(self, group: str, score: int) -> Callable[[int], None]:
        """Return what moves a process into a group and says how readily the kernel may kill it there."""

        def enter(pid: int) -> None:
            self.groups.enter(pid, group)
            self.processes.set_oom_score_adj(pid, score)

        return enter

    def set_resources(self, group: str, wanted: LinuxContainerResources) -> None:
        """Write what a group gets; what is 0 or empty stays. Raises: GroupError."""
        for name, knob in _KNOBS:
            value = getattr(wanted, name)
            problem = self.groups.cgroups.write(knob, group, str(value)) if value else None
            if problem is not None:
                raise GroupError(group, problem)


class Sandbox:
    """A sandbox whose process does nothing."""

    def __init__(
        self, kit: NodeServices, own_id: str, config: PodSandboxConfig, runtime_handler: str, now_ns: int
    ) -> None:
        self.id, self.config, self.runtime_handler, self.created_ns = own_id, config, runtime_handler, now_ns
        self._kit = kit
        self.pod_group = kit.pod_group(config)
        self._process: Process | None = None

    @property
    def is_ready(self) -> bool:
        """Return whether it runs."""
        return self._process is not None and not self._process.has_ended

    def start(self) -> None:
        """Make the pod's group, and run. Raises: GroupError, StartError, OSError."""
        self._kit.groups.make(self.pod_group, can_hold_groups=True)
        group = self._kit.group_in(self.pod_group, self.id)
        self._process = launch.start_pause(self._kit.enter(group, groups.SANDBOX_OOM_SCORE))

    async def stop(self) -> None:
        """Kill all of the pod. Raises: GroupError."""
        await self._kit.groups.kill(self.pod_group)

    async def remove(self) -> None:
        """Kill all of the pod, and remove its group. Raises: GroupError."""
        await self._kit.groups.remove(self.pod_group)


class Container:
    """A container: made, started once, ended."""

    def __init__(
        self, kit: NodeServices, own_id: str, sandbox: Sandbox, config: ContainerConfig, now_ns: int
    ) -> None:
        self.id, self.sandbox, self.config, self.created_ns = own_id, sandbox, config, now_ns
        self.started_ns = self.finished_ns = 0
        self.ended: Exit | None = None
        self.resources = (
            config.linux.resources if config.linux is not None else None
        ) or LinuxContainerResources()
        self._kit = kit
        self.group = kit.group_in(sandbox.pod_group, own_id)
        self._process: Process | None = None
        kit.set_resources(self.group, self.resources)

    @property
    def state(self) -> ContainerState:
        """Return where it is in its life."""
        if self.ended is not None:
            return ContainerState.EXITED
        return ContainerState.CREATED if self._process is None else ContainerState.RUNNING

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": launch.DEFAULT_PATH, **{each.key: each.value for each in self.config.envs}}

    def start(self, now_ns: int) -> Process:
        """Run its command. Raises: CallRefused, StartError, GroupError, OSError."""
        if self._process is not None:
            raise CallRefused(f"container {self.id} was started before")
        with open("/dev/null", "wb") as nothing:
            self._process = self._launched([*self.config.command, *self.config.args], nothing, nothing)
        self.started_ns = now_ns
        return self._process

    def _launched(self, command: list[str], out: IO[bytes], err: IO[bytes]) -> Process:
        return launch.start(
            command,
            environment=self.environment,
            folder=self.config.working_dir or "/",
            output=(out.fileno(), err.fileno()),
            enter=self._kit.enter(self.group, self.resources.oom_score_adj),
        )

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM, after the time of grace SIGKILL. Raises: GroupError."""
        await end(self._kit.groups, self.group, self._process, grace_s)

    async def run(self, command: list[str], timeout_s: float) -> tuple[bytes, bytes, int]:
        """Run another command in it: output, errors, exit code. Raises: CallRefused, TimeoutError, and as `start`."""
        if self.state is not ContainerState.RUNNING:
            raise CallRefused(f"container {self.id} does not run")
        return await output_of(self._launched, command, timeout_s)

    def update(self, wanted: LinuxContainerResources) -> None:
        """Change what it gets. Raises: GroupError."""
        self._kit.set_resources(self.group, wanted)

    async def remove(self) -> None:
        """Kill it and remove its group. Raises: GroupError."""
        await self._kit.groups.remove(self.group)


async def end(kept: PodGroups, group: str, process: Process | None, grace_s: float) -> None:
    """End what runs in a group: first by SIGTERM, where there is a time of grace. Raises: GroupError."""
    if process is not None and not process.has_ended and grace_s > 0:
        process.send(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await process.wait()
    await kept.kill(group)
    if process is not None:
        await process.wait()


async def output_of(start: Start, command: list[str], timeout_s: float) -> tuple[bytes, bytes, int]:
    """Run a command to its end. Raises: TimeoutError, once it is killed; what `start` raises."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(command, out, err)
        try:
            async with asyncio.timeout(timeout_s or None):
                ended = await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        found = []
        for stream in (out, err):
            stream.seek(0)
            found.append(stream.read(EXEC_BYTES_MAX))
    return found[0], found[1], ended.code
