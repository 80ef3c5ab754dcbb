"""Stories of gangs through a whole scheduler on virtual time: what users see."""

import json
from typing import Any

from koordinator.api.feature_gates import Component, FeatureGates
from tests.scheduler.coscheduling.gang_builders import (
    FLUSH_S,
    SETTLED,
    condition,
    gang_of,
    held,
    in_group,
    pod_group,
)
from tests.scheduler.coscheduling.test_plugin import member, placed
from tests.scheduler.world import World, node, play, pod

# Minimum and total


def test_members_beyond_the_minimum_follow_without_waiting_for_an_event() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="8")
        for number in range(9):
            world.api.put("Pod", member(f"m-{number}", "job", 3))
        await world.settle(SETTLED)
        assert len(placed(world)) == 9

    play(story)


def test_members_beyond_the_minimum_that_find_no_room_do_not_hold_back_those_that_do() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="5")
        for number in range(3):
            world.api.put("Pod", member(f"a-{number}", "job", 3))
        world.api.put("Pod", member("b-large", "job", 3, cpu="4"))
        world.api.put("Pod", member("c-small", "job", 3, cpu="1"))
        await world.settle(5)
        assert placed(world) == ["a-0", "a-1", "a-2", "c-small"]
        world.api.put("Node", node("node-1", cpu="4"))
        await world.settle(15)
        assert "b-large" in placed(world)

    play(story)


def test_lowering_the_minimum_starts_a_gang_that_was_too_large() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("PodGroup", pod_group("job", 6))
        for number in range(6):
            world.api.put("Pod", in_group(f"m-{number}", "job"))
        await world.settle(2)
        assert placed(world) == []
        world.api.put("PodGroup", pod_group("job", 4))
        await world.settle(2)
        assert len(placed(world)) == 4

    play(story)


def test_raising_the_minimum_holds_a_gang_back_until_it_has_the_members() -> None:
    async def story(world: World) -> None:
        world.api.put("PodGroup", pod_group("job", 2))
        for number in range(3):
            world.api.put("Pod", in_group(f"m-{number}", "job"))
        await world.settle(SETTLED)
        world.api.put("PodGroup", pod_group("job", 4))
        await world.settle(SETTLED)
        world.nodes(1, cpu="8")
        await world.settle(30)
        assert placed(world) == []
        world.api.put("Pod", in_group("m-3", "job"))
        await world.settle(30)
        assert len(placed(world)) == 4

    play(story)


# Too large, and failures that are told


def test_a_gang_that_is_too_large_says_so_on_every_member_and_starts_when_nodes_come() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        for number in range(6):
            world.api.put("Pod", member(f"m-{number}", "job", 6))
        await world.settle(1)
        failed = next(
            name for name in world.api.placements() if "due to member" not in condition(world, name)
        )
        assert "1 Insufficient cpu" in condition(world, failed)
        reason = json.dumps(condition(world, failed).partition(" preemption")[0])
        why = f'due to member Pod "default/{failed}" is unschedulable with reason {reason}, alreadyWaitForBound: 0'
        for name in world.api.placements():
            assert name == failed or why in condition(world, name)
        assert held(world) == []
        world.api.put("Node", node("node-1", cpu="2"))
        await world.settle(15)
        assert len(placed(world)) == 6

    play(story)


def test_members_that_were_not_tried_learn_why_while_another_one_fails() -> None:
    def patched(with_gate: bool) -> list[str]:
        names: list[str] = []

        async def story(world: World) -> None:
            reported = world.scheduler.actions.report_unscheduled

            def notifying(pod: Any, message: str, nominated_node: str | None = None) -> None:
                names.append(pod.metadata.name)
                reported(pod, message, nominated_node)

            world.scheduler.actions.report_unscheduled = notifying  # type: ignore[method-assign]
            world.nodes(1, cpu="0")
            for number in range(5):
                world.api.put("Pod", member(f"m-{number}", "job", 5))
            await world.settle(1)

        gates = FeatureGates.of(
            Component.SCHEDULER, f"GangPendingPodsConditionPatch={str(with_gate).lower()}"
        )
        play(story, gates=gates)
        return names

    assert len(patched(True)) == 3  # neither the one that failed, nor the one that failed because of it
    assert patched(False) == []


def test_a_gang_that_does_not_fit_is_not_tried_again_because_of_what_is_written_about_it() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        for number in range(8):
            world.api.put("Pod", member(f"m-{number}", "job", 8))
        await world.settle(200)
        attempts = world.scheduler.metrics.of("koord-scheduler").attempt_counts()
        assert attempts == {"unschedulable": 8}

    play(story)


# Members come, go, change


def test_a_member_deleted_while_the_others_wait_is_replaced_under_its_name() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="3")
        for number in range(4):
            world.api.put("Pod", member(f"m-{number}", "job", 4, cpu="1"))
        await world.settle(1)
        world.api.remove("Pod", "m-2", "default")
        world.api.put("Node", node("node-1", cpu="4"))
        await world.settle(20)
        assert placed(world) == []
        world.api.put("Pod", member("m-2", "job", 4, cpu="1"))
        await world.settle(1)
        assert len(placed(world)) == 4

    play(story)


def test_the_member_that_failed_the_group_is_deleted_and_the_others_start_at_once() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", member("a-huge", "job", 3, cpu="64"))
        for number in range(3):
            world.api.put("Pod", member(f"m-{number}", "job", 3))
        await world.settle(5)
        huge_failed = placed(world) == []
        world.api.remove("Pod", "a-huge", "default")
        await world.settle(1)
        assert huge_failed
        assert placed(world) == ["m-0", "m-1", "m-2"]

    play(story)


def test_members_being_deleted_and_finished_ones_do_not_make_a_gang_complete() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        leaving = member("m-0", "job", 3)
        leaving["metadata"] |= {"deletionTimestamp": "2023-11-14T22:13:20Z", "finalizers": ["x/y"]}
        world.api.put("Pod", leaving)
        failed = member("m-1", "job", 3)
        failed["spec"]["nodeName"] = "node-0"
        failed["status"] = {"phase": "Failed"}
        world.api.put("Pod", failed)
        for number in (2, 3):
            world.api.put("Pod", member(f"m-{number}", "job", 3))
        await world.settle(1)
        assert placed(world) == ["m-1"]
        world.api.put("Pod", member("m-4", "job", 3))
        await world.settle(1)
        assert placed(world) == ["m-1", "m-2", "m-3", "m-4"]

    play(story)


def test_a_scheduling_gate_on_one_member_holds_all_back_until_it_is_lifted() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        gated = member("m-gated", "job", 3)
        gated["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
        world.api.put("Pod", gated)
        for number in range(2):
            world.api.put("Pod", member(f"m-{number}", "job", 3))
        await world.settle(30)
        assert placed(world) == []
        assert held(world) == []
        gated["spec"]["schedulingGates"] = []
        world.api.put("Pod", gated)
        await world.settle(1)
        assert len(placed(world)) == 3

    play(story)


def test_a_gated_member_cannot_stand_for_its_group() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        for number in range(2):
            world.api.put("Pod", member(f"m-{number}", "job", 3))
        gated = member("a-gated", "job", 3)
        gated["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
        world.api.put("Pod", gated)
        await world.settle(1)
        world.api.put("Pod", member("m-2", "job", 3))
        await world.settle(1)
        assert placed(world) == ["m-0", "m-1", "m-2"]

    play(story)


def test_a_member_of_another_scheduler_is_waited_for_and_counts_once_it_is_bound() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        world.api.put("PodGroup", pod_group("job", 3))
        theirs = in_group("m-theirs", "job", scheduler="somebody-else")
        world.api.put("Pod", theirs)
        for number in range(2):
            world.api.put("Pod", in_group(f"m-{number}", "job"))
        await world.settle(30)
        assert placed(world) == []
        theirs["spec"]["nodeName"] = "node-0"
        world.api.put("Pod", theirs)
        await world.settle(1)
        assert len(placed(world)) == 3

    play(story)


# PodGroups


def test_a_pod_group_that_comes_late_starts_its_pods() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        for number in range(3):
            world.api.put("Pod", in_group(f"m-{number}", "job"))
        await world.settle(30)
        assert placed(world) == []
        world.api.put("PodGroup", pod_group("job", 3))
        await world.settle(1)
        assert len(placed(world)) == 3

    play(story)


def test_a_pod_group_that_is_deleted_and_made_again_finds_its_pods() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="2")
        world.api.put("PodGroup", pod_group("job", 3))
        for number in range(3):
            world.api.put("Pod", in_group(f"m-{number}", "job"))
        await world.settle(1)
        world.api.remove("PodGroup", "job", "default")
        world.api.put("Node", node("node-1", cpu="2"))
        await world.settle(30)
        assert placed(world) == []
        gang = gang_of(world, "default/job")
        assert gang is None or not gang["hasGangInit"]
        world.api.put("PodGroup", pod_group("job", 3))
        await world.settle(1)
        assert len(placed(world)) == 3

    play(story)


def test_a_job_made_anew_under_its_pod_group_starts_as_a_gang_again() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="3")
        world.api.put("PodGroup", pod_group("job", 3))
        for number in range(3):
            world.api.put("Pod", in_group(f"first-{number}", "job"))
        await world.settle(1)
        assert len(placed(world)) == 3
        for number in range(3):
            world.api.remove("Pod", f"first-{number}", "default")
        world.api.put("Pod", pod("other"))
        await world.settle(1)
        for number in range(3):
            world.api.put("Pod", in_group(f"second-{number}", "job"))
        await world.settle(1)
        assert placed(world) == ["other"]
        world.api.remove("Pod", "other", "default")
        await world.settle(15)
        assert len(placed(world)) == 3

    play(story)


def test_a_gang_that_joins_another_one_later_waits_for_it() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="2")
        world.api.put("PodGroup", pod_group("ps", 3))
        for number in range(3):
            world.api.put("Pod", in_group(f"ps-{number}", "ps"))
        await world.settle(1)
        world.api.put("PodGroup", pod_group("ps", 3, groups='["default/ps","default/worker"]'))
        world.api.put("Node", node("node-1", cpu="8"))
        await world.settle(30)
        assert placed(world) == []
        world.api.put("PodGroup", pod_group("worker", 1, groups='["default/ps","default/worker"]'))
        world.api.put("Pod", in_group("w-0", "worker"))
        await world.settle(15)
        assert len(placed(world)) == 4

    play(story)


# Groups


def test_parameter_servers_and_workers_of_two_namespaces_start_together() -> None:
    async def story(world: World) -> None:
        both = '["servers/ps","workers/worker"]'
        world.nodes(1, cpu="4")
        world.api.put("PodGroup", pod_group("ps", 2, "servers", groups=both))
        world.api.put("PodGroup", pod_group("worker", 3, "workers", groups=both))
        for number in range(2):
            world.api.put("Pod", in_group(f"ps-{number}", "ps", namespace="servers"))
        await world.settle(60)
        for number in range(3):
            world.api.put("Pod", in_group(f"w-{number}", "worker", namespace="workers"))
            await world.settle(60)
        assert placed(world) == []
        world.api.put("Node", node("node-1", cpu="1"))
        await world.settle(15)
        assert len(placed(world)) == 5
        gang = gang_of(world, "workers/worker")
        assert gang is not None
        assert gang["gangGroupInfo"]["GangGroupId"] == "servers/ps,workers/worker"
        bound = next(each for each in world.api.pods() if each["metadata"]["name"] == "w-0")
        marks = bound["metadata"]["annotations"]
        assert marks["internal.scheduling.koordinator.sh/bind-gang-group-id"] == "servers/ps,workers/worker"
        assert marks["internal.scheduling.koordinator.sh/bind-gang-member-count"] == "5"

    play(story)


def test_the_more_important_of_two_gangs_goes_first_and_the_other_one_follows() -> None:
    async def story(world: World) -> None:
        for number in range(4):
            for name, priority in (("low", 0), ("high", 100)):
                body = member(f"{name}-{number}", name, 4)
                body["spec"]["priority"] = priority
                world.api.put("Pod", body)
        world.nodes(1, cpu="4")
        await world.settle(5)
        assert placed(world) == [f"high-{number}" for number in range(4)]
        for number in range(4):
            world.api.remove("Pod", f"high-{number}", "default")
        await world.settle(15)
        assert placed(world) == [f"low-{number}" for number in range(4)]

    play(story)


# Policies


def replaced(policy: str) -> list[str]:
    """Who is bound after one of three members of a running gang was replaced, and there is room for it."""
    found: list[str] = []

    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        for number in range(3):
            world.api.put("Pod", member(f"m-{number}", "job", 3, match_policy=policy))
        await world.settle(1)
        assert len(placed(world)) == 3
        world.api.remove("Pod", "m-1", "default")
        await world.settle(1)
        world.api.put("Pod", member("m-new", "job", 3, match_policy=policy))
        await world.settle(1)
        found.extend(placed(world))
        assert held(world) == []

    play(story)
    return found


def test_a_replacement_goes_alone_where_the_policy_counts_those_that_run() -> None:
    assert replaced("once-satisfied") == ["m-0", "m-2", "m-new"]
    assert replaced("waiting-and-running") == ["m-0", "m-2", "m-new"]
    assert replaced("only-waiting") == ["m-0", "m-2"]


def test_a_lenient_gang_keeps_the_places_it_has_until_its_time_is_up() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="3")
        for number in range(4):
            world.api.put("Pod", member(f"m-{number}", "job", 4, mode="NonStrict", waiting_time="60s"))
        await world.settle(1)
        assert len(held(world)) == 3
        world.api.put("Pod", pod("other"))
        await world.settle(50)
        assert placed(world) == []
        await world.settle(15)
        assert held(world) == []
        assert placed(world) == ["other"]

    play(story)


def test_a_lenient_gang_is_bound_when_the_member_that_was_missing_finds_room() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="3")
        for number in range(4):
            world.api.put("Pod", member(f"m-{number}", "job", 4, mode="NonStrict"))
        await world.settle(30)
        assert len(held(world)) == 3
        world.api.put("Node", node("node-1", cpu="1"))
        await world.settle(15)
        assert len(placed(world)) == 4

    play(story)


def test_a_gang_whose_places_time_out_gives_all_of_them_back_and_tries_again() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="3")
        both = '["default/a","default/b"]'
        for name in ("a", "b"):
            more = {"mode": "NonStrict", "groups": both, "waiting_time": "10s"}
            for number in range(2):
                world.api.put("Pod", member(f"{name}-{number}", name, 2, **more))
        await world.settle(1)
        assert len(held(world)) == 3
        await world.settle(11)
        assert held(world) == []
        world.api.put("Node", node("node-1", cpu="1"))
        await world.settle(FLUSH_S)
        assert len(placed(world)) == 4

    play(story)


# Starting again


def test_what_a_killed_scheduler_left_half_bound_is_completed_as_a_gang() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="7")
        for number in range(8):
            body = member(f"m-{number}", "job", 8)
            if number < 3:
                body["spec"]["nodeName"] = "node-0"
            world.api.put("Pod", body)
        await world.settle(5)
        assert len(placed(world)) == 3  # room for four of the other five
        world.api.put("Node", node("node-1", cpu="1"))
        await world.settle(15)
        assert len(placed(world)) == 8

    play(story)
