"""Jobs that preempt where more than nodes limits them: quotas, and load that is to come."""

import msgspec

from koordinator.scheduler.config.config import PluginConfig
from tests.scheduler.coscheduling.stage import member
from tests.scheduler.coscheduling.test_preemption import gang, nominated, placed, victims, with_preemption
from tests.scheduler.elastic_quota.test_plugin import quota
from tests.scheduler.test_load_aware import metric
from tests.scheduler.world import World, node, play, pod


def test_a_job_takes_the_share_of_less_important_pods_of_its_own_quota() -> None:
    label = "quota.scheduling.koordinator.sh/name"

    async def story(world: World) -> None:
        world.nodes(6, cpu="4")
        for name, cpu in (("ads", 8), ("search", 100)):
            world.api.put("ElasticQuota", quota(name, low=0, high=cpu))
        for number in range(2):
            other = pod(f"other-{number}", cpu="4", priority=1)
            other["metadata"]["labels"] = {label: "search"}
            low = member(f"low-{number}", "low", 2, "4", priority=1)
            low["metadata"]["labels"] = {label: "ads"}
            world.api.put("Pod", other)
            world.api.put("Pod", low)
        await world.settle(2)
        assert len(placed(world)) == 4

        for number in range(2):
            high = member(f"high-{number}", "high", 2, "4", priority=1000)
            high["metadata"]["labels"] = {label: "ads"}
            world.api.put("Pod", high)
        await world.settle(30)

        assert victims(world) == ["low-0", "low-1"]
        assert len(placed(world, "high")) == 2
        assert len(placed(world, "other")) == 2

    play(story, with_preemption())


def test_what_a_quota_gives_back_is_used_on_nodes_that_were_free_all_the_time() -> None:
    label = "quota.scheduling.koordinator.sh/name"

    async def story(world: World) -> None:
        world.api.put("ElasticQuota", quota("ads", low=0, high=8))
        for number in range(4):
            world.api.put("Node", node(f"small-{number}", cpu="2"))
            low = pod(f"low-{number}", cpu="2", priority=1)
            low["metadata"]["labels"] = {label: "ads"}
            low["spec"]["nodeName"] = f"small-{number}"
            world.api.put("Pod", low)
        await world.settle(2)
        for number in range(2):
            world.api.put("Node", node(f"large-{number}", cpu="4"))

        for number in range(2):
            high = member(f"high-{number}", "high", 2, "4" if number else "2", priority=1000)
            high["metadata"]["labels"] = {label: "ads"}
            world.api.put("Pod", high)
        await world.settle(30)

        assert sorted(placed(world, "high").values()) == ["large-0", "large-1"]
        # One of them keeps its place: its share is not needed.
        assert len(victims(world)) == 3

    play(story, with_preemption())


def test_members_count_for_each_other_as_load_that_is_to_come() -> None:
    settings = with_preemption()
    [profile] = settings.profiles
    load_aware = PluginConfig(name="LoadAwareScheduling", args={"usageThresholds": {"cpu": 60}})
    others = [each for each in profile.plugin_config if each.name != load_aware.name]
    profile = msgspec.structs.replace(profile, plugin_config=[*others, load_aware])

    async def story(world: World) -> None:
        world.nodes(2, cpu="10")
        for number in range(2):
            world.api.put(
                "Pod", pod(f"low-{number}", cpu="1", memory="16Gi", priority=1, nodeName=f"node-{number}")
            )
        await world.settle(300)
        for number in range(2):
            world.api.put("NodeMetric", metric(world, f"node-{number}", "1"))
        await world.settle(2)

        world.api.hold_deletions = True
        gang(world, "high", 2, cpu="4", priority=1000)
        await world.settle(5)

        # Each is estimated to use 3.4 cores, and 6 may be in use on a node.
        assert sorted(nominated(world).values()) == ["node-0", "node-1"]

    play(story, msgspec.structs.replace(settings, profiles=[profile]))
