"""LowNodeLoad in plan mode, in a descheduler that runs: what it moves, to where, and what it asks the scheduler."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from koordinator import clock as clocks
from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.node_metric import NodeMetric
from koordinator.cluster import errors
from koordinator.cluster.proof import MoveAnswer, MoveQuestion, ProofError, Prove
from koordinator.descheduler import configuration, http
from koordinator.descheduler.configuration import DeschedulerConfigError
from koordinator.descheduler.migration.reservation_template import target_of
from koordinator.descheduler.plan_input import COOL_DOWN_S
from koordinator.descheduler.plugins.built_in import installed_plugins
from koordinator.descheduler.plugins.low_node_load import planned
from koordinator.scheduler.serve import explain_service
from tests.descheduler.world import World, config, run

LOAD: dict[str, Any] = {
    "lowThresholds": {"cpu": 30},
    "highThresholds": {"cpu": 65},
    "anomalyCondition": {"consecutiveAbnormalities": 1},
    "plan": {},
}
NO_LIMITER = {"objectLimiters": {"workload": {"duration": "0s"}}}


def rules(args: dict[str, Any] | None = None, **load: Any) -> dict[str, Any]:
    body = config(balance="LowNodeLoad", args=args or NO_LIMITER)
    body["profiles"][0]["pluginConfig"].append({"name": "LowNodeLoad", "args": LOAD | load})
    return body


async def report(world: World, node: str, pods: Sequence[Pod], milli: int, system: str = "0") -> None:
    """A NodeMetric as of now; each pod uses so many milli-cores."""
    used = [
        {"namespace": "default", "name": one.metadata.name, "podUsage": {"resources": {"cpu": f"{milli}m"}}}
        for one in pods
    ]
    usage = {"resources": {"cpu": system}}
    status = {
        "updateTime": clocks.rfc3339(world.cluster.clock.now()),
        "nodeMetric": {"nodeUsage": usage, "systemUsage": usage},
        "podsMetric": used,
    }
    with contextlib.suppress(errors.AlreadyExists):
        await world.cluster.create(NodeMetric, {"metadata": {"name": node}})
    await world.cluster.patch(NodeMetric, node, {"status": status}, subresource="status")


async def hot(world: World) -> list[Pod]:
    """Ten pods use 12 of 16 cores of n0; n1 is the coolest of the others."""
    pods = await world.deployment("web", 10, "n0")
    await report(world, "n0", pods, 1_200)
    await report(world, "n1", [], 0)
    await report(world, "n2", [], 0, system="2")
    world.elsewhere = "n1"
    return pods


def scheduler(asked: list[MoveQuestion], refuses: Callable[[str], str] = lambda _: "") -> Prove:
    async def prove(moves: Sequence[MoveQuestion]) -> list[MoveAnswer]:
        asked.extend(moves)
        return [
            MoveAnswer("" if refuses(one.nodes[0]) else one.nodes[0], refuses(one.nodes[0])) for one in moves
        ]

    return prove


def test_pods_go_to_the_nodes_of_the_plan_and_no_more_than_are_needed() -> None:
    asked: list[MoveQuestion] = []

    async def scenario(world: World) -> None:
        await hot(world)
        async with world.descheduling(rules(), prove=scheduler(asked)):
            await world.until(lambda pods: sum(one.spec.node_name == "n1" for one in pods) == 2)
            found = await world.jobs()
            assert [target_of(one) for one in found] == ["n1", "n1"]
            assert len(await world.pods()) == 10

    run(scenario)
    assert [one.nodes for one in asked] == [("n1",), ("n1",)]


def test_what_is_on_its_way_is_not_planned_again() -> None:
    async def scenario(world: World) -> None:
        await hot(world)
        world.reserves = False  # the jobs stay open
        async with world.descheduling(rules(), prove=scheduler([])) as running:
            assert running.reports[-1].counts == {"accepted": 2}
            assert (await running.cycle()).counts == {}

    run(scenario)


def test_a_node_that_the_scheduler_refuses_is_planned_without() -> None:
    asked: list[MoveQuestion] = []

    async def scenario(world: World) -> None:
        await hot(world)
        prove = scheduler(asked, lambda node: "no quota" if node == "n1" else "")
        async with world.descheduling(rules(), prove=prove):
            assert [target_of(one) for one in await world.jobs()] == ["n2", "n2"]

    run(scenario)
    assert ("n1",) in [one.nodes for one in asked]


def test_where_the_scheduler_takes_nothing_nobody_is_evicted() -> None:
    async def scenario(world: World) -> None:
        await hot(world)
        async with world.descheduling(rules(), prove=scheduler([], lambda _: "no quota")) as running:
            assert not await world.jobs()
            [told] = http.of_node(running, "n0")["pools"]
            assert told["why"] == "a plan does not cool it: no quota"

    run(scenario)


@pytest.mark.parametrize(
    ("prove", "told"),
    [
        pytest.param(None, "plan mode needs plan.schedulerURL", id="no scheduler is known"),
        pytest.param("silent", "nobody answers", id="the scheduler is silent"),
    ],
)
def test_without_a_proof_nobody_is_evicted(prove: str | None, told: str) -> None:
    async def silent(_: Sequence[MoveQuestion]) -> list[MoveAnswer]:
        raise ProofError("nobody answers")

    async def scenario(world: World) -> None:
        await hot(world)
        async with world.descheduling(rules(), prove=silent if prove else None) as running:
            assert told in running.reports[-1].error
            assert not await world.jobs()

    run(scenario)


def test_a_node_is_cooled_only_after_it_was_hot_for_long_enough() -> None:
    async def scenario(world: World) -> None:
        await hot(world)
        body = rules(anomalyCondition={"consecutiveAbnormalities": 2, "timeout": "10m"})
        async with world.descheduling(body, prove=scheduler([])) as running:
            counts = [running.reports[-1].counts]
            for _ in range(2):
                counts.append((await running.cycle()).counts)
            assert counts == [{}, {}, {"accepted": 2}]

    run(scenario)


def test_a_node_that_becomes_hot_by_little_is_given_time() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 10, "n0")
        await report(world, "n0", pods, 1_000)
        await report(world, "n1", [], 0)
        async with world.descheduling(rules(), prove=scheduler([])) as running:
            counts = [running.reports[-1].counts]
            for used in (1_060, 1_200):  # of 1,040
                await asyncio.sleep(60)
                await report(world, "n0", pods, used)
                await report(world, "n1", [], 0)
                await asyncio.sleep(1)
                counts.append((await running.cycle()).counts)
            assert counts[:2] == [{}, {}]
            assert counts[2]["accepted"] > 0

    run(scenario)


def test_what_came_to_a_node_does_not_go_back_when_that_is_hot_in_turn() -> None:
    async def scenario(world: World) -> None:
        await hot(world)
        asked: list[MoveQuestion] = []
        async with world.descheduling(rules(), prove=scheduler(asked)) as running:
            await world.until(lambda pods: sum(one.spec.node_name == "n1" for one in pods) == 2)
            for job in await world.jobs():
                await world.ended(job.metadata.name)
                assert job.metadata.annotations[labels.JOB_SOURCE_NODE] == "n0"

            async def now_hot() -> None:
                came = [one for one in await world.pods() if one.spec.node_name == "n1"]
                stayed = [one for one in await world.pods() if one.spec.node_name == "n0"]
                await report(world, "n0", stayed, 100)
                await report(world, "n1", came, 6_000)
                await report(world, "n2", [], 0, system="10")
                await asyncio.sleep(1)
                asked.clear()

            await now_hot()
            assert (await running.cycle()).counts == {}
            await asyncio.sleep(COOL_DOWN_S)  # the jobs are over
            await now_hot()
            assert (await running.cycle()).counts == {}
            await asyncio.sleep(planned.LEFT_S)
            await now_hot()
            assert (await running.cycle()).counts == {"accepted": 1}
            assert [one.nodes for one in asked] == [("n0",)]

    run(scenario)


@pytest.mark.parametrize(
    ("nodes", "most"),
    [
        pytest.param(3, 100, id="a small cluster may move all"),
        pytest.param(2_000, 200, id="one for ten nodes"),
        pytest.param(50_000, 500, id="no more than the scheduler tries in one go"),
    ],
)
def test_the_moves_of_a_cycle_grow_with_the_cluster(nodes: int, most: int) -> None:
    assert planned.moves_max(nodes) == most
    assert most <= explain_service.MOVES_MAX


@pytest.mark.parametrize("silent", ["n0", "n1"])
def test_a_silent_agent_makes_a_node_neither_source_nor_target(silent: str) -> None:
    async def scenario(world: World) -> None:
        await hot(world)
        await world.cluster.delete(NodeMetric, silent)
        async with world.descheduling(rules(), prove=scheduler([])):
            assert {target_of(one) for one in await world.jobs()} == (set() if silent == "n0" else {"n2"})

    run(scenario)


def test_a_plan_needs_jobs_that_reserve_first() -> None:
    with pytest.raises(DeschedulerConfigError, match="needs defaultJobMode ReservationFirst"):
        configuration.decode(rules({"defaultJobMode": "EvictDirectly"}), installed_plugins())


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(DeschedulerConfigError, match=r"plan\.schedulerURL"):
        configuration.decode(rules(plan={"schedulerURL": "here"}), installed_plugins())
