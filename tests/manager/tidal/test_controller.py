"""Tidal pools on a cluster in this process: nodes are lent at night and are back in the morning."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from koordinator import clock
from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.tidal_pool import TidalPool
from koordinator.cli import explain_tidal
from koordinator.cluster.proof import MoveAnswer, MoveQuestion, ProofError
from koordinator.manager.tidal import controller
from koordinator.manager.tidal.listed import ListedObjects
from koordinator.manager.tidal.nodes import Side, TidalPhase
from tests.manager.tidal.world import BATCH, TideWorld, Unreliable, run


def test_nodes_are_lent_while_a_window_is_open_and_are_back_before_it_ends() -> None:
    async def story(world: TideWorld) -> None:
        await world.deploy("web", 4)
        await world.deploy("train", 2, "7", priority=BATCH)
        await world.pool()
        async with world.manager():
            await world.until("00:20")
            assert set((await world.phases()).values()) == {"online"}

            await world.until("01:30")
            phases = await world.phases()
            assert sorted(phases.values()) == ["batch", "batch", "online", "online"]
            on = {pod.spec.node_name for pod in await world.pods(app="web")}
            assert on == {name for name, phase in phases.items() if phase == "online"}
            train = await world.pods(app="train")
            assert {pod.spec.node_name for pod in train} == phases.keys() - on

            await world.until("06:31")
            assert set((await world.phases()).values()) <= {"online", "to-online"}
            await world.until("06:35")
            assert set((await world.phases()).values()) == {"online"}

    run(story)


OPEN = {"schedule": [{"start": "0 22 * * *", "duration": "6h", "batchNodes": 2}], "cooldown": "1m"}


async def lend_two(world: TideWorld) -> None:
    """Two nodes are lent, since 22:00, and have work."""
    await world.deploy("train", 2, "7", priority=BATCH)
    await world.pool(**OPEN)

    async def is_lent() -> bool:
        trains = await world.pods(app="train")
        is_busy = all(pod.status.phase == "Running" for pod in trains)
        return is_busy and list((await world.phases()).values()).count("batch") == 2

    await world.reaches(is_lent)


def test_a_pod_that_waits_for_room_takes_a_node_back_within_the_grace_period() -> None:
    async def story(world: TideWorld) -> None:
        async with world.manager():
            await world.deploy("web", 2, "5")
            await lend_two(world)
            world.stops_s = 600.0  # batch pods use all the time that they are given

            await world.scale("web", 4)
            began_s = world.now_s
            await world.reaches(lambda: all_run(world, "web", 4), 300)

            # 30 s until it is an emergency, a pass, two minutes of grace, and the start
            assert 120 <= world.now_s - began_s <= 180
            pool = await world.found_pool()
            assert condition(pool, "EmergencyReturn")[0] == "True"
            assert pool.status.hold_until is not None

    run(story, starts="22:30")


async def all_run(world: TideWorld, app: str, count: int) -> bool:
    pods = await world.pods(app=app)
    return len(pods) == count and all(pod.status.phase == "Running" for pod in pods)


def condition(pool: TidalPool, kind: str) -> tuple[str, str]:
    found = next(each for each in pool.status.conditions if each.type == kind)
    return found.status, found.message


def test_batch_pods_are_told_when_their_node_returns_and_are_killed_at_last() -> None:
    async def story(world: TideWorld) -> None:
        async with world.manager():
            await lend_two(world)
            world.stops_s = 1e9
            trains = {pod.metadata.name: pod for pod in await world.pods(app="train")}

            await world.cluster.patch(
                TidalPool, "night", {"spec": {"drainAll": "Online", "maxNodesPerStep": 2}}
            )
            await asyncio.sleep(70)  # the cool-down
            began_s = world.now_s
            told = [pod for pod in await world.pods(app="train") if pod.metadata.name in trains]
            assert len(told) == 2
            for pod in told:
                at_s = clock.parse_rfc3339(pod.metadata.annotations[labels.TIDAL_RETURN_AT])
                assert began_s < at_s <= began_s + 120
                assert pod.metadata.deletion_timestamp is not None

            await asyncio.sleep(180)
            assert set((await world.phases()).values()) == {"online"}
            assert not trains.keys() & {pod.metadata.name for pod in await world.pods(app="train")}

    run(story, starts="22:30")


def test_a_node_whose_pods_may_not_be_disrupted_stays_online_and_says_why() -> None:
    async def story(world: TideWorld) -> None:
        await world.deploy("web", 4, "4")
        await world.reaches(lambda: all_run(world, "web", 4))
        budget = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}}
        body = {"metadata": {"name": "web"}, "spec": budget}
        await world.cluster.create(PodDisruptionBudget, body, "default")
        await asyncio.sleep(5)
        async with world.manager():
            await world.pool(**OPEN)
            await asyncio.sleep(120)

            assert set((await world.phases()).values()) == {"online"}
            ready = condition(await world.found_pool(), "Ready")
            assert ready[0] == "False" and "PodDisruptionBudget default/web allows no disruption" in ready[1]

    run(story, starts="22:30")


def test_with_a_surge_a_node_is_lent_though_no_disruption_is_allowed_and_all_pods_stay_available() -> None:
    async def story(world: TideWorld) -> None:
        await world.deploy("web", 4, "4")
        await world.reaches(lambda: all_run(world, "web", 4))
        budget = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}}
        body = {"metadata": {"name": "web"}, "spec": budget}
        await world.cluster.create(PodDisruptionBudget, body, "default")
        await asyncio.sleep(5)
        fewest = 4

        async def is_lent() -> bool:
            nonlocal fewest
            fewest = min(fewest, await world.available("web"))
            return "batch" in (await world.phases()).values()

        async with world.manager():
            await world.pool(**{**OPEN, "drain": {"onlineBudget": "Surge"}})
            await world.reaches(is_lent)
        assert fewest == 4

    run(story, starts="22:30")


def test_a_node_with_the_only_pod_of_a_workload_turns_back_as_soon_as_that_is_refused() -> None:
    async def story(world: TideWorld) -> None:
        for name in ("a", "b", "c", "d"):
            await world.deploy(name, 1, "3")
        await world.reaches(lambda: all_run(world, "d", 1))
        async with world.manager():
            await world.pool(**OPEN)
            await asyncio.sleep(180)

            blocked = condition(await world.found_pool(), "DrainBlocked")
            assert blocked[0] == "True" and "its workload has only 1 replicas" in blocked[1]

    run(story, starts="22:30")


def test_a_drain_that_does_not_end_turns_back_and_is_not_tried_again_for_an_hour() -> None:
    async def story(world: TideWorld) -> None:
        await world.deploy("web", 4)
        await world.reaches(lambda: all_run(world, "web", 4))
        world.stops_s = 1e9  # nothing that is evicted ever ends
        for pod in await world.pods(app="web"):
            patch = {"metadata": {"labels": {"koordinator.sh/evict-policy": "SoftEviction"}}}
            await world.cluster.patch(Pod, pod.metadata.name, patch, "default")
        async with world.manager():
            await world.pool(**OPEN | {"drain": {"timeout": "5m"}})
            await asyncio.sleep(290)
            assert "to-batch" in (await world.phases()).values()

            await asyncio.sleep(60 * 9)
            pool = await world.found_pool()
            marks = (await world.marks()).values()
            blocked = [each for each in marks if each.blocked_until_s > world.now_s]
            assert condition(pool, "DrainBlocked")[0] == "True"
            assert blocked and all(each.phase.value == "online" for each in blocked)

    run(story, starts="22:30", nodes=2)


@pytest.mark.parametrize("seed", range(2))
def test_writes_that_fail_and_restarts_at_any_time_only_delay_a_tide(seed: int) -> None:
    async def story(world: TideWorld) -> None:
        rng = random.Random(seed)
        await world.deploy("web", 4)
        await world.deploy("train", 2, "7", priority=BATCH)
        await world.reaches(lambda: all_run(world, "web", 4))
        await world.pool(schedule=[{"start": "0 23 * * *", "duration": "2h", "batchNodes": 2}], cooldown="1m")
        through = Unreliable(world.backend, rng, 0.15)
        most, ends_s = 0, world.now_s + 3 * 3600
        while world.now_s < ends_s:
            async with world.manager(through):
                for _ in range(rng.randint(5, 60)):
                    await asyncio.sleep(5)
                    most = max(most, list((await world.phases()).values()).count("batch"))
                    assert await world.available("web") >= 4 - 1
        assert (most, through.failed > 5) == (2, True)
        assert set((await world.phases()).values()) == {"online"}

    run(story, starts="22:30", is_strict=False)


def test_a_pool_that_is_deleted_returns_its_nodes_and_leaves_no_marks() -> None:
    async def story(world: TideWorld) -> None:
        async with world.manager():
            await lend_two(world)
            await world.cluster.delete(TidalPool, "night")

            async def is_gone() -> bool:
                return not (await world.cluster.list(TidalPool)).items

            await world.reaches(is_gone)
            for node in (await world.cluster.list(Node)).items:
                said = [*node.metadata.labels, *node.metadata.annotations, *(t.key for t in node.spec.taints)]
                assert not [key for key in said if key.startswith("tidal.")]

    run(story, starts="22:30")


def test_taints_of_others_stay_on_a_node_that_is_lent_and_returned() -> None:
    async def story(world: TideWorld) -> None:
        own = {"key": "dedicated", "value": "web", "effect": "PreferNoSchedule"}
        for number in range(4):
            await world.cluster.patch(Node, f"n{number}", {"spec": {"taints": [own]}})
        async with world.manager():
            await lend_two(world)
            nodes = (await world.cluster.list(Node)).items
            assert all(own["key"] in [taint.key for taint in node.spec.taints] for node in nodes)
            await world.cluster.delete(TidalPool, "night")
            await asyncio.sleep(60)
            nodes = (await world.cluster.list(Node)).items
            assert all([taint.key for taint in node.spec.taints] == [own["key"]] for node in nodes)

    run(story, starts="22:30")


def test_of_two_pools_the_older_one_has_a_node_and_the_other_says_so() -> None:
    async def story(world: TideWorld) -> None:
        async with world.manager():
            await world.pool()
            await asyncio.sleep(5)
            await world.pool("late", nodeSelector={"matchLabels": {"pool": "web"}})
            await asyncio.sleep(20)

            assert {each.pool for each in (await world.marks()).values()} == {"night"}
            assert condition(await world.found_pool("late"), "Conflict") == (
                "True",
                "older pools have n0, n1, n2, n3",
            )

    run(story)


def test_a_pool_that_cannot_be_read_moves_nothing_and_says_why() -> None:
    async def story(world: TideWorld) -> None:
        async with world.manager():
            await world.pool(schedule=[{"start": "61 * * * *", "duration": "1h", "batchNodes": 1}])
            await asyncio.sleep(20)

            told = condition(await world.found_pool(), "Ready")
            assert told[0] == "False" and told[1].startswith("spec.schedule[0].start: end of range (61)")
            assert not any(each.pool for each in (await world.marks()).values())

    run(story)


def test_scale_in_takes_pods_of_the_nodes_that_are_lent_next() -> None:
    async def story(world: TideWorld) -> None:
        await world.deploy("web", 8)
        await world.reaches(lambda: all_run(world, "web", 8))
        async with world.manager():
            await world.pool()  # opens at 00:30, with 45 minutes of lead time
            await world.until("00:10")
            cheap = {
                pod.spec.node_name
                for pod in await world.pods(app="web")
                if pod.metadata.annotations.get(labels.POD_DELETION_COST) == "-1000"
            }
            assert len(cheap) == 2

            await world.scale("web", 4)
            await asyncio.sleep(30)
            assert not cheap & {pod.spec.node_name for pod in await world.pods(app="web")}
            await world.until("00:45")
            phases = await world.phases()
            assert {name for name, phase in phases.items() if phase == "batch"} == cheap
            assert not await world.jobs()  # nothing had to be migrated

    run(story)


def test_explain_says_what_the_controller_does_next() -> None:
    async def story(world: TideWorld) -> None:
        await world.deploy("web", 4)
        await world.reaches(lambda: all_run(world, "web", 4))
        await world.pool(**OPEN)
        cluster = world.cluster
        objects = ListedObjects(
            (await cluster.list(TidalPool)).items,
            (await cluster.list(Node)).items,
            (await cluster.list(Pod)).items,
            (await cluster.list(PodMigrationJob)).items,
            (await cluster.list(PodDisruptionBudget)).items,
        )
        found = objects.look("night", world.now_s)
        answer = explain_tidal.answer_of(objects.pools["night"], found, world.now_s)
        told = {each["name"] for each in answer["nodes"] if each["next"].startswith("to-batch")}
        assert (answer["lent"], answer["target"], len(told)) == (0, 2, 1)
        assert next(explain_tidal.lines(answer)) == (
            "TidalPool night: 0 nodes lent, 2 should be: a window is open"
        )

        async with world.manager():
            await asyncio.sleep(1)
            phases = await world.phases()
            assert {name for name, phase in phases.items() if phase != "online"} == told

    run(story, starts="22:30")


def test_nodes_of_katalyst_are_taken_over_as_they_are_and_let_go_without_its_labels() -> None:
    lent = {labels.KATALYST_NODE_TYPE: "offline", labels.KATALYST_TIDE: "true"}
    kept = {labels.KATALYST_NODE_TYPE: "online", labels.KATALYST_RESERVE: "true"}
    taints = [{"key": labels.KATALYST_ONLINE_NOT_USED, "value": "true", "effect": "NoExecute"}]

    async def story(world: TideWorld) -> None:
        await world.cluster.patch(Node, "n0", {"metadata": {"labels": kept}})
        await world.cluster.patch(Node, "n3", {"metadata": {"labels": lent}, "spec": {"taints": taints}})
        await world.deploy("web", 4)
        await world.pool(**OPEN | {"onlineReserve": 1, "katalystLabels": True})
        async with world.manager():
            await asyncio.sleep(15)
            marks = await world.marks()
            assert (marks["n3"].phase, marks["n0"].reserve) == (TidalPhase.BATCH, Side.ONLINE)
            [taint] = (await world.cluster.get(Node, "n3")).spec.taints
            assert (taint.key, taint.effect) == (labels.TIDAL_BATCH_PHASE_TAINT, "NoSchedule")

            async def is_lent() -> bool:
                return list((await world.phases()).values()).count("batch") == 2

            await world.reaches(is_lent)
            for node in (await world.cluster.list(Node)).items:
                said, phase = node.metadata.labels, (await world.phases())[node.metadata.name]
                assert said[labels.KATALYST_NODE_TYPE] == ("offline" if phase == "batch" else "online")
                assert said[labels.KATALYST_NODE_POOL] == "night"

            await world.cluster.patch(TidalPool, "night", {"spec": {"katalystLabels": False}})
            await asyncio.sleep(15)
            left = {key for node in (await world.cluster.list(Node)).items for key in node.metadata.labels}
            assert not {key for key in left if key.startswith("tide.katalyst")}
            assert list((await world.phases()).values()).count("batch") == 2

    run(story, starts="22:30")


async def with_a_node_of_its_own(world: TideWorld) -> None:
    """n0 has the only disks that some pods want; by requests it is cheaper to empty than n1."""
    await world.cluster.patch(Node, "n0", {"metadata": {"labels": {"disk": "ssd"}}})
    await world.deploy("db", 2, nodeSelector={"disk": "ssd"})
    await world.reaches(lambda: all_run(world, "db", 2))
    await world.cluster.patch(Node, "n0", {"spec": {"unschedulable": True}})
    await world.deploy("web", 2, "2")
    await world.reaches(lambda: all_run(world, "web", 2))
    await world.cluster.patch(Node, "n0", {"spec": {"unschedulable": False}})
    await world.pool(**OPEN | {"schedule": [{"start": "0 22 * * *", "duration": "6h", "batchNodes": 1}]})


def test_a_node_whose_pods_the_scheduler_places_nowhere_else_is_not_marked() -> None:
    async def story(world: TideWorld) -> None:
        await with_a_node_of_its_own(world)
        before_s = world.now_s
        async with world.manager(prove=world.prove):

            async def is_lent() -> bool:
                return (await world.phases())["n1"] == "batch"

            await world.reaches(is_lent)
            left = (await world.marks())["n0"]
            assert left.phase is TidalPhase.ONLINE
            assert left.since_s <= before_s, "it was not even tried"
            assert len(await world.pods(app="db")) == 2

    run(story, starts="22:30", nodes=2)


def test_while_the_scheduler_does_not_answer_no_node_is_lent() -> None:
    async def silent(_: Sequence[MoveQuestion]) -> list[MoveAnswer]:
        raise ProofError("nobody answers")

    async def story(world: TideWorld) -> None:
        await with_a_node_of_its_own(world)
        async with world.manager(prove=silent):
            await asyncio.sleep(120)
            assert set((await world.phases()).values()) == {"online"}
            status, message = condition(await world.found_pool(), "Ready")
            assert status == "False"
            assert "nobody answers" in message

    run(story, starts="22:30", nodes=2)


@pytest.mark.parametrize("writes_max", [1, 2, 3, 4, 5])
def test_a_pass_that_may_write_no_more_is_followed_by_the_next_at_once(
    writes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "WRITES_MAX", writes_max)

    async def story(world: TideWorld) -> None:
        await world.pool()
        async with world.manager():
            await asyncio.sleep(controller.PERIOD_S - 1)
            nodes = (await world.cluster.list(Node)).items
            assert [labels.TIDAL_PHASE in node.metadata.labels for node in nodes] == [True] * 4

    run(story)
