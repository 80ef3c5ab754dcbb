"""A cluster in memory with hollow nodes on virtual time; pods are bound by hand."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

from koordinator.api import crd
from koordinator.api.core import Pod
from koordinator.clock import Clock
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.supervise import strictly
from koordinator.local.nodes import behaviour
from koordinator.local.nodes.behaviour import Behaviour
from koordinator.local.nodes.fleet import FleetPolicy, HollowFleet, NodeShape
from koordinator.local.nodes.hollow import HollowConfig, HollowNodes
from koordinator.local.registry import in_memory


class World:
    """The cluster, the nodes, and shortcuts for what the tests do with them."""

    def __init__(
        self, clock: Clock, shapes: list[NodeShape], policy: FleetPolicy, config: HollowConfig
    ) -> None:
        self.clock = clock
        self.registry = in_memory(clock, checks=False)
        self.cluster = MemoryCluster(self.registry)
        self.fleet = HollowFleet(shapes, policy)
        self.nodes = HollowNodes(self.cluster, self.fleet, config, rng=random.Random(1))

    async def crds(self) -> None:
        resource = self.registry.resolve("apiextensions.k8s.io", "v1", "customresourcedefinitions")
        for definition in crd.manifests():
            await self.registry.create(resource, "", definition)

    async def pod(
        self,
        name: str,
        node: str = "node-0",
        *,
        requests: dict[str, str] | None = None,
        limits: dict[str, str] | None = None,
        restart_policy: str = "Never",
        labels: dict[str, str] | None = None,
        **does: Any,
    ) -> Pod:
        """Create a pod with a `Behaviour` and bind it."""
        resources = {"requests": requests or {"cpu": "1", "memory": "1Gi"}}
        if limits is not None:
            resources["limits"] = limits
        body = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "labels": labels or {},
                "annotations": behaviour.annotations(Behaviour(**does)),
            },
            "spec": {
                "containers": [{"name": "main", "image": "work", "resources": resources}],
                "restartPolicy": restart_policy,
                "terminationGracePeriodSeconds": 30,
            },
        }
        pod = await self.cluster.create(Pod, body, "default")
        await self.cluster.bind("default", name, node)
        return pod

    async def get(self, name: str) -> Pod:
        return await self.cluster.get(Pod, name, "default")

    async def pods(self) -> list[str]:
        return [pod.metadata.name for pod in (await self.cluster.list(Pod)).items]


@contextlib.asynccontextmanager
async def world(
    clock: Clock,
    nodes: int = 1,
    policy: FleetPolicy | None = None,
    config: HollowConfig | None = None,
    **size: Any,
) -> AsyncIterator[World]:
    """Nodes that run until the block ends; unexpected exceptions end it, too."""
    shapes = [NodeShape(name=f"node-{row}", **size) for row in range(nodes)]
    made = World(clock, shapes, policy or FleetPolicy(), config or HollowConfig())
    await made.crds()
    with strictly():
        task = asyncio.create_task(made.nodes.run())
        registered = asyncio.create_task(made.nodes.registered.wait())
        await asyncio.wait({task, registered}, return_when=asyncio.FIRST_COMPLETED)
        try:
            yield made
            if task.done():
                task.result()
        finally:
            task.cancel()
            registered.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
