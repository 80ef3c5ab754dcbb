"""Claims are made from templates once per pod, and taken back with what they hold when their pods are done."""

import asyncio

from koordinator.api.core import Pod
from koordinator.api.dra import FINALIZER, POD_CLAIM_NAME, ResourceClaim, ResourceClaimTemplate
from koordinator.api.groups import Event
from koordinator.cluster.events import EventRecorder
from koordinator.local.controllers.resource_claims import ResourceClaimController
from tests.local.controllers.world import Runs, World, run
from tests.scheduler.dynamic_resources.builders import claim, exactly, template, user_of


def build(world: World) -> list[Runs]:
    events = EventRecorder(world.cluster, "resource-claim-controller", rng=world.rng)
    return [events, ResourceClaimController(world.cluster, world.factory, events)]


async def claims(world: World) -> list[ResourceClaim]:
    return (await world.cluster.list(ResourceClaim, "default")).items


async def allocate(world: World, name: str, *pods: str) -> None:
    """What the scheduler does."""
    users = [
        {"resource": "pods", "name": pod, "uid": (await world.cluster.get(Pod, pod, "default")).metadata.uid}
        for pod in pods
    ]
    results = [{"request": "req", "driver": "d.example.com", "pool": "p", "device": "x"}]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
    finalizers = {"metadata": {"finalizers": [FINALIZER]}}
    await world.cluster.patch(ResourceClaim, name, finalizers, "default")
    await world.cluster.patch(ResourceClaim, name, {"status": status}, "default", subresource="status")


def test_one_claim_is_made_per_entry_and_the_pod_is_told_its_name() -> None:
    async def scenario(world: World) -> None:
        wanted = template("one", exactly())
        wanted["spec"]["metadata"] = {"labels": {"team": "a"}}
        await world.cluster.create(ResourceClaimTemplate, wanted, "default")
        await world.cluster.create(Pod, user_of("job", templates=("one", "one")), "default")
        await asyncio.sleep(5)

        made = await claims(world)
        pod = await world.cluster.get(Pod, "job", "default")
        reported = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
        assert reported == {each.metadata.annotations[POD_CLAIM_NAME]: each.metadata.name for each in made}
        assert sorted(reported) == ["t0", "t1"]
        for each in made:
            [owner] = each.metadata.owner_references
            assert (owner.uid, owner.controller) == (pod.metadata.uid, True)
            assert each.metadata.labels == {"team": "a"}
            assert each.spec.devices.requests[0].name == "req"

    run(build, scenario)


def test_a_pod_whose_template_is_missing_is_reported_and_gets_its_claim_when_it_comes() -> None:
    async def scenario(world: World) -> None:
        await world.cluster.create(Pod, user_of("job", templates=("one",)), "default")
        await asyncio.sleep(5)
        page = await world.cluster.list(Event, "default")
        assert [event.reason for event in page.items] == ["FailedResourceClaimCreation"]

        await world.cluster.create(ResourceClaimTemplate, template("one", exactly()), "default")
        await asyncio.sleep(5)
        assert len(await claims(world)) == 1

    run(build, scenario)


def test_devices_are_given_back_only_after_the_last_user_is_done() -> None:
    async def scenario(world: World) -> None:
        await world.cluster.create(ResourceClaim, claim("shared"), "default")
        for name in ("a", "b"):
            await world.cluster.create(Pod, user_of(name, "shared"), "default")
        await allocate(world, "shared", "a", "b")
        done = {"status": {"phase": "Failed"}}
        await world.cluster.patch(Pod, "a", done, "default", subresource="status")
        await asyncio.sleep(5)
        [left] = await claims(world)
        assert [user.name for user in left.status.reserved_for] == ["b"]
        assert left.status.allocation is not None and left.metadata.finalizers == [FINALIZER]

        await world.cluster.delete(Pod, "b", "default", grace_period_s=0)
        await asyncio.sleep(5)
        [left] = await claims(world)
        assert (left.status.reserved_for, left.status.allocation, left.metadata.finalizers) == ([], None, [])

    run(build, scenario)


def test_a_deleted_claim_goes_once_nobody_uses_it() -> None:
    async def scenario(world: World) -> None:
        await world.cluster.create(ResourceClaim, claim("one"), "default")
        await world.cluster.create(Pod, user_of("a", "one"), "default")
        await allocate(world, "one", "a")
        await world.cluster.delete(ResourceClaim, "one", "default")
        await asyncio.sleep(5)
        assert len(await claims(world)) == 1

        await world.cluster.delete(Pod, "a", "default", grace_period_s=0)
        await asyncio.sleep(5)
        assert await claims(world) == []

    run(build, scenario)


def test_generated_claims_go_when_their_pod_has_ended() -> None:
    async def scenario(world: World) -> None:
        await world.cluster.create(ResourceClaimTemplate, template("one", exactly()), "default")
        await world.cluster.create(Pod, user_of("job", templates=("one",)), "default")
        await asyncio.sleep(5)
        [made] = await claims(world)
        await allocate(world, made.metadata.name, "job")
        done = {"status": {"phase": "Succeeded"}}
        await world.cluster.patch(Pod, "job", done, "default", subresource="status")
        await asyncio.sleep(5)
        assert await claims(world) == []

    run(build, scenario)
