"""Sharing evaluations between pods of a class, and looking ahead in them, changes no placement."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.pick import KEPT_MIN, TIES_PER_MISS, Lookahead
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugins.node_resources_fit import NodeResourcesFit
from koordinator.scheduler.table.columns import NOT_FEASIBLE
from tests.scheduler.drama import Drama

KINDS = len(Drama(0, 0).classes())
PLAIN, PROD, BATCH, DAEMONS, EMPTY = 0, 1, 2, 5, 7
"""Kinds of pods (`Drama.classes`) whose next states can be foreseen."""

# A burst of one kind is what looking ahead is for; the rest happens in between.
Step = tuple[str, int, int]
BURSTS = st.tuples(st.just("burst"), st.integers(0, KINDS - 1), st.integers(1, 12))
EVENTS = st.tuples(
    st.sampled_from(("remove pod", "metric", "node", "remove node", "storage", "wait")),
    st.integers(0, 13),
    st.just(1),
)


def act(drama: Drama, step: Step) -> None:
    what, number, count = step
    match what:
        case "burst":
            for _ in range(count):
                drama.place(drama.classes()[number])
        case "remove pod":
            drama.remove_pod()
        case "metric":
            drama.set_metric()
        case "node":
            drama.set_node(number)
        case "remove node":
            drama.table.remove_node(f"node-{number}")
        case "storage":
            drama.set_storage()
        case "wait":
            drama.clock.now_s += 30.0 * number


# As many states as there are rows between the first and the last: they look like neighbours.
@example(seed=579, is_uniform=False, nodes=13, steps=[("burst", 3, 3)])
# More rows as good as the best than are foreseen otherwise, and other kinds between.
@example(seed=7, is_uniform=True, nodes=80, steps=[("burst", kind, 12) for kind in (0, 7, 0, 5, 7, 0)])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 16),
    is_uniform=st.booleans(),
    nodes=st.integers(1, 14),
    steps=st.lists(st.one_of(BURSTS, BURSTS, EVENTS), min_size=1, max_size=25),
)
def test_placements_are_the_same_with_and_without_classes(
    seed: int, is_uniform: bool, nodes: int, steps: list[Step]
) -> None:
    shared = Drama(seed, classes_max=64, nodes=nodes, is_uniform=is_uniform)
    fresh = Drama(seed, classes_max=0, nodes=nodes, is_uniform=is_uniform)

    for step in steps:
        act(shared, step)
        act(fresh, step)

    assert shared.history == fresh.history


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 16),
    is_uniform=st.booleans(),
    kind=st.integers(0, KINDS - 1),
    steps=st.lists(st.one_of(BURSTS, EVENTS), max_size=6),
    count=st.integers(1, 40),
)
def test_totals_after_a_burst_are_those_of_a_new_evaluation(
    seed: int, is_uniform: bool, kind: int, steps: list[Step], count: int
) -> None:
    drama = Drama(seed, classes_max=64, is_uniform=is_uniform)
    for step in steps:
        act(drama, step)

    act(drama, ("burst", kind, count))

    info = drama.pod_of("next", drama.classes()[kind])
    kept = drama.engine.cache.evaluate(drama.profile, info, drama.profile.class_key(info))
    new = Evaluation(drama.profile, drama.table, info)
    assert kept.totals.tolist() == new.totals.tolist()
    assert kept.feasible_count == new.feasible_count == new.feasible.size


@pytest.mark.parametrize("kind", [PLAIN, PROD, BATCH, DAEMONS, EMPTY])
def test_a_burst_asks_filters_seldom(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drama = Drama(5, classes_max=64, nodes=14, is_uniform=True)
    for number in range(14):
        drama.table.set_node(drama.node_with_batch(number))
    asked = 0
    original = NodeResourcesFit.filter

    def spy(self: Any, state: Any, rows: Any) -> Any:
        nonlocal asked
        asked += 1
        return original(self, state, rows)

    monkeypatch.setattr(NodeResourcesFit, "filter", spy)
    act(drama, ("burst", kind, 20))

    assert len(drama.placed) == 20
    assert asked <= 2


def test_a_placement_that_others_change_as_well_is_looked_at_again() -> None:
    """A pod of another class comes between: the row's next state is not the one foreseen."""
    drama = Drama(5, classes_max=64, nodes=1, is_uniform=True)
    plain, big = {"cpu": "100m", "memory": "1Gi"}, {"cpu": "6", "memory": "1Gi"}
    for shape in (plain, plain, plain, big, plain):
        drama.place(shape)

    info = drama.pod_of("next", plain)
    kept = drama.engine.cache.evaluate(drama.profile, info, drama.profile.class_key(info))

    assert kept.totals.tolist() == Evaluation(drama.profile, drama.table, info).totals.tolist()


def test_predictions_are_taken_in_order_until_the_row_is_full() -> None:
    lookahead = Lookahead(4)
    totals = np.array([5, 9, NOT_FEASIBLE, 7], np.int64)

    rows = lookahead.choose(1, totals, 1)
    states = np.full((rows.size, lookahead.depth), NOT_FEASIBLE, np.int32)
    states[:, :2] = [[50, 40], [90, 80], [70, 60]]
    lookahead.keep(rows, states)

    assert rows.tolist() == [0, 1, 3]
    assert [lookahead.take(1) for _ in range(3)] == [90, 80, NOT_FEASIBLE]
    lookahead.drop(np.array([0, 2]))
    assert lookahead.take(0) is None
    assert lookahead.take(3) == 70


def test_a_class_that_packs_is_foreseen_deeper_and_one_that_spreads_wider() -> None:
    totals = np.arange(1_000, dtype=np.int64)
    packs, spreads = Lookahead(1_000), Lookahead(1_000)

    for number in range(4):
        rows = packs.choose(999, totals, number)
        packs.keep(rows, np.zeros((rows.size, packs.depth), np.int32))
        while packs.take(999) is not None:
            pass
        widths = spreads.choose(number, totals, number)
        spreads.keep(widths, np.zeros((widths.size, spreads.depth), np.int32))

    assert packs.depth > spreads.depth
    assert widths.size > rows.size


def test_all_that_are_as_good_as_the_best_are_foreseen_once_that_pays() -> None:
    lookahead, ties = Lookahead(6_000), 5_000
    totals = np.where(np.arange(6_000) < ties, 7, 3)

    misses = next(number for number in itertools.count() if lookahead.choose(1, totals, number).size)
    rows = lookahead.choose(1, totals, misses)
    lookahead.keep(rows, np.zeros((rows.size, lookahead.depth), np.int32))

    assert misses == math.ceil(ties / TIES_PER_MISS)
    assert rows.tolist() == list(range(ties))
    assert all(lookahead.take(row) == 0 for row in range(ties))


def test_predictions_kept_are_bounded_and_the_newest_stay() -> None:
    lookahead = Lookahead(8)
    rows, totals = np.arange(8), np.zeros(8, np.int64)

    lookahead.choose(0, totals, 1)
    for number in range(2 * KEPT_MIN // (8 * lookahead.depth)):
        lookahead.keep(rows, np.full((8, lookahead.depth), number, np.int32))

    assert lookahead.size_bytes <= 4 * KEPT_MIN + 5 * 8
    assert lookahead.take(3) == number


def test_what_was_foreseen_of_a_row_outlives_placements_of_other_classes_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gangs of several kinds in turn: each finds the rows that others left alone as it foresaw them."""
    drama = Drama(5, classes_max=64, nodes=100, is_uniform=True)
    ours, theirs = drama.classes()[PLAIN], {"cpu": "200m", "memory": "1Gi"}
    for _ in range(4):
        drama.place(ours)
    for _ in range(70):
        drama.place(theirs)
    changed = {drama.table.place_of(pod.uid).row for pod in drama.placed[4:]}
    asked: list[int] = []
    original = Lookahead.choose

    def spy(self: Lookahead, row: int, *args: Any) -> Any:
        asked.append(row)
        return original(self, row, *args)

    monkeypatch.setattr(Lookahead, "choose", spy)
    for _ in range(5):
        drama.place(ours)

    rows = {drama.table.place_of(pod.uid).row for pod in drama.placed[-5:]}
    assert rows - changed
    assert set(asked) <= changed


def test_a_refused_reserve_leaves_no_prediction_behind() -> None:
    drama = Drama(5, classes_max=64, nodes=3, is_uniform=True)
    shape = {"cpu": "100m", "memory": "1Gi"}
    for _ in range(4):
        drama.place(shape)
    info = drama.pod_of("late", shape)
    key = drama.profile.class_key(info)
    placed = drama.engine.cycle.run(drama.profile, info, key, 1, drama.clock.now_s)
    assert isinstance(placed, Placed)

    drama.engine.cycle.forget(drama.profile, info, placed.evaluation, placed.node_name)

    kept = drama.engine.cache.evaluate(drama.profile, info, key)
    assert kept.totals.tolist() == Evaluation(drama.profile, drama.table, info).totals.tolist()
