"""A whole agent on a tree of files whose counters run, with a kubelet and an API server that can be taken away."""

import asyncio
import functools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from koordinator.api import crd
from koordinator.api.core import Node, Pod
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.node_metric import NodeMetric
from koordinator.clock import LoopClock
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.host.cgroup_knobs import V1
from koordinator.host.cgroup_layout import Driver
from koordinator.host.files import HostRoots
from koordinator.host.host import Host, TreeFiles
from koordinator.host.kubelet import KubeletError
from koordinator.host.syscalls import NoSyscalls
from koordinator.koordlet import gates as koordlet_gates
from koordinator.koordlet import node_pods
from koordinator.koordlet.agent import Agent
from koordinator.koordlet.config import AgentConfig, AuditConfig, CollectConfig, PredictConfig, QoSConfig
from koordinator.koordlet.states.node import AnyNodeSLO
from koordinator.local import registry
from koordinator.simulate import virtual_time
from tests.host import host_tree
from tests.koordlet.collect.collecting_node import make_pod

NODE = "n1"
CPUS = 4
BE, BURSTABLE, ROOT = "kubepods/besteffort", "kubepods/burstable", "kubepods"

Scenario = Callable[["World"], Awaitable[None]]


class FakeKubelet:
    """Lists pods, nothing while it `forgets`, or fails with `trouble`."""

    def __init__(self) -> None:
        self.listed: list[Pod] = []
        self.trouble = ""
        self.forgets = False
        self.asked = 0

    async def pods(self) -> list[Pod]:
        self.asked += 1
        self._check("/pods/")
        return [] if self.forgets else list(self.listed)

    async def config(self) -> dict[str, Any]:
        self._check("/configz")
        return {"cgroupDriver": "cgroupfs", "cpuManagerPolicy": "none"}

    async def close(self) -> None:
        pass

    def _check(self, path: str) -> None:
        if self.trouble:
            raise KubeletError(path, self.trouble)


class UnsteadyCluster:
    """A cluster whose API server can be away (`away`), or fail each call with the chance `fail_ratio`."""

    def __init__(self, cluster: MemoryCluster, rng: random.Random) -> None:
        self.clock = cluster.clock
        self.away = False
        self.fail_ratio = 0.0
        self.refused = 0
        self._cluster = cluster
        self._rng = rng

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cluster, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._check()
            answer = await found(*args, **kwargs)
            self._check()  # the answer may be lost, too
            return answer

        return call

    async def watch(self, *args: Any, **kwargs: Any) -> AsyncIterator[Sequence[Any]]:
        self._check()
        async for batch in self._cluster.watch(*args, **kwargs):
            self._check()
            yield batch

    def _check(self) -> None:
        if self.away or self._rng.random() < self.fail_ratio:
            self.refused += 1
            raise errors.ConnectionFailed("the API server is away")


class Load:
    """CPU time that runs by the clock: cores by name, and what was used under other settings before."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._cores: dict[str, float] = {}
        self._before_ns: dict[str, float] = {}
        self._since_s: dict[str, float] = {}

    def __setitem__(self, name: str, cores: float) -> None:
        self._before_ns[name] = self.used_ns(name)
        self._cores[name], self._since_s[name] = cores, self._clock.now()

    def __getitem__(self, name: str) -> float:
        return self._cores[name]

    def used_ns(self, name: str) -> float:
        """Up to now."""
        ran_s = self._clock.now() - self._since_s.get(name, 0.0)
        return self._before_ns.get(name, 0.0) + self._cores.get(name, 0.0) * ran_s * 1e9

    def set_back(self, name: str) -> None:
        """The counter begins at zero again."""
        self._before_ns[name], self._since_s[name] = 0.0, self._clock.now()

    def total_ns(self) -> float:
        """Of everybody."""
        return sum(map(self.used_ns, self._cores))


class LiveFiles(TreeFiles):
    """A tree in which some files say what `counters` give."""

    def __init__(self) -> None:
        super().__init__()
        self.counters: dict[str, Callable[[], str]] = {}

    def read_bytes(self, path: str) -> bytes | None:
        counter = self.counters.get(path)
        data = super().read_bytes(path)
        return data if counter is None or data is None else counter().encode()


class World:
    """The node with the agent's surroundings. `use` says how many cores each pod (by uid) and the system burn."""

    def __init__(self, root: Path, clock: LoopClock, seed: int = 0, version: int = V1) -> None:
        self.root, self.clock, self.version = root, clock, version
        self.rng = random.Random(seed)
        self.kubelet = FakeKubelet()
        self.api = MemoryCluster(registry.in_memory(clock, checks=False))
        self.cluster = UnsteadyCluster(self.api, random.Random(seed))
        self.use = Load(clock)
        self._batch: set[str] = set()
        self._services: set[str] = set()
        self.files = LiveFiles()
        self._make_tree()
        self.host = Host(HostRoots.below(str(root)), self.files, NoSyscalls())
        self.agent: Agent
        self.running: asyncio.Task[None]
        self.lines: list[str] = []

    def make_agent(
        self, gates: str = "", *, dry_run: bool = False, used_interval_s: float = 1.0, **qos: Any
    ) -> Agent:
        """An agent on this node."""
        config = AgentConfig(
            node_name=NODE,
            collect=CollectConfig(used_interval_s=used_interval_s),
            audit=AuditConfig(directory=str(self.root / "audit")),
            predict=PredictConfig(checkpoints=str(self.root / "checkpoints")),
            qos=QoSConfig(only_evict_by_api=True, **qos),
        )
        self.agent = Agent(
            config,
            gates=koordlet_gates.of(gates),
            host=self.host,
            cluster=self.cluster,  # type: ignore[arg-type] # the proxy has all methods
            clock=self.clock,
            rng=self.rng,
            kubelet=lambda view, metrics: self.kubelet,
            on_dry_run=self.lines.append if dry_run else None,
        )
        return self.agent

    async def create_objects(self, slo: Mapping[str, Any] | None = None) -> None:
        """CRDs, the Node, its NodeMetric and its NodeSLO."""
        for manifest in crd.manifests():
            await self.api.create(CustomResourceDefinition, manifest)
        amounts = {"cpu": str(CPUS), "memory": "8Gi", "pods": "110"}
        status = {
            "capacity": amounts,
            "allocatable": {**amounts, "kubernetes.io/batch-cpu": "1500"},
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        }
        await self.api.create(Node, {"metadata": {"name": NODE}, "status": status})
        await self.api.create(NodeMetric, {"metadata": {"name": NODE}, "spec": {}})
        if slo is not None:
            await self.api.create(AnyNodeSLO, {"metadata": {"name": NODE}, "spec": dict(slo)})

    async def say(self, **spec: Any) -> None:
        """Change the NodeSLO."""
        await self.api.patch(AnyNodeSLO, NODE, {"spec": spec})

    def run_pod(self, uid: str, *, batch: bool, cores: float = 0.0, listed: bool = True) -> Pod:
        """A pod with one container, groups included."""
        pod = make_pod(
            uid,
            qos_class="BestEffort" if batch else "Burstable",
            qos="BE" if batch else "LS",
            batch_cpu="1000" if batch else "",
        )
        record = node_pods.record(pod, Driver.CGROUPFS)
        for group in (record.group, *(each.group for each in record.containers)):
            host_tree.group(self.root, self.version, group)
            self._count(group, functools.partial(self.use.used_ns, uid))
        (self._batch if batch else self._services).add(uid)
        if listed:
            self.kubelet.listed.append(pod)
        self.use[uid] = cores
        return pod

    def end_pod(self, uid: str) -> None:
        """Groups go at once; the kubelet lists the pod no more."""
        pod = next(each for each in self.kubelet.listed if each.metadata.uid == uid)
        record = node_pods.record(pod, Driver.CGROUPFS)
        for group in (*(each.group for each in record.containers), record.group):
            host_tree.remove_group(self.root, self.version, group)
        self.kubelet.listed = [each for each in self.kubelet.listed if each.metadata.uid != uid]
        self.use[uid] = 0.0

    def quota(self, group: str = BE) -> str:
        """CPU quota as the file has it."""
        return self.quota_path(group).read_text().split()[0]

    def quota_path(self, group: str = BE) -> Path:
        """That file."""
        name = "cpu/{}/cpu.cfs_quota_us" if self.version == V1 else "{}/cpu.max"
        return self.root / "sys/fs/cgroup" / name.format(group)

    async def node_metric(self) -> NodeMetric:
        return await self.api.get(NodeMetric, NODE)

    def _count(self, group: str, used_ns: Callable[[], float]) -> None:
        """The group's counter says what it used so far."""
        base = self.root / "sys/fs/cgroup"
        if self.version == V1:
            path = base / "cpuacct" / group / "cpuacct.usage"
            self.files.counters[str(path)] = lambda: f"{int(used_ns())}\n"
        else:
            path = base / group / "cpu.stat"
            self.files.counters[str(path)] = lambda: (
                f"usage_usec {int(used_ns() / 1000)}\nnr_periods 0\nnr_throttled 0\n"
            )

    def _used_ns(self, *uids: set[str]) -> float:
        return sum(self.use.used_ns(uid) for uid in set().union(*uids))

    def _machine(self) -> str:
        ticks = int(self.use.total_ns() / 1e7)
        lines = [f"cpu  {ticks} 0 0 0 0 0 0 0 0 0"]
        lines += [f"cpu{cpu} {ticks // CPUS} 0 0 0 0 0 0 0 0 0" for cpu in range(CPUS)]
        return "\n".join(lines)

    def _make_tree(self) -> None:
        if self.version != V1:
            host_tree.write(self.root / "sys/fs/cgroup", {"cgroup.controllers": "cpu memory"})
        for group in ("", ROOT, BE, BURSTABLE):
            host_tree.group(self.root, self.version, group)
        host_tree.cpus(self.root, [(0, 0, core) for core in range(CPUS)])
        meminfo = "MemTotal: 8000000 kB\nMemFree: 5000000 kB\nMemAvailable: 6000000 kB"
        boot = {"proc/sys/kernel/random/boot_id": "boot-1"}
        host_tree.write(self.root, {"proc/meminfo": meminfo, "proc/cpuinfo": "model name : x", **boot})
        host_tree.write(self.root, {"proc/stat": "cpu 0"})
        self.files.counters[str(self.root / "proc/stat")] = self._machine
        for group, members in (
            (ROOT, (self._batch, self._services)),
            (BURSTABLE, (self._services,)),
            (BE, (self._batch,)),
        ):
            self._count(group, functools.partial(self._used_ns, *members))


def live(
    root: Path, scenario: Scenario, *, seed: int = 0, version: int = V1, gates: str = "", **options: Any
) -> World:
    """Run a scenario beside the agent, on virtual time; the agent ends after it."""
    made: list[World] = []

    async def main(clock: LoopClock) -> None:
        world = World(root, clock, seed, version)
        made.append(world)
        world.make_agent(gates, **options)
        async with asyncio.TaskGroup() as group:
            world.running = running = group.create_task(world.agent.run())
            await scenario(world)
            running.cancel()
            await asyncio.wait([running])

    virtual_time.run_virtual(main)
    return made[0]
