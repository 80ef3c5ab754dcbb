"""Gangs and quotas: all members fit their quota together, or none takes a place of it."""

from typing import Any

from tests.scheduler.coscheduling.test_plugin import member as gang_member
from tests.scheduler.elastic_quota.test_lending import plugin_of
from tests.scheduler.elastic_quota.test_plugin import PREFIX, member, placed, quota
from tests.scheduler.elastic_quota.test_waking import attempts
from tests.scheduler.world import World, play

Json = dict[str, Any]


def of_quota(body: Json, name: str) -> Json:
    body["metadata"]["labels"] = {f"{PREFIX}/name": name}
    return body


def used_milli(world: World, name: str) -> int:
    found = plugin_of(world).book.find(name)
    assert found is not None
    return found[1].below.used.get("cpu", 0) // 10**6


def test_a_gang_above_its_quota_is_refused_as_a_whole_and_not_tried_again_for_nothing() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="10")
        world.api.put("ElasticQuota", quota("team", low=2, high=4))
        for number in range(5):
            world.api.put("Pod", of_quota(gang_member(f"job-{number}", "job", 5), "team"))
        await world.settle(15)
        assert placed(world) == []
        assert used_milli(world, "team") == 0
        message = world.condition("job-0")["message"]
        assert "Insufficient quotas, quotaName: team, runtime: cpu:4" in message
        assert "request of 5 pods together: cpu:5, exceedDimensions: [cpu]" in message

        before = attempts(world)
        await world.settle(240)
        assert attempts(world) - before <= 10

        world.api.put("Pod", member("single", "team", cpu="4"))
        await world.settle(2)
        assert placed(world) == ["single"]

        world.api.remove("Pod", "single", "default")
        world.api.put("ElasticQuota", quota("team", low=2, high=5))
        await world.settle(30)
        assert placed(world) == [f"job-{number}" for number in range(5)]
        assert used_milli(world, "team") == 5000

    play(story)


def test_a_round_that_failed_leaves_nothing_used_and_the_next_one_has_the_whole_quota() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="3")
        world.api.put("ElasticQuota", quota("team", low=4, high=4))
        for number in range(3):
            world.api.put("Pod", of_quota(gang_member(f"job-{number}", "job", 4), "team"))
        await world.settle(2)
        assert placed(world) == []

        world.api.put("Pod", of_quota(gang_member("job-3", "job", 4), "team"))
        await world.settle(30)
        assert placed(world) == []  # three fit the node, four do not
        assert used_milli(world, "team") == 0

        world.nodes(2, cpu="3")
        await world.settle(30)
        assert len(placed(world)) == 4

    play(story)
