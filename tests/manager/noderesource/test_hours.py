"""Batch yields to services before they need the node, and nodes say for how long what they lend will last."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import quantity
from koordinator.manager.noderesource import hours
from koordinator.manager.noderesource.ledger import ledgers
from koordinator.manager.noderesource.plugins import BatchResource
from koordinator.manager.noderesource.target import NodeTarget
from tests.manager.noderesource.world import World, run

DURATIONS = "node.koordinator.sh/batch-durations"
NIGHT, MORNING = 2, 20


def by_hour(now_s: float, first: int, later: int, from_hours: int) -> list[dict[str, Any]]:
    """A day on which services use `first` cores, and `later` from so many hours after now on."""
    start = int(now_s // 3600)
    cores = {(start + ahead) % 24: first if ahead < from_hours else later for ahead in range(24)}
    return [{"resources": {"cpu": str(cores[hour]), "memory": "1Gi"}} for hour in range(24)]


async def batch_cores(world: World) -> float:
    node = await world.node()
    return quantity.value(node.status.allocatable["kubernetes.io/batch-cpu"]) / 1000


async def durations(world: World) -> dict[int, float] | None:
    text = (await world.node()).metadata.annotations.get(DURATIONS)
    if text is None:
        return None
    said = json.loads(text)
    return dict(zip(said["hours"], (milli / 1000 for milli in said["cpuMilli"]), strict=True))


def config(minutes: int) -> str:
    strategy = {"enable": True, "cpuReclaimThresholdPercent": 100, "lendAheadMinutes": minutes}
    return json.dumps(strategy)


def test_batch_yields_to_the_morning_before_it_comes() -> None:
    async def scenario(world: World) -> None:
        now_s = world.cluster.clock.now()
        morning = {"yieldedByHour": by_hour(now_s, NIGHT, MORNING, 2)}
        await world.configure(colocation_config=config(0))
        await world.report(**morning)
        assert await batch_cores(world) == 93  # 100 − 7 of the system: nobody asked to look ahead

        await world.configure(colocation_config=config(30))
        await world.report(**morning)
        assert await batch_cores(world) == 93  # the night is what is measured already

        await world.configure(colocation_config=config(121))
        await world.report(**morning)
        assert await batch_cores(world) == 93 - (MORNING - NIGHT)

    run(scenario)


def test_a_node_says_for_how_long_it_lends_how_much() -> None:
    async def scenario(world: World) -> None:
        await world.configure(colocation_config=config(30))
        await world.report()
        assert await durations(world) is None  # the agent predicts nothing

        await world.report(yieldedByHour=by_hour(world.cluster.clock.now(), 10, 40, 5))
        said = await durations(world)
        assert said is not None
        assert (said[1], said[2], said[4]) == (90, 90, 90)  # in steps of a twentieth
        assert (said[8], said[16], said[24]) == (60, 60, 60)

        await world.configure(colocation_config=config(0))
        await world.report(yieldedByHour=by_hour(world.cluster.clock.now(), 10, 40, 5))
        assert await durations(world) is None

    run(scenario)


def test_what_the_system_may_use_and_does_not_is_no_more_lent_at_a_peak() -> None:
    async def scenario(world: World) -> None:
        node = "n1"
        reservation = json.dumps({"resources": {"cpu": "17"}})  # 10 cores more than the system uses
        patch = {"metadata": {"annotations": {"node.koordinator.sh/reservation": reservation}}}
        await world.user.patch(type(await world.node()), node, patch)
        await world.configure(colocation_config=config(60))
        await world.report(yieldedByHour=by_hour(world.cluster.clock.now(), 40, 40, 24))

        said = await durations(world)
        assert said is not None and set(said.values()) == {50}
        assert await batch_cores(world) == 83  # nothing is expected to rise

    run(scenario)


def test_a_report_with_other_than_24_hours_says_nothing() -> None:
    async def scenario(world: World) -> None:
        await world.configure(colocation_config=config(600))
        await world.report(yieldedByHour=by_hour(world.cluster.clock.now(), 90, 90, 24)[:23])

        assert await batch_cores(world) == 93

    run(scenario)


AMOUNT = st.tuples(st.integers(0, 10**6), st.integers(0, 10**12))
DAY = st.lists(AMOUNT, min_size=24, max_size=24)


@given(DAY, st.floats(0, 10**9), st.floats(0, 3 * 86_400), st.floats(0, 3 * 86_400))
def test_who_looks_further_ahead_yields_to_as_much_or_more(
    day: list[tuple[int, int]], now_s: float, near_s: float, far_s: float
) -> None:
    near, far = (hours.yielded(day, now_s, each) for each in sorted((near_s, far_s)))

    assert near[0] <= far[0] and near[1] <= far[1]
    assert hours.yielded(day, now_s, 86_400) == (max(cpu for cpu, _ in day), max(size for _, size in day))


def test_the_ledger_names_what_batch_yields_to_ahead_of_time() -> None:
    async def scenario(world: World) -> None:
        await world.configure(colocation_config=config(60))
        await world.report(yieldedByHour=by_hour(world.cluster.clock.now(), 7, 40, 1))
        row = world.controller.fleet.rows["n1"]
        target = NodeTarget()
        BatchResource().calculate([row], [target])

        batch, _ = ledgers(row, target)

        terms = {term.name: term.cpu_milli for term in batch.terms}
        assert terms["ahead"] == -33_000
        assert sum(terms.values()) == batch.cpu_milli == 60_000

    run(scenario)


@given(AMOUNT, DAY, st.floats(0, 10**9), st.floats(0, 3 * 86_400))
def test_only_what_rises_is_yielded_ahead_of_time(
    flat: tuple[int, int], day: list[tuple[int, int]], now_s: float, ahead_s: float
) -> None:
    assert hours.rise([flat] * 24, now_s, ahead_s) == (0, 0)
    assert min(hours.rise(day, now_s, ahead_s)) >= 0
    assert hours.rise(day, now_s, 0.0) == (0, 0)
