"""Areas `stock-*` of the scheduler, and `kube-scheduler-basics`: the plugins on a node table."""

from typing import Any

import numpy as np

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.clock import FixedClock
from koordinator.scheduler.config.config import decode_args
from koordinator.scheduler.engine import pick
from koordinator.scheduler.plugin.framework import (
    FilterPlugin,
    Handle,
    Plugin,
    PreFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    default_normalize,
)
from koordinator.scheduler.plugin.status import SUCCESS, Status, fit_error
from koordinator.scheduler.plugins import built_in, scorers
from koordinator.scheduler.plugins.inter_pod_affinity.plugin import normalized as pod_affinity_scores
from koordinator.scheduler.plugins.node_resources_fit import piecewise_linear
from koordinator.scheduler.plugins.pod_rules import priority_key
from koordinator.scheduler.plugins.scorers import balanced_allocation
from koordinator.scheduler.plugins.topology_spread import plugin
from koordinator.scheduler.queue.queued_pod import backoff_s
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo
from tests.vectors.adapters import scheduler_preemption

Case = dict[str, Any]
MI = 1 << 20


def build(name: str, args: dict[str, Any] | None, nodes: list[Any], pods: list[Any]) -> Plugin[Any]:
    """A plugin on a table with these nodes and pods."""
    table = NodeTable(ResourceRegistry())
    kind = built_in.PLUGINS[name]
    decoded = decode_args(name, args or {}, kind.args)
    columns = {spec.name: table.add_column(spec) for spec in kind.columns_of(decoded)}
    plugin = kind(decoded, Handle(table, FixedClock(), columns=columns))
    if isinstance(plugin, RowKeeper):
        table.add_keeper(plugin)
    for node in nodes:
        table.set_node(from_builtins(node, Node))
    for pod in pods:
        info = PodInfo.of(from_builtins(pod, Pod), table.registry)
        table.assign(info, info.node_name)
    return plugin


def _verdict(status: Status) -> dict[str, Any]:
    return {"code": status.code.word, "reasons": list(status.reasons)}


def _filter(name: str, case: Case) -> Any:
    plugin = build(name, case.get("args"), case["nodes"], case.get("pods", []))
    table = plugin.handle.table
    pod = PodInfo.of(from_builtins(case["pod"], Pod), table.registry)
    table.widen()
    assert isinstance(plugin, FilterPlugin)
    state = plugin.prepare(pod)
    answer: dict[str, Any] = {}
    if isinstance(plugin, PreFilterPlugin):
        result = plugin.pre_filter(state)
        if not result.status.is_success or result.node_names is not None:
            answer["preFilter"] = _verdict(result.status)
            if result.node_names is not None:
                answer["preFilter"]["nodeNames"] = sorted(result.node_names)
        if result.status.is_rejected:
            return answer
        if result.status.is_skip:
            # The framework leaves the Filter out: every node passes.
            everywhere = {"code": "Success", "reasons": []}
            return {**answer, "nodes": {node["metadata"]["name"]: everywhere for node in case["nodes"]}}
    codes = plugin.filter(state, table.rows)
    answer["nodes"] = {
        table.name_of(row): _verdict(plugin.refusal(state, int(code)) if code else SUCCESS)
        for row, code in zip(table.rows.tolist(), codes, strict=True)
    }
    return answer


def _score(name: str, case: Case) -> Any:
    plugin = build(name, case.get("args"), case["nodes"], case.get("pods", []))
    table = plugin.handle.table
    pod = PodInfo.of(from_builtins(case["pod"], Pod), table.registry)
    assert isinstance(plugin, ScorePlugin)
    state = plugin.prepare(pod)
    if isinstance(plugin, PreScorePlugin):
        status = plugin.pre_score(state)
        if status.is_skip:
            # An absent image means no opinion: the score is 0 everywhere, as the cases of ImageLocality say.
            if name == "ImageLocality":
                return {"scores": {node["metadata"]["name"]: 0 for node in case["nodes"]}}
            return {"skip": True}
    scores = plugin.normalize(state, plugin.score(state, table.rows))
    return {
        "scores": {
            table.name_of(row): int(score) for row, score in zip(table.rows.tolist(), scores, strict=True)
        }
    }


def _adapter(kind: Any, name: str) -> Any:
    return lambda case: kind(case.get("plugin", name), case)


def ratio_shape(case: Case) -> Any:
    shape = [(point["utilization"], point["score"]) for point in case["shape"]]
    return {"score": int(piecewise_linear(np.array([case["utilization"]], np.int64), shape)[0])}


def priority_sort(case: Case) -> Any:
    a, b = (priority_key(pod["priority"] or 0, pod["queueTimestamp"]) for pod in (case["a"], case["b"]))
    return {"aFirst": a < b}


def select_host(case: Case) -> Any:
    names = list(case["totals"])
    totals = np.array(list(case["totals"].values()), np.int64)
    picked = {pick.best(totals, pick.chance_of(7, f"uid-{n}", 1)) for n in range(200)}
    return {"possible": sorted(names[position] for position in picked if position is not None)}


def queue_backoff(case: Case) -> Any:
    seconds = backoff_s(
        case["unschedulableCount"],
        case["consecutiveErrors"],
        case.get("initialSeconds", 1),
        case.get("maxSeconds", 10),
    )
    return {"seconds": seconds}


def sample_size(case: Case) -> Any:
    percent = pick.sample_percent(
        case["percentageOfNodesToScore"], case.get("profilePercentageOfNodesToScore")
    )
    assert percent is not None
    return {"nodesToFind": pick.nodes_to_find(case["nodes"], percent)}


def basics(case: Case) -> Any:
    return _BASICS[case["kind"]](case)


def _basic_backoff(case: Case) -> Any:
    return {"seconds": backoff_s(case["failures"], 0, case["initialSeconds"], case["maxSeconds"])}


def _basic_fit_error(case: Case) -> Any:
    message = fit_error(case["nodes"], case["reasons"], case["preFilterMessage"], case["postFilterMessage"])
    return {"message": message}


def _basic_balanced(case: Case) -> Any:
    requested, capacity = (
        np.array(column, np.int64) for column in zip(*case["requestedAndAllocatable"], strict=True)
    )
    return {"score": int(balanced_allocation(requested[:, np.newaxis], capacity[:, np.newaxis])[0])}


def _basic_normalize(case: Case) -> Any:
    scores = default_normalize(np.array(case["counts"], np.int64), reverse=case["reverse"])
    return {"scores": scores.tolist()}


def _basic_image_locality(case: Case) -> Any:
    total = sum(
        scorers.scaled_size(image["sizeBytes"], image["nodesWithImage"], case["totalNodes"])
        for image in case["presentImages"]
    )
    return {"score": int(scorers.image_locality(np.array([total], np.int64), case["containers"])[0])}


def _basic_spread(case: Case) -> Any:
    """Per node its own numbers of domains, so each node's sum is worked out alone."""
    raw = np.array(
        [
            sum(
                float(plugin.score_part(np.array(each["count"]), each["domains"], each["maxSkew"]))
                for each in node.get("constraints") or ()
            )
            for node in case["nodes"]
        ],
        np.float64,
    )
    is_ignored = np.array([bool(node.get("ignored")) for node in case["nodes"]], np.bool_)
    return {"scores": plugin.normalized(raw, is_ignored).tolist()}


_BASICS = {
    "sample-size": sample_size,
    "backoff": _basic_backoff,
    "fit-error": _basic_fit_error,
    "balanced": _basic_balanced,
    "normalize": _basic_normalize,
    "image-locality": _basic_image_locality,
    "interpod-normalize": lambda case: {
        "scores": pod_affinity_scores(np.array(case["sums"], np.int64)).tolist()
    },
    "spread-score": _basic_spread,
    "preempt-node": scheduler_preemption.basic_node,
    "preempt-victims": scheduler_preemption.basic_victims,
}

ADAPTERS = {
    "stock-fit-filter": _adapter(_filter, "NodeResourcesFit"),
    "stock-fit-score": _adapter(_score, "NodeResourcesFit"),
    "stock-balanced-score": _adapter(_score, "NodeResourcesBalancedAllocation"),
    "stock-ratio-shape": ratio_shape,
    "stock-taint-filter": _adapter(_filter, "TaintToleration"),
    "stock-taint-score": _adapter(_score, "TaintToleration"),
    "stock-nodeaffinity-filter": _adapter(_filter, "NodeAffinity"),
    "stock-nodeaffinity-score": _adapter(_score, "NodeAffinity"),
    "stock-node-gates-filter": _adapter(_filter, ""),
    "stock-nodeports-filter": _adapter(_filter, "NodePorts"),
    "stock-imagelocality-score": _adapter(_score, "ImageLocality"),
    "stock-prioritysort": priority_sort,
    "stock-selecthost": select_host,
    "stock-queue-backoff": queue_backoff,
    "stock-sample-size": sample_size,
    "kube-scheduler-basics": basics,
}
