"""How gangs are described, in several profiles too, how they are shown and forgotten: stories on virtual time."""

import json

import msgspec

from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import PluginConfig
from tests.scheduler.coscheduling.gang_builders import gang_of, in_group, pod_group
from tests.scheduler.coscheduling.test_plugin import PREFIX, member, placed
from tests.scheduler.world import World, node, play, pod

# Descriptions


def notes(world: World) -> list[str]:
    """What was complained about."""
    return [event.get("note") or event["message"] for event in world.api.events("InvalidGang")]


def test_a_pod_group_without_a_minimum_is_told_that_it_is_no_gang() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        world.api.put("PodGroup", pod_group("job", 0))
        world.api.put("Pod", in_group("m-0", "job"))
        await world.settle(10)

        assert notes(world) == [
            "spec.minMember: 0 is no minimum: members are placed one by one, as pods without a gang are"
        ]
        assert placed(world) == ["m-0"]

    play(story)


def test_a_strategy_of_the_network_that_there_is_not_is_reported() -> None:
    async def story(world: World) -> None:
        rules = {"gatherStrategy": [{"layer": "SpineLayer", "strategy": "Must"}]}
        world.api.put("PodGroup", pod_group("job", 1, network_topology_spec=json.dumps(rules)))
        await world.settle(10)

        assert notes(world) == [
            f"annotation {PREFIX}/network-topology-spec: strategy of SpineLayer: 'Must' is none of MustGather, "
            "PreferGather: the rule does not count"
        ]

    play(story)


def test_a_malformed_description_is_reported_once_and_the_gang_starts_when_it_is_mended() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        broken = [member(f"m-{number}", "job", 2, mode="strict") for number in range(2)]
        for body in broken:
            body["metadata"]["annotations"][f"{PREFIX}/min-available"] = "two"
            world.api.put("Pod", body)
        await world.settle(10)
        for body in broken:
            body["metadata"]["labels"] = {"touched": "yes"}
            world.api.put("Pod", body)
        await world.settle(10)
        reported = sorted(notes(world))
        assert len(reported) == 2
        assert reported[0].startswith(f"annotation {PREFIX}/min-available: 'two' is not")
        assert reported[1].startswith(f"annotation {PREFIX}/mode: 'strict' is none of Strict, NonStrict")
        assert placed(world) == []
        for body in broken:
            body["metadata"]["annotations"][f"{PREFIX}/min-available"] = "2"
            world.api.put("Pod", body)
        await world.settle(5)
        assert placed(world) == ["m-0", "m-1"]

    play(story)


def test_a_malformed_pod_group_is_reported_on_it_and_pods_of_good_ones_are_not_complained_about() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        late = pod("late")
        late["metadata"]["annotations"] = {f"{PREFIX}/name": "good"}
        world.api.put("Pod", late)
        await world.settle(0.5)
        world.api.put("PodGroup", pod_group("good", 1))
        world.api.put("PodGroup", pod_group("bad", 1, groups="[", match_policy="sometimes"))
        await world.settle(10)
        found = [
            (event.get("regarding") or event["involvedObject"])["name"]
            for event in world.api.events("InvalidGang")
        ]
        assert found == ["bad", "bad"]
        assert placed(world) == ["late"]

    play(story)


# Several profiles, and what is shown


def test_members_of_several_profiles_are_one_gang() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        for number, name in enumerate(("koord-scheduler", "batch-scheduler", "batch-scheduler")):
            body = member(f"m-{number}", "job", 3)
            body["spec"]["schedulerName"] = name
            world.api.put("Pod", body)
        await world.settle(1)
        assert len(placed(world)) == 3

    config = default_plugins.shipped_config("koord-scheduler", "batch-scheduler")
    play(story, config)
    args = PluginConfig(name="Coscheduling", args={"enablePreemption": True})
    profiles = list(config.profiles)
    profiles[1] = msgspec.structs.replace(profiles[1], plugin_config=[*profiles[1].plugin_config, args])
    play(story, msgspec.structs.replace(config, profiles=profiles))


def test_rounds_are_measured_and_gangs_are_shown() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="3")
        for number in range(4):
            world.api.put("Pod", member(f"m-{number}", "job", 4, waiting_time="90s"))
        await world.settle(1)
        text = world.scheduler.engine.metrics.registry.text()
        name, failed = (
            "scheduler_gang_schedule_cycle_duration_seconds",
            "all pending pods is already been attempted",
        )
        assert f'{name}_count{{reason="{failed}",job_size="1-100"}} 1' in text
        assert "scheduler_waiting_gang_group_number 0" in text
        gang = gang_of(world, "default/job")
        assert gang is not None
        assert gang.keys() >= {"name", "createTime", "gangGroup", "gangGroupInfo", "hasGangInit"}
        assert (gang["waitTime"], gang["minRequiredNumber"], gang["totalChildrenNum"]) == (
            90_000_000_000,
            4,
            4,
        )
        assert gang["pendingChildren"] == {f"default/m-{number}": {} for number in range(4)}
        assert gang["onceResourceSatisfied"] is False
        world.api.put("Node", node("node-1", cpu="1"))
        await world.settle(15)
        gang = gang_of(world, "default/job")
        assert gang is not None
        assert len(gang["boundChildren"]) == 4
        assert gang["onceResourceSatisfied"] is True
        text = world.scheduler.engine.metrics.registry.text()
        assert f'{name}_count{{reason="gang is already succeed",job_size="1-100"}} 1' in text

    play(story)


def test_nothing_is_left_of_gangs_that_are_gone() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="3")
        world.api.put("PodGroup", pod_group("labelled", 2))
        for number in range(4):
            world.api.put("Pod", member(f"m-{number}", "job", 4))
            world.api.put("Pod", in_group(f"l-{number}", "labelled"))
            world.api.put("Pod", in_group(f"o-{number}", "orphaned"))
        await world.settle(1)
        world.api.remove("PodGroup", "labelled", "default")
        for body in list(world.api.pods()):
            world.api.remove("Pod", body["metadata"]["name"], "default")
        await world.settle(5)
        plugin = next(
            p for p in world.scheduler.profiles["koord-scheduler"].plugins if p.name == "Coscheduling"
        )
        gangs = plugin.gangs  # type: ignore[attr-defined]
        cache = gangs.rounds.cache
        assert (cache.gangs(), cache._groups, cache._orphans, cache.pods) == ({}, {}, {}, {})
        assert (gangs._infos, gangs._complaints, gangs.rounds._held, gangs.rounds.round) == ({}, {}, {}, None)

    play(story)
