"""What a plan of moves promises whatever the cluster looks like: generated nodes, pods, limits and a scheduler that
counts slots."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.descheduler import plan as plans
from koordinator.descheduler.plan import I64, Move, Plan, PlanNodes, PlanPods, Rows

LIMIT = 100
FULL = "no slot is free"


class World(msgspec.Struct, frozen=True, eq=False):
    """Nodes and pods of a plan, how many pods may go by limit, and how many slots each node has in all."""

    nodes: PlanNodes
    pods: PlanPods
    left: dict[str, int]
    slots: tuple[int, ...]

    def occupied(self, moves: Sequence[Move]) -> Counter[int]:
        count = Counter(self.pods.rows.tolist())
        for move in moves:
            count[move.source] -= 1
            count[move.target] += 1
        return count

    def place(self, _: int, rows: Rows, moves: Sequence[Move]) -> int | str:
        """Answer as a scheduler whose only rule is that slots are free, and which likes low rows."""
        count = self.occupied(moves)
        return next((row for row in rows.tolist() if count[row] < self.slots[row]), FULL)

    def plan(self) -> Plan:
        return plans.find(self.nodes, self.pods, self.left, self.place)


def world_of(
    usage: Sequence[Sequence[tuple[int, int, int, int]]],
    takes: Sequence[bool],
    pools: Sequence[tuple[bool, bool]],
    slots: Sequence[int],
    left: dict[str, int],
) -> World:
    """`usage` is by node; a pod is its use of two resources, its workload, and the group that it counts against."""
    flat = [(row, *pod) for row, own in enumerate(usage) for pod in own]
    amounts = np.array([pod[1:3] for pod in flat], np.int64).reshape(len(flat), 2)
    rows = np.array([pod[0] for pod in flat], np.intp)
    used = np.zeros((len(usage), 2), np.int64)
    np.add.at(used, rows, amounts)
    names = tuple(f"node-{row}" for row in range(len(usage)))
    limit = np.full_like(used, LIMIT)
    nodes = PlanNodes(
        names,
        used,
        limit,
        np.ones(len(usage), np.bool_),
        np.array(takes, np.bool_),
        np.array(pools, np.bool_),
    )
    pods = PlanPods(
        keys=tuple(f"pod-{index}" for index in range(len(flat))),
        rows=rows,
        leaves=amounts,
        arrives=amounts + 1,  # rounding up never lets a plan promise too much
        rank=np.arange(len(flat), dtype=np.int64) % 3,
        workloads=np.array([pod[3] for pod in flat], np.int64),
        groups=tuple((f"group {pod[4]}",) for pod in flat),
    )
    return World(nodes, pods, left, tuple(slots))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    count = draw(st.integers(2, 6))
    amount = st.integers(0, 60)
    pod = st.tuples(amount, amount, st.integers(0, 4), st.integers(0, 2))
    usage = [draw(st.lists(pod, max_size=6)) for _ in range(count)]
    takes = draw(st.lists(st.sampled_from([True, True, True, False]), min_size=count, max_size=count))
    pools = [draw(st.sampled_from([(True, False), (True, True), (False, True)])) for _ in range(count)]
    slots = [len(own) + draw(st.integers(0, 3)) for own in usage]
    left = draw(st.dictionaries(st.sampled_from(["group 0", "group 1"]), st.integers(0, 3)))
    return world_of(usage, takes, pools, slots, left)


def steps_of(found: Plan) -> list[list[Move]]:
    numbers = sorted({move.step for move in found.moves})
    return [[move for move in found.moves if move.step == number] for number in numbers]


def after(world: World, used: I64, moves: Sequence[Move]) -> I64:
    used = used.copy()
    for move in moves:
        used[move.source] -= world.pods.leaves[move.pod]
        used[move.target] += world.pods.arrives[move.pod]
    return used


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_no_step_makes_a_node_hot_or_hotter(world: World) -> None:
    found, used = world.plan(), world.nodes.used

    for step in steps_of(found):
        then = after(world, used, step)
        assert (then <= np.maximum(used, LIMIT)).all()
        used = then

    assert (used == found.used).all()


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_every_move_is_accepted_after_all_earlier_ones(world: World) -> None:
    moves = world.plan().moves

    for index, move in enumerate(moves):
        assert world.pods.rows[move.pod] == move.source != move.target
        only = np.array([move.target])
        assert world.place(move.pod, only, moves[:index]) == move.target
        assert world.nodes.takes[move.target]
        assert (world.nodes.pools[move.source] & world.nodes.pools[move.target]).any()


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_a_plan_can_be_replayed(world: World) -> None:
    moves = world.plan().moves

    assert plans.replay(world.nodes, world.pods, world.left, world.place, moves) == [""] * len(moves)


@settings(max_examples=100, deadline=None)
@given(worlds(), st.data())
def test_a_replay_accepts_no_move_that_a_plan_may_not_make(world: World, data: st.DataObject) -> None:
    """Moves that nobody thought about: those which pass break no rule."""
    count, rows = len(world.pods.keys), st.integers(0, len(world.slots) - 1)
    wanted = data.draw(st.lists(st.tuples(st.integers(0, count - 1), rows), max_size=6)) if count else []
    moves = [
        Move(pod, int(world.pods.rows[pod]), target, step, 0) for step, (pod, target) in enumerate(wanted)
    ]

    found = plans.replay(world.nodes, world.pods, world.left, world.place, moves)

    used, made = world.nodes.used, [move for move, why in zip(moves, found, strict=True) if not why]
    for move in made:
        assert (used[move.source] > LIMIT).any()
        then = after(world, used, [move])
        assert (then <= np.maximum(used, LIMIT)).all()
        used = then
    assert len({move.pod for move in made}) == len(made)
    moved = Counter(group for move in made for group in world.pods.groups[move.pod])
    assert all(moved[group] <= most for group, most in world.left.items())


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_limits_hold_over_the_whole_plan(world: World) -> None:
    moved = Counter(group for move in world.plan().moves for group in world.pods.groups[move.pod])

    assert all(moved[group] <= most for group, most in world.left.items())


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_nothing_goes_where_its_workload_comes_from(world: World) -> None:
    moves = world.plan().moves
    sources: dict[int, set[int]] = {}
    targets: dict[int, set[int]] = {}
    for move in moves:
        workload = int(world.pods.workloads[move.pod])
        sources.setdefault(workload, set()).add(move.source)
        targets.setdefault(workload, set()).add(move.target)

    assert len({move.pod for move in moves}) == len(moves)
    assert not any(sources[workload] & targets[workload] for workload in sources)


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_each_hot_node_is_cooled_or_told_to_stay_hot(world: World) -> None:
    found = world.plan()
    hot = set(plans.hot_rows(world.nodes, world.nodes.used))
    stuck = {each.row for each in found.stuck}

    assert stuck == set(plans.hot_rows(world.nodes, found.used))
    assert stuck <= hot
    for each in found.stuck:
        assert each.why
        assert (each.excess > 0).any()
    if not hot:
        assert not found.moves


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_a_plan_after_the_plan_moves_nobody_back(world: World) -> None:
    """What was cooled stays cool, so a second plan over the outcome has only nodes that stayed hot to look at."""
    found = world.plan()
    rows = world.pods.rows.copy()
    for move in found.moves:
        rows[move.pod] = move.target
    cooled = set(plans.hot_rows(world.nodes, world.nodes.used)) - {each.row for each in found.stuck}
    nodes = msgspec.structs.replace(world.nodes, used=found.used)
    pods = msgspec.structs.replace(world.pods, rows=rows)
    after_it = msgspec.structs.replace(world, nodes=nodes, pods=pods)

    again = after_it.plan()

    one_way = [step for step in steps_of(again) if len(step) == 1]
    assert not {move.source for step in one_way for move in step} & cooled


@settings(max_examples=100, deadline=None)
@given(worlds(), st.integers(0, 3))
def test_a_bounded_plan_is_the_beginning_of_the_whole_one(world: World, most: int) -> None:
    whole = world.plan().moves
    some = plans.find(world.nodes, world.pods, world.left, world.place, most).moves

    assert some == whole[: len(some)]
    assert len(some) >= min(most, len(whole))
    cooled = list(dict.fromkeys(move.cools for move in some))
    assert sum(move.cools in cooled[:-1] for move in some) < max(most, 1)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=6).filter(lambda own: sum(own) > LIMIT))
def test_one_move_is_made_where_one_is_enough(own: list[int]) -> None:
    usage: list[list[Any]] = [[(amount, 0, number, 0) for number, amount in enumerate(own)], []]
    found = world_of(usage, (True, True), ((True, True), (True, True)), (9, 9), {}).plan()

    if any(sum(own) - amount <= LIMIT for amount in own):
        assert len(found.moves) == 1
        assert not found.stuck


def test_a_workload_comes_not_back_to_a_node_that_it_left() -> None:
    """Node 0 is cooled by a pod of workload 0 and would have room for another one then, of node 1."""
    usage = [[(55, 0, 0, 0), (55, 0, 1, 0)], [(30, 0, 0, 0), (80, 0, 1, 1)], []]
    free = world_of(usage, (True,) * 3, ((True, True),) * 3, (9, 9, 1), {"group 1": 0})
    other = world_of(
        [usage[0], [(30, 0, 2, 0), (80, 0, 1, 1)], []], (True,) * 3, ((True, True),) * 3, (9, 9, 1), free.left
    )

    assert [(move.pod, move.source, move.target) for move in free.plan().moves] == [(0, 0, 2)]
    assert [(move.pod, move.source, move.target) for move in other.plan().moves] == [(0, 0, 2), (2, 1, 0)]


def test_earlier_moves_bind_a_plan_as_its_own_do() -> None:
    """Workload 0 came from node 1 to node 0, workload 1 from node 2: neither goes back, and who came stays."""
    usage = [[(60, 0, 0, 0), (50, 0, 1, 0)], [], []]
    world = world_of(usage, (True,) * 3, ((True, True),) * 3, (9, 9, 9), {})

    def moved(*history: tuple[int, int, int]) -> list[tuple[int, int]]:
        pods = msgspec.structs.replace(world.pods, history=history)
        return [(move.pod, move.target) for move in msgspec.structs.replace(world, pods=pods).plan().moves]

    assert moved() == [(0, 1)]
    assert moved((0, 1, 0)) == [(1, 1)]
    assert moved((0, 1, -1)) == [(0, 2)]
    assert moved((0, 1, 0), (1, 1, -1)) == [(1, 2)]
    assert moved((0, 1, 0), (1, 1, -1), (1, 2, -1)) == []
    assert moved((0, -1, -1)) == [(0, 1)]


def test_both_pods_of_a_swap_count_against_a_limit_that_they_share() -> None:
    usage = [[(60, 40, 0, 1), (50, 10, 1, 0)], [(5, 15, 2, 0), (35, 80, 3, 1)]]
    world = world_of(usage, (True, True), ((True, True),) * 2, (9, 9), {"group 1": 0, "group 0": 2})
    fewer = msgspec.structs.replace(world, left={"group 1": 0, "group 0": 1})

    assert sorted((move.pod, move.target) for move in world.plan().moves) == [(1, 1), (2, 0)]
    assert not fewer.plan().moves
