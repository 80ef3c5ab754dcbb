"""A stage on a real cluster of one node: API server, scheduler and manager in this process, this machine as the node
that runs pods as processes, and the node agent as a process of its own."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from koordinator.api import labels, quantity
from koordinator.api.core import ConfigMap, Node, Pod
from koordinator.api.defaults import NAMESPACE as SYSTEM_NAMESPACE
from koordinator.api.defaults import SLO_CONFIG_NAME
from koordinator.api.meta import is_condition_true
from koordinator.api.qos import KubeQoS
from koordinator.clock import SystemClock
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import V1, Knob, shares_of_milli
from koordinator.host.cgroup_layout import Driver
from koordinator.host.cgroups import Cgroups
from koordinator.host.errors import HostError
from koordinator.local.apiserver import tls
from koordinator.local.apiserver.auth import StaticToken
from koordinator.local.cluster import ClusterOptions, LocalCluster
from koordinator.local.processes.process_node import ProcessNodeConfig
from koordinator.local.processes.server import KubeletOptions
from koordinator.node_demo import manifests, own_groups
from koordinator.node_demo.agent_process import AgentProcess
from koordinator.node_demo.commands import DemoCommands
from koordinator.node_demo.disk import WholeDisk
from koordinator.node_demo.manifests import NAMESPACE
from koordinator.node_demo.plan import (
    BATCH_PODS,
    DemoError,
    DemoMode,
    DemoScenario,
    Hog,
    ServiceKind,
)
from koordinator.node_demo.stage import StageSetting, Written

NODE = "this-machine"
_WAIT_S, _POLL_S = 120.0, 0.1
_TOKEN_BYTES = 24
_BEST_EFFORT = cgroup_layout.join(
    own_groups.name(), cgroup_layout.class_dir(Driver.CGROUPFS, KubeQoS.BEST_EFFORT)
)
_LIMIT_KNOBS = (
    Knob.BLKIO_READ_BPS,
    Knob.BLKIO_WRITE_BPS,
    Knob.BLKIO_READ_IOPS,
    Knob.BLKIO_WRITE_IOPS,
)


class ClusterStage:
    """Implements `stage.Stage` with pods that are applied, scheduled, run, measured and protected."""

    def __init__(
        self,
        cgroups: Cgroups,
        commands: DemoCommands,
        disk: WholeDisk | None,
        batch_milli: int = manifests.BATCH_REQUEST_MILLI,
    ) -> None:
        self._batch_milli = batch_milli
        self._cgroups = cgroups
        self._commands = commands
        self._disk = disk
        self._folder = commands.work_dir
        kubeconfig = self._folder / "kubeconfig"
        self._cluster = self._new_cluster()
        self._running: asyncio.Task[None] | None = None
        self._api = MemoryCluster(self._cluster.registry)
        self._kubeconfig = kubeconfig
        self._agent = AgentProcess(self._folder, kubeconfig, NODE, own_groups.name())
        self._serves: ServiceKind | None = None
        self._batch: list[str] = []

    def _new_cluster(self) -> LocalCluster:
        clock = SystemClock()
        token = StaticToken(
            secrets.token_urlsafe(_TOKEN_BYTES)
        )  # pods run as root: nobody else may create any
        node = KubeletOptions(
            node=ProcessNodeConfig(
                name=NODE,
                folder=self._folder / "node",
                run=str(self._folder / "run"),
                parent=own_groups.name(),
            ),
            tls=tls.self_signed(self._folder / "kubelet-tls", clock),
            tokens=(token.secret,),
        )
        options = ClusterOptions(
            process_node=node, tokens=(token,), tls=tls.self_signed(self._folder / "api-tls", clock)
        )
        return LocalCluster(clock, options)

    async def open(self) -> None:
        """Start the cluster, configure co-location. Raises: DemoError."""
        await own_groups.remove_left_overs(self._cgroups)
        self._running = asyncio.create_task(self._cluster.run(), name="cluster")
        ready = asyncio.create_task(self._cluster.ready.wait(), name="ready")
        await asyncio.wait((self._running, ready), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        self._check()
        own_groups.weigh(self._cgroups, self._commands.cpus)
        self._cluster.write_kubeconfig(self._kubeconfig)
        config = {"data": manifests.configuration(self._disk)}
        await self._api.patch(ConfigMap, SLO_CONFIG_NAME, config, SYSTEM_NAMESPACE)
        await self._until("this machine to become a node", self._has_node)
        await self._api.patch(Node, NODE, {"metadata": {"annotations": manifests.node_annotations()}})
        await (
            self._agent.start()
        )  # once it has reported, batch resources stay for a quarter of an hour without it
        await self._until("batch resources on the node", self._lends)

    async def enter(
        self, mode: DemoMode, scenario: DemoScenario, target_ms: float | None = None
    ) -> StageSetting:
        """Raises: DemoError when the pods of a mode do not run, or the agent does not protect the service."""
        hog = scenario.hog
        for name in self._batch:
            await self._delete(name)
        self._batch = []
        await self._serve(scenario.service)
        await self._promise(target_ms)
        if mode.has_agent:
            config = {"data": manifests.configuration(self._disk, mode)}
            await self._api.patch(ConfigMap, SLO_CONFIG_NAME, config, SYSTEM_NAMESPACE)
            await self._agent.start(closed_loop=mode is DemoMode.CLOSED_LOOP)
            await self._until("batch resources on the node", self._lends)
        else:
            await self._agent.stop()
        groups, counters = [], []
        for number in range(BATCH_PODS if mode.has_batch else 0):
            command = self._commands.hog(hog, number)
            memory_mib = self._commands.hog_memory_mib(hog)
            cpus = self._commands.cpus
            body = manifests.batch(mode, number, command, cpus, memory_mib, self._batch_milli)
            groups.append(await self._apply(body))
            counters.append(self._commands.counters(hog, number))
            self._batch.append(body["metadata"]["name"])
        if mode is DemoMode.DEFAULT:
            await self._until("the node agent to weigh best-effort pods", lambda: self._is_weighed(groups))
        if mode in (DemoMode.MANAGED, DemoMode.CLOSED_LOOP):
            await self._until(
                "the node agent to make best-effort pods yield", lambda: self._is_protected(groups)
            )
            if hog is Hog.DISK and self._limits_disks():
                await self._until("the node agent to limit the disk", lambda: self._is_limited(groups))
        pid = self._agent.pid
        return StageSetting(
            service_group=await self._group(manifests.SERVICE),
            batch_groups=groups,
            counters=counters,
            agents=[] if pid is None else [pid],
            evidence=self._evidence(groups) if mode.has_agent else {},
        )

    async def close(self) -> None:
        """The agent puts back what it changed; the node kills its pods and removes their groups."""
        await self._agent.stop()
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])  # asyncio logs what else it ended with
        if self._cgroups.exists(own_groups.name()):
            await own_groups.remove(self._cgroups, own_groups.name())

    def written(self) -> list[Written]:
        """Return what the agent wrote, by its audit log."""
        return self._agent.written()

    # Pods

    async def _serve(self, kind: ServiceKind) -> None:
        """Have a service of this kind answer, in place of another."""
        if kind is self._serves:
            return
        if self._serves is not None:
            await self._delete(manifests.SERVICE)
            self._serves = None
        self._commands.before_start(kind)
        await self._apply(manifests.service(self._commands.service(kind, "$(POD_IP)")))
        self._serves = kind
        try:
            await self._commands.ready(kind)
        except DemoError as error:
            pod = await self._api.get(Pod, manifests.SERVICE, NAMESPACE)
            raise DemoError(f"{error}; its pod is {pod.status.phase}") from error

    async def _promise(self, target_ms: float | None) -> None:
        """Set or remove the service's objective; real servers tell no histogram, and go without."""
        text = None
        if target_ms is not None and self._serves in (ServiceKind.CPU, ServiceKind.MEMORY):
            text = manifests.objective(target_ms, self._commands.metrics_port)
        annotations = {labels.LATENCY_OBJECTIVE: text}
        await self._api.patch(Pod, manifests.SERVICE, {"metadata": {"annotations": annotations}}, NAMESPACE)

    async def _apply(self, body: dict[str, object]) -> str:
        """Create a pod and wait until it runs; its group."""
        made = await self._api.create(Pod, body, NAMESPACE)
        name = made.metadata.name

        async def runs() -> str:
            pod = await self._api.get(Pod, name, NAMESPACE)
            if pod.status.phase == "Failed" or pod.status.phase == "Succeeded":
                raise DemoError(f"pod {name} ended: {pod.status.message or pod.status.reason or 'no reason'}")
            return "" if pod.status.phase == "Running" else _condition(pod)

        await self._until(f"pod {name} to run", runs)
        return await self._group(name)

    async def _delete(self, name: str) -> None:
        await self._api.delete(Pod, name, NAMESPACE)

        async def gone() -> str:
            try:
                await self._api.get(Pod, name, NAMESPACE)
            except errors.NotFound:
                return ""
            return "it is still there"

        await self._until(f"pod {name} to go", gone)

    async def _group(self, name: str) -> str:
        pod = await self._api.get(Pod, name, NAMESPACE)
        kube_qos = KubeQoS(pod.status.qos_class)
        directory = cgroup_layout.pod_dir(Driver.CGROUPFS, kube_qos, pod.metadata.uid)
        return cgroup_layout.join(own_groups.name(), directory)

    # Waiting

    async def _until(self, what: str, missing: Callable[[], Awaitable[str]]) -> None:
        """Wait until nothing is missing. Raises: DemoError with what was missing last."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _WAIT_S
        while why := await missing():
            self._check()
            self._agent.check()
            if loop.time() > end_s:
                raise DemoError(f"waited {_WAIT_S:.0f} s for {what}: {why}\n{self._agent.said()}")
            await asyncio.sleep(_POLL_S)

    def _check(self) -> None:
        if self._running is None or not self._running.done():
            return
        error = self._running.exception()
        if isinstance(error, HostError | OSError):
            raise DemoError(str(error)) from error
        raise error or DemoError("the cluster ended")

    async def _has_node(self) -> str:
        try:
            node = await self._api.get(Node, NODE)
        except errors.NotFound:
            return "it has not registered"
        return "" if is_condition_true(node.status.conditions, "Ready") else "it is not ready"

    async def _lends(self) -> str:
        node = await self._api.get(Node, NODE)
        lent = quantity.value(node.status.allocatable.get(manifests.BATCH_CPU, "0"))
        wanted = BATCH_PODS * self._batch_milli
        if lent >= wanted:
            return ""
        return f"{lent} of {wanted} milli-cores of batch-cpu: other processes use this machine, or nothing is reported"

    async def _is_protected(self, groups: list[str]) -> str:
        """Best-effort pods run only when nobody else wants to, where the kernel can do that."""
        if not self._cgroups.support(Knob.CPU_IDLE, _BEST_EFFORT).is_supported:
            return ""
        values = [self._cgroups.number(Knob.CPU_IDLE, group) for group in groups]
        return "" if all(value == 1 for value in values) else f"cpu.idle of batch pods is {values}"

    async def _is_weighed(self, groups: list[str]) -> str:
        """Batch pods weigh what they were lent, and no policy of another mode is left."""
        if any(self._cgroups.number(Knob.CPU_IDLE, group) == 1 for group in groups):
            return "batch pods are still idle"
        wanted = shares_of_milli(self._batch_milli)
        values = [self._cgroups.number(Knob.CPU_SHARES, group) for group in groups]
        return "" if all(value == wanted for value in values) else f"cpu.shares are {values}, not {wanted}"

    def _limits_disks(self) -> bool:
        return self._disk is not None and self._cgroups.version == V1

    async def _is_limited(self, groups: list[str]) -> str:
        assert self._disk is not None
        for group in groups:
            leaves = self._cgroups.children(group) or ()
            if not any(self._limit(leaf, Knob.BLKIO_WRITE_BPS) for leaf in leaves):  # the sandbox needs none
                return f"no container of {group} has a limit for {self._disk.name}"
        return ""

    def _limit(self, group: str, knob: Knob) -> str:
        assert self._disk is not None
        lines = (self._cgroups.read(knob, group) or "").splitlines()
        return next((line for line in lines if line.startswith(f"{self._disk.number} ")), "")

    # Evidence

    def _evidence(self, groups: list[str]) -> dict[str, str]:
        """Return what the groups say that the agent is in charge of."""
        knobs = [(Knob.CPU_SHARES, _BEST_EFFORT), (Knob.CPUSET, _BEST_EFFORT)]
        for group in groups[:1]:
            knobs += [
                (Knob.CPU_IDLE, group),
                (Knob.CPU_SHARES, group),
                (Knob.CPU_QUOTA, group),
                (Knob.MEMORY_LIMIT, group),
            ]
        found = {}
        for knob, group in knobs:
            text = self._cgroups.read(knob, group)
            if text is not None:
                found[self._cgroups.path(knob, group)] = text.strip()
        if self._limits_disks():
            for leaf in [leaf for group in groups for leaf in self._cgroups.children(group) or ()]:
                for knob in _LIMIT_KNOBS:
                    if limit := self._limit(leaf, knob):
                        found[self._cgroups.path(knob, leaf)] = limit
        return found


def _condition(pod: Pod) -> str:
    """Return why a pod does not run yet."""
    for condition in pod.status.conditions:
        if condition.status != "True" and condition.message:
            return condition.message
    waiting = [each.state.waiting for each in pod.status.container_statuses if each.state.waiting]
    return waiting[0].message or waiting[0].reason if waiting else f"it is {pod.status.phase or 'new'}"
