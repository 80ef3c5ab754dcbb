"""Stories of quotas: API in, API out, on virtual time."""

import json
from typing import Any

import pytest

from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.scheduler.config import config
from koordinator.scheduler.config.config import SchedulerConfig
from tests.scheduler.world import World, node, play, pod

Json = dict[str, Any]
PREFIX = "quota.scheduling.koordinator.sh"


def quota(
    name: str,
    *,
    parent: str = "",
    low: int = 0,
    high: int = 100,
    namespaces: tuple[str, ...] = (),
    **own: str,
) -> Json:
    return {
        "metadata": {
            "name": name,
            "namespace": "quotas",
            "labels": {
                f"{PREFIX}/parent": parent,
                **{f"{PREFIX}/{k.replace('_', '-')}": v for k, v in own.items()},
            },
            "annotations": {f"{PREFIX}/namespaces": json.dumps(namespaces)} if namespaces else {},
        },
        "spec": {"min": {"cpu": str(low)}, "max": {"cpu": str(high)}},
    }


def member(name: str, of: str, cpu: str = "1", **parts: Any) -> Json:
    body = pod(name, cpu=cpu, **parts)
    body["metadata"]["labels"] = {f"{PREFIX}/name": of} if of else {}
    return body


def fixed(body: Json) -> Json:
    """The pod, not preemptible."""
    body["metadata"]["labels"][f"{PREFIX}/preemptible"] = "false"
    return body


def with_args(**args: Any) -> SchedulerConfig:
    profile = {
        "schedulerName": "koord-scheduler",
        "pluginConfig": [{"name": "ElasticQuota", "args": args}],
        "plugins": {"multiPoint": {"enabled": [{"name": "ElasticQuota"}]}},
    }
    return config.decode({"profiles": [profile]})


def without(*names: str) -> SchedulerConfig:
    """Quotas, and none of these plugins."""
    enabled, disabled = [{"name": "ElasticQuota"}], [{"name": name} for name in names]
    profile = {
        "schedulerName": "koord-scheduler",
        "plugins": {"multiPoint": {"enabled": enabled, "disabled": disabled}},
    }
    return config.decode({"profiles": [profile]})


def placed(world: World) -> list[str]:
    return sorted(name for name, where in world.api.placements().items() if where)


def test_of_two_quotas_with_one_name_the_second_counts_once_the_first_is_gone() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8", memory="64Gi")
        for namespace, high in (("quotas", 1), ("other", 3), ("third", 2)):
            body = quota("team", high=high)
            body["metadata"]["namespace"] = namespace
            world.api.put("ElasticQuota", body)
        for name in "abcde":
            world.api.put("Pod", member(name, "team"))
        await world.settle()
        assert len(placed(world)) == 1

        world.api.remove("ElasticQuota", "team", "third")
        world.api.remove("ElasticQuota", "team", "quotas")
        await world.settle(30)
        assert len(placed(world)) == 3
        assert "quotaName: team" in world.condition("e")["message"]

    play(story)


def test_pods_are_placed_while_their_quota_has_room_and_the_rest_learn_why_not() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="10")
        world.api.put("ElasticQuota", quota("team", low=2, high=3))
        for name in ("a", "b", "c", "d"):
            world.api.put("Pod", member(name, "team"))
        await world.settle()

        assert placed(world) == ["a", "b", "c"]
        message = world.condition("d")["message"]
        assert "Insufficient quotas, quotaName: team, runtime: cpu:3, used: cpu:3" in message
        assert "pod's request: cpu:1,memory:1Gi" not in message
        assert "pod's request: cpu:1, exceedDimensions: [cpu]" in message

        world.api.remove("Pod", "a", "default")
        await world.settle(2)
        assert placed(world) == ["b", "c", "d"]

    play(story)


def test_a_refusal_writes_amounts_as_the_pod_does() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="10")
        body = quota("team")
        body["spec"] = {"min": {"memory": "1G"}, "max": {"memory": "3G"}}
        world.api.put("ElasticQuota", body)
        world.api.put("Pod", member("first", "team", memory="1500M"))
        await world.settle(1)
        world.api.put("Pod", member("second", "team", memory="2G"))
        await world.settle(1)

        message = world.condition("second")["message"]
        assert "used: memory:1500M, pod's request: memory:2G, exceedDimensions: [memory]" in message

    play(story)


def test_what_one_quota_leaves_its_sibling_borrows_and_gives_back() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        for name in ("search", "ads"):
            world.api.put("ElasticQuota", quota(name, low=4, high=8))
        for number in range(7):
            world.api.put("Pod", member(f"ads-{number}", "ads"))
        await world.settle()
        assert len(placed(world)) == 7

        for number in range(4):
            world.api.put("Pod", member(f"search-{number}", "search"))
        await world.settle()
        assert [name for name in placed(world) if name.startswith("search")] == ["search-0"]

        for number in range(3):
            world.api.remove("Pod", f"ads-{number}", "default")
        await world.settle(12)
        assert [name for name in placed(world) if name.startswith("search")] == [
            "search-0",
            "search-1",
            "search-2",
            "search-3",
        ]

    play(story)


def test_pods_that_cannot_be_preempted_stay_within_the_minimum() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="10")
        world.api.put("ElasticQuota", quota("team", low=2, high=8))
        for number in range(3):
            world.api.put("Pod", fixed(member(f"fixed-{number}", "team")))
        world.api.put("Pod", member("free", "team"))
        await world.settle()

        assert placed(world) == ["fixed-0", "fixed-1", "free"]
        assert (
            "Insufficient non-preemptible quotas, quotaName: team, min: cpu:2"
            in world.condition("fixed-2")["message"]
        )

    play(story)


@pytest.mark.parametrize("disabled", [[], ["DefaultPreemption"]], ids=["all plugins", "the quota's own"])
def test_a_more_important_pod_takes_the_place_of_a_lesser_one_of_its_quota(disabled: list[str]) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="10")
        for name in ("team", "other"):
            world.api.put("ElasticQuota", quota(name, low=2, high=2))
        world.api.put("Pod", member("theirs", "other"))
        for name in ("lesser", "least"):
            world.api.put("Pod", member(name, "team", priority=5 if name == "lesser" else 1))
        await world.settle()
        assert placed(world) == ["least", "lesser", "theirs"]

        world.api.put("Pod", member("important", "team", priority=10))
        await world.settle(3)

        assert placed(world) == ["important", "lesser", "theirs"]
        [event] = world.api.events("Preempted")
        assert event["involvedObject"]["name"] == "least"

    play(story, without(*disabled))


def test_a_pod_that_must_not_be_preempted_is_not_by_its_quota_either() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="10")
        world.api.put("ElasticQuota", quota("team", low=2, high=2))
        kept = member("least", "team", priority=1)
        kept["metadata"]["labels"]["scheduling.koordinator.sh/disable-preemptible"] = "true"
        for body in (kept, member("lesser", "team", priority=5)):
            world.api.put("Pod", body)
        await world.settle()

        world.api.put("Pod", member("important", "team", priority=10))
        await world.settle(3)

        assert placed(world) == ["important", "least"]

    play(story, without("DefaultPreemption"))


def test_evictions_in_vain_are_told_and_left_out_and_where_nobody_may_go_others_speak() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="10")
        world.api.put("ElasticQuota", quota("team", low=2, high=2))
        world.api.put("Pod", member("least", "team", priority=1))
        await world.settle()
        world.api.put("Pod", member("large", "team", cpu="3", priority=10))
        world.api.put("Pod", member("equal", "team", cpu="2", priority=1))
        await world.settle(3)

        assert placed(world) == ["least"] and not world.api.events("Preempted")
        in_vain = "preemption: no eviction of less important pods of quota team would make room"
        assert world.condition("large")["message"].endswith(f" {in_vain}")
        assert "of less important pods" not in world.condition("equal")["message"]

    play(story, without())


@pytest.mark.parametrize("where", ["named", "bound"])
def test_a_pod_without_a_label_belongs_to_the_quota_of_its_namespace(where: str) -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("Pod", pod("early"))
        await world.settle()
        if where == "named":
            body = quota("default", high=1)
            body["metadata"]["namespace"] = "default"
        else:
            body = quota("team", high=1, namespaces=("default",))
        world.api.put("ElasticQuota", body)
        await world.settle()

        world.api.put("Pod", pod("late"))
        await world.settle()

        assert placed(world) == ["early"]
        name = body["metadata"]["name"]
        assert f"quotaName: {name}, runtime: cpu:1, used: cpu:1" in world.condition("late")["message"]

    play(story)


def test_pods_of_a_deleted_quota_count_in_the_default_one() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("ElasticQuota", quota("team", high=1))
        for name in ("a", "b"):
            world.api.put("Pod", member(name, "team"))
        await world.settle()
        assert placed(world) == ["a"]

        world.api.remove("ElasticQuota", "team", "quotas")
        await world.settle(2)

        assert placed(world) == ["a", "b"]

    play(story)


def test_ancestors_are_asked_where_that_is_wanted() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="10")
        world.api.put("ElasticQuota", quota("dept", high=2, is_parent="true"))
        for name in ("x", "y"):
            world.api.put("ElasticQuota", quota(name, parent="dept", high=2, low=2))
            world.api.put("Pod", member(f"{name}-pod", name, cpu="2"))
        await world.settle()

        assert placed(world) == ["x-pod"]
        assert "Insufficient quotas" in world.condition("y-pod")["message"]

    play(story, with_args(enableCheckParentQuota=True, enableMinQuotaScale=False))


def test_quotas_tell_what_they_have_and_use_and_the_reserved_ones_exist() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="10")
        world.api.put("ElasticQuota", quota("team", low=2, high=8))
        for number in range(3):
            world.api.put("Pod", member(f"pod-{number}", "team"))
        await world.settle(12)

        quotas = {name: body for (_, name), body in world.api.objects["ElasticQuota"].items()}
        assert quotas.keys() == {
            "team",
            "koordinator-root-quota",
            "koordinator-system-quota",
            "koordinator-default-quota",
        }
        team = quotas["team"]
        assert team["status"]["used"] == {"cpu": "3"}
        annotations = team["metadata"]["annotations"]
        assert json.loads(annotations[f"{PREFIX}/runtime"]) == {"cpu": "3"}
        assert json.loads(annotations[f"{PREFIX}/request"]) == {"cpu": "3"}

        written = len(world.api.patches)
        await world.settle(20)
        assert len(world.api.patches) == written

    play(story)


def test_what_a_quota_uses_beyond_its_runtime_for_long_is_taken_back() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        for name in ("search", "ads"):
            world.api.put("ElasticQuota", quota(name, low=4, high=8))
        for number in range(8):
            world.api.put("Pod", member(f"ads-{number}", "ads", priority=number))
        await world.settle()
        assert len(placed(world)) == 8

        for number in range(4):
            world.api.put("Pod", member(f"search-{number}", "search"))
        await world.settle(60)

        assert [name for name in placed(world) if name.startswith("ads")] == [
            "ads-4",
            "ads-5",
            "ads-6",
            "ads-7",
        ]
        assert len([name for name in placed(world) if name.startswith("search")]) == 4
        reported = world.api.events("QuotaOverused")
        about = {(event.get("regarding") or event["involvedObject"])["name"] for event in reported}
        assert about == {f"ads-{number}" for number in range(4)}

    play(story, with_args(monitorAllQuotas=True, delayEvictTime="20s"))


def test_nodes_of_a_tree_of_its_own_leave_the_default_tree() -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("plain", cpu="4"))
        world.api.put("Node", node("gpu", cpu="4"))
        root = quota("pool", low=4, high=100, tree_id="t1", is_root="true", is_parent="true")
        root["metadata"]["annotations"][f"{PREFIX}/total-resource"] = json.dumps({"cpu": "4"})
        world.api.put("ElasticQuota", root)
        world.api.put("ElasticQuota", quota("inside", parent="pool", high=100, tree_id="t1"))
        world.api.put("ElasticQuota", quota("outside", high=100))
        for number in range(5):
            world.api.put("Pod", member(f"in-{number}", "inside"))
            world.api.put("Pod", member(f"out-{number}", "outside"))
        await world.settle()

        assert len([name for name in placed(world) if name.startswith("in")]) == 4
        assert len([name for name in placed(world) if name.startswith("out")]) == 4

    play(story, gates=FeatureGates.of(Component.SCHEDULER, "MultiQuotaTree=true"))


def test_what_admission_has_just_counted_is_not_taken_back_before_its_pods_are_seen() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="10")
        body = quota("team", high=8)
        body["metadata"]["annotations"] = {f"{PREFIX}/child-request": json.dumps({"cpu": "5"})}
        world.api.put("ElasticQuota", body)
        world.api.put("Pod", member("first", "team"))

        def said() -> Any:
            annotations = world.api.objects["ElasticQuota"]["quotas", "team"]["metadata"]["annotations"]
            return json.loads(annotations[f"{PREFIX}/child-request"])

        await world.settle(2.5)
        assert said() == {"cpu": "5"}
        await world.settle(3)
        assert said() == {"cpu": "1"}

    play(story)
