"""A cluster in this process under virtual time with a descheduler, real workload controllers, and what stands for
scheduler and kubelet: it places reservations and pods, makes them ready, and lets deleted ones go."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from koordinator import clock as clocks
from koordinator.api.apps import Deployment, ReplicaSet
from koordinator.api.core import Node, Pod
from koordinator.api.meta import Object
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.reservation import Reservation
from koordinator.cluster import errors
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.proof import Prove
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import strictly
from koordinator.descheduler import configuration
from koordinator.descheduler.descheduler import Descheduler
from koordinator.descheduler.plugins.built_in import installed_plugins
from koordinator.local import cluster as local
from koordinator.local import registry
from koordinator.local.controllers.deployment import DeploymentController
from koordinator.local.controllers.disruption import DisruptionController
from koordinator.local.controllers.replicaset import ReplicaSetController
from koordinator.simulate import virtual_time

LOOK_S = 0.5
REST = [{"name": "main", "image": "web", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]


class World:
    """What a scenario may touch. `elsewhere` is the node of new pods and reservations; empty: they wait. `reserves`,
    `readies`: whether reservations are placed, and new pods become ready."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.elsewhere = "n0"
        self.reserves = self.readies = True

    @contextlib.asynccontextmanager
    async def descheduling(
        self, body: dict[str, Any], through: Cluster | None = None, prove: Prove | None = None
    ) -> AsyncIterator[Descheduler]:
        """A running descheduler, until the end of the block; what ended it before fails the test."""
        config = configuration.decode(body, installed_plugins())
        cluster, rng = through or self.cluster, random.Random(1)
        made = Descheduler(cluster, config, installed_plugins(), rng=rng, prove=prove)
        running = asyncio.create_task(made.run())
        try:
            while not made.reports:  # noqa: ASYNC110 (time is virtual)
                await asyncio.sleep(0.01)
            yield made
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    async def deployment(self, name: str, replicas: int, node: str) -> list[Pod]:
        """A Deployment whose pods are all ready on a node."""
        self.elsewhere = node
        template = {
            "metadata": {"labels": {"app": name}},
            "spec": {"schedulerName": "koord-scheduler", "containers": REST},
        }
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
        await self.cluster.create(Deployment, {"metadata": {"name": name}, "spec": spec}, "default")
        await self.until(lambda pods: len(pods) == replicas and all(map(is_ready, pods)))
        return await self.pods()

    async def pods(self) -> list[Pod]:
        return (await self.cluster.list(Pod, "default")).items

    async def jobs(self) -> list[PodMigrationJob]:
        return (await self.cluster.list(PodMigrationJob)).items

    async def migrate(self, pod: Pod, name: str = "move", **spec: Any) -> None:
        """A job made by hand."""
        ref = {"namespace": pod.metadata.namespace, "name": pod.metadata.name}
        body = {"metadata": {"name": name}, "spec": {"podRef": ref, "ttl": "5m", **spec}}
        await self.cluster.create(PodMigrationJob, body)

    async def until(self, holds: Callable[[list[Pod]], bool], within_s: float = 60.0) -> None:
        async with asyncio.timeout(within_s):
            while not holds(await self.pods()):  # noqa: ASYNC110 (time is virtual)
                await asyncio.sleep(LOOK_S)

    async def reservations(self) -> list[Reservation]:
        return (await self.cluster.list(Reservation)).items

    async def ended(self, name: str = "move", within_s: float = 900.0) -> PodMigrationJob:
        async with asyncio.timeout(within_s):
            while True:
                job = await self.cluster.get(PodMigrationJob, name)
                if job.status.phase not in ("", "Pending", "Running"):
                    return job
                await asyncio.sleep(LOOK_S)

    # Scheduler and kubelet

    async def play(self) -> None:
        """Look at reservations and pods for ever."""
        while True:
            await self._place_reservations()
            for pod in await self.pods():
                with contextlib.suppress(errors.NotFound, errors.Conflict):
                    await self._care_for(pod)
            await asyncio.sleep(LOOK_S)

    async def _place_reservations(self) -> None:
        for one in (await self.cluster.list(Reservation)).items:
            if not one.status.node_name and self.reserves and self.elsewhere:
                scheduled = {"type": "Scheduled", "status": "True", "reason": "Scheduled"}
                status = {"phase": "Available", "nodeName": self.elsewhere, "conditions": [scheduled]}
                await self._tell(Reservation, one, status)

    async def _care_for(self, pod: Pod) -> None:
        if pod.metadata.deletion_timestamp:
            await self.cluster.delete(Pod, pod.metadata.name, "default", grace_period_s=0)
        elif not pod.spec.node_name:
            await self._place(pod)
        elif not is_ready(pod) and self.readies:
            ready = [{"type": "Ready", "status": "True"}]
            await self._tell(Pod, pod, {"phase": "Running", "conditions": ready})

    async def _place(self, pod: Pod) -> None:
        owners = {owner.uid for owner in pod.metadata.owner_references}
        for one in (await self.cluster.list(Reservation)).items:
            wanted = {owner.controller.uid for owner in one.spec.owners if owner.controller is not None}
            if one.status.phase == "Available" and owners & wanted:
                await self.cluster.bind("default", pod.metadata.name, one.status.node_name)
                ref = {"namespace": "default", "name": pod.metadata.name, "uid": pod.metadata.uid}
                await self._tell(Reservation, one, {"phase": "Succeeded", "currentOwners": [ref]})
                return
        if self.elsewhere:
            await self.cluster.bind("default", pod.metadata.name, self.elsewhere)

    async def _tell(self, view: type[Object], obj: Object, status: dict[str, Any]) -> None:
        meta = obj.metadata
        await self.cluster.patch(view, meta.name, {"status": status}, meta.namespace, subresource="status")


def is_ready(pod: Pod) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)


def config(
    *, balance: str = "", interval: str = "0s", args: dict[str, Any] | None = None, **top: Any
) -> dict[str, Any]:
    """A configuration with one profile; `args` are those of MigrationController."""
    profile: dict[str, Any] = {
        "pluginConfig": [{"name": "MigrationController", "args": args or {}}],
        "plugins": {"balance": {"enabled": [{"name": balance}] if balance else []}},
    }
    election = {"leaderElect": False}
    return {"leaderElection": election, "deschedulingInterval": interval, "profiles": [profile], **top}


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    """Run a scenario to its end; unexpected errors fail the test."""

    async def main(clock: clocks.LoopClock) -> None:
        backend = registry.in_memory(clock, checks=False)
        cluster = MemoryCluster(backend)
        await local.install(cluster)
        world = World(cluster)
        factory = InformerFactory(cluster, random.Random(0))
        events = EventRecorder(cluster, "controllers", rng=random.Random(0))
        for name in ("n0", "n1", "n2"):
            allocatable = {"cpu": "16", "memory": "64Gi", "pods": "110"}
            await cluster.create(Node, {"metadata": {"name": name}, "status": {"allocatable": allocatable}})
        with strictly():
            async with asyncio.TaskGroup() as group:
                work = [
                    DeploymentController(cluster, factory, events).run(),
                    ReplicaSetController(cluster, factory, events, ReplicaSet).run(),
                    DisruptionController(cluster, factory, events).run(),
                    events.run(),
                    world.play(),
                ]
                tasks = [group.create_task(each) for each in work]
                factory.start(group)
                await scenario(world)
                await factory.stop()
                for task in tasks:
                    task.cancel()

    virtual_time.run_virtual(main)
