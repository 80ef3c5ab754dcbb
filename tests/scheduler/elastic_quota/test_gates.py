"""Feature gates of quotas, each in a running scheduler."""

import json
from typing import Any

from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.clock import rfc3339
from tests.scheduler.elastic_quota.test_lending import plugin_of
from tests.scheduler.elastic_quota.test_plugin import PREFIX, member, placed, quota
from tests.scheduler.world import World, play, pod

Json = dict[str, Any]


def gates(text: str) -> FeatureGates:
    return FeatureGates.of(Component.SCHEDULER, text)


def annotation(world: World, name: str, key: str) -> Any:
    found = world.api.objects["ElasticQuota"]["quotas", name]["metadata"]["annotations"]
    return json.loads(found.get(f"{PREFIX}/{key}", "null"))


def test_what_was_allocated_is_not_taken_back_by_fair_share_when_usage_is_guaranteed() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        for name in ("search", "ads"):
            world.api.put("ElasticQuota", quota(name, low=2, high=8))
        for number in range(6):
            world.api.put("Pod", member(f"ads-{number}", "ads"))
        await world.settle(12)
        assert len(placed(world)) == 6
        assert annotation(world, "ads", "allocated") == {"cpu": "6"}
        assert annotation(world, "ads", "guaranteed") == {"cpu": "6"}

        for number in range(6):
            world.api.put("Pod", member(f"search-{number}", "search"))
        await world.settle(12)

        assert len([name for name in placed(world) if name.startswith("search")]) == 2
        assert annotation(world, "ads", "runtime") == {"cpu": "6"}
        world.api.remove("Pod", "ads-0", "default")
        await world.settle(12)
        assert annotation(world, "ads", "guaranteed") == {"cpu": "5"}
        assert len([name for name in placed(world) if name.startswith("search")]) == 3

    play(story, gates=gates("ElasticQuotaGuaranteeUsage=true"))


def test_overhead_of_pods_does_not_count_where_that_is_wanted() -> None:
    def story_with(expected: list[str]) -> Any:
        async def story(world: World) -> None:
            world.nodes(1, cpu="10")
            world.api.put("ElasticQuota", quota("team", high=3))
            for name in ("a", "b", "c"):
                world.api.put("Pod", member(name, "team", overhead={"cpu": "500m"}))
            await world.settle()
            assert placed(world) == expected

        return story

    play(story_with(["a", "b"]))
    play(story_with(["a", "b", "c"]), gates=gates("ElasticQuotaIgnorePodOverhead=true"))


def terminating(world: World, name: str, grace_s: int) -> None:
    body = world.api.objects["Pod"]["default", name]
    body["metadata"]["deletionTimestamp"] = rfc3339(world.clock.now())
    body["metadata"]["deletionGracePeriodSeconds"] = grace_s
    world.api.put("Pod", body)


def test_pods_that_are_being_deleted_count_until_their_grace_period_is_over_or_not_at_all() -> None:
    def story_with(after_s: float) -> Any:
        async def story(world: World) -> None:
            world.nodes(1, cpu="10")
            world.api.put("ElasticQuota", quota("team", high=1))
            world.api.put("Pod", member("old", "team"))
            await world.settle()
            world.api.put("Pod", member("new", "team"))
            await world.settle(5)
            terminating(world, "old", grace_s=30)
            await world.settle(after_s - 3)
            assert placed(world) == ["old"] or after_s < 5
            await world.settle(6)
            assert placed(world) == ["new", "old"]

        return story

    play(story_with(30), gates=gates("ElasticQuotaIgnoreTerminatingPod=true"))
    play(story_with(3), gates=gates("ElasticQuotaImmediateIgnoreTerminatingPod=true"))


def test_without_a_default_quota_only_labelled_pods_are_counted() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="10")
        world.api.put("ElasticQuota", quota("team", high=1, namespaces=("default",)))
        world.api.put("Pod", pod("free-1"))
        world.api.put("Pod", pod("free-2"))
        world.api.put("Pod", member("lost", "gone"))
        for name in ("a", "b"):
            world.api.put("Pod", member(name, "team"))
        await world.settle()

        assert placed(world) == ["a", "free-1", "free-2", "lost"]

    play(story, gates=gates("DisableDefaultQuota=true"))


def test_children_share_what_the_pods_of_their_parent_itself_leave() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        world.api.put("ElasticQuota", quota("dept", low=8, high=8, is_parent="true"))
        for name in ("x", "y"):
            world.api.put("ElasticQuota", quota(name, parent="dept", low=4, high=8))
        for number in range(3):
            world.api.put("Pod", member(f"own-{number}", "dept"))
        await world.settle()
        for number in range(8):
            world.api.put("Pod", member(f"x-{number}", "x"))
        await world.settle(3)

        assert len([name for name in placed(world) if name.startswith("x")]) == 5
        tree = plugin_of(world).book.forest.tree("")
        assert tree is not None
        assert tree.refresh("x")["cpu"].value == 5

    play(story, gates=gates("SupportParentQuotaSubmitPod=true"))


def test_a_pod_moves_between_trees_with_its_label_and_the_accounts_of_both_are_exact() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        root = quota("pool", low=4, high=100, tree_id="t1", is_root="true", is_parent="true")
        root["metadata"]["annotations"][f"{PREFIX}/total-resource"] = json.dumps({"cpu": "4"})
        world.api.put("ElasticQuota", root)
        world.api.put("ElasticQuota", quota("inside", parent="pool", high=100, tree_id="t1"))
        world.api.put("ElasticQuota", quota("outside", high=100))
        world.api.put("Pod", member("moving", "inside"))
        world.api.put("Pod", member("staying", "outside"))
        await world.settle(2)

        body = world.api.objects["Pod"]["default", "moving"]
        body["metadata"]["labels"][f"{PREFIX}/name"] = "outside"
        world.api.put("Pod", body)
        await world.settle(12)

        used = {
            name: body.get("status", {}).get("used", {})
            for (_, name), body in world.api.objects["ElasticQuota"].items()
        }
        assert used["outside"] == {"cpu": "2"}
        assert used["inside"].get("cpu", "0") == used["pool"].get("cpu", "0") == "0"

    play(story, gates=gates("MultiQuotaTree=true"))
