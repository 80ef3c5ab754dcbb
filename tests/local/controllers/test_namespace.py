"""A deleted namespace empties itself and waits for what needs time."""

import asyncio

import pytest

from koordinator.api.core import ConfigMap, Namespace
from koordinator.cluster import errors
from koordinator.local.controllers.namespace import NamespaceController
from tests.local.controllers.world import World, run


def build(world: World) -> list[NamespaceController]:
    return [NamespaceController(world.cluster, world.factory, world.backend.resources)]


def test_a_namespace_goes_with_all_that_is_in_it() -> None:
    async def scenario(world: World) -> None:
        await world.cluster.create(Namespace, {"metadata": {"name": "shop"}})
        for number in range(3):
            await world.cluster.create(ConfigMap, {"metadata": {"name": f"c{number}"}}, "shop")

        await world.cluster.delete(Namespace, "shop")
        await asyncio.sleep(5)

        with pytest.raises(errors.NotFound):
            await world.cluster.get(Namespace, "shop")
        assert (await world.cluster.list(ConfigMap, "shop")).items == []

    run(build, scenario)


def test_a_finalizer_inside_holds_the_namespace_and_its_conditions_say_so() -> None:
    async def scenario(world: World) -> None:
        await world.cluster.create(Namespace, {"metadata": {"name": "shop"}})
        await world.cluster.create(
            ConfigMap, {"metadata": {"name": "c", "finalizers": ["test/hold"]}}, "shop"
        )

        await world.cluster.delete(Namespace, "shop")
        await asyncio.sleep(5)
        found = await world.cluster.get(Namespace, "shop")
        messages = {c.type: c.message for c in found.status.conditions if c.status == "True"}
        assert "configmaps has 1 resource instances" in messages["NamespaceContentRemaining"]
        assert "test/hold in 1 resource instances" in messages["NamespaceFinalizersRemaining"]

        await world.cluster.patch(ConfigMap, "c", {"metadata": {"finalizers": None}}, "shop")
        await asyncio.sleep(5)
        with pytest.raises(errors.NotFound):
            await world.cluster.get(Namespace, "shop")

    run(build, scenario)
