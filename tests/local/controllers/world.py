"""A cluster in this process under virtual time, for tests of controllers."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from koordinator import clock as clocks
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.supervise import strictly
from koordinator.local import registry
from koordinator.local.registry import ObjectRegistry
from koordinator.simulate import virtual_time


class Runs(Protocol):
    """Any controller."""

    async def run(self) -> None: ...


class World:
    """What a scenario may touch."""

    def __init__(self, cluster: MemoryCluster, backend: ObjectRegistry, factory: InformerFactory) -> None:
        self.cluster, self.backend, self.factory = cluster, backend, factory
        self.rng = random.Random(1)


Build = Callable[[World], Sequence[Runs]]
Scenario = Callable[[World], Awaitable[None]]


def run(build: Build, scenario: Scenario) -> None:
    """Run the controllers of `build` beside `scenario`, to its end; unexpected errors fail the test."""

    async def main(clock: clocks.LoopClock) -> None:
        backend = registry.in_memory(clock, checks=False)
        cluster = MemoryCluster(backend)
        world = World(cluster, backend, InformerFactory(cluster, random.Random(0)))
        with strictly():
            async with asyncio.TaskGroup() as group:
                controllers = [group.create_task(c.run()) for c in build(world)]
                world.factory.start(group)
                await scenario(world)
                await world.factory.stop()
                for task in controllers:
                    task.cancel()

    virtual_time.run_virtual(main)


def owned_by(owner: Any, **more: Any) -> dict[str, Any]:
    """`ownerReferences` entry for a view."""
    return {
        "apiVersion": owner.resource.api_version,
        "kind": owner.resource.kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        **more,
    }
