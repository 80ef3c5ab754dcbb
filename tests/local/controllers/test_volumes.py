"""Claims find volumes, volumes are made on demand, and taken back with their claims."""

import asyncio
from typing import Any

from koordinator.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from koordinator.cluster.events import EventRecorder
from koordinator.local.controllers import volumes
from koordinator.local.controllers.volumes import VolumeController
from tests.local.controllers.world import Runs, World, run


def build(world: World) -> list[Runs]:
    events = EventRecorder(world.cluster, "test", rng=world.rng)
    return [events, VolumeController(world.cluster, world.factory, events)]


async def claim(world: World, name: str = "data", size: str = "5Gi", **spec: Any) -> PersistentVolumeClaim:
    body = {
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **spec},
    }
    return await world.cluster.create(PersistentVolumeClaim, body, "default")


async def volume(world: World, name: str, size: str, **spec: Any) -> None:
    body = {
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": "/data"},
            **spec,
        },
    }
    await world.cluster.create(PersistentVolume, body)


async def found(world: World, name: str = "data") -> PersistentVolumeClaim:
    return await world.cluster.get(PersistentVolumeClaim, name, "default")


async def phases(world: World) -> dict[str, str]:
    page = await world.cluster.list(PersistentVolume)
    return {item.metadata.name: item.status.phase for item in page.items}


def test_the_smallest_volume_that_suits_is_bound() -> None:
    async def scenario(world: World) -> None:
        for name, size in (("big", "100Gi"), ("fitting", "6Gi"), ("small", "1Gi")):
            await volume(world, name, size)
        await claim(world, storageClassName="")
        await asyncio.sleep(1)

        bound = await found(world)
        assert (bound.status.phase, bound.spec.volume_name) == ("Bound", "fitting")
        assert bound.status.capacity == {"storage": "6Gi"}
        assert await phases(world) == {"big": "Available", "fitting": "Bound", "small": "Available"}

    run(build, scenario)


def test_two_claims_never_share_a_volume() -> None:
    async def scenario(world: World) -> None:
        await volume(world, "only", "10Gi")
        for number in range(5):
            await claim(world, f"c{number}", storageClassName="")
        await asyncio.sleep(5)

        claims = [await found(world, f"c{number}") for number in range(5)]
        assert sorted(c.status.phase for c in claims) == ["Bound", *["Pending"] * 4]

    run(build, scenario)


def test_the_default_class_waits_for_a_node_then_makes_a_volume() -> None:
    async def scenario(world: World) -> None:
        await world.cluster.create(StorageClass, volumes.standard_class())
        await claim(world)
        await asyncio.sleep(1)
        waiting = await found(world)
        assert (waiting.spec.storage_class_name, waiting.status.phase) == ("standard", "Pending")
        assert await phases(world) == {}

        chosen = {"metadata": {"annotations": {volumes.SELECTED_NODE: "n1"}}}
        await world.cluster.patch(PersistentVolumeClaim, "data", chosen, "default")
        await asyncio.sleep(1)
        bound = await found(world)
        assert bound.status.phase == "Bound"
        assert await phases(world) == {bound.spec.volume_name: "Bound"}

        await world.cluster.delete(PersistentVolumeClaim, "data", "default")
        await asyncio.sleep(1)
        assert await phases(world) == {}

    run(build, scenario)


def test_a_retained_volume_outlives_its_claim_and_is_not_given_away() -> None:
    async def scenario(world: World) -> None:
        await volume(world, "kept", "10Gi")
        await claim(world, storageClassName="")
        await asyncio.sleep(1)
        await world.cluster.delete(PersistentVolumeClaim, "data", "default")
        await asyncio.sleep(1)
        await claim(world, "other", storageClassName="")
        await asyncio.sleep(1)

        assert await phases(world) == {"kept": "Released"}
        assert (await found(world, "other")).status.phase == "Pending"

    run(build, scenario)


def test_a_volume_reserved_for_a_claim_waits_for_it() -> None:
    async def scenario(world: World) -> None:
        await volume(world, "mine", "10Gi", claimRef={"namespace": "default", "name": "data"})
        await claim(world, "stranger", storageClassName="")
        await claim(world, storageClassName="")
        await asyncio.sleep(1)

        assert (await found(world)).spec.volume_name == "mine"
        assert (await found(world, "stranger")).status.phase == "Pending"

    run(build, scenario)
