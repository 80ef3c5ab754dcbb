"""A cluster whose reservations tests place themselves, by writing what Bind writes, and a scheduler that keeps their
statuses."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from koordinator.api import crd, labels
from koordinator.api.core import Node, Pod
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.groups import CustomResourceDefinition, Event
from koordinator.api.meta import Object
from koordinator.api.reservation import Reservation
from koordinator.clock import LoopClock, rfc3339
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.protocol import Cluster, WatchEvent
from koordinator.cluster.supervise import strictly
from koordinator.cluster.write_through import ClusterWrite, WriteThrough
from koordinator.local import registry
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import PluginConfig, SchedulerConfig
from koordinator.scheduler.plugins.reservation import lifecycle
from koordinator.scheduler.scheduler import Scheduler
from tests.cluster import virtual_loop
from tests.scheduler.world import EPOCH_S, node, pod

T = TypeVar("T", bound=Object)
R = TypeVar("R")

Json = dict[str, Any]
HOUR_S = 3600.0


def scheduler(cluster: Cluster, gates: str = "", **args: Any) -> Scheduler:
    """A scheduler with the shipped profile and these arguments of the plugin."""
    shipped = default_plugins.shipped_profile()
    own = PluginConfig(name="Reservation", args=args)
    profile = msgspec.structs.replace(shipped, plugin_config=[*shipped.plugin_config, own])
    checked = FeatureGates.of(Component.SCHEDULER, gates)
    return Scheduler(cluster, SchedulerConfig(profiles=[profile]), gates=checked)


class ReservationWorld:
    """Objects of the API, and what a test does to them. Reservations are for another scheduler to place."""

    def __init__(self) -> None:
        self.clock = LoopClock(asyncio.get_running_loop(), EPOCH_S)
        self.api = MemoryCluster(registry.in_memory(self.clock, checks=False))

    async def serve(self, *, nodes: bool = True) -> "ReservationWorld":
        """The API serves reservations, and there is a node unless the test makes its own."""
        for manifest in crd.manifests():
            await self.api.create(CustomResourceDefinition, manifest)
        if nodes:
            await self.node()
        return self

    async def node(self, name: str = "n") -> None:
        await self.api.create(Node, node(name, cpu="64", memory="64Gi"))

    async def reserve(self, name: str, *, cpu: str = "4", node_name: str = "", **spec: Any) -> Reservation:
        """A Reservation, placed on a node if one is given."""
        containers = [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]
        template = {"spec": {"schedulerName": "another", "containers": containers}}
        owners = [{"labelSelector": {"matchLabels": {"app": name}}}]
        body = {
            "metadata": {"name": name},
            "spec": {"template": template, "owners": owners, "ttl": "1h", **spec},
        }
        made = await self.api.create(Reservation, body)
        return await self.place(made, node_name) if node_name else made

    async def place(self, reservation: Reservation, node_name: str) -> Reservation:
        status = lifecycle.bound(reservation, node_name, self.clock.now())
        body = {"status": lifecycle.difference(reservation.status, status)}
        return await self.api.patch(Reservation, reservation.metadata.name, body, subresource="status")

    async def owner(self, name: str, of: Reservation, *, cpu: str = "1", node_name: str = "n") -> Pod:
        """A pod that runs and uses the reservation."""
        body = pod(name, cpu=cpu, nodeName=node_name)
        body["metadata"]["annotations"] = {labels.RESERVATION_ALLOCATED: allocated(of)}
        return await self.api.create(Pod, body, "default")

    async def end(self, name: str, phase: str = "Succeeded") -> None:
        await self.api.patch(Pod, name, {"status": {"phase": phase}}, "default", subresource="status")

    async def delete_pod(self, name: str) -> None:
        await self.api.delete(Pod, name, "default", grace_period_s=0)

    async def find(self, name: str) -> Reservation | None:
        try:
            return await self.api.get(Reservation, name)
        except errors.NotFound:
            return None

    async def get(self, name: str) -> Reservation:
        return await self.api.get(Reservation, name)

    async def events(self, reason: str) -> list[str]:
        """What users are told, for this reason."""
        return [each.note for each in (await self.api.list(Event)).items if each.reason == reason]

    def now(self) -> str:
        return rfc3339(self.clock.now())


def allocated(reservation: Reservation) -> str:
    """What a pod's annotation says that uses the reservation."""
    return json.dumps({"name": reservation.metadata.name, "uid": reservation.metadata.uid})


@contextlib.asynccontextmanager
async def scheduling(made: Scheduler) -> AsyncIterator[Scheduler]:
    """The scheduler runs meanwhile."""
    task = asyncio.create_task(made.run(), name="scheduler")
    await made.synced.wait()
    try:
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class LateWatch(WriteThrough):
    """A cluster whose watch of one kind tells everything late."""

    def __init__(self, inner: Cluster, kind: type[Object], late_s: float) -> None:
        super().__init__(inner)
        self._kind = kind
        self._late_s = late_s

    async def watch(
        self, view: type[T], namespace: str = "", **options: Any
    ) -> AsyncIterator[Sequence[WatchEvent[T]]]:
        async for batch in self._inner.watch(view, namespace, **options):
            await asyncio.sleep(self._late_s if view is self._kind else 0.0)
            yield batch

    async def _send(self, write: ClusterWrite, effect: Callable[[], Awaitable[R]]) -> R:
        return await effect()


def play(
    story: Callable[[ReservationWorld], Awaitable[None]],
    gates: str = "",
    late: type[Object] | None = None,
    **args: Any,
) -> None:
    """Run a story beside a running scheduler, which hears of objects of the kind `late` after 30 s only."""

    async def main() -> None:
        world = await ReservationWorld().serve()
        seen = world.api if late is None else LateWatch(world.api, late, 30.0)
        with strictly():
            async with scheduling(scheduler(seen, gates, **args)):
                await story(world)

    virtual_loop.run(main())
