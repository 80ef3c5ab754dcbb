"""Picking: ties by seed, samples as the stock scheduler takes them, nominated nodes first."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koordinator.scheduler.config import config
from koordinator.scheduler.engine import pick
from koordinator.scheduler.table.columns import NOT_FEASIBLE
from tests.scheduler.world import World, node, play, pod


def test_ties_are_spread_and_repeat_with_the_seed() -> None:
    totals = np.array([5, 9, 9, 9], np.int64)

    def picks(seed: int) -> list[int | None]:
        return [pick.best(totals, pick.chance_of(seed, f"uid-{n}", 1)) for n in range(300)]

    assert picks(1) == picks(1) != picks(2)
    counts = [picks(1).count(row) for row in range(4)]
    assert counts[0] == 0 and min(counts[1:]) > 60


@given(feasible=st.sets(st.integers(0, 30)), start=st.integers(0, 30), wanted=st.integers(1, 31))
def test_a_sample_is_what_walking_from_the_start_finds(feasible: set[int], start: int, wanted: int) -> None:
    all_rows = np.arange(31, dtype=np.intp)
    rows, looked_at = pick.sample(np.array(sorted(feasible), np.intp), all_rows, start, wanted)

    found: list[int] = []
    steps = 0
    for offset in range(31):
        if len(found) == wanted and len(feasible) > wanted:
            break
        steps += 1
        if (start + offset) % 31 in feasible:
            found.append((start + offset) % 31)
    assert rows.tolist() == sorted(found)
    assert looked_at == steps


def test_a_configured_percentage_looks_at_that_many_nodes() -> None:
    async def story(world: World) -> None:
        world.nodes(300)
        world.api.put("Pod", pod("web"))
        await world.settle()
        [attempt] = world.api.bindings
        # Of 300 equal nodes the first 100 are enough.
        assert int(attempt[1].removeprefix("node-")) < 100

    play(story, config.decode({"percentageOfNodesToScore": 1, "profiles": [{}]}))


def test_the_nominated_node_is_taken_if_it_fits_whatever_the_scores() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="64", memory="64Gi")
        world.api.put("Node", {**world.api.objects["Node"][("", "node-0")], "metadata": {"name": "other"}})
        world.api.put("Pod", pod("taken", cpu="30", nodeName="other"))
        world.api.put("Pod", pod("web") | {"status": {"nominatedNodeName": "other"}})
        await world.settle()

        assert world.api.placements()["web"] == "other"

    play(story)


def test_zones_are_looked_at_in_turn() -> None:
    zones = [("r", "a"), ("r", "a"), ("r", "a"), ("r", "b"), ("", ""), ("r", "b")]

    order = pick.interleaved(np.arange(6), zones)

    assert order.tolist() == [0, 3, 4, 1, 5, 2]


def test_a_sample_takes_nodes_of_all_zones() -> None:
    async def story(world: World) -> None:
        for number in range(200):
            labels = {"topology.kubernetes.io/zone": "far" if number >= 150 else "near"}
            world.api.put("Node", node(f"node-{number}", labels=labels))
        far = [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["far"]}]
        wish = {"weight": 100, "preference": {"matchExpressions": far}}
        affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}
        world.api.put("Pod", pod("web", affinity=affinity))
        await world.settle()

        # The first hundred nodes are near ones, but every second that is looked at is far.
        assert int(world.api.placements()["web"].removeprefix("node-")) >= 150

    play(story, config.decode({"percentageOfNodesToScore": 1, "profiles": [{}]}))


def test_the_best_rows_kept_while_single_totals_change_are_those_of_a_fresh_look() -> None:
    rng = np.random.default_rng(3)
    totals = rng.integers(0, 4, 40).astype(np.int32)
    top = pick.Top()
    for step in range(2_000):
        chance = int(rng.integers(1 << 31))
        assert top.choose(totals, chance) == pick.best(totals, chance)
        if step % 97 == 0:
            totals = rng.integers(-3, 4, 40).astype(np.int32)
            top.forget()
        row, total = int(rng.integers(40)), int(rng.choice([NOT_FEASIBLE, *range(-5, 5)]))
        totals[row] = total
        top.changed(row, total)


def test_there_is_no_best_row_while_none_is_feasible() -> None:
    totals = np.full(3, NOT_FEASIBLE, np.int32)
    top = pick.Top()
    assert top.choose(totals, 1) is None
    totals[1] = 7
    top.changed(1, 7)
    assert top.choose(totals, 1) == 1
