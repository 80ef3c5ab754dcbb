"""A stage without a cluster and without an agent: groups laid out as the kubelet does, knobs set here.

Shows what this kernel can do at best, and what an agent has to reach.
"""

import asyncio

from koordinator.api.qos import KubeQoS
from koordinator.host.cgroup_knobs import SHARES_MIN, V1, Knob, shares_of_milli
from koordinator.host.cgroups import Cgroups
from koordinator.local.processes.groups import GroupError, PodGroups
from koordinator.node_demo import own_groups
from koordinator.node_demo.commands import DemoCommands
from koordinator.node_demo.disk import WholeDisk
from koordinator.node_demo.plan import (
    BATCH_PODS,
    SERVICE_REQUEST_MILLI,
    DemoError,
    DemoMode,
    DemoScenario,
    Hog,
    ServiceKind,
)
from koordinator.node_demo.stage import StageSetting, Written

_WAITING = ("sh", "-c", 'read _; exec "$@"', "sh")
"""Starts a program once its input has ended, by when it is in its group: workers that it forks are, too."""


class ManualStage:
    """Implements `stage.Stage`."""

    def __init__(self, cgroups: Cgroups, commands: DemoCommands, disk: WholeDisk | None) -> None:
        self._cgroups = cgroups
        self._commands = commands
        self._disk = disk
        self._groups = PodGroups(cgroups, parent=own_groups.name())
        self._service = self._groups.pod_group(KubeQoS.BURSTABLE, "service")
        self._serves: ServiceKind | None = None
        self._running: dict[str, asyncio.subprocess.Process] = {}

    async def open(self) -> None:
        """Make the groups. Raises: DemoError."""
        await own_groups.remove_left_overs(self._cgroups)
        try:
            self._groups.make_tree()
        except GroupError as error:
            raise DemoError(str(error)) from error
        own_groups.weigh(self._cgroups, self._commands.cpus)
        burstable = self._groups.class_group(KubeQoS.BURSTABLE)
        self._set(burstable, Knob.CPU_SHARES, shares_of_milli(2 * SERVICE_REQUEST_MILLI))
        self._set(self._groups.class_group(KubeQoS.BEST_EFFORT), Knob.CPU_SHARES, SHARES_MIN)

    async def enter(
        self, mode: DemoMode, scenario: DemoScenario, target_ms: float | None = None
    ) -> StageSetting:
        """Batch as ordinary pods with equal shares, or best-effort with the knobs that protect services."""
        hog = scenario.hog
        for group in [each for each in self._running if each != self._service]:
            await self._end(group)
        await self._serve(scenario.service)
        is_managed = mode is DemoMode.MANAGED
        evidence: dict[str, str] = {}
        groups = []
        for number in range(BATCH_PODS if mode.has_batch else 0):
            kube_qos = KubeQoS.BEST_EFFORT if is_managed else KubeQoS.BURSTABLE
            group = self._groups.pod_group(kube_qos, f"batch-{number}")
            share_milli = 0 if is_managed else SERVICE_REQUEST_MILLI // BATCH_PODS
            await self._start(group, share_milli, self._commands.hog(hog, number))
            if is_managed:
                evidence |= self._set(group, Knob.CPU_IDLE, 1)
                evidence |= self._limit_disk(group) if hog is Hog.DISK else {}
            groups.append(group)
        return StageSetting(
            service_group=self._service,
            batch_groups=groups,
            counters=[self._commands.counters(hog, number) for number in range(len(groups))],
            agents=[],
            evidence=evidence,
        )

    async def close(self) -> None:
        """End all processes and remove the groups."""
        await own_groups.remove(self._cgroups, own_groups.name())
        for process in self._running.values():
            await process.wait()

    def written(self) -> list[Written]:
        """Nothing: there is no agent."""
        return []

    def _limit_disk(self, group: str) -> dict[str, str]:
        held: dict[str, str] = {}
        if self._disk is not None and self._cgroups.version == V1:
            for knob, limit in self._disk.limits(BATCH_PODS).items():
                held |= self._set(group, knob, limit)
        return held

    def _set(self, group: str, knob: Knob, value: int | str) -> dict[str, str]:
        problem = self._cgroups.write(knob, group, str(value))
        if problem is not None:
            raise DemoError(f"{knob} of {group} cannot be set to {value}: {problem}")
        return {self._cgroups.path(knob, group): (self._cgroups.read(knob, group) or "").strip()}

    async def _serve(self, kind: ServiceKind) -> None:
        if kind is self._serves:
            return
        if self._serves is not None:
            await self._end(self._service)
        self._commands.before_start(kind)
        await self._start(self._service, SERVICE_REQUEST_MILLI, self._commands.service(kind))
        self._serves = kind
        await self._commands.ready(kind)

    async def _start(self, group: str, request_milli: int, command: list[str]) -> None:
        try:
            self._groups.make(group, can_hold_groups=False)
            self._set(group, Knob.CPU_SHARES, shares_of_milli(request_milli))
            process = await asyncio.create_subprocess_exec(
                *_WAITING, *command, stdin=asyncio.subprocess.PIPE, start_new_session=True
            )
            self._running[group] = process
            self._groups.enter(process.pid, group)
            assert process.stdin is not None
            process.stdin.close()
        except (GroupError, OSError) as error:
            raise DemoError(f"{command[0]} cannot run in group {group}: {error}") from error

    async def _end(self, group: str) -> None:
        await own_groups.remove(self._cgroups, group)
        await self._running.pop(group).wait()
