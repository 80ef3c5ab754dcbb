"""LoadAwareScheduling on reports, limits and annotations that are odd, or come while a node is away."""

import json
from typing import Any

import numpy as np
import pytest

from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetric
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.clock import FixedClock, rfc3339
from koordinator.scheduler.config.config import decode_args
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugins.load_aware.args import LoadAwareArgs
from koordinator.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

NOW_S = 1_700_000_000.0
NO_LIMIT = str((1 << 63) - 1)


class OneNode:
    """The plugin on a table of its own, with a node of 8 CPUs and 16 GiB."""

    def __init__(self, **args: Any) -> None:
        self.table = NodeTable(ResourceRegistry())
        decoded = decode_args(LoadAwareScheduling.name, args, LoadAwareArgs)
        columns = {spec.name: self.table.add_column(spec) for spec in LoadAwareScheduling.columns_of(decoded)}
        self.plugin = LoadAwareScheduling(decoded, Handle(self.table, FixedClock(NOW_S), columns=columns))
        self.table.add_keeper(self.plugin)
        self.last: NodeMetric | None = None
        self.set_node()

    def set_node(self, **annotations: str) -> None:
        allocatable = {"cpu": "8", "memory": "16Gi"}
        body = {
            "metadata": {"name": "n", "annotations": annotations},
            "status": {"allocatable": allocatable},
        }
        self.table.set_node(from_builtins(body, Node))

    def report(self, cpu: str, memory: str = "1Gi", *, is_dated: bool = True, **more: Any) -> None:
        info = {"nodeUsage": {"resources": {"cpu": cpu, "memory": memory}}, **more}
        status: dict[str, Any] = {"nodeMetric": info}
        if is_dated:
            status["updateTime"] = rfc3339(NOW_S)
        metric = from_builtins({"metadata": {"name": "n"}, "status": status}, NodeMetric)
        self.plugin.set_metric(self.last, metric)
        self.last = metric

    def pod(self, name: str = "p", memory_limit: str = "", **annotations: str) -> PodInfo:
        resources = {"requests": {"cpu": "1"}, "limits": {"memory": memory_limit} if memory_limit else {}}
        body = {
            "metadata": {"namespace": "default", "name": name, "uid": name, "annotations": annotations},
            "spec": {"priority": 9500, "containers": [{"name": "main", "resources": resources}]},
        }
        return PodInfo.of(from_builtins(body, Pod), self.table.registry)

    def refusal(self, pod: PodInfo | None = None) -> str:
        state = self.plugin.prepare(pod or self.pod())
        code = int(self.plugin.filter(state, self.table.rows)[0])
        return self.plugin.refusal(state, code).message if code else ""

    def score(self) -> int:
        return int(self.plugin.score(self.plugin.prepare(self.pod()), self.table.rows)[0])


def test_a_report_that_came_while_its_node_was_away_counts_when_it_is_back() -> None:
    one = OneNode()
    one.table.assign(one.pod("runs"), "n")  # so that the row stays
    one.report("1")
    one.table.remove_node("n")
    one.report("7")
    one.set_node()

    assert one.refusal() == "node(s) cpu usage exceed threshold"


def test_a_report_that_went_while_its_node_was_away_counts_no_more() -> None:
    one = OneNode()
    one.table.assign(one.pod("runs"), "n")
    one.report("7")
    one.table.remove_node("n")
    one.plugin.set_metric(one.last, None)
    one.set_node()

    assert one.refusal() == ""


def test_a_report_without_update_time_is_expired_whatever_the_last_one_said() -> None:
    one = OneNode()
    one.report("1")
    assert one.score() > 0

    one.report("1", is_dated=False)

    assert (one.refusal(), one.score()) == ("node(s) nodeMetric expired", 0)


def test_the_longest_window_counts_though_one_of_no_length_is_reported_after_it() -> None:
    def window(length: str, cpu: str) -> dict[str, Any]:
        return {"duration": length, "usage": {"p95": {"resources": {"cpu": cpu}}}}

    one = OneNode(aggregated={"usageThresholds": {"cpu": 50}, "usageAggregationType": "p95"})

    one.report("1", aggregatedNodeUsages=[window("5m0s", "7"), window("0s", "1")])

    assert one.refusal() == "node(s) cpu aggregated usage exceed threshold"


@pytest.mark.parametrize("threshold", [10**15, (1 << 63) - 1])
def test_a_threshold_beyond_all_usage_refuses_nothing(threshold: int) -> None:
    one = OneNode()
    one.report("8", "16Gi")

    one.set_node(**{labels.USAGE_THRESHOLDS: json.dumps({"usageThresholds": {"memory": threshold}})})

    assert one.refusal() == ""


def test_a_threshold_below_zero_refuses_everything() -> None:
    one = OneNode()
    one.report("0", "0")

    one.set_node(**{labels.USAGE_THRESHOLDS: json.dumps({"usageThresholds": {"memory": -1}})})

    assert one.refusal() == "node(s) memory usage exceed threshold"


def test_limits_that_mean_none_stay_within_64_bits() -> None:
    one = OneNode(prodUsageThresholds={"memory": 50})
    one.report("1")

    for number in range(200):
        one.table.assign(one.pod(f"p-{number}", NO_LIMIT), "n")

    state = one.plugin.prepare(one.pod(memory_limit=NO_LIMIT))
    ahead = np.array([199])
    assert one.plugin.filter_ahead(state, one.table.rows, ahead)[0] != 0
    assert (one.refusal(), one.score()) == ("node(s) memory usage exceed threshold", 0)


@pytest.mark.parametrize(("factor", "refusal"), [(10**18, "node(s) cpu usage exceed threshold"), (-500, "")])
def test_factors_of_pods_are_taken_within_what_can_be(factor: int, refusal: str) -> None:
    one = OneNode(allowCustomizeEstimation=True)
    one.report("1")
    pod = one.pod(**{labels.LOAD_ESTIMATED_SCALING_FACTORS: json.dumps({"cpu": factor})})

    assert one.refusal(pod) == refusal
    assert one.plugin.prepare(pod).amounts.min() >= 0


def test_usage_below_zero_scores_like_none() -> None:
    idle, below = OneNode(), OneNode()
    idle.report("0", "0")
    below.report("-1k", "-9Ei")

    assert below.score() == idle.score() <= 100
