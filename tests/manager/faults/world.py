"""A cluster in which everything that a manager meets can go wrong: its nodes, their agents, its API, its users.

All of it is drawn from a seed and runs on virtual time. `model` says what a node should have by the formula of
behaviour/manager 6.3, written anew for the few inputs that this world has.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from koordinator import clock as clocks
from koordinator.api import crd, defaults, quantity
from koordinator.api.core import ConfigMap, Event, Namespace, Node, Pod
from koordinator.api.groups import CustomResourceDefinition, Lease
from koordinator.api.meta import Object
from koordinator.api.node_metric import NodeMetric
from koordinator.clock import LoopClock
from koordinator.cluster import errors, write_through
from koordinator.cluster.leader import ElectionConfig, LeaderElector, LeaseLost
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.manager import Manager
from koordinator.manager.metrics import LEASE
from tests.cluster.faulty_cluster import Faults, FaultyCluster

R = TypeVar("R")
Json = dict[str, Any]

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
NODE_MILLI, NODE_BYTES = 32_000, 128 * 10**9
MARGIN_PERCENT = {"cpu": 40, "memory": 35}
REPORT_S = 60.0
DEGRADE_S = 15 * 60.0
SWEEP_S = 30.0
"""How long after `DEGRADE_S` the manager may look."""
THRESHOLD_S = 300.0
HEARTBEAT_S = 30.0
RESTART_S = 1.0


class Write(msgspec.Struct, frozen=True):
    """A change that the API took from a manager; `holder` had the lease at that moment."""

    at_s: float
    writer: str
    holder: str
    verb: str
    kind: str
    name: str
    body: Any = None


class SeenCluster(write_through.WriteThrough):
    """One instance's way to the API; what gets through is noted."""

    def __init__(self, world: "World", writer: str) -> None:
        super().__init__(MemoryCluster(world.backend, user=writer))
        self._world, self._writer = world, writer

    async def _send(self, write: write_through.ClusterWrite, effect: Callable[[], Awaitable[R]]) -> R:
        world = self._world
        if write.kind not in ("Lease", "Event"):
            what = (write.verb, write.kind, write.name, write.body)
            world.writes.append(Write(world.clock.now(), self._writer, world.holder(), *what))
        return await effect()


class Instance:
    """A deployment's replica: a manager, restarted when its process ends."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.life_count = 0
        self.manager: Manager | None = None
        self.clusters: list[FaultyCluster] = []
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """One process after the other, for ever."""
        while True:
            self._task = asyncio.create_task(self._live(), name=f"{self.name} life {self.life_count}")
            try:
                await asyncio.wait([self._task])
            finally:
                self._task.cancel()
            if not self._task.cancelled():
                self._task.result()
            await asyncio.sleep(RESTART_S)

    def kill(self) -> None:
        """As SIGKILL: nothing that it would do on the way out gets through."""
        for cluster in self.clusters:
            cluster.misbehave(Faults(lost_before_ratio=1.0))
        if self._task is not None:
            self._task.cancel()

    def cut_off(self) -> None:
        """The API is away for this process only, for as long as it lives."""
        for cluster in self.clusters:
            cluster.misbehave(Faults(lost_before_ratio=1.0, watch_broken_ratio=1.0))

    async def _live(self) -> None:
        world = self.world
        self.life_count += 1
        identity = f"{self.name}-{self.life_count}"
        rng = random.Random(f"{world.seed}/{identity}")
        self.clusters = [
            FaultyCluster(SeenCluster(world, identity), world.faults, random.Random(rng.getrandbits(64)))
            for _ in range(2)
        ]
        cluster, lease_cluster = self.clusters
        self.manager = Manager(cluster)
        election = LeaderElector(
            lease_cluster,
            ElectionConfig(name=LEASE, namespace=defaults.NAMESPACE, identity=identity),
            rng=rng,
        )
        try:
            await self.manager.run(election, stays=world.stays)
        except* LeaseLost:
            world.lost_leases += 1


class Agent:
    """A node and its agent, which reports every minute; `mood` is what is wrong with it."""

    MOODS = ("well", "silent", "behind", "ahead", "negative", "absurd", "unreadable", "empty")

    def __init__(self, world: "World", name: str, rng: random.Random) -> None:
        self.world, self.name, self.rng = world, name, rng
        self.mood = "well"
        self.jitter_ratio = 0.0
        self.good_s: float | None = None
        """When the last report that can be believed was made."""
        self.good: tuple[int, int] = (0, 0)
        """What it said is in use: milli-cores, bytes."""
        self.usage = {"system": (1_000, 4 * 10**9)}

    async def run(self) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, REPORT_S))
        while True:
            if self.mood != "silent":
                with contextlib.suppress(errors.NotFound):
                    await self._report()
            await asyncio.sleep(REPORT_S)

    async def _report(self) -> None:
        now_s = self.world.clock.now()
        used = {name: self._jittered(*amounts) for name, amounts in self.usage.items()}
        at_s = now_s + {"behind": -DEGRADE_S - 120, "ahead": 86_400.0}.get(self.mood, 0.0)
        status: Json = {
            "updateTime": clocks.rfc3339(at_s),
            "nodeMetric": {"systemUsage": {"resources": amounts(*used["system"])}},
            "podsMetric": [
                {
                    "name": name,
                    "namespace": "default",
                    "priority": "koord-prod",
                    "podUsage": {"resources": amounts(*usage)},
                }
                for name, usage in used.items()
                if name != "system"
            ],
        }
        system = status["nodeMetric"]["systemUsage"]["resources"]
        if self.mood == "negative":
            system["cpu"] = "-20"
        elif self.mood == "absurd":
            system["cpu"] = "900000000000"
        elif self.mood == "unreadable":
            system["memory"] = "NaN"
        elif self.mood == "empty":
            status["nodeMetric"] = None
        await self.world.api.patch(NodeMetric, self.name, {"status": status}, subresource="status")
        if self.mood in ("well", "ahead"):
            self.good_s = now_s
            self.good = (
                sum(cpu for cpu, _ in used.values()),
                sum(memory for _, memory in used.values()),
            )

    def _jittered(self, cpu_milli: int, memory_bytes: int) -> tuple[int, int]:
        factor = 1.0 + self.rng.uniform(-self.jitter_ratio, self.jitter_ratio)
        return round(cpu_milli * factor), round(memory_bytes * factor)

    def harmless_jitter(self) -> float:
        """By how much use may vary so that what is offered stays within a tenth of any value it had."""
        model = self.model()
        used = dict(zip((BATCH_CPU, BATCH_MEMORY), self.good, strict=True))
        return min(0.04 * model[key] / max(used[key], 1) for key in model)

    def model(self) -> Json:
        """Batch resources by the last good report, when nothing else is wrong."""
        cpu, memory = self.good
        return {
            BATCH_CPU: max(NODE_MILLI * (100 - MARGIN_PERCENT["cpu"]) // 100 - cpu, 0),
            BATCH_MEMORY: max(NODE_BYTES * (100 - MARGIN_PERCENT["memory"]) // 100 - memory, 0),
        }


def amounts(cpu_milli: int, memory_bytes: int) -> Json:
    return {"cpu": f"{cpu_milli}m", "memory": str(memory_bytes)}


class World:
    """Nodes with their agents and pods, two managers, and what users do to them."""

    def __init__(
        self,
        seed: int,
        clock: LoopClock,
        node_count: int = 5,
        instances: Sequence[str] = ("a", "b"),
        stays: bool = False,
    ) -> None:
        self.seed, self.clock = seed, clock
        self.rng = random.Random(seed)
        self.backend = registry.in_memory(clock, checks=False)
        self.api = MemoryCluster(self.backend, user="world")
        self.faults = Faults()
        self.writes: list[Write] = []
        self.lost_leases = 0
        self.agents = {
            name: Agent(self, name, random.Random(f"{seed}/{name}"))
            for name in (f"node-{number}" for number in range(node_count))
        }
        self.instances = [Instance(self, name) for name in instances]
        self.stays = stays
        self._numbers = iter(range(1_000_000))
        self._beats = 0

    async def set_up(self) -> None:
        for manifest in crd.manifests():
            await self.api.create(CustomResourceDefinition, manifest)
        names = {namespace.metadata.name for namespace in (await self.api.list(Namespace)).items}
        if defaults.NAMESPACE not in names:
            await self.api.create(Namespace, defaults.namespace())
        await self.restore_config()
        for agent in self.agents.values():
            await self.add_node(agent.name)

    async def run(self, drama: Callable[["World"], Awaitable[None]]) -> None:
        """Everybody beside the drama, until it ends."""
        await self.set_up()
        async with asyncio.TaskGroup() as group:
            tasks = [
                *(group.create_task(instance.run()) for instance in self.instances),
                *(group.create_task(agent.run()) for agent in self.agents.values()),
                group.create_task(self._heartbeats()),
            ]
            await drama(self)
            for task in tasks:
                task.cancel()

    def holder(self) -> str:
        """Who has the lease now."""
        with contextlib.suppress(errors.NotFound):
            record = self.backend.get(Lease.resource, defaults.NAMESPACE, LEASE)
            return str(record.obj["spec"].get("holderIdentity", ""))
        return ""

    def misbehave(self, faults: Faults) -> None:
        """The API is as bad as this for all managers from now on."""
        self.faults = faults
        for instance in self.instances:
            for cluster in instance.clusters:
                cluster.misbehave(faults)

    def heal(self) -> None:
        self.misbehave(Faults())

    # Nodes, pods and users

    async def add_node(self, name: str) -> None:
        size = {**amounts(NODE_MILLI, NODE_BYTES), "pods": "110"}
        status = {"capacity": size, "allocatable": dict(size)}
        await self.api.create(Node, {"metadata": {"name": name}, "status": status})

    async def add_pod(self, agent: Agent) -> None:
        name = f"pod-{next(self._numbers)}"
        requests = {"cpu": "2", "memory": "8G"}
        body = {
            "metadata": {"name": name, "labels": {"koordinator.sh/qosClass": "LS"}},
            "spec": {
                "nodeName": agent.name,
                "containers": [{"name": "main", "image": "x", "resources": {"requests": requests}}],
            },
            "status": {"phase": "Running"},
        }
        await self.api.create(Pod, body, "default")
        agent.usage[name] = (self.rng.randrange(100, 4_000), self.rng.randrange(10**9, 12 * 10**9))

    async def remove_pod(self, agent: Agent) -> None:
        pods = sorted(agent.usage.keys() - {"system"})
        if pods:
            name = self.rng.choice(pods)
            del agent.usage[name]
            await self.api.delete(Pod, name, "default", grace_period_s=0)

    async def lose_node(self, agent: Agent) -> None:
        """A node goes with its pods, and comes back some time later."""
        await self.api.delete(Node, agent.name)
        while len(agent.usage) > 1:
            await self.remove_pod(agent)
        agent.good_s = None
        await asyncio.sleep(self.rng.uniform(1.0, 90.0))
        await self.add_node(agent.name)

    async def spoil_config(self) -> None:
        name, namespace = defaults.SLO_CONFIG_NAME, defaults.NAMESPACE
        match self.rng.randrange(4):
            case 0:
                with contextlib.suppress(errors.NotFound):
                    await self.api.delete(ConfigMap, name, namespace)
            case number:
                texts = ('{"enable": "yes"}', '{"enable": fal', '{"enable": false}')
                patch = {"data": {"colocation-config": texts[number - 1]}}
                with contextlib.suppress(errors.NotFound):
                    await self.api.patch(ConfigMap, name, patch, namespace)

    async def restore_config(self) -> None:
        body = defaults.slo_config()
        try:
            await self.api.create(ConfigMap, body, defaults.NAMESPACE)
        except errors.AlreadyExists:
            patch = {"data": defaults.slo_config()["data"]}
            await self.api.patch(ConfigMap, defaults.SLO_CONFIG_NAME, patch, defaults.NAMESPACE)

    async def _heartbeats(self) -> None:
        """Kubelets touch their nodes all the time."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._beats += 1
            condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": str(self._beats)}
            for name in self.agents:
                with contextlib.suppress(errors.NotFound):
                    patch = {"status": {"conditions": [condition]}}
                    await self.api.patch(Node, name, patch, subresource="status")

    # What must hold

    async def batch(self, name: str) -> Json:
        """Batch resources that the node offers."""
        allocatable = (await self.api.get(Node, name)).status.allocatable
        return {
            key: quantity.value(allocatable[key]) for key in (BATCH_CPU, BATCH_MEMORY) if key in allocatable
        }

    def check_writers(self) -> None:
        """Nothing was ever changed by who does not hold the lease."""
        for write in self.writes:
            assert write.writer == write.holder, write

    async def check_bounds(self) -> None:
        """Whatever happens: nothing above the reclaim threshold, nothing below 0, nothing long after the last report
        (once the API has taken writes for a while)."""
        for found in (await self.api.list(Node)).items:
            allocatable = found.status.allocatable
            for key, most in ((BATCH_CPU, NODE_MILLI * 60 // 100), (BATCH_MEMORY, NODE_BYTES * 65 // 100)):
                if key in allocatable:
                    assert 0 <= quantity.value(allocatable[key]) <= most, (
                        found.metadata.name,
                        allocatable[key],
                    )

    async def reasons(self, name: str) -> Counter[str]:
        """How often each reason was told of a node."""
        reported: Counter[str] = Counter()
        for event in (await self.api.list(Event, "default")).items:
            if event.involved_object.name == name:
                reported[event.reason] += max(event.count, 1)
        return reported

    async def names(self, view: type[Object]) -> set[str]:
        return {found.metadata.name for found in (await self.api.list(view)).items}
