"""The tree that layers and labels make."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.network_topology import NODE_LAYER, NetworkTopologySpec
from koordinator.scheduler.plugin.topology_tree import TopologySpecError, build, details, order

SPECS = [
    NetworkTopologySpec(topology_layer="Spine", label_key=["spine"]),
    NetworkTopologySpec(topology_layer="Block", parent_topology_layer="Spine", label_key=["block"]),
    NetworkTopologySpec(topology_layer=NODE_LAYER, parent_topology_layer="Block"),
]


def test_a_missing_layer_is_an_error() -> None:
    with pytest.raises(TopologySpecError, match='topology layer "Block" not found in spec'):
        order([SPECS[0], SPECS[2]])


def test_a_spec_without_layers_is_an_error() -> None:
    with pytest.raises(TopologySpecError, match='topology layer "NodeTopologyLayer" not found in spec'):
        build([], [("n", {})])


def test_layers_in_a_circle_do_not_go_round_for_ever() -> None:
    circle = [
        NetworkTopologySpec(topology_layer="A", parent_topology_layer="B", label_key=["a"]),
        NetworkTopologySpec(topology_layer="B", parent_topology_layer="A", label_key=["b"]),
        NetworkTopologySpec(topology_layer=NODE_LAYER, parent_topology_layer="A"),
    ]
    tree = build(circle, [("n", {"a": "x", "b": "y"})])
    assert tree.leaf_of == {"n": 0}


def test_a_name_below_two_parents_stands_for_two_switches() -> None:
    nodes = [("n1", {"spine": "s1", "block": "b"}), ("n2", {"spine": "s2", "block": "b"})]

    tree = build(SPECS, nodes)

    assert [tree.title(2, index) for index in range(2)] == ["Block/s1/b", "Block/s2/b"]


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_every_node_is_below_its_switches_and_counted_once_per_layer(seed: int) -> None:
    rng = random.Random(seed)
    nodes = []
    for number in range(rng.randint(0, 15)):
        labels = {key: f"{key}{rng.randint(1, 3)}" for key in ("spine", "block") if rng.random() < 0.8}
        nodes.append((f"n{number}", labels))
    rng.shuffle(nodes)

    tree = build(SPECS, nodes)

    inside = {name: labels for name, labels in nodes if "spine" in labels}
    assert set(tree.leaf_of) == set(inside)
    for name, labels in inside.items():
        leaf = np.array([tree.leaf_of[name]])
        block, spine = (tree.levels[d].names[int(tree.ancestors(tree.depth, leaf, d)[0])] for d in (2, 1))
        assert (spine, block) == (labels["spine"], labels.get("block", name))
    for sums in tree.sums(np.ones(len(tree.leaf_of), np.int64)):
        assert int(sums.sum()) == len(inside)
    for depth, level in enumerate(tree.levels):
        for index in range(len(level)):
            first, end = tree.leaves_below(depth, index)
            below = tree.ancestors(tree.depth, np.arange(len(tree.leaf_of)), depth) == index
            assert np.flatnonzero(below).tolist() == list(range(first, end))
    assert details(tree)[0].node_num == len(inside)
