"""Stories of gangs that ask for a network topology: API in, API out, on virtual time."""

import json
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest

from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import PluginConfig, PluginRef, PluginSet, SchedulerConfig
from koordinator.scheduler.observe.debugging import DebugOptions
from koordinator.scheduler.observe.observer import ObserverOptions
from koordinator.scheduler.plugin.framework import FilterPlugin, ReasonCodes
from koordinator.scheduler.plugin.status import SUCCESS, Reason, unschedulable
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.table.columns import RowChange, Rows
from tests.scheduler.coscheduling.test_plugin import member
from tests.scheduler.network_topology.test_manager import rack, topology
from tests.scheduler.world import World, play, pod

Json = dict[str, Any]


class MoodReason(Reason):
    OK = 0, SUCCESS
    BAD = 1, unschedulable("node(s) were in a bad mood")


def on(*, gates: FeatureGates | None = None, only_near: bool = False, **args: Any) -> Json:
    """Options of `play`: what is shipped with these arguments of Coscheduling; `only_near`: no other scores."""
    shipped = default_plugins.shipped_profile()
    own = PluginConfig(name="Coscheduling", args={"awareNetworkTopology": True, **args})
    plugins = shipped.plugins
    if only_near and plugins is not None:
        scores = PluginSet(enabled=[PluginRef(name="Coscheduling")], disabled=[PluginRef(name="*")])
        plugins = msgspec.structs.replace(plugins, score=scores)
    profile = msgspec.structs.replace(shipped, plugins=plugins, plugin_config=[*shipped.plugin_config, own])
    return {"config": SchedulerConfig(profiles=[profile]), "network_topology": True, "gates": gates}


def rules(*each: tuple[str, str, int] | tuple[str, str]) -> str:
    """Layer, strategy, multiple."""
    found = []
    for layer, strategy, *multiple in each:
        rule: Json = {"layer": layer, "strategy": strategy}
        found.append(rule | ({"podCountMultiple": multiple[0]} if multiple else {}))
    return json.dumps({"gatherStrategy": found})


BLOCK = rules(("BlockLayer", "MustGather"))
SPINE = rules(("SpineLayer", "MustGather"))


def fabric(world: World, *, spines: int = 2, blocks: int = 2, nodes: int = 2, **parts: Any) -> None:
    """Nodes s0-b0-n0, … and the object that describes them."""
    world.api.put("ClusterNetworkTopology", topology())
    for spine in range(spines):
        for block in range(blocks):
            for number in range(nodes):
                name = f"s{spine}-b{block}-n{number}"
                world.api.put("Node", rack(name, f"s{spine}", f"s{spine}-b{block}", **parts))


def gang(world: World, name: str, size: int, spec: str, minimum: int | None = None, **pods: Any) -> None:
    for number in range(size):
        put(world, f"{name}-{number}", name, size if minimum is None else minimum, spec, **pods)


def put(world: World, name: str, of: str, minimum: int, spec: str, **pods: Any) -> None:
    annotations = pods.pop("annotations", {})
    body = member(name, of, minimum, network_topology_spec=spec, **annotations)
    body["spec"] = pod(name, **pods)["spec"]
    world.api.put("Pod", body)


def nodes_of(world: World, prefix: str) -> list[str]:
    return [node for name, node in sorted(world.api.placements().items()) if name.startswith(prefix) and node]


def blocks_of(world: World, prefix: str) -> Counter[str]:
    return Counter(node.rpartition("-")[0] for node in nodes_of(world, prefix))


def test_a_gang_lands_in_one_block() -> None:
    async def story(world: World) -> None:
        fabric(world, cpu="4")
        gang(world, "job", 8, BLOCK)
        await world.settle(1)
        assert sorted(blocks_of(world, "job").values()) == [8]

    play(story, **on())


def test_without_a_tree_a_gang_that_asks_for_one_waits_for_it() -> None:
    async def story(world: World) -> None:
        world.nodes(2)
        gang(world, "job", 2, BLOCK)
        await world.settle(5)
        assert nodes_of(world, "job") == []
        reported = [world.condition(name).get("message", "") for name in ("job-0", "job-1")]
        assert "no cluster network topology" in "".join(reported)
        fabric(world)
        await world.settle(30)
        assert sorted(blocks_of(world, "job").values()) == [2]

    play(story, **on())


def test_a_full_spine_is_reported_with_what_each_place_takes() -> None:
    async def story(world: World) -> None:
        fabric(world, cpu="4")
        for name in ("s0-b0-n0", "s0-b1-n0", "s1-b1-n1"):
            world.api.put("Pod", pod(f"taken-{name}", cpu="4", nodeName=name))
        gang(world, "job", 4, SPINE, cpu="4")
        await world.settle(1)
        assert nodes_of(world, "job") == []
        message = world.condition("job-0")["message"]
        offers = "topology topologyNode SpineLayer/s0: 2;topology topologyNode SpineLayer/s1: 3"
        assert f"desiredOfferSlot: 4, {offers}, 0/8 nodes are available: 8 Insufficient cpu." in message

    play(story, **on())


def test_the_diagnosis_tells_what_each_node_offers(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        fabric(world, spines=1, cpu="4")
        world.api.put("Pod", pod("taken", cpu="3", nodeName="s0-b0-n0"))
        gang(world, "job", 3, BLOCK, cpu="2")
        await world.settle(1)
        assert len(nodes_of(world, "job")) == 3
        gang(world, "more", 3, BLOCK, cpu="2")
        await world.settle(1)

    debug = DebugOptions(diagnosis=True, diagnosis_blocking=True)
    with caplog.at_level("INFO"):
        play(story, **on(), observing=ObserverOptions(debug=debug))
    lines = [text.partition("$")[2] for text in caplog.messages if text.startswith("dump diagnosis")]
    found = json.loads(lines[0])
    assert found["topologyKeyToExplain"] == "BlockLayer"
    offers = found["scheduleDiagnosis"]["nodeOfferSlot"]
    assert sorted(offers) == ["s0-b0-n0", "s0-b0-n1", "s0-b1-n0", "s0-b1-n1"]
    assert sorted(offers.values()) == [0, 0, 1, 2]
    (detail,) = found["scheduleDiagnosis"]["nodeFailedDetails"]
    assert (detail["reason"], len(detail["failedNodes"])) == ("Insufficient cpu", 4)


def test_room_that_others_give_up_is_used() -> None:
    async def story(world: World) -> None:
        fabric(world, cpu="4")
        await world.settle(25)  # until the tree stands, whose changes wake gangs
        for name in ("s0-b0-n0", "s1-b1-n1"):
            world.api.put("Pod", pod(f"taken-{name}", cpu="4", nodeName=name))
        gang(world, "job", 4, SPINE, cpu="4")
        await world.settle(5)
        assert nodes_of(world, "job") == []
        world.api.remove("Pod", "taken-s1-b1-n1", "default")
        await world.settle(30)
        assert {node[:2] for node in nodes_of(world, "job")} == {"s1"}

    play(story, **on())


def test_members_come_to_nodes_in_multiples() -> None:
    async def story(world: World) -> None:
        fabric(world, spines=1, cpu="7")
        spec = rules(("SpineLayer", "MustGather"), ("NodeTopologyLayer", "PreferGather", 4))
        gang(world, "job", 8, spec)
        gang(world, "odd", 6, spec)
        await world.settle(5)
        assert Counter(nodes_of(world, "job")) == {"s0-b0-n0": 4, "s0-b0-n1": 4}
        assert nodes_of(world, "odd") == []
        assert "podCountMultiple constraints: NodeTopologyLayer=4" in world.condition("odd-0")["message"]

    play(story, **on())


def test_two_jobs_share_a_network_without_mixing() -> None:
    async def story(world: World) -> None:
        fabric(world, spines=1, cpu="4")
        for name in ("a", "b"):
            gang(world, name, 8, BLOCK)
        await world.settle(5)
        assert sorted(blocks_of(world, "a").values()) == sorted(blocks_of(world, "b").values()) == [8]
        assert blocks_of(world, "a").keys() != blocks_of(world, "b").keys()

    play(story, **on())


def test_a_node_that_is_added_later_makes_a_gang_fit() -> None:
    async def story(world: World) -> None:
        fabric(world, cpu="4")
        gang(world, "job", 3, BLOCK, cpu="4")
        await world.settle(60)
        assert nodes_of(world, "job") == []
        world.api.put("Node", rack("s1-b0-n2", "s1", "s1-b0", cpu="4"))
        await world.settle(60)
        assert blocks_of(world, "job") == {"s1-b0": 3}

    play(story, **on())


def test_each_round_goes_by_the_tree_of_its_time() -> None:
    async def story(world: World) -> None:
        fabric(world, cpu="4")
        gang(world, "job", 3, BLOCK, cpu="4")
        await world.settle(20)
        assert nodes_of(world, "job") == []
        # The node is cabled to another switch.
        world.api.put("Node", rack("s0-b0-n0", "s1", "s1-b1", cpu="4"))
        await world.settle(60)
        assert sorted(nodes_of(world, "job")) == ["s0-b0-n0", "s1-b1-n0", "s1-b1-n1"]

    play(story, **on())


def test_members_are_planned_by_their_index_then_by_name() -> None:
    async def story(world: World) -> None:
        fabric(world, spines=1, blocks=1, nodes=3, cpu="1")
        for name, index in (("a", 2), ("b", 0), ("c", 1)):
            annotations = {"network_topology_index": str(index)}
            put(world, f"job-{name}", "job", 3, BLOCK, annotations=annotations)
        await world.settle(1)
        placed = world.api.placements()
        assert [placed[f"job-{name}"] for name in "bca"] == ["s0-b0-n0", "s0-b0-n1", "s0-b0-n2"]

    play(story, **on())


def test_large_and_small_members_are_packed_together() -> None:
    """In order of names the large member would come last and find no node that is empty enough."""

    async def story(world: World) -> None:
        fabric(world, spines=1, cpu="4")
        for number in range(4):
            put(world, f"job-a{number}", "job", 5, BLOCK, cpu="1")
        put(world, "job-z", "job", 5, BLOCK, cpu="4")
        await world.settle(1)
        assert sorted(blocks_of(world, "job").values()) == [5]
        placed = world.api.placements()
        assert placed["job-z"] not in {placed[f"job-a{number}"] for number in range(4)}

    play(story, **on())


def test_the_minimum_is_planned_where_there_is_no_room_for_all() -> None:
    async def story(world: World) -> None:
        fabric(world, cpu="4")
        gang(world, "job", 11, BLOCK, minimum=8)
        await world.settle(5)
        assert max(blocks_of(world, "job").values()) == 8

    play(story, **on())


def test_members_that_come_later_join_their_gang_as_far_as_there_is_room() -> None:
    async def story(world: World) -> None:
        fabric(world, cpu="4")
        policy = {"annotations": {"match_policy": "waiting-and-running"}}
        gang(world, "job", 6, BLOCK, **policy)
        await world.settle(5)
        (home,) = blocks_of(world, "job")
        for number in range(3):
            put(world, f"job-late{number}", "job", 6, BLOCK, **policy)
        await world.settle(60)
        assert blocks_of(world, "job") == {home: 8}

    play(story, **on())


def test_a_member_that_goes_while_its_gang_is_planned_holds_nobody_up() -> None:
    async def story(world: World) -> None:
        fabric(world, cpu="4")
        gang(world, "job", 6, BLOCK, minimum=6)
        world.api.remove("Pod", "job-3", "default")
        await world.settle(30)
        assert nodes_of(world, "job") == []
        put(world, "job-new", "job", 6, BLOCK)
        await world.settle(30)
        assert sorted(blocks_of(world, "job").values()) == [6]

    play(story, **on())


def test_a_replacement_comes_to_where_its_gang_runs() -> None:
    async def story(world: World) -> None:
        fabric(world, cpu="4")
        policy = {"annotations": {"match_policy": "waiting-and-running"}}
        gang(world, "job", 8, BLOCK, cpu="500m", **policy)
        await world.settle(5)
        (home,) = blocks_of(world, "job")
        world.api.remove("Pod", "job-3", "default")
        put(world, "job-new", "job", 8, BLOCK, cpu="500m", **policy)
        await world.settle(5)
        assert blocks_of(world, "job") == {home: 8}

    play(story, **on())


def test_members_that_keep_each_other_away_are_tried_one_by_one() -> None:
    """What one member means for the next on a node only trying tells."""
    apart = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchLabels": {"job": "job"}},
                    "topologyKey": "kubernetes.io/hostname",
                }
            ]
        }
    }

    async def story(world: World) -> None:
        fabric(world, spines=1, nodes=3, cpu="4")
        for number in range(3):
            body = member(f"job-{number}", "job", 3, network_topology_spec=BLOCK)
            body["metadata"]["labels"] = {"job": "job"}
            body["spec"]["affinity"] = apart
            world.api.put("Pod", body)
        await world.settle(1)
        assert len(set(nodes_of(world, "job"))) == 3
        assert sorted(blocks_of(world, "job").values()) == [3]

    play(story, **on())


def test_members_that_spread_over_zones_are_planned_as_a_whole() -> None:
    """Slots of single nodes do not tell that no zone may have two more than another."""
    spread = [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"job": "job"}},
        }
    ]

    async def story(world: World) -> None:
        world.api.put("ClusterNetworkTopology", topology())
        for number in range(4):
            body = rack(f"n{number}", "s", "b", cpu="4")
            body["metadata"]["labels"]["zone"] = f"z{number % 2}"
            world.api.put("Node", body)
        for number in range(4):
            body = member(f"job-{number}", "job", 4, network_topology_spec=BLOCK)
            body["metadata"]["labels"] = {"job": "job"}
            body["spec"]["topologySpreadConstraints"] = spread
            world.api.put("Pod", body)
        await world.settle(10)
        zones = Counter(int(node[1:]) % 2 for node in nodes_of(world, "job"))
        assert zones == {0: 2, 1: 2}

    play(story, **on())


def test_a_plan_is_carried_out_in_one_cycle_behind_the_gate() -> None:
    async def story(world: World) -> None:
        fabric(world, cpu="4")
        gang(world, "job", 8, BLOCK)
        await world.settle(1)
        assert sorted(blocks_of(world, "job").values()) == [8]
        assert sum(world.scheduler.metrics.batch_duration.of("success").counts) == 1

    gates = FeatureGates.of(Component.SCHEDULER, "EnableInlineBatchSchedule=true")
    play(story, **on(gates=gates))


class Moody(FilterPlugin[None]):
    """Turns down the fourth pod of a node, once, after the planner was told otherwise."""

    name = "Moody"
    reads = RowChange.PODS
    reasons = MoodReason
    has_refused = False

    def filter(self, state: None, rows: Rows) -> ReasonCodes:
        table = self.handle.table
        codes = np.zeros(rows.size, np.uint16)
        if not table.is_trial and not self.has_refused:
            for position, row in enumerate(rows.tolist()):
                if len(table.pods_at(row)) == 3:
                    codes[position] = MoodReason.BAD
                    self.has_refused = True
        return codes


def test_a_plan_that_does_not_hold_is_made_anew_after_a_backoff() -> None:
    async def story(world: World) -> None:
        fabric(world, cpu="4")
        await world.settle(25)  # until the tree stands, whose changes wake gangs
        gang(world, "job", 8, BLOCK)
        await world.settle(0.5)
        assert nodes_of(world, "job") == []
        assert "bad mood" in " ".join(
            world.condition(f"job-{number}").get("message", "") for number in range(8)
        )
        await world.settle(20)
        assert sorted(blocks_of(world, "job").values()) == [8]

    options = on()
    (profile,) = options["config"].profiles
    filters = profile.plugins.filter
    more = msgspec.structs.replace(filters, enabled=[*filters.enabled, PluginRef(name="Moody")])
    profile = msgspec.structs.replace(profile, plugins=msgspec.structs.replace(profile.plugins, filter=more))
    options["config"] = msgspec.structs.replace(options["config"], profiles=[profile])
    play(story, **options, plugins={**built_in.PLUGINS, "Moody": Moody})


def test_gangs_without_a_wish_and_single_pods_are_not_planned() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        for number in range(3):
            world.api.put("Pod", member(f"job-{number}", "job", 3))
        world.api.put("Pod", pod("single"))
        await world.settle(1)
        assert len(nodes_of(world, "job")) == 3 and nodes_of(world, "single")

    play(story, **on())


def test_no_topology_is_asked_of_gangs_unless_the_argument_says_so() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        gang(world, "job", 3, BLOCK)
        await world.settle(1)
        assert len(nodes_of(world, "job")) == 3

    play(story, network_topology=True)


def test_preemption_makes_room_in_one_block_or_nowhere() -> None:
    async def story(world: World) -> None:
        fabric(world, spines=1, cpu="4")
        await world.settle(25)
        for name, priority in (("s0-b0-n0", 1), ("s0-b1-n0", 9), ("s0-b1-n1", 1)):
            world.api.put("Pod", pod(f"taken-{name}", cpu="4", priority=priority, nodeName=name))
        gang(world, "job", 2, BLOCK, cpu="4", priority=5)
        await world.settle(60)
        assert sorted(nodes_of(world, "job")) == ["s0-b0-n0", "s0-b0-n1"]
        assert [event["involvedObject"]["name"] for event in world.api.events("Preempted")] == [
            "taken-s0-b0-n0"
        ]

    play(story, **on(enablePreemption=True))


def test_preemption_takes_the_block_whose_pods_matter_less_not_the_one_with_fewer() -> None:
    async def story(world: World) -> None:
        fabric(world, spines=1, cpu="4")
        await world.settle(25)
        world.api.put("Pod", pod("matters", cpu="4", priority=3, nodeName="s0-b0-n0"))
        for number in range(2):
            world.api.put("Pod", pod(f"batch-{number}", cpu="2", priority=1, nodeName="s0-b1-n0"))
        gang(world, "job", 2, BLOCK, cpu="4", priority=5)
        await world.settle(60)
        assert sorted(nodes_of(world, "job")) == ["s0-b1-n0", "s0-b1-n1"]
        assert "matters" in world.api.placements()

    play(story, **on(enablePreemption=True))


def test_a_gang_too_large_for_the_cluster_learns_what_places_would_take_after_evictions() -> None:
    async def story(world: World) -> None:
        fabric(world, spines=1, cpu="4")
        await world.settle(25)
        world.api.put("Pod", pod("weaker", cpu="4", priority=1, nodeName="s0-b0-n0"))
        world.api.put("Pod", pod("stronger", cpu="4", priority=9, nodeName="s0-b1-n0"))
        gang(world, "job", 5, BLOCK, cpu="4", priority=5)
        await world.settle(60)
        offers = "BlockLayer/s0-b0: 2;topology topologyNode BlockLayer/s0-b1: 1, 0/4 nodes are available"
        assert offers in world.condition("job-0")["message"]
        assert world.api.events("Preempted") == []

    play(story, **on(enablePreemption=True))


def test_nobody_is_evicted_for_one_member_of_a_gang_that_is_planned() -> None:
    async def story(world: World) -> None:
        fabric(world, spines=1, cpu="4")
        for name, priority in (("s0-b0-n0", 9), ("s0-b1-n0", 9), ("s0-b1-n1", 1)):
            world.api.put("Pod", pod(f"taken-{name}", cpu="4", priority=priority, nodeName=name))
        gang(world, "job", 2, BLOCK, cpu="4", priority=5)
        await world.settle(60)
        assert nodes_of(world, "job") == []
        assert world.api.events("Preempted") == []
        assert all(name in world.api.placements() for name in ("taken-s0-b1-n1", "taken-s0-b0-n0"))

    for args in ({}, {"enablePreemption": True}):
        play(story, **on(**args))


def test_single_pods_come_near_to_pods_with_the_same_selector() -> None:
    key = "scheduling.koordinator.sh/network-topology-selector"

    def attracted(name: str, **parts: Any) -> Json:
        body = pod(name, **parts)
        body["metadata"]["annotations"] = {key: "team-a"}
        return body

    async def story(world: World) -> None:
        fabric(world, cpu="2")
        world.api.put("Node", rack("aside", "", "", cpu="2"))
        world.api.put("Pod", attracted("first", nodeName="s1-b0-n1"))
        for number in range(4):
            world.api.put("Pod", attracted(f"p{number}"))
            await world.settle(1)
        assert nodes_of(world, "p") == ["s1-b0-n1", "s1-b0-n0", "s1-b0-n0", "s1-b1-n0"]

    play(story, **on(only_near=True))


def test_a_selector_without_a_tree_is_no_preference() -> None:
    async def story(world: World) -> None:
        world.nodes(2)
        body = pod("p")
        body["metadata"]["annotations"] = {"scheduling.koordinator.sh/network-topology-selector": "a"}
        world.api.put("Pod", body)
        await world.settle(1)
        assert nodes_of(world, "p")

    play(story)
