"""The tree of a running scheduler: ClusterNetworkTopology and nodes in, tree and status out."""

from typing import Any

from koordinator.cluster import errors
from koordinator.scheduler.plugins.network_topology.manager import NetworkTopologyManager
from tests.scheduler.world import World, node, play, pod

Json = dict[str, Any]
ON = {"network_topology": True}


def topology(*layers: tuple[str, str, list[str]], name: str = "default") -> Json:
    """Layer, its parent, label keys."""
    layers = layers or (
        ("SpineLayer", "", ["spine"]),
        ("BlockLayer", "SpineLayer", ["block"]),
        ("NodeTopologyLayer", "BlockLayer", []),
    )
    spec = [
        {"topologyLayer": layer, "parentTopologyLayer": parent, "labelKey": keys}
        for layer, parent, keys in layers
    ]
    return {"metadata": {"name": name}, "spec": {"networkTopologySpec": spec}}


def rack(name: str, spine: str, block: str, **parts: Any) -> Json:
    return node(name, labels={"spine": spine, "block": block}, **parts)


def manager(world: World) -> NetworkTopologyManager:
    assert world.scheduler.network is not None
    return world.scheduler.network


def nodes_of(world: World) -> list[str]:
    tree = manager(world).tree()
    assert tree is not None
    return sorted(tree.leaf_of)


def status(world: World) -> Json:
    """Name → nodes below it."""
    found = world.api.objects["ClusterNetworkTopology"]["", "default"].get("status", {})
    return {each["topologyInfo"]["topologyName"]: each["nodeNum"] for each in found.get("detailStatus", [])}


def test_the_status_tells_the_tree_and_is_written_only_when_it_changed() -> None:
    async def story(world: World) -> None:
        world.api.put("ClusterNetworkTopology", topology())
        for number in range(4):
            world.api.put("Node", rack(f"n{number}", "s1", f"b{number % 2}"))
        await world.settle(11)
        assert status(world) == {"": 4, "s1": 4, "b0": 2, "b1": 2}
        written = len(world.api.patches)
        for number in range(4):  # heartbeats
            world.api.put(
                "Node", {**rack(f"n{number}", "s1", f"b{number % 2}"), "status": {"conditions": []}}
            )
        built = manager(world).tree()
        await world.settle(100)
        assert len(world.api.patches) == written
        assert manager(world).tree() is built

    play(story, **ON)


def test_nodes_that_come_move_or_go_are_in_the_next_tree() -> None:
    async def story(world: World) -> None:
        world.api.put("ClusterNetworkTopology", topology())
        world.api.put("Node", rack("a", "s1", "b1"))
        world.api.put("Node", rack("b", "s1", "b1"))
        await world.settle(11)
        world.api.put("Node", rack("a", "s2", "b9"))
        world.api.put("Node", rack("c", "s2", "b9"))
        world.api.remove("Node", "b")
        world.api.put("Node", node("d"))  # hangs on no spine
        await world.settle(11)
        assert nodes_of(world) == ["a", "c"]
        assert status(world) == {"": 2, "s2": 2, "b9": 2}

    play(story, **ON)


def test_a_missing_layer_keeps_the_tree_and_is_told_once() -> None:
    async def story(world: World) -> None:
        world.api.put("ClusterNetworkTopology", topology())
        world.api.put("Node", rack("a", "s1", "b1"))
        await world.settle(11)
        broken = topology(("BlockLayer", "SpineLayer", ["block"]), ("NodeTopologyLayer", "Ghost", []))
        world.api.put("ClusterNetworkTopology", broken)
        await world.settle(60)
        assert nodes_of(world) == ["a"]
        (event,) = world.api.events("InvalidTopology")
        assert 'topology layer "Ghost" not found in spec' in event["message"]
        world.api.put("ClusterNetworkTopology", topology(("NodeTopologyLayer", "", [])))
        await world.settle(11)
        assert status(world) == {"": 1}

    play(story, **ON)


def test_without_the_object_there_is_no_tree_and_other_objects_do_not_count() -> None:
    async def story(world: World) -> None:
        world.api.put("ClusterNetworkTopology", topology(name="mine"))
        world.nodes(2)
        await world.settle(11)
        assert manager(world).tree() is None
        world.api.put("ClusterNetworkTopology", topology(("NodeTopologyLayer", "", [])))
        await world.settle()
        assert nodes_of(world) == ["node-0", "node-1"]
        world.api.remove("ClusterNetworkTopology", "default")
        await world.settle()
        assert manager(world).tree() is None

    play(story, **ON)


def test_a_status_that_the_api_refuses_is_written_later() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.fail_next["patch"] = [errors.InternalError("not today"), errors.Conflict("nor now")]
        world.api.put("ClusterNetworkTopology", topology(("NodeTopologyLayer", "", [])))
        await world.settle(41)
        assert status(world) == {"": 1}

    play(story, **ON)


def test_a_cluster_without_the_definition_is_scheduled_all_the_same() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("Pod", pod("p"))
        await world.settle(30)
        assert manager(world).tree() is None
        assert world.api.placements() == {"p": "node-0"}

    play(story, unserved=("ClusterNetworkTopology",), **ON)
