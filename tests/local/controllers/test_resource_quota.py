"""The quota controller recounts when objects go or end."""

import asyncio
from typing import Any

from koordinator.api.core import Pod
from koordinator.api.groups import ResourceQuota
from koordinator.local.controllers.resource_quota import RESYNC_S, ResourceQuotaController
from tests.local.controllers.world import World, run

QUOTA = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "9", "count/configmaps": "9"}}}


def used(world: World) -> dict[str, Any]:
    record = world.backend.get(ResourceQuota.resource, "default", "q")
    return dict(record.obj["status"]["used"])


def build(world: World) -> list[ResourceQuotaController]:
    backend = world.backend
    return [ResourceQuotaController(world.factory, backend.resources, backend.recount_quota)]


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c"}], **spec}}


def test_used_follows_what_is_there() -> None:
    async def scenario(world: World) -> None:
        config_maps = world.backend.resolve("", "v1", "configmaps")
        await world.cluster.create(Pod, pod("before"), "default")
        await world.cluster.create(ResourceQuota, QUOTA, "default")
        await asyncio.sleep(1)
        assert used(world) == {"pods": "1", "count/configmaps": "0"}

        await world.cluster.create(Pod, pod("a"), "default")
        await world.backend.create(config_maps, "default", {"metadata": {"name": "m"}})
        assert used(world) == {"pods": "2", "count/configmaps": "1"}

        await world.cluster.patch(
            Pod, "a", {"status": {"phase": "Succeeded"}}, "default", subresource="status"
        )
        await world.backend.delete(config_maps, "default", "m")
        await asyncio.sleep(1)
        assert used(world) == {"pods": "1", "count/configmaps": "0"}

        await world.cluster.delete(Pod, "before", "default")
        await asyncio.sleep(1)
        assert used(world) == {"pods": "0", "count/configmaps": "0"}

    run(build, scenario)


def test_a_pod_that_does_not_end_stops_counting_after_its_grace() -> None:
    async def scenario(world: World) -> None:
        await world.cluster.create(ResourceQuota, QUOTA, "default")
        await world.cluster.create(
            Pod, pod("a", nodeName="gone", terminationGracePeriodSeconds=30), "default"
        )
        await world.cluster.delete(Pod, "a", "default")
        await asyncio.sleep(1)
        assert used(world)["pods"] == "1"

        await asyncio.sleep(RESYNC_S + 60)
        assert used(world)["pods"] == "0"

    run(build, scenario)
