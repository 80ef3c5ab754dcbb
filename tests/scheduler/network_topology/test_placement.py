"""Properties of plans over random networks."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.annotations.placement import GatherStrategy
from koordinator.api.network_topology import NODE_LAYER, NetworkTopologySpec
from koordinator.scheduler.plugins.network_topology.placement import (
    Demand,
    PlanReason,
    count_slots,
    demand_of,
    plan,
    rank_nodes,
    scores,
)
from koordinator.scheduler.plugins.network_topology.tree import TopologySpecError, TopologyTree, build, order

SPECS = [
    NetworkTopologySpec(topology_layer="Spine", label_key=["spine"]),
    NetworkTopologySpec(topology_layer="Block", parent_topology_layer="Spine", label_key=["block"]),
    NetworkTopologySpec(topology_layer=NODE_LAYER, parent_topology_layer="Block"),
]


def network(rng: random.Random) -> TopologyTree:
    nodes = []
    for number in range(rng.randint(1, 12)):
        spine = rng.randint(1, 2)
        nodes.append((f"n{number}", {"spine": f"s{spine}", "block": f"s{spine}b{rng.randint(1, 2)}"}))
    return build(SPECS, nodes)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 12))
def test_no_node_takes_more_than_its_slots_and_no_gang_is_placed_by_half(seed: int, size: int) -> None:
    rng = random.Random(seed)
    tree = network(rng)
    slots = {name: rng.randint(0, 4) for name in tree.nodes}
    demand = Demand(rng.choice(("", "Spine", "Block")), {NODE_LAYER: rng.randint(1, 2)})
    members = [f"m{number}" for number in range(size)]

    found = plan(tree, demand, members, slots, {})

    if found.reason is not PlanReason.OK:
        assert not found.nodes
        return
    assert set(found.nodes) == set(members)
    for node in tree.nodes:
        taken = sum(each == node for each in found.nodes.values())
        assert taken <= slots[node]
        assert taken % demand.multiples[NODE_LAYER] == 0
    if demand.must_layer:
        places = {
            place.name
            for node in found.nodes.values()
            for place in tree.nodes[node].upwards
            if place.layer == demand.must_layer
        }
        assert len(places) == 1


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 12))
def test_a_gang_without_rules_is_placed_whenever_there_is_room(seed: int, size: int) -> None:
    rng = random.Random(seed)
    tree = network(rng)
    slots = {name: rng.randint(0, 4) for name in tree.nodes}

    found = plan(tree, Demand(), [f"m{number}" for number in range(size)], slots, {})

    assert (found.reason is PlanReason.OK) == (sum(slots.values()) >= size)


def test_a_layer_that_does_not_exist_holds_nobody() -> None:
    tree = build(SPECS, [("n", {"spine": "s", "block": "b"})])
    rules = [GatherStrategy(layer="Rack", strategy="MustGather")]

    found = plan(tree, demand_of(rules, tree.layers), ["m"], {"n": 5}, {})

    assert found.reason is PlanReason.NO_ROOM
    assert found.offers == ()


def test_a_missing_layer_is_an_error() -> None:
    with pytest.raises(TopologySpecError, match='topology layer "Block" not found in spec'):
        order([SPECS[0], SPECS[2]])


def test_nodes_outside_the_network_come_last_and_break_nothing() -> None:
    tree = build(SPECS, [("a", {"spine": "s", "block": "b"}), ("stray", {"block": "b"})])

    ranked = rank_nodes(tree, ["stray", "a"], {})

    assert ranked == ["a", "stray"]
    assert scores(ranked) == {"a": 100, "stray": 0}


def test_slots_are_counted_until_the_first_member_that_does_not_fit() -> None:
    sizes = {"a": 2, "b": 5, "c": 1}

    assert count_slots("abc", lambda chosen: sum(sizes[each] for each in chosen) <= 6) == 1
