"""Claims find volumes, volumes are made on demand, and taken back with their claims."""

import asyncio
from typing import Any

from koordinator.api.core import Pod
from koordinator.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from koordinator.cluster.events import EventRecorder
from koordinator.local.controllers import volumes
from koordinator.local.controllers.ephemeral_volumes import EphemeralVolumeController
from koordinator.local.controllers.volume_protection import VolumeProtectionController
from koordinator.local.controllers.volumes import VolumeController
from tests.local.controllers.workload_world import events_of
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


def test_a_claim_whose_class_is_missing_says_which() -> None:
    async def scenario(world: World) -> None:
        await claim(world, storageClassName="fast")
        await asyncio.sleep(1)

        (told,) = await events_of(world, "ProvisioningFailed")
        assert told.message == 'storageclass.storage.k8s.io "fast" not found'

    run(build, scenario)


def protect(world: World) -> list[Runs]:
    events = EventRecorder(world.cluster, "test", rng=world.rng)
    return [
        events,
        VolumeProtectionController(world.cluster, world.factory),
        EphemeralVolumeController(world.cluster, world.factory, events),
    ]


async def add_pod(world: World, *volumes: dict[str, Any], node: str = "n") -> None:
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "x"}], "volumes": list(volumes)}
    spec["terminationGracePeriodSeconds"] = 0
    await world.cluster.create(Pod, {"metadata": {"name": "user"}, "spec": spec}, "default")
    await asyncio.sleep(1)


def test_a_claim_that_a_pod_uses_stays_until_the_pod_is_gone() -> None:
    async def scenario(world: World) -> None:
        await claim(world)
        await claim(world, "idle")
        await add_pod(world, {"name": "v", "persistentVolumeClaim": {"claimName": "data"}})
        for name in ("data", "idle"):
            await world.cluster.delete(PersistentVolumeClaim, name, "default")
        await asyncio.sleep(1)
        left = (await world.cluster.list(PersistentVolumeClaim)).items
        assert [each.metadata.name for each in left] == ["data"]

        await world.cluster.delete(Pod, "user", "default")
        await asyncio.sleep(1)
        assert not (await world.cluster.list(PersistentVolumeClaim)).items

    run(protect, scenario)


def test_a_bound_volume_stays_until_it_is_bound_no_more() -> None:
    async def scenario(world: World) -> None:
        await volume(world, "pv", "1Gi")
        await world.cluster.patch(
            PersistentVolume, "pv", {"status": {"phase": "Bound"}}, subresource="status"
        )
        await asyncio.sleep(1)
        await world.cluster.delete(PersistentVolume, "pv")
        await asyncio.sleep(1)
        assert await phases(world) == {"pv": "Bound"}

        await world.cluster.patch(
            PersistentVolume, "pv", {"status": {"phase": "Released"}}, subresource="status"
        )
        await asyncio.sleep(1)
        assert await phases(world) == {}

    run(protect, scenario)


def test_volumes_that_others_make_are_asked_for_and_told() -> None:
    async def scenario(world: World) -> None:
        for name, provisioner in (("far", "far.example.com/disk"), ("none", "kubernetes.io/no-provisioner")):
            body = {"metadata": {"name": name}, "provisioner": provisioner}
            await world.cluster.create(StorageClass, body)
            await claim(world, name, storageClassName=name)
        await asyncio.sleep(1)

        assert (await found(world, "far")).metadata.annotations == {
            "volume.kubernetes.io/storage-provisioner": "far.example.com/disk",
            "volume.beta.kubernetes.io/storage-provisioner": "far.example.com/disk",
        }
        (asked,) = await events_of(world, "ExternalProvisioning")
        assert "by the external provisioner 'far.example.com/disk' or manually" in asked.message
        (failed,) = await events_of(world, "ProvisioningFailed")
        assert failed.message == "no volume plugin matched name: kubernetes.io/no-provisioner"
        assert (await found(world, "none")).metadata.annotations == {}

    run(build, scenario)


def test_an_ephemeral_volume_gets_a_claim_of_its_own_and_no_other() -> None:
    template = {"metadata": {"labels": {"for": "scratch"}}, "spec": {"accessModes": ["ReadWriteOnce"]}}

    async def scenario(world: World) -> None:
        await claim(world, "user-taken")
        volumes = [
            {"name": name, "ephemeral": {"volumeClaimTemplate": template}} for name in ("own", "taken")
        ]
        await add_pod(world, *volumes)

        made = await found(world, "user-own")
        assert [(owner.kind, owner.name) for owner in made.metadata.owner_references] == [("Pod", "user")]
        assert made.metadata.labels == {"for": "scratch"}
        (told,) = await events_of(world, "FailedBinding")
        assert "PVC default/user-taken was not created for pod default/user" in told.message

        await world.cluster.patch(
            PersistentVolumeClaim, "user-taken", {"metadata": {"finalizers": None}}, "default"
        )
        await world.cluster.delete(PersistentVolumeClaim, "user-taken", "default")
        await asyncio.sleep(10)
        assert (await found(world, "user-taken")).metadata.owner_references

    run(protect, scenario)
