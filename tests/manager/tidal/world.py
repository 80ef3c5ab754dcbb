"""A cluster in this process under virtual time: the real manager, scheduler, descheduler and workload controllers.

The kubelet is ours: pods are ready soon after they come, and deleted ones go.
"""

import asyncio
import contextlib
import datetime
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from koordinator import clock as clocks
from koordinator.api import labels
from koordinator.api.apps import Deployment
from koordinator.api.core import Node, Pod
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.tidal_pool import TidalPool
from koordinator.cluster import errors
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import Informer, InformerFactory
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.proof import MoveAnswer, MoveQuestion, Prove
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import strictly
from koordinator.descheduler import configuration
from koordinator.descheduler.descheduler import Descheduler
from koordinator.descheduler.plugins.built_in import installed_plugins
from koordinator.local import cluster as local
from koordinator.local import registry
from koordinator.local.controllers.disruption import DisruptionController
from koordinator.local.controllers.pod_autoscaler import PodAutoscalerController
from koordinator.local.registry import ObjectRegistry
from koordinator.manager.manager import Manager
from koordinator.manager.options import ManagerOptions
from koordinator.manager.tidal.marks import NodeMarks
from koordinator.scheduler.explain.tries import PodToMove
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.serve.explain_service import prove_live
from koordinator.simulate import virtual_time

READY = {"type": "Ready", "status": "True"}
STARTS_S = 2.0
NIGHT = {
    "nodeSelector": {"matchLabels": {"pool": "web"}},
    "schedule": [{"start": "30 0 * * *", "duration": "6h", "batchNodes": "50%"}],
    "leadTime": "45m",
    "cooldown": "10m",
    "drain": {"gracePeriod": "2m"},
}
ONLINE, BATCH = "koord-prod", "koord-batch"


class TideWorld:
    """What a story may touch."""

    def __init__(self, backend: ObjectRegistry, cluster: MemoryCluster, scheduler: Scheduler) -> None:
        self.backend = backend
        self.cluster = cluster
        self.scheduler = scheduler
        self.stops_s = 1.0
        """How long a pod takes to end once it is told to; less than its grace period, or it is killed."""

    @property
    def now_s(self) -> float:
        return self.cluster.clock.now()

    def at(self, text: str) -> float:
        """Seconds from now until that time of the day (UTC), today or tomorrow."""
        hour, _, minute = text.partition(":")
        now = datetime.datetime.fromtimestamp(self.now_s, datetime.UTC)
        then = now.replace(hour=int(hour), minute=int(minute), second=0, microsecond=0)
        return (then - now).total_seconds() % 86_400

    async def until(self, text: str) -> None:
        """Sleep until that time of the day."""
        await asyncio.sleep(self.at(text))

    @contextlib.asynccontextmanager
    async def manager(
        self, through: Cluster | None = None, prove: Prove | None = None
    ) -> AsyncIterator[Manager]:
        """A running manager with nothing but tidal pools, until the end of the block."""
        made = Manager(
            through or self.cluster,
            ManagerOptions(controllers=("tidalpool",)),
            FeatureGates.of(Component.MANAGER, "TidalPool=true"),
            prove=prove,
        )
        running = asyncio.create_task(made.run())
        try:
            await made.synced.wait()
            yield made
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def prove(self, moves: Sequence[MoveQuestion]) -> list[MoveAnswer]:
        """Ask the running scheduler."""
        found = prove_live(self.scheduler, [PodToMove(one.uid, one.nodes) for one in moves])
        return [MoveAnswer(one.node, one.why) for one in found]

    async def pool(self, name: str = "night", **spec: Any) -> None:
        await self.cluster.create(TidalPool, {"metadata": {"name": name}, "spec": {**NIGHT, **spec}})

    async def found_pool(self, name: str = "night") -> TidalPool:
        return await self.cluster.get(TidalPool, name)

    async def add_node(self, name: str, cpu: int = 8, pool: str = "web") -> None:
        amounts = {"cpu": str(cpu), "memory": "64Gi", "pods": "110"}
        status = {"allocatable": amounts, "capacity": amounts, "conditions": [READY]}
        await self.cluster.create(
            Node, {"metadata": {"name": name, "labels": {"pool": pool}}, "status": status}
        )

    async def marks(self) -> dict[str, NodeMarks]:
        return {node.metadata.name: NodeMarks.of(node) for node in (await self.cluster.list(Node)).items}

    async def phases(self) -> dict[str, str]:
        return {name: marks.phase.value for name, marks in (await self.marks()).items()}

    async def pods(self, **wanted: str) -> list[Pod]:
        found = (await self.cluster.list(Pod, "default")).items
        return [pod for pod in found if wanted.items() <= pod.metadata.labels.items()]

    async def jobs(self) -> list[PodMigrationJob]:
        return (await self.cluster.list(PodMigrationJob)).items

    async def deploy(
        self, name: str, replicas: int, cpu: str = "1", *, priority: str = ONLINE, **spec: Any
    ) -> None:
        """A Deployment; batch pods are for whole machines."""
        template = {
            "metadata": {"labels": {"app": name}},
            "spec": {
                "schedulerName": "koord-scheduler",
                "priorityClassName": priority,
                "containers": [
                    {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
                ],
                **(WHOLE_NODE if priority == BATCH else {}),
                **spec,
            },
        }
        body = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
        await self.cluster.create(Deployment, {"metadata": {"name": name}, "spec": body}, "default")

    async def scale(self, name: str, replicas: int) -> None:
        await self.cluster.patch(Deployment, name, {"spec": {"replicas": replicas}}, "default")

    async def reaches(self, holds: Callable[[], Awaitable[bool]], within_s: float = 600.0) -> None:
        async with asyncio.timeout(within_s):
            while not await holds():  # noqa: ASYNC110 (time is virtual)
                await asyncio.sleep(1.0)

    async def available(self, app: str) -> int:
        """Pods that are ready and stay."""
        pods = await self.pods(app=app)
        return sum(pod.status.phase == "Running" and not pod.metadata.deletion_timestamp for pod in pods)

    # The kubelet

    def follow(self, pods: Informer[Pod]) -> None:
        pods.add_handler(self._on_pod, lambda _, pod: self._on_pod(pod), None)

    def _on_pod(self, pod: Pod) -> None:
        loop = asyncio.get_running_loop()
        if pod.metadata.deletion_timestamp is not None:
            grace_s = float(pod.metadata.deletion_grace_period_seconds or 0)
            loop.call_later(min(self.stops_s, grace_s), self._start, self._stop, pod)
        elif pod.spec.node_name and pod.status.phase in ("", "Pending"):
            loop.call_later(STARTS_S, self._start, self._ready, pod)

    def _start(self, work: Callable[[Pod], Coroutine[Any, Any, None]], pod: Pod) -> None:
        task = asyncio.get_running_loop().create_task(work(pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    _tasks: set[asyncio.Task[None]] = set()

    async def _ready(self, pod: Pod) -> None:
        status = {"phase": "Running", "startTime": clocks.rfc3339(self.now_s), "conditions": [READY]}
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self.cluster.patch(
                Pod,
                pod.metadata.name,
                {"metadata": {"uid": pod.metadata.uid}, "status": status},
                pod.metadata.namespace,
                subresource="status",
            )

    async def _stop(self, pod: Pod) -> None:
        meta = pod.metadata
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self.cluster.delete(Pod, meta.name, meta.namespace, uid=meta.uid, grace_period_s=0)


WHOLE_NODE: Mapping[str, Any] = {
    "tolerations": [{"key": labels.TIDAL_BATCH_PHASE_TAINT, "operator": "Exists"}],
    "nodeSelector": {labels.TIDAL_PHASE: "batch"},
}


class Unreliable(MemoryCluster):
    """Refuses a share of the writes, and loses the answers of as many."""

    def __init__(self, backend: ObjectRegistry, rng: random.Random, share: float) -> None:
        super().__init__(backend)
        self._rng, self.share = rng, share
        self.failed = 0

    async def _unreliably(self, write: Callable[[], Awaitable[Any]]) -> Any:
        drawn = self._rng.random()
        if drawn < self.share:
            self.failed += 1
            raise errors.InternalError("refused by the test")
        found = await write()
        if drawn < 2 * self.share:
            self.failed += 1
            raise errors.InternalError("the answer is lost")
        return found

    async def create(self, *given: Any, **more: Any) -> Any:
        create = super().create
        return await self._unreliably(lambda: create(*given, **more))

    async def patch(self, *given: Any, **more: Any) -> Any:
        patch = super().patch
        return await self._unreliably(lambda: patch(*given, **more))

    async def delete(self, *given: Any, **more: Any) -> None:
        delete = super().delete
        await self._unreliably(lambda: delete(*given, **more))


def run(
    scenario: Callable[[TideWorld], Awaitable[None]],
    *,
    nodes: int = 4,
    starts: str = "22:00",
    is_strict: bool = True,
) -> None:
    """Run a story to its end; unexpected errors fail the test, unless it makes some."""

    async def main(clock: clocks.LoopClock) -> None:
        backend = registry.in_memory(clock, checks=False)
        cluster = MemoryCluster(backend)
        await local.install(cluster)
        scheduler = Scheduler(cluster, local.scheduler_config(), seed=1)
        world = TideWorld(backend, cluster, scheduler)
        await world.until(starts)
        for number in range(nodes):
            await world.add_node(f"n{number}")
        rng = random.Random(0)
        factory = InformerFactory(cluster, rng)
        events = EventRecorder(cluster, "controllers", rng=rng)
        config = configuration.decode(
            {
                "leaderElection": {"leaderElect": False},
                "deschedulingInterval": "0s",
                "profiles": [{"plugins": {}}],
            },
            installed_plugins(),
        )
        world.follow(factory.informer(Pod))
        with strictly() if is_strict else contextlib.nullcontext():
            async with asyncio.TaskGroup() as group:
                work = [
                    *(each.run() for each in local.workloads(cluster, factory, rng)),
                    DisruptionController(cluster, factory, events).run(),
                    PodAutoscalerController(cluster, factory, events, backend.resources).run(),
                    events.run(),
                    scheduler.run(),
                    Descheduler(cluster, config, installed_plugins(), rng=rng).run(),
                ]
                tasks = [group.create_task(each) for each in work]
                factory.start(group)
                await scenario(world)
                await factory.stop()
                for task in tasks:
                    task.cancel()

    virtual_time.run_virtual(main)
