"""Scheduler and claim controller together: pods get devices, nobody gets one twice, devices come back."""

import asyncio
from collections import Counter
from typing import Any

from koordinator.api.core import Node, Pod
from koordinator.api.dra import FINALIZER, DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from koordinator.cluster.events import EventRecorder
from koordinator.local.controllers.resource_claims import ResourceClaimController
from koordinator.scheduler.config import config
from koordinator.scheduler.scheduler import Scheduler
from tests.local.controllers.world import Runs, World, run
from tests.scheduler.dynamic_resources.builders import (
    DRIVER,
    claim,
    device,
    device_class,
    exactly,
    resource_slice,
    selector,
    template,
    user_of,
)
from tests.scheduler.world import node

_NAMESPACED = (Pod, ResourceClaim, ResourceClaimTemplate)
SHARED_WITH_B = {
    "nodeSelector": {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]}
        ]
    }
}


def build(world: World) -> list[Runs]:
    events = EventRecorder(world.cluster, "test", rng=world.rng)
    return [events, ResourceClaimController(world.cluster, world.factory, events), Scheduler(world.cluster)]


async def put(world: World, view: Any, *bodies: dict[str, Any]) -> None:
    for body in bodies:
        await world.cluster.create(view, body, "default" if view in _NAMESPACED else "")


async def node_of(world: World, name: str) -> str:
    return (await world.cluster.get(Pod, name, "default")).spec.node_name


async def message_of(world: World, name: str) -> str:
    found = await world.cluster.get(Pod, name, "default")
    return next((c.message or "" for c in found.status.conditions if c.type == "PodScheduled"), "")


async def claim_of(world: World, name: str) -> ResourceClaim:
    return await world.cluster.get(ResourceClaim, name, "default")


async def devices_of(world: World, name: str) -> list[str]:
    allocation = (await claim_of(world, name)).status.allocation
    return [each.device for each in allocation.devices.results] if allocation is not None else []


async def two_nodes(world: World, per_node: int = 2) -> None:
    await put(world, Node, node("a"), node("b"))
    await put(world, DeviceClass, device_class())
    for name in ("a", "b"):
        devices = [device(f"{name}{number}", numa=number % 2) for number in range(per_node)]
        await put(world, ResourceSlice, resource_slice(name, *devices, node=name))


def test_a_claim_gets_a_device_before_its_pod_is_bound_and_says_all_that_kubelets_read() -> None:
    async def scenario(world: World) -> None:
        await two_nodes(world)
        parameters = {"opaque": {"driver": DRIVER, "parameters": {"mode": "shared"}}}
        config = [parameters, {"requests": ["other"], **parameters}]
        await put(world, DeviceClass, device_class("mine", config=[parameters]))
        await put(world, ResourceClaim, claim("gpu", exactly(device_class_name="mine"), config=config))
        await put(world, Pod, user_of("job", "gpu"))
        await asyncio.sleep(5)

        chosen = await node_of(world, "job")
        raw = await world.cluster.request(
            "GET", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/gpu"
        )
        allocation = raw["status"]["allocation"]
        assert allocation["devices"]["results"] == [
            {"request": "req", "driver": DRIVER, "pool": chosen, "device": f"{chosen}0"}
        ]
        assert allocation["devices"]["config"] == [
            {"source": "FromClass", "requests": ["req"], **parameters},
            {"source": "FromClaim", **parameters},
        ]
        on_node = {"key": "metadata.name", "operator": "In", "values": [chosen]}
        assert allocation["nodeSelector"] == {"nodeSelectorTerms": [{"matchFields": [on_node]}]}
        uid = (await world.cluster.get(Pod, "job", "default")).metadata.uid
        assert raw["status"]["reservedFor"] == [{"resource": "pods", "name": "job", "uid": uid}]
        assert raw["metadata"]["finalizers"] == [FINALIZER]

    run(build, scenario)


def test_claims_are_made_from_templates_and_no_device_is_given_twice() -> None:
    async def scenario(world: World) -> None:
        await two_nodes(world)
        await put(world, ResourceClaimTemplate, template("one", exactly()))
        await put(world, Pod, *(user_of(f"p{number}", templates=("one",)) for number in range(5)))
        await asyncio.sleep(20)

        page = await world.cluster.list(ResourceClaim, "default")
        given = Counter(
            each.device
            for item in page.items
            if item.status.allocation
            for each in item.status.allocation.devices.results
        )
        assert given == Counter(["a0", "a1", "b0", "b1"])
        waiting = [f"p{number}" for number in range(5) if not await node_of(world, f"p{number}")]
        assert len(waiting) == 1
        text = "0/2 nodes are available: 2 cannot allocate all claims."
        assert (await message_of(world, waiting[0])).startswith(text)

        done = next(f"p{number}" for number in range(5) if f"p{number}" not in waiting)
        await world.cluster.patch(
            Pod, done, {"status": {"phase": "Succeeded"}}, "default", subresource="status"
        )
        await asyncio.sleep(20)
        assert await node_of(world, waiting[0])
        owners = [
            item.metadata.owner_references[0].name for item in (await world.cluster.list(ResourceClaim)).items
        ]
        assert done not in owners

    run(build, scenario)


def test_pods_that_share_a_claim_follow_it_and_it_is_given_back_after_the_last() -> None:
    async def scenario(world: World) -> None:
        await two_nodes(world)
        await put(world, ResourceClaim, claim("gpu"))
        await put(world, Pod, user_of("one", "gpu"), user_of("two", "gpu"))
        await asyncio.sleep(20)

        assert await node_of(world, "one") == await node_of(world, "two") != ""
        assert {user.name for user in (await claim_of(world, "gpu")).status.reserved_for} == {"one", "two"}

        await world.cluster.delete(Pod, "one", "default", grace_period_s=0)
        await asyncio.sleep(5)
        assert [user.name for user in (await claim_of(world, "gpu")).status.reserved_for] == ["two"]
        await world.cluster.delete(Pod, "two", "default", grace_period_s=0)
        await asyncio.sleep(5)
        left = await claim_of(world, "gpu")
        assert (left.status.allocation, left.status.reserved_for, left.metadata.finalizers) == (None, [], [])

    run(build, scenario)


def test_a_pod_waits_for_its_claim_class_and_slices_and_says_for_what() -> None:
    async def scenario(world: World) -> None:
        await put(world, Node, node("a"))
        await put(world, Pod, user_of("job", "gpu"), user_of("made", templates=("one",)))
        await asyncio.sleep(3)
        assert await node_of(world, "job") == ""

        await put(world, ResourceClaim, claim("gpu"))
        await put(world, ResourceClaimTemplate, template("one", exactly()))
        await asyncio.sleep(20)
        expected = "0/1 nodes are available: request req: device class gpu does not exist."
        assert (await message_of(world, "job")).startswith(expected)

        await put(world, DeviceClass, device_class())
        await asyncio.sleep(20)
        assert (await message_of(world, "job")).startswith(
            "0/1 nodes are available: 1 cannot allocate all claims."
        )

        await put(world, ResourceSlice, resource_slice("a", device("a0"), node="a"))
        await asyncio.sleep(20)
        assert sorted([await node_of(world, name) for name in ("job", "made")]) == ["", "a"]

        grown = resource_slice("a", device("a0"), device("a1"), node="a")
        await world.cluster.patch(ResourceSlice, "a", {"spec": grown["spec"]})
        await asyncio.sleep(20)
        assert [await node_of(world, name) for name in ("job", "made")] == ["a", "a"]

    run(build, scenario)


def test_a_claim_with_devices_on_the_wrong_node_gives_them_back_when_nobody_uses_it() -> None:
    async def scenario(world: World) -> None:
        await two_nodes(world)
        await put(world, ResourceClaim, claim("gpu"))
        await put(world, Pod, user_of("first", "gpu", nodeSelector={"kubernetes.io/hostname": "a"}))
        await asyncio.sleep(5)
        assert await devices_of(world, "gpu") == ["a0"]
        found = await claim_of(world, "gpu")
        await world.cluster.patch(
            ResourceClaim, "gpu", {"status": {"reservedFor": None}}, "default", subresource="status"
        )
        assert found.status.allocation is not None

        await put(world, Pod, user_of("second", "gpu", nodeSelector={"kubernetes.io/hostname": "b"}))
        await asyncio.sleep(30)
        assert await node_of(world, "second") == "b"
        assert await devices_of(world, "gpu") == ["b0"]

    run(
        lambda world: [
            EventRecorder(world.cluster, "test", rng=world.rng),
            Scheduler(world.cluster, config.decode({"profiles": [{"schedulerName": "koord-scheduler"}]})),
        ],
        scenario,
    )


def test_devices_that_several_nodes_reach_are_given_away_with_their_selector() -> None:
    async def scenario(world: World) -> None:
        await put(world, Node, node("a"), node("b"))
        await put(world, DeviceClass, device_class())
        await put(world, ResourceSlice, resource_slice("fabric", device("net"), **SHARED_WITH_B))
        await put(world, ResourceSlice, resource_slice("licences", device("licence", memory="1")))
        wants_net = exactly(
            "n", selectors=selector("device.capacity['gpu.example.com'].memory.compareTo(quantity('2')) > 0")
        )
        wants_licence = exactly(
            "l", selectors=selector("device.capacity['gpu.example.com'].memory.isLessThan(quantity('2'))")
        )
        await put(world, ResourceClaim, claim("both", wants_net, wants_licence), claim("more", wants_licence))
        await put(world, Pod, user_of("job", "both"), user_of("late", "more"))
        await asyncio.sleep(20)

        assert await node_of(world, "job") == "b"
        allocation = (await claim_of(world, "both")).status.allocation
        assert allocation is not None and allocation.node_selector is not None
        [term] = allocation.node_selector.node_selector_terms
        assert [(each.key, each.values) for each in term.match_expressions] == [
            ("kubernetes.io/hostname", ["b"])
        ]
        assert await node_of(world, "late") == ""

    run(build, scenario)
