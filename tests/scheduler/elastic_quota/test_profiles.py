"""Several profiles with quotas: one set of books for all, checks of each its own."""

from typing import Any

import pytest

from koordinator.scheduler.config import config
from koordinator.scheduler.config.config import SchedulerConfig
from tests.scheduler.elastic_quota.test_plugin import member, placed, quota
from tests.scheduler.world import World, play


def profiles(first: dict[str, Any], second: dict[str, Any]) -> SchedulerConfig:
    """`koord-scheduler` and `other` with these arguments of ElasticQuota."""
    return config.decode(
        {
            "profiles": [
                {
                    "schedulerName": name,
                    "pluginConfig": [{"name": "ElasticQuota", "args": args}],
                    "plugins": {"multiPoint": {"enabled": [{"name": "ElasticQuota"}]}},
                }
                for name, args in (("koord-scheduler", first), ("other", second))
            ]
        }
    )


def test_what_concerns_all_is_that_of_the_first_profile_and_others_are_told_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8", memory="64Gi")
        for name in ("search", "ads"):
            world.api.put("ElasticQuota", quota(name, low=4, high=8))
        for number in range(8):
            world.api.put("Pod", member(f"ads-{number}", "ads", schedulerName="other"))
        await world.settle(2)
        assert len(placed(world)) == 8
        for number in range(4):
            world.api.put("Pod", member(f"search-{number}", "search", schedulerName="other"))
        await world.settle(40)
        assert len([name for name in placed(world) if name.startswith("search")]) == 4

    play(story, profiles({"delayEvictTime": "20s", "monitorAllQuotas": True}, {"enableRuntimeQuota": False}))

    reported = (
        "delayEvictTime, monitorAllQuotas, enableRuntimeQuota of the first profile apply to all profiles"
    )
    assert [
        reported in each.getMessage() for each in caplog.records if "first profile" in each.getMessage()
    ] == [True]


def test_each_profile_checks_as_it_is_reported_and_all_count_in_the_same_quotas() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="20", memory="64Gi")
        world.api.put("ElasticQuota", quota("ads", high=2, is_parent="true"))
        world.api.put("ElasticQuota", quota("web", parent="ads", high=9))
        world.api.put("ElasticQuota", quota("tiles", parent="ads", high=9))
        world.api.put("Pod", member("a", "web"))
        world.api.put("Pod", member("b", "tiles", schedulerName="other"))
        await world.settle(2)
        assert placed(world) == ["a", "b"]
        world.api.put("Pod", member("c", "web"))
        world.api.put("Pod", member("d", "tiles", schedulerName="other"))
        await world.settle(3)

        # The runtimes of both are used up: what `ads` has is shared, whoever places the pods.
        assert placed(world) == ["a", "b"]
        assert "Insufficient quotas" in world.condition("c")["message"]
        assert "Insufficient quotas" in world.condition("d")["message"]
        used = world.api.objects["ElasticQuota"]["quotas", "ads"]["status"]["used"]
        assert used == {"cpu": "2"}

    play(story, profiles({"enableCheckParentQuota": True}, {}))


def test_pods_of_every_profile_are_reported_when_their_quota_has_more_room() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8", memory="64Gi")
        for name in ("search", "ads"):
            world.api.put("ElasticQuota", quota(name, low=4, high=8))
        for number in range(4):
            world.api.put("Pod", member(f"search-{number}", "search", nodeSelector={"no": "where"}))
        for number in range(6):
            world.api.put("Pod", member(f"ads-{number}", "ads", schedulerName="other"))
        await world.settle(2)
        assert len(placed(world)) == 4

        # No pod ends that had a place: what `ads` may use grows since others want less.
        for number in range(4):
            world.api.remove("Pod", f"search-{number}", "default")
        await world.settle(5)
        assert len(placed(world)) == 6

    play(story, profiles({"enableCheckParentQuota": True}, {}))
