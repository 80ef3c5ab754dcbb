"""Areas of the small plugins: `fitplus-score`, `scarce-avoidance`, `pod-transform`, `reservation-event-message`."""

from typing import Any

import msgspec

from koordinator.api import normalization, resource_vector
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.clock import FixedClock
from koordinator.scheduler.config.config import decode_args
from koordinator.scheduler.loop.outcomes import event_message
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo
from tests.vectors.adapters.api_objects import same_object

Case = dict[str, Any]


def _score(name: str, args: Case, allocatable: Case, requested: Case, spec: Case) -> int:
    table = NodeTable(ResourceRegistry())
    kind: Any = built_in.PLUGINS[name]
    plugin = kind(decode_args(name, args, kind.args), Handle(table, FixedClock()))
    pod = PodInfo.of(from_builtins({"metadata": {"name": "p"}, "spec": spec}, Pod), table.registry)
    body = {"metadata": {"name": "n"}, "status": {"allocatable": allocatable}}
    table.set_node(from_builtins(body, Node))
    columns = {name: table.registry.column(name) for name in requested}
    table.widen()
    [row] = table.rows.tolist()
    for name, raw in requested.items():
        amount = resource_vector.amount(name, raw)
        table.requested[columns[name], row] = amount
        if name in ("cpu", "memory"):
            table.nonzero_requested[("cpu", "memory").index(name), row] = amount
    return int(plugin.score(plugin.prepare(pod), table.rows)[0])


def fit_plus(case: Case) -> Any:
    node = case["node"]
    score = _score("NodeResourcesFitPlus", case["args"], node["allocatable"], node["requested"], case["pod"])
    return {"score": score}


def scarce(case: Case) -> Any:
    spec = {"containers": [{"name": "c", "resources": {"requests": case["podRequests"]}}]}
    return {"score": _score("ScarceResourceAvoidance", case["args"], case["allocatable"], {}, spec)}


def transform(case: Case) -> Any:
    body = case["object"]
    if case["kind"] == "node":
        status = {"allocatable": body["allocatable"], "capacity": body["capacity"]}
        meta = {"name": "n", "annotations": body["annotations"]}
        node = normalization.normalize_node(from_builtins({"metadata": meta, "status": status}, Node))
        return {"allocatable": node.status.allocatable, "capacity": node.status.capacity}
    gates = FeatureGates(dict.fromkeys(case.get("gates") or (), True))
    pod = normalization.normalize_pod(from_builtins(body, Pod), normalization.PodSteps.of(gates))
    return {"object": msgspec.to_builtins(pod)}


def same_transform(expected: Any, actual: Any) -> bool:
    """Quantities by value; resources of a node with 0 that were absent before may be there."""
    if "object" in expected:
        return same_object(expected, actual)

    def padded(one: Any, other: Any) -> Any:
        return {part: {**dict.fromkeys(other[part] or (), "0"), **(one[part] or {})} for part in one}

    return same_object(padded(expected, actual), padded(actual, expected))


ADAPTERS = {
    "fitplus-score": fit_plus,
    "scarce-avoidance": scarce,
    "pod-transform": transform,
    "reservation-event-message": lambda case: {"event": event_message(case["message"])},
}
COMPARE = {"pod-transform": same_transform}
