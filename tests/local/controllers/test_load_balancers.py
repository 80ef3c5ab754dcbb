"""Services of type LoadBalancer get an address, and give it back."""

import asyncio
from typing import Any

from koordinator.api.core import Event, Service
from koordinator.cluster.events import EventRecorder
from koordinator.local.controllers.service_addresses import LoadBalancerController
from tests.local.controllers.world import Runs, World, run


def build(world: World) -> list[Runs]:
    events = EventRecorder(world.cluster, "test", rng=world.rng)
    return [events, LoadBalancerController(world.cluster, world.factory, events)]


async def service(world: World, name: str, **spec: Any) -> None:
    body = {"metadata": {"name": name}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], **spec}}
    await world.cluster.create(Service, body, "default")


async def addresses(world: World) -> dict[str, list[str]]:
    await asyncio.sleep(1)
    found = (await world.cluster.list(Service, "default")).items
    return {one.metadata.name: [i.ip for i in one.status.load_balancer.ingress] for one in found}


def test_each_gets_an_address_of_its_own_or_the_one_it_asks_for() -> None:
    async def scenario(world: World) -> None:
        await service(world, "asks", loadBalancerIP="198.18.0.2")
        for name in ("a", "b"):
            await service(world, name)
        await service(world, "other", loadBalancerClass="example.com/mine")
        await service(world, "inside", type="ClusterIP")

        assert await addresses(world) == {
            "asks": ["198.18.0.2"],
            "a": ["198.18.0.1"],
            "b": ["198.18.0.3"],
            "other": [],
            "inside": [],
            "kubernetes": [],
        }

    run(build, scenario)


def test_an_address_is_given_back_when_the_type_changes_or_the_service_goes() -> None:
    async def scenario(world: World) -> None:
        await service(world, "a", loadBalancerIP="198.18.0.9")
        await service(world, "b", loadBalancerIP="198.18.0.10")
        await addresses(world)
        await world.cluster.patch(Service, "a", {"spec": {"type": "ClusterIP"}}, "default")
        await world.cluster.delete(Service, "b", "default")
        assert (await addresses(world))["a"] == []

        await service(world, "c", loadBalancerIP="198.18.0.9")
        await service(world, "d", loadBalancerIP="198.18.0.10")
        found = await addresses(world)
        assert (found["c"], found["d"]) == (["198.18.0.9"], ["198.18.0.10"])

    run(build, scenario)


def test_an_address_that_cannot_be_given_is_reported_by_an_event() -> None:
    async def scenario(world: World) -> None:
        await service(world, "a", loadBalancerIP="198.18.0.9")
        await addresses(world)
        await service(world, "taken", loadBalancerIP="198.18.0.9")
        await service(world, "foreign", loadBalancerIP="8.8.8.8")
        found = await addresses(world)

        assert (found["taken"], found["foreign"]) == ([], [])
        reported = {e.involved_object.name for e in (await world.cluster.list(Event, "default")).items
                if e.reason == "SyncLoadBalancerFailed"}  # fmt: skip
        assert reported == {"taken", "foreign"}

    run(build, scenario)
