"""Properties of plans over random networks."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.annotations.placement import GatherStrategy
from koordinator.api.network_topology import NODE_LAYER, NetworkTopologySpec
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.topology_tree import TopologyTree, build
from koordinator.scheduler.plugins.network_topology import placement
from koordinator.scheduler.plugins.network_topology.placement import (
    OFFERS_MAX,
    PlanReason,
    TopologyPlacement,
    TopologyRequirement,
    demand_of,
    plan,
)
from tests.scheduler.network_topology.brute_force import lowest_depth

SPECS = [
    NetworkTopologySpec(topology_layer="Spine", label_key=["spine"]),
    NetworkTopologySpec(topology_layer="Block", parent_topology_layer="Spine", label_key=["block"]),
    NetworkTopologySpec(topology_layer=NODE_LAYER, parent_topology_layer="Block"),
]


def network(rng: random.Random, nodes_max: int = 12) -> TopologyTree:
    nodes = []
    for number in range(rng.randint(1, nodes_max)):
        spine = rng.randint(1, 2)
        nodes.append((f"n{number}", {"spine": f"s{spine}", "block": f"b{rng.randint(1, 2)}"}))
    return build(SPECS, nodes)


def of_blocks(*sizes: int) -> TopologyTree:
    """Blocks b0, b1, … with that many nodes each, all in one spine."""
    return build(
        SPECS,
        [
            (f"b{block}n{number}", {"spine": "s", "block": f"b{block}"})
            for block, size in enumerate(sizes)
            for number in range(size)
        ],
    )


def numbers(tree: TopologyTree, **of_nodes: int) -> I64:
    return np.array([of_nodes.get(name, 0) for name in tree.levels[-1].names], np.int64)


def members(count: int) -> list[str]:
    return [f"m{number}" for number in range(count)]


def places_used(tree: TopologyTree, found: TopologyPlacement, layer: str) -> dict[int, int]:
    """Place of a layer → members there."""
    depth = tree.depth_of(layer)
    assert depth is not None
    used: dict[int, int] = {}
    for node in found.nodes.values():
        place = int(tree.ancestors(tree.depth, np.array([tree.leaf_of[node]]), depth)[0])
        used[place] = used.get(place, 0) + 1
    return used


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 12))
def test_plans_keep_all_rules_and_are_found_exactly_when_there_is_one(seed: int, size: int) -> None:
    rng = random.Random(seed)
    tree = network(rng, 6)
    slots = np.array([rng.randint(0, 5) for _ in tree.levels[-1].names], np.int64)
    demand = TopologyRequirement(
        rng.choice(("", "Spine", "Block", NODE_LAYER)),
        {layer: rng.randint(1, 4) for layer in rng.sample(("Spine", "Block", NODE_LAYER), 2)},
        tuple(rng.sample(("Block", NODE_LAYER), rng.randint(0, 2))),
    )

    found = plan(tree, demand, members(size), slots, np.zeros_like(slots))

    best = lowest_depth(tree, demand, slots, size)
    assert found.is_placed == (best is not None)
    if best is None:
        assert not found.nodes
        return
    assert tree.depth_of(found.place_layer) == best
    assert list(found.nodes) == members(size)
    for leaf, count in places_used(tree, found, NODE_LAYER).items():
        assert count <= slots[leaf]
    for layer, multiple in demand.multiples.items():
        assert all(count % multiple == 0 for count in places_used(tree, found, layer).values())
    if demand.must_layer:
        assert len(places_used(tree, found, demand.must_layer)) == 1


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 8))
def test_members_that_run_count_towards_multiples_and_hold_the_gang_together(seed: int, size: int) -> None:
    rng = random.Random(seed)
    tree = network(rng)
    slots = np.array([rng.randint(0, 4) for _ in tree.levels[-1].names], np.int64)
    bound = np.zeros_like(slots)
    bound[rng.randrange(bound.size)] = rng.randint(1, 3)
    demand = TopologyRequirement("Block", {NODE_LAYER: 2})

    found = plan(tree, demand, members(size), slots, bound, bound)

    if not found.is_placed:
        return
    for leaf, count in places_used(tree, found, NODE_LAYER).items():
        assert count <= slots[leaf]
        assert (count + bound[leaf]) % 2 == 0
    depth = tree.depth_of("Block")
    assert depth is not None
    home = tree.ancestors(tree.depth, np.flatnonzero(bound), depth)
    assert set(places_used(tree, found, "Block")) == set(home.tolist())


def test_a_replacement_completes_the_multiple_of_its_node() -> None:
    tree = of_blocks(2)
    bound = numbers(tree, b0n0=4, b0n1=3)

    found = plan(
        tree,
        TopologyRequirement("Block", {NODE_LAYER: 4}),
        ["m"],
        numbers(tree, b0n0=4, b0n1=4),
        bound,
        bound,
    )

    assert dict(found.nodes) == {"m": "b0n1"}


def test_multiples_that_do_not_divide_each_other_are_not_promised() -> None:
    """A block of two nodes that take 4 each has 8 places, but none for 6 in fours."""
    tree = of_blocks(2, 3)
    slots = np.full(5, 4, np.int64)

    found = plan(
        tree, TopologyRequirement("", {NODE_LAYER: 4, "Block": 6}), members(12), slots, np.zeros_like(slots)
    )

    assert places_used(tree, found, "Block") == {1: 12}


def test_a_size_that_is_no_multiple_fails_at_once_and_says_so() -> None:
    tree = of_blocks(2)
    slots = np.full(2, 8, np.int64)

    found = plan(tree, TopologyRequirement("Block", {NODE_LAYER: 4}), members(6), slots, np.zeros_like(slots))

    assert found.reason is PlanReason.NO_MULTIPLE
    assert found.message("fit").endswith("podCountMultiple constraints: NodeTopologyLayer=4")


def test_preferred_layers_decide_between_places_that_hold_the_gang() -> None:
    specs = [
        NetworkTopologySpec(topology_layer="Spine", label_key=["spine"]),
        NetworkTopologySpec(topology_layer="Block", parent_topology_layer="Spine", label_key=["block"]),
        NetworkTopologySpec(topology_layer=NODE_LAYER, parent_topology_layer="Block"),
    ]
    labels = [("tight", block) for block in ("a", "b", "c", "d")]
    labels += [("roomy", block) for block in ("e", "e", "e", "f", "f")]
    tree = build(
        specs, [(f"n{i}", {"spine": spine, "block": block}) for i, (spine, block) in enumerate(labels)]
    )
    slots = np.ones(9, np.int64)

    plain = plan(tree, TopologyRequirement("Spine"), members(4), slots, np.zeros_like(slots))
    gathered = plan(
        tree, TopologyRequirement("Spine", {}, ("Block",)), members(4), slots, np.zeros_like(slots)
    )

    assert plain.place_name == "tight" and len(places_used(tree, plain, "Block")) == 4
    assert gathered.place_name == "roomy" and len(places_used(tree, gathered, "Block")) == 2


def test_places_where_members_run_are_no_further_places_of_a_preferred_layer() -> None:
    """Three blocks in all either way: b0 and two others beside it, or b0 and two of another spine."""
    labels = [("here", "b0"), ("here", "b1"), ("here", "b2"), ("there", "b3"), ("there", "b4")]
    tree = build(SPECS, [(f"{block}n", {"spine": spine, "block": block}) for spine, block in labels])
    slots, bound = numbers(tree, b0n=1, b1n=1, b2n=1, b3n=2, b4n=1), numbers(tree, b0n=1)

    found = plan(tree, TopologyRequirement("", {}, ("Block",)), members(3), slots, bound, bound)

    assert found.place_name == "here" and len(places_used(tree, found, "Block")) == 3


def test_a_score_decides_which_nodes_are_used_and_names_who_goes_where() -> None:
    tree = of_blocks(3)
    slots, score = np.ones(3, np.int64), numbers(tree, b0n0=-9, b0n1=-5, b0n2=-1)

    found = plan(tree, TopologyRequirement("Block"), members(2), slots, np.zeros_like(slots), None, score)

    assert dict(found.nodes) == {"m0": "b0n1", "m1": "b0n2"}


def test_switches_of_one_name_are_told_apart_by_their_parents() -> None:
    tree = build(SPECS, [("n1", {"spine": "s1", "block": "b"}), ("n2", {"spine": "s2", "block": "b"})])

    found = plan(tree, TopologyRequirement("Block"), members(2), np.ones(2, np.int64), np.zeros(2, np.int64))

    assert "Block/s1/b: 1;topology topologyNode Block/s2/b: 1" in found.message("fit")


def test_a_message_does_not_name_a_whole_cluster() -> None:
    tree = of_blocks(OFFERS_MAX + 5)
    none = np.zeros(OFFERS_MAX + 5, np.int64)

    text = plan(tree, TopologyRequirement(NODE_LAYER), members(2), none, none).message("fit")

    assert text.count("NodeTopologyLayer/") == OFFERS_MAX
    assert ";5 more with fewer, fit" in text


def test_a_layer_that_does_not_exist_holds_nobody() -> None:
    tree = build(SPECS, [("n", {"spine": "s", "block": "b"})])
    rules = [GatherStrategy(layer="Rack", strategy="MustGather")]

    found = plan(tree, demand_of(rules, tree.layers), ["m"], np.array([5]), np.array([0]))

    assert found.reason is PlanReason.NO_ROOM
    assert found.offers == ()


@pytest.mark.parametrize(("count", "expected"), [(0, []), (1, [100]), (3, [100, 50, 0])])
def test_scores_follow_the_rank(count: int, expected: list[int]) -> None:
    assert placement.by_rank(count).tolist() == expected


def test_nodes_outside_the_network_come_last_and_break_nothing() -> None:
    tree = of_blocks(2)
    leaves = np.array([-1, tree.leaf_of["b0n1"], -1, tree.leaf_of["b0n0"]], np.intp)

    found = placement.scores(tree, leaves, ["z", "b0n1", "y", "b0n0"].__getitem__, numbers(tree, b0n1=1))

    assert found.tolist() == [0, 100, 34, 67]


def test_a_layer_that_the_tree_lacks_gathers_nobody_whatever_else_must() -> None:
    tree = build(SPECS, [("n", {"spine": "s", "block": "b"})])
    for layers in (["Rack"], ["Block", "Rack"], ["Rack", "Block"]):
        rules = [GatherStrategy(layer=layer, strategy=placement.MUST_GATHER) for layer in layers]

        found = plan(tree, demand_of(rules, tree.layers), ["m"], np.array([5]), np.array([0]))

        assert found.reason is PlanReason.NO_ROOM, layers
