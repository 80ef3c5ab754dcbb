"""Builders of nodes and pods, and a scheduler running on a fake API in virtual time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from koordinator.clock import LoopClock
from koordinator.cluster.supervise import strictly
from koordinator.scheduler.config import config, default_plugins
from koordinator.scheduler.config.config import SchedulerConfig
from koordinator.scheduler.plugin.framework import Plugin
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.scheduler import Scheduler
from tests.cluster import virtual_loop
from tests.scheduler.fake_cluster import FakeCluster

Json = dict[str, Any]
EPOCH_S = 1_700_000_000.0


def node(name: str, *, cpu: str = "4", memory: str = "16Gi", pods: int = 110, **parts: Any) -> Json:
    """`parts`: labels, annotations, taints, unschedulable, or more allocatable under `extra`."""
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **parts.get("labels", {})},
            "annotations": parts.get("annotations", {}),
        },
        "spec": {"taints": parts.get("taints", []), "unschedulable": parts.get("unschedulable", False)},
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "pods": str(pods), **parts.get("extra", {})}
        },
    }


def pod(
    name: str,
    *,
    cpu: str | None = "1",
    memory: str | None = "1Gi",
    requests: Json | None = None,
    scheduler: str = "koord-scheduler",
    priority: int = 0,
    **spec: Any,
) -> Json:
    if requests is None:
        requests = {key: amount for key, amount in (("cpu", cpu), ("memory", memory)) if amount is not None}
    container = {"name": "main", "resources": {"requests": requests}}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": scheduler, "priority": priority, "containers": [container], **spec},
    }


class World:
    """A cluster with a running scheduler; time is virtual."""

    def __init__(
        self, settings: SchedulerConfig | None, unserved: tuple[str, ...] = (), **options: Any
    ) -> None:
        self.clock = LoopClock(asyncio.get_running_loop(), EPOCH_S)
        self.api = FakeCluster(self.clock)
        self.api.unserved = unserved
        self.scheduler = Scheduler(self.api, settings or default_plugins.shipped_config(), **options)

    def nodes(self, count: int, **parts: Any) -> None:
        for number in range(count):
            self.api.put("Node", node(f"node-{number}", **parts))

    def condition(self, name: str) -> Json:
        found = next(p for p in self.api.pods() if p["metadata"]["name"] == name)
        conditions = found.get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == "PodScheduled"), {})

    async def settle(self, seconds: float = 0.01) -> None:
        await asyncio.sleep(seconds)


@contextlib.asynccontextmanager
async def running(world: World, strict: bool) -> AsyncIterator[World]:
    with strictly() if strict else contextlib.nullcontext():
        task = asyncio.create_task(world.scheduler.run(), name="scheduler")
        await world.scheduler.synced.wait()
        try:
            yield world
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def play(
    story: Callable[[World], Awaitable[None]],
    config: SchedulerConfig | None = None,
    *,
    strict: bool = True,
    **options: Any,
) -> None:
    """Run a story in a world with a running scheduler; unexpected exceptions end it unless not `strict`."""

    async def main() -> None:
        async with running(World(config, **options), strict) as world:
            await story(world)

    virtual_loop.run(main())


def with_plugins(*plugins: type[Plugin[Any]], **points: str) -> dict[str, Any]:
    """Options of `play` with more plugins, enabled at the extension points given by name."""
    body = {
        "profiles": [
            {
                "schedulerName": "koord-scheduler",
                "plugins": {point: {"enabled": [{"name": name}]} for point, name in points.items()},
            }
        ]
    }
    extra = {plugin.name: plugin for plugin in plugins}
    return {"config": config.decode(body), "plugins": {**built_in.PLUGINS, **extra}}


def requested_cpu(world: World) -> list[int]:
    table = world.scheduler.table
    return [int(table.requested[0][row]) for row in table.rows]
