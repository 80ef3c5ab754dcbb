"""Stories of PodGroup statuses: API in, API out, on virtual time."""

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.decode import from_builtins
from koordinator.api.sigs import PodGroup
from koordinator.cluster import errors
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.plugins.coscheduling.controller import (
    COUNTERS_RATE,
    MemberCounts,
    difference,
    next_of,
)
from koordinator.scheduler.scheduler import Scheduler
from tests.scheduler.fake_cluster import FakeCluster
from tests.scheduler.world import World, play, pod

Json = dict[str, Any]
LABEL = "pod-group.scheduling.sigs.k8s.io"


def pod_group(name: str, minimum: int, **status: Any) -> Json:
    body: Json = {"metadata": {"name": name, "namespace": "default"}, "spec": {"minMember": minimum}}
    body["metadata"]["creationTimestamp"] = "2023-11-14T00:00:00Z"
    return {**body, "status": status} if status else body


def member(name: str, gang: str, *, cpu: str = "1", owner: str = "") -> Json:
    body = pod(name, cpu=cpu)
    body["metadata"]["labels"] = {LABEL: gang}
    if owner:
        body["metadata"]["ownerReferences"] = [{"kind": "Job", "name": owner, "uid": owner}]
    return body


def status(world: World, name: str) -> Json:
    found = world.api.objects["PodGroup"][("default", name)].get("status", {})
    return dict(found)


def phase(world: World, name: str) -> str:
    return str(status(world, name).get("phase", ""))


def phases_of(world: World, name: str) -> list[str]:
    """All phases that the API has seen, in order."""
    seen = [""]
    for kind, _, obj in world.api.history:
        if kind == "PodGroup" and obj["metadata"]["name"] == name:
            now = obj.get("status", {}).get("phase", "")
            if now != seen[-1]:
                seen.append(now)
    return seen[1:]


def writes(world: World, name: str) -> list[Json]:
    """What was patched into a PodGroup's status."""
    return [patch["status"] for about, patch in world.api.patches if about == name]


def turn(world: World, name: str, to: str) -> None:
    """The kubelet reports a phase."""
    found = world.api.objects["Pod"][("default", name)]
    world.api.put("Pod", {**found, "status": {**found.get("status", {}), "phase": to}})


def test_the_life_of_a_gang_from_pending_to_finished() -> None:
    async def story(world: World) -> None:
        world.nodes(2)
        world.api.put("PodGroup", pod_group("job", 2))
        await world.settle()
        assert phase(world, "job") == "Pending"
        world.api.put("Pod", member("a", "job", owner="train"))
        await world.settle(2)
        assert phase(world, "job") == "Pending"
        world.api.put("Pod", member("b", "job", owner="train"))
        await world.settle(2)
        assert status(world, "job")["occupiedBy"] == "default/train"
        assert (phase(world, "job"), status(world, "job")["scheduled"]) == ("Scheduled", 2)
        for name in "ab":
            turn(world, name, "Running")
        await world.settle(2)
        assert (phase(world, "job"), status(world, "job")["running"]) == ("Running", 2)
        for name in "ab":
            turn(world, name, "Succeeded")
        await world.settle(2)
        assert (phase(world, "job"), status(world, "job")["succeeded"]) == ("Finished", 2)
        assert status(world, "job")["running"] == 0
        seen = phases_of(world, "job")
        assert [each for each in seen if each != "Scheduling"] == [
            "Pending",
            "PreScheduling",
            "Scheduled",
            "Running",
            "Finished",
        ]

    play(story)


def test_a_gang_that_waits_for_room_says_since_when_it_is_being_scheduled() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="1")
        world.api.put("PodGroup", pod_group("job", 2))
        for name in "ab":
            world.api.put("Pod", member(name, "job"))
        await world.settle(30)
        assert phase(world, "job") == "Scheduling"
        since = status(world, "job")["scheduleStartTime"]
        world.api.put("Node", {**world.api.objects["Node"][("", "node-0")], "status": more_room()})
        await world.settle(60)
        assert phase(world, "job") == "Scheduled"
        assert status(world, "job")["scheduleStartTime"] == since

    play(story)


def more_room() -> Json:
    return {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"}}


def test_a_gang_whose_member_fails_has_failed_and_runs_again_when_the_member_was_replaced() -> None:
    async def story(world: World) -> None:
        world.nodes(2)
        world.api.put("PodGroup", pod_group("job", 2))
        for name in "ab":
            world.api.put("Pod", member(name, "job"))
        await world.settle(2)
        turn(world, "a", "Running")
        turn(world, "b", "Failed")
        await world.settle(2)
        assert (phase(world, "job"), status(world, "job")["failed"]) == ("Failed", 1)
        world.api.remove("Pod", "b", "default")
        world.api.put("Pod", member("c", "job"))
        await world.settle(2)
        turn(world, "c", "Running")
        await world.settle(2)
        assert (phase(world, "job"), status(world, "job")["failed"]) == ("Running", 0)

    play(story)


def test_nothing_is_written_while_nothing_happens_also_by_a_scheduler_that_has_just_started() -> None:
    async def story(world: World) -> None:
        world.nodes(2)
        world.api.put("PodGroup", pod_group("job", 2))
        world.api.put("PodGroup", pod_group("done", 1, phase="Finished", scheduled=1, succeeded=1))
        world.api.put("PodGroup", pod_group("empty", 1, phase="Pending"))
        for name in "ab":
            world.api.put("Pod", member(name, "job"))
        await world.settle(5)
        for name in "ab":
            turn(world, name, "Running")
        await world.settle(5)
        assert phase(world, "job") == "Running"

        before = len(world.api.patches)
        for name in "ab":  # a heartbeat of the kubelet: nothing that is counted
            turn(world, name, "Running")
        await world.settle(3600)
        await restarted(world)
        await world.settle(3600)

        assert world.api.patches[before:] == []

    play(story)


async def restarted(world: World) -> None:
    """Another scheduler takes over for a while, as after a restart."""
    other = Scheduler(world.api, default_plugins.shipped_config())
    task = asyncio.create_task(other.run())
    await other.synced.wait()
    await world.settle(30)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_a_scheduler_that_takes_over_tells_what_happened_meanwhile() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        for name in "ab":
            body = member(name, "job")
            body["spec"]["nodeName"] = "node-0"
            world.api.put("Pod", {**body, "status": {"phase": "Running"}})
        world.api.put("PodGroup", pod_group("job", 2, phase="Scheduling", scheduled=1))
        await world.settle(2)
        assert status(world, "job") == {
            "phase": "Running",
            "scheduled": 2,
            "running": 2,
        }

    play(story)


def test_a_thousand_members_that_start_one_by_one_cost_a_write_per_second_not_per_member() -> None:
    size, seconds = 1_000, 20.0

    async def story(world: World) -> None:
        world.nodes(10, cpu="200", memory="400Gi", pods=250)
        world.api.put("PodGroup", pod_group("big", size))
        for number in range(size):
            world.api.put("Pod", member(f"p-{number}", "big"))
        await world.settle(30)
        assert (phase(world, "big"), status(world, "big")["scheduled"]) == ("Scheduled", size)
        scheduling = len(writes(world, "big"))
        for number in range(size):
            turn(world, f"p-{number}", "Running")
            await world.settle(seconds / size)
        await world.settle(2)
        assert (phase(world, "big"), status(world, "big")["running"]) == ("Running", size)
        starting = len(writes(world, "big")) - scheduling

        assert scheduling <= 10
        assert starting <= seconds + 3

    play(story)


def test_many_gangs_that_start_at_once_share_the_writes_of_counters_and_all_are_right_in_the_end() -> None:
    gangs, seconds = 400, 10

    async def story(world: World) -> None:
        world.nodes(8, cpu="300", memory="900Gi", pods=250)
        names = [f"g-{number}" for number in range(gangs)]
        for name in names:
            world.api.put("PodGroup", pod_group(name, 2))
            for letter in "abc":
                world.api.put("Pod", member(f"{name}-{letter}", name))
        await world.settle(60)
        assert {status(world, name)["scheduled"] for name in names} == {3}
        for letter in "ab":
            for name in names:
                turn(world, f"{name}-{letter}", "Running")
        await world.settle(60)
        before = len(world.api.patches)
        for name in names:
            turn(world, f"{name}-c", "Running")
        await world.settle(1)
        assert len(world.api.patches) - before <= COUNTERS_RATE.burst + COUNTERS_RATE.per_s + 1
        await world.settle(seconds)
        assert {status(world, name)["running"] for name in names} == {3}
        assert len(world.api.patches) - before == gangs

    play(story)


def test_a_write_names_only_what_changed() -> None:
    async def story(world: World) -> None:
        world.nodes(2)
        world.api.put("PodGroup", pod_group("job", 1))
        world.api.put("Pod", member("a", "job"))
        await world.settle(2)
        turn(world, "a", "Running")
        await world.settle(2)
        assert writes(world, "job")[-1] == {"phase": "Running", "running": 1}

    play(story)


def test_refused_writes_are_tried_again_and_a_pod_group_that_went_meanwhile_is_nobodys_trouble() -> None:
    async def story(world: World) -> None:
        world.nodes(2)
        world.api.fail_next["patch"] = [
            errors.Conflict("somebody was faster"),
            errors.ServiceUnavailable("try later"),
            errors.TooManyRequests("slow down"),
        ]
        world.api.put("PodGroup", pod_group("job", 1))
        await world.settle(5)
        assert phase(world, "job") == "Pending"
        world.api.fail_next["patch"] = [errors.NotFound("podgroups job")]
        world.api.put("Pod", member("a", "job"))
        world.api.put("PodGroup", pod_group("next", 1))
        await world.settle(5)
        assert phase(world, "next") == "Pending"

    play(story)


def test_a_status_that_the_crd_keeps_apart_is_written_there(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, is_apart = FakeCluster.patch, True

    async def patch(
        api: FakeCluster, view: Any, name: str, body: Json, namespace: str = "", **options: Any
    ) -> Any:
        if view is PodGroup and not is_apart and options.get("subresource"):
            raise errors.NotFound("the server could not find the requested resource")
        if view is PodGroup and is_apart and options.get("subresource") != "status":
            body = {key: value for key, value in body.items() if key != "status"}
        return await whole(api, view, name, body, namespace, **options)

    monkeypatch.setattr(FakeCluster, "patch", patch)

    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("PodGroup", pod_group("job", 1))
        world.api.put("Pod", member("a", "job"))
        await world.settle(2)
        turn(world, "a", "Running")
        await world.settle(60)
        assert status(world, "job")["phase"] == "Running"
        in_vain = [each for about, each in world.api.patches if about == "job" and "status" not in each]
        assert len(in_vain) == 1, "once is enough to know"

        nonlocal is_apart
        is_apart = False  # somebody put our CRD in the place of the other one
        turn(world, "a", "Succeeded")
        await world.settle(60)
        assert status(world, "job")["phase"] == "Finished"

    play(story)


def test_a_pod_group_of_the_same_name_that_came_later_starts_anew() -> None:
    async def story(world: World) -> None:
        world.nodes(2)
        world.api.put("PodGroup", pod_group("job", 1))
        world.api.put("Pod", member("a", "job"))
        await world.settle(2)
        turn(world, "a", "Succeeded")
        await world.settle(2)
        assert phase(world, "job") == "Finished"
        world.api.remove("PodGroup", "job", "default")
        world.api.remove("Pod", "a", "default")
        world.api.put("PodGroup", pod_group("job", 1))
        await world.settle(2)
        assert status(world, "job") == {"phase": "Pending"}

    play(story)


def test_pods_that_change_their_gang_are_counted_where_they_are_now() -> None:
    async def story(world: World) -> None:
        world.nodes(2)
        for name in ("one", "two"):
            world.api.put("PodGroup", pod_group(name, 1))
        world.api.put("Pod", member("a", "one"))
        world.api.put("Pod", member("b", "one"))
        await world.settle(3)
        assert status(world, "one")["scheduled"] == 2
        found = world.api.objects["Pod"][("default", "b")]
        moved = {**found, "metadata": {**found["metadata"], "labels": {LABEL: "two"}}}
        world.api.put("Pod", moved)
        await world.settle(3)
        assert status(world, "one")["scheduled"] == 1
        assert (phase(world, "two"), status(world, "two")["scheduled"]) == ("Scheduled", 1)

    play(story)


def test_the_work_queue_is_measured() -> None:
    async def story(world: World) -> None:
        world.api.put("PodGroup", pod_group("job", 1))
        await world.settle(2)
        text = world.scheduler.engine.metrics.registry.text()
        assert 'workqueue_adds_total{name="PodGroupController"}' in text
        assert 'workqueue_depth{name="PodGroupController"} 0' in text

    play(story)


PHASES = ("Pending", "Running", "Succeeded", "Failed")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.integers(0, 5), st.sampled_from(PHASES)),
        st.tuples(st.just("delete"), st.integers(0, 5), st.just("")),
        st.tuples(st.just("regroup"), st.integers(0, 5), st.sampled_from(("one", "two", ""))),
        st.tuples(st.just("fail"), st.integers(1, 3), st.just("")),
        st.tuples(st.just("remake"), st.just(0), st.sampled_from(("one", "two"))),
        st.tuples(st.just("wait"), st.integers(0, 4), st.just("")),
    ),
    max_size=20,
)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS, minimum=st.integers(0, 3))
def test_whatever_happens_in_the_end_the_status_says_how_the_pods_are(
    steps: list[tuple[str, int, str]], minimum: int
) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="64", memory="64Gi")
        for name in ("one", "two"):
            world.api.put("PodGroup", pod_group(name, minimum))
        for what, number, text in steps:
            act(world, what, number, text, minimum)
            if what == "wait":
                await world.settle(number / 4)
        await world.settle(1200)  # the last pause after errors is over

        for name in ("one", "two"):
            found = from_builtins(world.api.objects["PodGroup"][("default", name)], PodGroup)
            members = recounted(world, name)
            assert difference(found.status, next_of(found, members, "now")) == {}
            if found.status.phase not in ("", "Pending", "Finished", "Failed"):
                assert (found.status.running, found.status.scheduled) == (members.running, members.scheduled)

    play(story)


def act(world: World, what: str, number: int, text: str, minimum: int) -> None:
    name = f"p-{number}"
    pods = world.api.objects.setdefault("Pod", {})
    found = pods.get(("default", name))
    match what:
        case "turn" if found is None:
            world.api.put("Pod", member(name, ("one", "two")[number % 2]))
        case "turn":
            turn(world, name, text)
        case "delete" if found is not None:
            world.api.remove("Pod", name, "default")
        case "regroup" if found is not None:
            labels = {LABEL: text} if text else {}
            world.api.put("Pod", {**found, "metadata": {**found["metadata"], "labels": labels}})
        case "fail":
            busy = errors.ServiceUnavailable("try later")
            world.api.fail_next.setdefault("patch", []).extend([busy, errors.Conflict("raced")][:number])
        case "remake":
            world.api.remove("PodGroup", text, "default")
            world.api.put("PodGroup", pod_group(text, minimum))


def recounted(world: World, gang: str) -> MemberCounts:
    """The members as the API has them."""
    members = [each for each in world.api.pods() if each["metadata"].get("labels", {}).get(LABEL) == gang]
    phases = [each.get("status", {}).get("phase", "") for each in members]
    return MemberCounts(
        total=len(members),
        scheduled=sum(bool(each["spec"].get("nodeName")) for each in members),
        running=phases.count("Running"),
        succeeded=phases.count("Succeeded"),
        failed=phases.count("Failed"),
    )
