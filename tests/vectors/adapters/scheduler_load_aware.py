"""Areas `loadaware-*`: the plugin on a table of one node, fed with NodeMetrics and pods."""

from typing import Any

from koordinator.api import duration, priority
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetric
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.clock import FixedClock, rfc3339
from koordinator.scheduler.config.config import decode_args
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugins.load_aware.args import LoadAwareArgs, LoadAwarePolicy
from koordinator.scheduler.plugins.load_aware.judgement import node_capacity
from koordinator.scheduler.plugins.load_aware.load import estimate
from koordinator.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo
from tests.vectors.compare import quantities

Case = dict[str, Any]
NOW_S = 1_700_000_000.0
NODE = "node"


def _plugin(case: Case) -> LoadAwareScheduling:
    """The plugin after it has heard of the case's node, report and pods."""
    table = NodeTable(ResourceRegistry())
    args = decode_args(LoadAwareScheduling.name, case["args"], LoadAwareArgs)
    columns = {spec.name: table.add_column(spec) for spec in LoadAwareScheduling.columns_of(args)}
    plugin = LoadAwareScheduling(args, Handle(table, FixedClock(NOW_S), columns=columns))
    table.add_keeper(plugin)
    node = case.get("node", {"allocatable": {}, "annotations": {}})
    table.set_node(
        from_builtins(
            {
                "metadata": {"name": NODE, "annotations": node["annotations"]},
                "status": {"allocatable": node["allocatable"]},
            },
            Node,
        )
    )
    if case["nodeMetric"] is not None:
        plugin.set_metric(None, _metric(case["nodeMetric"]))
    for assigned in case["assignedPods"]:
        status = {**assigned["pod"].get("status", {}), "conditions": _conditions(assigned)}
        info = PodInfo.of(from_builtins({**assigned["pod"], "status": status}, Pod), table.registry)
        if not info.is_terminal:
            table.assign(info, NODE)
    return plugin


def _metric(flat: Case) -> NodeMetric:
    status: Case = {
        "podsMetric": [
            {
                "namespace": pod["namespace"],
                "name": pod["name"],
                "priority": pod.get("priority", ""),
                "podUsage": {"resources": pod.get("usage") or {}},
            }
            for pod in flat["pods"]
        ]
    }
    if flat["updateAgeSeconds"] is not None:
        status["updateTime"] = rfc3339(NOW_S - flat["updateAgeSeconds"])
    if flat["nodeUsage"] is not None:
        status["nodeMetric"] = {
            "nodeUsage": {"resources": flat["nodeUsage"]},
            "systemUsage": {"resources": flat.get("systemUsage") or {}},
            "aggregatedNodeUsages": [
                {
                    "duration": duration.text_of(entry["durationSeconds"]),
                    "usage": {kind: {"resources": amounts} for kind, amounts in entry["usage"].items()},
                }
                for entry in flat.get("aggregatedNodeUsages") or ()
            ],
        }
    policy = {"reportIntervalSeconds": flat["reportIntervalSeconds"]}
    return from_builtins(
        {"metadata": {"name": NODE}, "spec": {"metricCollectPolicy": policy}, "status": status}, NodeMetric
    )


def _conditions(assigned: Case) -> list[Case]:
    ages = {
        "PodScheduled": assigned.get("scheduledAgeSeconds"),
        "Initialized": assigned.get("initializedAgeSeconds"),
    }
    return [
        {"type": kind, "status": "True", "lastTransitionTime": rfc3339(NOW_S - age)}
        for kind, age in ages.items()
        if age is not None
    ]


def load_filter(case: Case) -> Any:
    plugin = _plugin(case)
    table = plugin.handle.table
    state = plugin.prepare(PodInfo.of(from_builtins(case["pod"], Pod), table.registry))
    code = int(plugin.filter(state, table.rows)[0])
    if code == 0:
        return {"code": "Success", "reason": ""}
    status = plugin.refusal(state, code)
    return {"code": status.code.word, "reason": status.message}


def load_score(case: Case) -> Any:
    plugin = _plugin(case)
    table = plugin.handle.table
    state = plugin.prepare(PodInfo.of(from_builtins(case["pod"], Pod), table.registry))
    return {"score": int(plugin.score(state, table.rows)[0])}


def pod_cache(case: Case) -> Any:
    plugin = _plugin(case)
    found = plugin.load_of(NODE)
    assert found is not None and found.report is not None
    vectors = {
        "nodeUsage": found.report.node_usage or (0,) * len(plugin.policy.names),
        "prodUsage": found.prod_usage,
        "nodeDelta": found.node_delta,
        "prodDelta": found.prod_delta,
        "nodeEstimated": found.node_estimated,
    }
    return {key: dict(zip(plugin.policy.names, amounts, strict=True)) for key, amounts in vectors.items()}


def load_estimate(case: Case) -> Any:
    if case["kind"] == "node":
        node = case["node"]
        view = from_builtins(
            {
                "metadata": {"name": NODE, "annotations": node["annotations"]},
                "status": {"allocatable": node["allocatable"]},
            },
            Node,
        )
        return {"allocatable": node_capacity(view)}
    policy = LoadAwarePolicy.of(decode_args(LoadAwareScheduling.name, case["args"], LoadAwareArgs))
    pod = from_builtins(case["pod"], Pod)
    allow_custom = policy.args.allow_customize_estimation
    return {"estimated": estimate(pod, priority.default(pod), policy.factors, allow_custom=allow_custom)}


ADAPTERS = {
    "loadaware-filter": load_filter,
    "loadaware-score": load_score,
    "loadaware-podcache": pod_cache,
    "loadaware-estimate": load_estimate,
}
COMPARE = {"loadaware-estimate": quantities}
