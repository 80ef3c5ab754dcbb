"""Plans over a real node table: what they promise, nodes keep."""

import itertools
import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.annotations.placement import GatherStrategy
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.network_topology import NODE_LAYER, NetworkTopologySpec
from koordinator.clock import FixedClock
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import SchedulerConfig
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.explain.survey import finish
from koordinator.scheduler.plugin.status import SUCCESS
from koordinator.scheduler.plugin.topology_tree import TopologyTree, build
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.network_topology import slots
from koordinator.scheduler.plugins.network_topology.planner import JobPlan, Planner, PlanningJob, outlook
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.world import node, pod

SPECS = [
    NetworkTopologySpec(topology_layer="Spine", label_key=["spine"]),
    NetworkTopologySpec(topology_layer="Block", parent_topology_layer="Spine", label_key=["block"]),
    NetworkTopologySpec(topology_layer=NODE_LAYER, parent_topology_layer="Block"),
]


class Desk:
    """A deciding scheduler over nodes with that many cores, each in a spine and block."""

    def __init__(self, nodes: Sequence[tuple[int, str, str]]) -> None:
        self.engine = Engine(
            SchedulerConfig(profiles=[default_plugins.shipped_profile()]),
            FixedClock(0.0),
            plugins=installed_plugins(),
        )
        self.cpu = {f"n{number}": cpu for number, (cpu, _, _) in enumerate(nodes)}
        labels = {}
        for number, (cpu, spine, block) in enumerate(nodes):
            labels[f"n{number}"] = {"spine": spine, "block": block}
            body = node(f"n{number}", cpu=str(cpu), labels=labels[f"n{number}"])
            self.engine.table.set_node(from_builtins(body, Node))
        self.tree: TopologyTree = build(SPECS, labels.items())
        self.handle = self.engine.handles[0]
        self.planner = Planner(self.handle)

    def pod(self, name: str, cpu: int, **spec: object) -> PodInfo:
        body = pod(name, cpu=str(cpu), memory="1Mi", **spec)
        body["metadata"]["uid"] = name
        return PodInfo.of(from_builtins(body, Pod), self.engine.table.registry)

    def plan(self, members: Sequence[PodInfo], *rules: GatherStrategy, least: int | None = None) -> JobPlan:
        chosen = tuple(members[:least]) if least is not None else ()
        return self.planner.plan(self.tree, PlanningJob(members=tuple(members), rules=rules, least=chosen))


def must(layer: str, multiple: int = 0) -> GatherStrategy:
    return GatherStrategy(layer=layer, strategy="MustGather", pod_count_multiple=multiple)


def random_desk(rng: random.Random) -> Desk:
    places = [(rng.randint(1, 6), f"s{rng.randint(0, 1)}", f"b{rng.randint(0, 1)}") for _ in range(5)]
    desk = Desk(places)
    for name, cpu in desk.cpu.items():
        if rng.random() < 0.4:
            desk.engine.table.assign(desk.pod(f"busy-{name}", rng.randint(1, cpu)), name)
    return desk


def free(desk: Desk) -> dict[str, int]:
    table = desk.engine.table
    return {
        name: int(table.free[0][row]) // 1000 for name in desk.cpu if (row := table.row_of(name)) is not None
    }


def overfull(desk: Desk, members: Sequence[PodInfo], found: JobPlan) -> list[str]:
    left = {name: cores * 1000 for name, cores in free(desk).items()}
    for member in members:
        if member.uid in found.plan.nodes:
            left[found.plan.nodes[member.uid]] -= dict(member.requests)[0]
    return [name for name, cores in left.items() if cores < 0]


def has_solution(desk: Desk, sizes: Sequence[int], layer: str) -> bool:
    """Whether one place of the layer holds members of these sizes, by trying everything."""
    tree, room = desk.tree, free(desk)
    depth = tree.depth_of(layer)
    assert depth is not None
    for index in range(len(tree.levels[depth])):
        first, end = tree.leaves_below(depth, index)
        names = tree.levels[-1].names[first:end]
        for choice in itertools.product(names, repeat=len(sizes)):
            used = dict.fromkeys(names, 0)
            for name, size in zip(choice, sizes, strict=True):
                used[name] += size
            if all(used[name] <= room[name] for name in names):
                return True
    return False


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 5), cpu=st.integers(1, 3))
def test_members_that_are_alike_are_placed_exactly_when_a_place_takes_them(
    seed: int, size: int, cpu: int
) -> None:
    desk = random_desk(random.Random(seed))
    members = [desk.pod(f"m{number}", cpu) for number in range(size)]

    found = desk.plan(members, must("Block"))

    assert found.plan.is_placed == has_solution(desk, [cpu] * size, "Block")
    assert overfull(desk, members, found) == []


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), sizes=st.lists(st.integers(1, 4), min_size=2, max_size=5))
def test_nodes_take_all_members_of_a_plan_however_they_differ(seed: int, sizes: list[int]) -> None:
    desk = random_desk(random.Random(seed))
    before = free(desk)
    members = [desk.pod(f"m{number}", cpu) for number, cpu in enumerate(sizes)]

    found = desk.plan(members, must("Block"))

    assert free(desk) == before
    assert overfull(desk, members, found) == []
    if found.plan.is_placed:
        assert set(found.plan.nodes) == {member.uid for member in members}
        assert len({desk.tree.title(2, block_of(desk, node)) for node in found.plan.nodes.values()}) == 1
    else:
        assert not has_solution(desk, [max(sizes)] * len(sizes), "Block")


def block_of(desk: Desk, name: str) -> int:
    level = desk.tree.levels[-1]
    return int(level.parents[desk.tree.leaf_of[name]])


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32), cpu=st.integers(1, 3))
def test_slots_that_are_foreseen_are_those_that_trying_finds(seed: int, cpu: int) -> None:
    desk = random_desk(random.Random(seed))
    members = [desk.pod(f"m{number}", cpu) for number in range(8)]
    prospects = desk.engine.prospects(members[0])
    assert prospects is not None

    counted = slots.count(desk.handle, prospects, members)

    table = desk.engine.table
    for row in table.rows.tolist():
        tried, status = slots._try(
            desk.handle, prospects.view(members[0]), members, row, len(members), is_open=False
        )
        assert int(counted.counts[row]) == tried
        assert counted.status_of(row).reasons == status.reasons


def test_a_node_that_takes_all_members_and_no_more_lacks_nothing() -> None:
    desk = Desk([(4, "s", "b")])
    members = [desk.pod(f"m{number}", 2) for number in range(2)]
    prospects = desk.engine.prospects(members[0])
    assert prospects is not None
    view, [row] = prospects.view(members[0]), desk.engine.table.rows.tolist()

    assert slots._try(desk.handle, view, members, row, 2) == (2, SUCCESS)
    count, status = slots._try(desk.handle, view, [*members, desk.pod("more", 2)], row, 2)
    assert (count, status.reasons) == (2, ("Insufficient cpu",))


def test_a_large_member_is_put_where_it_is_in_the_way_of_nobody() -> None:
    desk = Desk([(4, "s", "b"), (3, "s", "b")])
    members = [desk.pod("large", 3), desk.pod("small-0", 2), desk.pod("small-1", 2)]

    found = desk.plan(members, must("Block"))

    assert dict(found.plan.nodes) == {"large": "n1", "small-0": "n0", "small-1": "n0"}


def test_members_that_differ_come_in_multiples_too() -> None:
    desk = Desk([(8, "s", "b")] * 3)
    members = [desk.pod(f"m{number}", 1 + number % 2) for number in range(8)]

    found = desk.plan(
        members, must("Block"), GatherStrategy(layer=NODE_LAYER, strategy="", pod_count_multiple=4)
    )

    nodes = list(found.plan.nodes.values())
    assert sorted(nodes.count(name) for name in set(nodes)) == [4, 4]
    assert overfull(desk, members, found) == []


def test_the_least_are_placed_where_there_is_no_room_for_all() -> None:
    desk = Desk([(4, "s", "b"), (4, "s", "b2")])
    members = [desk.pod(f"m{number}", 1) for number in range(6)]

    assert len(desk.plan(members, must("Block"), least=4).plan.nodes) == 4
    assert not desk.plan(members, must("Block"), least=5).plan.is_placed


def test_why_not_is_reported_for_each_node_and_for_all_together() -> None:
    desk = Desk([(4, "s", "b"), (2, "s", "b"), (1, "s", "b2")])
    members = [desk.pod(f"m{number}", 2) for number in range(4)]

    found = desk.plan(members, must("Block"))

    assert [found.slots_of(row) for row in range(3)] == [2, 1, 0]
    assert [found.status_of(row).reasons for row in range(3)] == [("Insufficient cpu",)] * 3
    assert (
        "desiredOfferSlot: 4, topology topologyNode Block/b2: 0;topology topologyNode Block/b: 3"
        in found.message
    )
    assert found.message.endswith("0/3 nodes are available: 3 Insufficient cpu.")
    assert found.rejected_by == {"NodeResourcesFit"}


def test_of_places_that_suit_equally_well_the_cheapest_is_taken() -> None:
    desk = Desk([(4, "s", "a"), (4, "s", "b")])
    job = PlanningJob(members=(desk.pod("m", 1),), costs={"n0": 2})

    assert dict(desk.planner.plan(desk.tree, job).plan.nodes) == {"m": "n1"}
    assert dict(desk.plan([desk.pod("m", 1)]).plan.nodes) == {"m": "n0"}


def test_members_that_differ_use_blocks_of_their_gang_before_others() -> None:
    here = [(1, "here", "b0"), (2, "here", "b1"), (1, "here", "b2"), (1, "here", "b3")]
    desk = Desk([*here, (4, "there", "b4"), (1, "there", "b5")])
    asked = tuple(desk.pod(f"m{number}", cpu) for number, cpu in enumerate((2, 1, 1, 1)))
    rules = (GatherStrategy(layer="Block", strategy="PreferGather"),)

    found = desk.planner.plan(desk.tree, PlanningJob(members=asked, rules=rules, bound=("n0",)))

    assert found.plan.place_name == "here" and len(found.plan.nodes) == 4


def test_a_host_port_is_given_once_per_node() -> None:
    desk = Desk([(8, "s", "b"), (8, "s", "b")])
    ports = {
        "hostNetwork": True,
        "containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}],
    }
    members = [desk.pod(f"m{number}", 1, **ports) for number in range(2)]

    assert set(desk.plan(members, must("Block")).plan.nodes.values()) == {"n0", "n1"}


def test_members_that_differ_and_keep_each_other_away_are_tried_as_a_whole() -> None:
    """In the first block a zone has room for all of them, but for one only by their rules."""
    desk = Desk([(8, "s", "a"), (8, "s", "a"), (8, "s", "b"), (8, "s", "b")])
    for number, zone in enumerate(("z1", "z1", "z1", "z2")):
        body = node(f"n{number}", cpu="8", labels={"zone": zone, "spine": "s", "block": "aabb"[number]})
        desk.engine.table.set_node(from_builtins(body, Node))
    away = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"job": "x"}}, "topologyKey": "zone"}
            ]
        }
    }

    def apart(name: str, cpu: int) -> PodInfo:
        body = pod(name, cpu=str(cpu), affinity=away)
        body["metadata"] |= {"uid": name, "labels": {"job": "x"}}
        return PodInfo.of(from_builtins(body, Pod), desk.engine.table.registry)

    found = desk.plan([apart("large", 2), apart("small", 1)], must("Block"))

    assert set(found.plan.nodes.values()) == {"n2", "n3"}


def test_explanations_tell_how_many_members_each_place_takes_and_who_is_left() -> None:
    desk = Desk([(4, "s", "b"), (2, "s", "b"), (1, "s", "b2")])
    job = PlanningJob(members=tuple(desk.pod(f"m{number}", 2) for number in range(4)), rules=(must("Block"),))

    found = finish(outlook(desk.planner.draft(desk.tree, job), job))

    first, second = found.places
    assert (first.title, len(first.nodes), [each.key for each in first.missing]) == (
        "Block/b",
        3,
        ["default/m3"],
    )
    assert (second.title, len(second.nodes), len(second.missing)) == ("Block/b2", 0, 4)
    assert [desk.engine.table.name_of(row) for row in first.rows.tolist()] == ["n0", "n1"]
    assert not found.found.plan.is_placed and found.no_multiple == ""


def test_explanations_tell_that_a_size_is_no_multiple() -> None:
    desk = Desk([(8, "s", "b")])
    job = PlanningJob(
        members=tuple(desk.pod(f"m{number}", 1) for number in range(3)), rules=(must(NODE_LAYER, 2),)
    )

    found = finish(outlook(desk.planner.draft(desk.tree, job), job))

    assert (
        found.no_multiple
        == "3 members cannot be placed in multiples of 2 in NodeTopologyLayer (podCountMultiple)"
    )
    assert len(found.places[0].nodes) == 2


def test_explanations_of_members_that_differ_try_them_together() -> None:
    desk = Desk([(4, "s", "b")])
    job = PlanningJob(members=(desk.pod("a", 3), desk.pod("b", 1), desk.pod("c", 1)), rules=(must("Block"),))

    (place,) = finish(outlook(desk.planner.draft(desk.tree, job), job)).places

    assert set(place.nodes) == {"a", "b"} and [each.key for each in place.missing] == ["default/c"]
