"""Areas `topology-tree`, `topology-placement`, `topology-score`."""

from collections import Counter
from typing import Any

import msgspec
import numpy as np

from koordinator.api import labels
from koordinator.api.annotations.placement import GatherStrategy
from koordinator.api.network_topology import NetworkTopologySpec
from koordinator.scheduler.plugin.status import fit_error
from koordinator.scheduler.plugin.topology_tree import (
    TopologySpecError,
    TopologyTree,
    build,
    details,
)
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.plugins.network_topology import placement
from koordinator.scheduler.plugins.network_topology import placement as ranking
from koordinator.scheduler.plugins.network_topology.planner import PlanningJob
from tests.scheduler.small_cluster import SmallCluster

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
    asked = case.get("networkTopologySpec")
    specs = msgspec.convert(LAYERS if asked is None else asked, list[NetworkTopologySpec])
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
    if "nodeSlots" in case:
        return _place_by_slots(case, made)
    cluster = SmallCluster.shipped()
    for node in case["nodes"]:
        allocatable = {"cpu": str(node["cpu"]), "pods": "1000"}
        meta = {"name": node["name"], "labels": node.get("labels") or {}}
        cluster.node({"metadata": meta, "spec": {}, "status": {"allocatable": allocatable}})
    for number, each in enumerate(case.get("existing") or ()):
        cluster.pod(_pod(f"existing-{number}", each, each.get("selector")))
    members = [cluster.pod(_pod(pod["name"], pod, case.get("selector"))) for pod in case["pods"]]
    rules = msgspec.convert(case.get("gatherStrategy") or [], list[GatherStrategy])
    # G10: the index orders the test of members that differ only, and they are assigned by name.
    members.sort(key=lambda each: each.pod.metadata.name)
    found = cluster.plugin(Coscheduling).planning.planner.plan(
        made, PlanningJob(tuple(members), tuple(rules))
    )
    table = cluster.table
    slots = {table.name_of(row): found.slots_of(row) for row in table.rows.tolist()}
    return _answer(found.plan, slots, found.must_layer, found.message)


def _place_by_slots(case: Case, made: TopologyTree) -> Case:
    rules = msgspec.convert(case.get("gatherStrategy") or [], list[GatherStrategy])
    demand = placement.demand_of(rules, made.layers)
    members = sorted(pod["name"] for pod in case["pods"])
    there = Counter(each["node"] for each in case.get("existing") or () if _attracts(each, case))
    slots = case["nodeSlots"]
    found = placement.plan(made, demand, members, made.by_leaf(slots), made.by_leaf(there))
    short = sum(slots.get(node["name"], 0) < len(members) for node in case["nodes"])
    reasons = {"Insufficient cpu": short} if short else {}
    message = found.message(fit_error(len(case["nodes"]), reasons))
    return _answer(found, slots, demand.must_layer, message)


def _answer(plan: placement.TopologyPlacement, slots: dict[str, int], must_layer: str, message: str) -> Case:
    answer: Case = {"scheduled": plan.is_placed, "nodeSlots": slots, "mustGatherLayer": must_layer}
    if plan.is_placed:
        candidate = {"layer": plan.place_layer, "name": plan.place_name}
        return {**answer, "plan": dict(plan.nodes), "candidate": candidate}
    return {**answer, "message": message}


def _attracts(existing: Case, case: Case) -> bool:
    return bool(case.get("selector")) and existing.get("selector") == case["selector"]


def _pod(name: str, pod: Case, selector: str | None) -> Case:
    annotations = {labels.NETWORK_TOPOLOGY_SELECTOR: selector} if selector else {}
    container = {"name": "c", "resources": {"requests": {"cpu": str(pod.get("cpu", 0))}}}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name, "annotations": annotations},
        "spec": {
            "schedulerName": "koord-scheduler",
            "nodeName": pod.get("node", ""),
            "containers": [container],
        },
    }


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
