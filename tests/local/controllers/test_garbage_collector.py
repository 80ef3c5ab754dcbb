"""Objects follow their owners: in the background, in the foreground, or not at all."""

import asyncio
from typing import Any

import pytest

from koordinator.api.core import ConfigMap
from koordinator.cluster import errors
from koordinator.local.controllers.garbage_collector import GarbageCollector
from tests.local.controllers.world import World, owned_by, run


def build(world: World) -> list[GarbageCollector]:
    return [GarbageCollector(world.cluster, world.factory, world.backend.resources)]


async def make(world: World, name: str, *owners: dict[str, Any], **metadata: Any) -> ConfigMap:
    body = {"metadata": {"name": name, "ownerReferences": list(owners), **metadata}}
    return await world.cluster.create(ConfigMap, body, "default")


async def names(world: World) -> set[str]:
    return {obj.metadata.name for obj in (await world.cluster.list(ConfigMap, "default")).items}


def test_a_dependent_goes_after_its_owner_and_its_own_dependents_after_it() -> None:
    async def scenario(world: World) -> None:
        parent = await make(world, "parent")
        child = await make(world, "child", owned_by(parent))
        await make(world, "grandchild", owned_by(child))
        await make(world, "stranger")

        await world.cluster.delete(ConfigMap, "parent", "default")
        await asyncio.sleep(5)

        assert await names(world) == {"stranger"}

    run(build, scenario)


def test_a_dependent_with_another_living_owner_only_loses_the_reference() -> None:
    async def scenario(world: World) -> None:
        first, second = await make(world, "first"), await make(world, "second")
        await make(world, "child", owned_by(first), owned_by(second))

        await world.cluster.delete(ConfigMap, "first", "default")
        await asyncio.sleep(5)

        child = await world.cluster.get(ConfigMap, "child", "default")
        assert [owner.name for owner in child.metadata.owner_references] == ["second"]

    run(build, scenario)


def test_an_owner_of_the_same_name_but_another_uid_is_no_owner() -> None:
    async def scenario(world: World) -> None:
        owner = await make(world, "owner")
        await make(world, "child", {**owned_by(owner), "uid": "of-a-predecessor"})
        await asyncio.sleep(5)

        assert await names(world) == {"owner"}

    run(build, scenario)


def test_orphan_deletion_leaves_the_dependents_without_reference() -> None:
    async def scenario(world: World) -> None:
        owner = await make(world, "owner")
        await make(world, "child", owned_by(owner))
        await asyncio.sleep(1)

        await world.cluster.delete(ConfigMap, "owner", "default", propagation="Orphan")
        await asyncio.sleep(5)

        child = await world.cluster.get(ConfigMap, "child", "default")
        assert await names(world) == {"child"}
        assert child.metadata.owner_references == []

    run(build, scenario)


def test_foreground_deletion_keeps_the_owner_until_blocking_dependents_are_gone() -> None:
    async def scenario(world: World) -> None:
        owner = await make(world, "owner")
        await make(world, "child", owned_by(owner, blockOwnerDeletion=True), finalizers=["test/hold"])
        await asyncio.sleep(1)

        await world.cluster.delete(ConfigMap, "owner", "default", propagation="Foreground")
        await asyncio.sleep(5)
        assert await names(world) == {"owner", "child"}
        held = await world.cluster.get(ConfigMap, "child", "default")
        assert held.metadata.deletion_timestamp is not None

        await world.cluster.patch(ConfigMap, "child", {"metadata": {"finalizers": None}}, "default")
        await asyncio.sleep(5)
        assert await names(world) == set()

    run(build, scenario)


def test_an_owner_of_an_unknown_kind_keeps_its_dependents() -> None:
    async def scenario(world: World) -> None:
        await make(world, "child", {"apiVersion": "x.io/v1", "kind": "Thing", "name": "t", "uid": "u"})
        await asyncio.sleep(60)

        assert await names(world) == {"child"}
        with pytest.raises(errors.NotFound):
            await world.cluster.get(ConfigMap, "t", "default")

    run(build, scenario)
