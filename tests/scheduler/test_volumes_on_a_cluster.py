"""The scheduler and the cluster's volume controller together: what one promises, the other keeps."""

import asyncio
from typing import Any

from koordinator.api.core import Node, Pod
from koordinator.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from koordinator.cluster.events import EventRecorder
from koordinator.local.controllers import volumes
from koordinator.local.controllers.volumes import VolumeController
from koordinator.scheduler.config import config
from koordinator.scheduler.scheduler import Scheduler
from tests.local.controllers.world import Runs, World, run
from tests.scheduler.test_volumes import user_of, volume
from tests.scheduler.world import node, pod

LOCAL = {
    "metadata": {"name": "local"},
    "provisioner": "kubernetes.io/no-provisioner",
    "volumeBindingMode": "WaitForFirstConsumer",
}


def build(world: World) -> list[Runs]:
    events = EventRecorder(world.cluster, "test", rng=world.rng)
    return [events, VolumeController(world.cluster, world.factory, events), Scheduler(world.cluster)]


async def put(world: World, view: Any, *bodies: dict[str, Any]) -> None:
    for body in bodies:
        namespace = "default" if view in (Pod, PersistentVolumeClaim) else ""
        await world.cluster.create(view, body, namespace)


def claim(name: str, storage_class: str, size: str = "5Gi", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {
            "storageClassName": storage_class,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
            **spec,
        },
    }


async def node_of(world: World, name: str) -> str:
    return (await world.cluster.get(Pod, name, "default")).spec.node_name


async def message_of(world: World, name: str) -> str:
    found = await world.cluster.get(Pod, name, "default")
    return next((c.message or "" for c in found.status.conditions if c.type == "PodScheduled"), "")


def test_a_volume_is_made_where_the_pod_goes_and_the_pod_is_bound_then() -> None:
    async def scenario(world: World) -> None:
        await put(world, StorageClass, volumes.standard_class())
        await put(world, Node, node("a"), node("b"))
        await put(world, PersistentVolumeClaim, claim("data", "standard"))
        await asyncio.sleep(1)
        await put(world, Pod, user_of("db", "data"))
        await asyncio.sleep(20)

        assert await node_of(world, "db") in ("a", "b")
        found = await world.cluster.get(PersistentVolumeClaim, "data", "default")
        assert found.status.phase == "Bound"

    run(build, scenario)


def test_local_volumes_are_bound_smallest_first_and_pods_follow_them() -> None:
    async def scenario(world: World) -> None:
        await put(world, StorageClass, LOCAL)
        await put(world, Node, node("a"), node("b"))
        await put(world, PersistentVolume, volume("large", "b", "50Gi"), volume("small", "b", "10Gi"))
        await put(world, PersistentVolumeClaim, claim("data", "local"), claim("more", "local", "20Gi"))
        await asyncio.sleep(1)
        await put(world, Pod, user_of("db", "data", "more"))
        await asyncio.sleep(20)

        assert await node_of(world, "db") == "b"
        names = [
            (await world.cluster.get(PersistentVolumeClaim, name, "default")).spec.volume_name
            for name in ("data", "more")
        ]
        assert names == ["small", "large"]

    run(build, scenario)


def test_a_pod_that_came_before_its_claims_is_scheduled_when_they_come() -> None:
    async def scenario(world: World) -> None:
        await put(world, StorageClass, volumes.standard_class())
        await put(world, Node, node("a"))
        ephemeral = [
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": claim("", "")["spec"]}}}
        ]
        await put(world, Pod, user_of("db", "data"), pod("job", volumes=ephemeral))
        await asyncio.sleep(2)
        assert 'persistentvolumeclaim "data" not found' in await message_of(world, "db")
        waiting = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "job-scratch"'
        assert waiting in await message_of(world, "job")

        owner = await world.cluster.get(Pod, "job", "default")
        made = claim("job-scratch", "standard")
        made["metadata"]["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Pod", "name": "job", "uid": owner.metadata.uid, "controller": True}
        ]
        await put(world, PersistentVolumeClaim, claim("data", "standard"), made)
        await asyncio.sleep(30)
        assert [await node_of(world, name) for name in ("db", "job")] == ["a", "a"]

    run(build, scenario)


def test_two_profiles_do_not_promise_one_volume_twice() -> None:
    arguments = [{"name": "VolumeBinding", "args": {"bindTimeoutSeconds": 60}}]
    profiles = [{"schedulerName": "one"}, {"schedulerName": "two", "pluginConfig": arguments}]

    def two(world: World) -> list[Runs]:
        return [Scheduler(world.cluster, config.decode({"profiles": profiles}))]

    async def scenario(world: World) -> None:
        await put(world, StorageClass, LOCAL)
        await put(world, Node, node("a"))
        await put(world, PersistentVolume, volume("only", "a", "10Gi"))
        await put(world, PersistentVolumeClaim, claim("x", "local"), claim("y", "local"))
        only = await world.cluster.get(PersistentVolume, "only")
        status = {"status": {"phase": "Available"}}
        await world.cluster.patch(PersistentVolume, only.metadata.name, status, subresource="status")
        await asyncio.sleep(1)
        await put(world, Pod, user_of("p", "x", scheduler="one"), user_of("q", "y", scheduler="two"))
        await asyncio.sleep(5)

        messages = [await message_of(world, name) for name in ("p", "q")]
        refused = [text for text in messages if "didn't find available persistent volumes to bind" in text]
        assert len(refused) == 1

    run(two, scenario)


def test_nodes_are_scored_by_how_well_the_claim_fills_the_volume_there() -> None:
    shape = [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]
    arguments = [{"name": "VolumeBinding", "args": {"shape": shape}}]

    def one(world: World) -> list[Runs]:
        return [Scheduler(world.cluster, config.decode({"profiles": [{"pluginConfig": arguments}]}))]

    async def scenario(world: World) -> None:
        await put(world, StorageClass, LOCAL)
        await put(world, Node, node("a"), node("b"), node("c"))
        for name, host, size in (("v1", "a", "100Gi"), ("v2", "b", "6Gi"), ("v3", "c", "50Gi")):
            await put(world, PersistentVolume, volume(name, host, size))
            status = {"status": {"phase": "Available"}}
            await world.cluster.patch(PersistentVolume, name, status, subresource="status")
        await put(world, PersistentVolumeClaim, claim("data", "local"))
        await asyncio.sleep(1)
        await put(world, Pod, user_of("db", "data"))
        await asyncio.sleep(2)

        reference = (await world.cluster.get(PersistentVolume, "v2")).spec.claim_ref
        assert reference is not None and reference.name == "data"

    run(one, scenario)
