"""Scale-down empties whole nodes: which pods are ranked, in which order, and which of them go."""

from typing import Any

import msgspec
import pytest

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.descheduler.config.node_plugins import ScaleDownBinPackArgs, complete_scale_down_bin_pack
from koordinator.descheduler.measurements import Observation
from koordinator.descheduler.plugin import Action, EvictAction, SetDeletionCost
from koordinator.descheduler.plugins import scale_down_bin_pack
from koordinator.descheduler.plugins.scale_down_bin_pack import SKIPPED_COST, ScaleDownBinPack
from tests.descheduler.builders import handle, node, pod
from tests.vectors.adapters.descheduler_plugins import drive


def plugin(**args: Any) -> ScaleDownBinPack:
    decoded = complete_scale_down_bin_pack(from_builtins(args, ScaleDownBinPackArgs))
    return ScaleDownBinPack(decoded, handle(lambda each: not each.metadata.name.startswith("stays")))


def labelled(one: Any, **values: str) -> Any:
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, labels=values))


def annotated(one: Pod, cost: int) -> Pod:
    key = "controller.kubernetes.io/pod-deletion-cost"
    meta = msgspec.structs.replace(one.metadata, annotations={key: str(cost)})
    return msgspec.structs.replace(one, metadata=meta)


NODES = [node("full"), node("light")]
PODS = {
    "full": [pod("a", "full", cpu="1"), pod("b", "full", cpu="3"), pod("stays-c", "full", cpu="4")],
    "light": [pod("d", "light", cpu="2"), pod("stays-e", "light", cpu="1")],
}


def written(made: ScaleDownBinPack, nodes: list[Node], pods: dict[str, list[Pod]]) -> dict[str, int]:
    costs = {}

    def accept(one: Action) -> bool:
        if isinstance(one, SetDeletionCost):
            costs[one.pod.key] = one.cost
        return True

    drive(made.balance(Observation(0, nodes, pods, {})), accept)
    return costs


def names(found: Any) -> list[str]:
    return [each.pod.metadata.name for each in found]


def test_the_node_that_empties_most_easily_comes_first_and_there_the_largest_pod() -> None:
    made = plugin()
    ranked = scale_down_bin_pack.rank(made.split(NODES, PODS), {"cpu": 1.0})
    assert [(each.pod.metadata.name, each.rank, each.node_score) for each in ranked] == [
        ("d", 0, 0.5),
        ("b", 1, 1.0),
        ("a", 2, 1.0),
    ]


def test_of_equal_nodes_the_one_with_fewer_pods_and_then_the_first_by_name_comes_first() -> None:
    nodes = [node("c"), node("b"), node("a")]
    pods = {
        "a": [pod("a1", "a", cpu="1"), pod("a2", "a", cpu="1")],
        "b": [pod("b1", "b", cpu="2")],
        "c": [pod("c1", "c", cpu="2")],
    }
    ranked = scale_down_bin_pack.rank(plugin().split(nodes, pods), {"cpu": 1.0, "unknown": 9.0})
    assert names(ranked) == ["b1", "c1", "a1", "a2"]


def test_amounts_weigh_as_parts_of_their_node() -> None:
    small = [msgspec.structs.replace(pod("s", "small", cpu="1")), pod("stays", "small", cpu="1")]
    found = plugin().split([node("small", cpu="4")], {"small": small})
    assert scale_down_bin_pack.node_score(found[0], {"cpu": 2.0}) == 1.0
    nothing = plugin().split([node("idle")], {"idle": [pod("x", "idle"), pod("stays", "idle", cpu="1")]})
    assert scale_down_bin_pack.node_score(nothing[0], {"cpu": 1.0}) == float("inf")
    alone = plugin().split([node("idle")], {"idle": [pod("x", "idle")]})
    assert scale_down_bin_pack.node_score(alone[0], {"cpu": 1.0}) == 0.0


def test_nodes_and_pods_take_part_by_their_labels_and_only_the_chosen_pods_are_skipped() -> None:
    chosen = {"selector": {"matchLabels": {"app": "web"}}}
    made = plugin(nodeSelector={"matchLabels": {"pool": "spot"}}, podSelectors=[chosen])
    nodes: list[Node] = [labelled(node("in"), pool="spot"), node("out")]
    pods = {
        "in": [
            labelled(pod("web", "in"), app="web"),
            labelled(pod("stays-web", "in"), app="web"),
            pod("other", "in"),
        ],
        "out": [labelled(pod("web", "out"), app="web")],
    }
    [groups] = made.split(nodes, pods)
    assert groups.node.metadata.name == "in"
    listed = [
        [one.metadata.name for one in some] for some in (groups.eligible, groups.skipped, groups.others)
    ]
    assert listed == [["web"], ["stays-web"], ["other"]]
    assert written(made, nodes, pods) == {"default/web": 0, "default/stays-web": SKIPPED_COST}


def test_costs_are_written_where_they_are_others() -> None:
    pods = {"full": [annotated(pod("a", "full", cpu="2"), 0), annotated(pod("b", "full", cpu="1"), 7)]}
    assert written(plugin(), NODES, pods) == {"default/b": 1}


@pytest.mark.parametrize(
    ("args", "evicted"),
    [
        ({"strategy": "EvictDirectly", "maxPodsToEvict": 2}, ["d", "a"]),
        ({"strategy": "EvictDirectly", "maxPodsToEvict": 1}, ["d"]),
        ({"strategy": "EvictDirectly"}, []),
        ({"strategy": "EvictDirectly", "maxPodsToEvict": 2, "paused": True}, []),
        ({"maxPodsToEvict": 2}, []),
    ],
)
def test_pods_go_in_their_order_until_enough_went(args: dict[str, Any], evicted: list[str]) -> None:
    made = plugin(resources=["cpu"], **args)
    gone = []

    def accept(one: Action) -> bool:
        is_done = isinstance(one, EvictAction) and one.pod.metadata.name != "b"
        if is_done:
            gone.append(one)
        return is_done

    drive(made.balance(Observation(0, NODES, PODS, {})), accept)
    assert names(gone) == evicted
