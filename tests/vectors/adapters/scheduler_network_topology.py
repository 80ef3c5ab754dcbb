"""Areas `topology-tree`, `topology-placement`, `topology-score`."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from koordinator.api import gang_labels, labels
from koordinator.api.annotations.placement import GatherStrategy
from koordinator.api.network_topology import NetworkTopologySpec
from koordinator.scheduler.plugin.topology_tree import (
    TopologySpecError,
    TopologyTree,
    build,
    details,
)
from koordinator.scheduler.plugins.network_topology import placement
from koordinator.scheduler.plugins.network_topology import score as ranking

Case = dict[str, Any]
LAYERS = [
    {"topologyLayer": "SpineLayer", "labelKey": ["network.topology.nvidia.com/spine"]},
    {
        "topologyLayer": "BlockLayer",
        "parentTopologyLayer": "SpineLayer",
        "labelKey": ["network.topology.nvidia.com/block"],
    },
    {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "BlockLayer"},
]


def _tree(case: Case) -> TopologyTree:
    specs = msgspec.convert(case.get("networkTopologySpec") or LAYERS, list[NetworkTopologySpec])
    nodes = [(node["name"], node.get("labels") or {}) for node in case["nodes"]]
    return build(specs, nodes)


def tree(case: Case) -> Any:
    try:
        made = _tree(case)
    except TopologySpecError as error:
        return {"error": str(error)}
    left_out = [node["name"] for node in case["nodes"] if node["name"] not in made.leaf_of]
    return {"detailStatus": msgspec.to_builtins(details(made)), "nodesLeftOut": left_out}


def same_tree(expected: Any, actual: Any) -> bool:
    """Fields that are empty may be left out."""
    if "error" in expected:
        return bool(expected == actual)

    def clean(status: list[Case]) -> list[Case]:
        return [
            {name: value for name, value in each.items() if value not in ("", [], None)} for each in status
        ]

    return bool(
        clean(expected["detailStatus"]) == clean(actual.get("detailStatus", []))
        and sorted(expected["nodesLeftOut"]) == sorted(actual.get("nodesLeftOut", []))
    )


def place(case: Case) -> Any:
    made = _tree(case)
    annotations = {
        pod["name"]: {labels.GANG_NETWORK_TOPOLOGY_INDEX: str(pod["index"])} if "index" in pod else {}
        for pod in case["pods"]
    }
    members = sorted(annotations, key=lambda name: gang_labels.topology_order(name, annotations[name]))
    cpu = {pod["name"]: pod["cpu"] for pod in case["pods"]}
    selector, existing = case.get("selector"), case.get("existing") or []
    attracting = Counter(each["node"] for each in existing if selector and each.get("selector") == selector)
    taken: Counter[str] = Counter()
    for each in existing:
        taken[each["node"]] += each.get("cpu", 0)
    slots = case.get("nodeSlots") or {
        node["name"]: _slots(members, cpu, node["cpu"] - taken[node["name"]]) for node in case["nodes"]
    }
    rules = msgspec.convert(case.get("gatherStrategy") or [], list[GatherStrategy])
    demand = placement.demand_of(rules, made.layers)
    # G10: the index orders the test only, members are assigned by name.
    found = placement.plan(made, demand, sorted(members), made.by_leaf(slots), made.by_leaf(attracting))
    answer: Case = {
        "scheduled": found.is_placed,
        "nodeSlots": slots,
        "mustGatherLayer": demand.must_layer,
    }
    if found.is_placed:
        answer["plan"] = dict(found.nodes)
        answer["candidate"] = {"layer": found.place_layer, "name": found.place_name}
        return answer
    short = sum(slots.get(node["name"], 0) < len(members) for node in case["nodes"])
    answer["message"] = found.message(
        f"0/{len(case['nodes'])} nodes are available: {short} Insufficient cpu."
    )
    return answer


def _slots(members: Sequence[str], cpu: dict[str, int], free: int) -> int:
    """Members that fit next to each other, in order: the first that does not ends the count."""
    count = 0
    for name in members:
        free -= cpu[name]
        if free < 0:
            break
        count += 1
    return count


def same_place(expected: Any, actual: Any) -> bool:
    """The message counts where there is one."""
    return all(actual.get(name) == value for name, value in expected.items())


def score(case: Case) -> Any:
    made, candidates = _tree(case), case["candidates"]
    existing = Counter(each["node"] for each in case["existing"] if each.get("selector") == case["selector"])
    leaves = np.array([made.leaf_of.get(name, -1) for name in candidates], np.intp)
    found = ranking.scores(made, leaves, candidates.__getitem__, made.by_leaf(existing)).tolist()
    by_name = dict(zip(candidates, found, strict=True))
    return {"order": sorted(candidates, key=lambda name: -by_name[name]), "score": by_name}


ADAPTERS = {"topology-tree": tree, "topology-placement": place, "topology-score": score}
COMPARE = {"topology-tree": same_tree, "topology-placement": same_place}
