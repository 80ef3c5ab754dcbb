"""What LowNodeLoad promises whatever the cluster looks like: generated nodes, pods and usage."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator import clock
from koordinator.api import interference, labels
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetric
from koordinator.descheduler.config.low_node_load import AnomalyCondition
from koordinator.descheduler.measurements import Observation, measured
from koordinator.descheduler.plugin import EvictAction
from koordinator.descheduler.plugins.built_in import BUILT_IN
from koordinator.descheduler.plugins.low_node_load.cycle import (
    BalanceOutcome,
    Detectors,
    LowNodeLoad,
    PoolReport,
)
from koordinator.descheduler.plugins.low_node_load.usage import NodeClass
from tests.descheduler.builders import NOW_S, handle, metric, node, pod
from tests.vectors.adapters.descheduler_plugins import drive

ARGS: dict[str, Any] = {
    "lowThresholds": {"cpu": 30},
    "highThresholds": {"cpu": 60},
    "anomalyCondition": {"consecutiveAbnormalities": 1},
}
HIGH_MILLI = 6000  # 60 % of 10 cores

Usage = dict[str, list[int]]

usages = st.lists(st.lists(st.integers(1, 4000), max_size=6), min_size=2, max_size=6).map(
    lambda lists: {f"n{index}": usage for index, usage in enumerate(lists)}
)


def observe(usage: Usage) -> Observation:
    pods = {name: [pod(f"{name}-{i}", name) for i in range(len(own))] for name, own in usage.items()}
    return Observation(
        now_s=NOW_S,
        nodes=[node(name) for name in usage],
        pods_of=pods,
        metrics={
            name: metric({f"{name}-{i}": milli for i, milli in enumerate(own)}) for name, own in usage.items()
        },
    )


def first_pool(seen: Observation, args: dict[str, Any], refused: set[str] = frozenset()) -> PoolReport:  # type: ignore[assignment]
    plugin = LowNodeLoad(BUILT_IN["LowNodeLoad"].read(args), handle(lambda one: one.key not in refused))
    report: PoolReport = drive(plugin.balance(seen), lambda _: True)[0]
    return report


def milli_of(usage: Usage, one: Pod) -> int:
    name, _, index = one.metadata.name.partition("-")
    return usage[name][int(index)]


@settings(max_examples=60, deadline=None)
@given(usages)
def test_pods_leave_only_nodes_above_the_high_threshold_and_no_more_than_needed(usage: Usage) -> None:
    report = first_pool(observe(usage), ARGS)
    left = {name: sum(own) for name, own in usage.items()}
    for eviction in report.evicted:
        source = eviction.pod.spec.node_name
        assert left[source] > HIGH_MILLI  # the node was still hot when this pod was chosen
        left[source] -= milli_of(usage, eviction.pod)


@settings(max_examples=60, deadline=None)
@given(usages)
def test_what_is_evicted_fits_below_the_high_threshold_of_the_cold_nodes(usage: Usage) -> None:
    report = first_pool(observe(usage), ARGS)
    room = sum(HIGH_MILLI - sum(own) for own in usage.values() if sum(own) <= 3000)
    assert sum(milli_of(usage, one.pod) for one in report.evicted) <= room


@settings(max_examples=40, deadline=None)
@given(usages)
def test_a_refused_pod_never_moves_and_nothing_moves_twice(usage: Usage) -> None:
    seen = observe(usage)
    refused = {one.key for own in seen.pods_of.values() for one in own[::2]}
    moved = [one.pod.key for one in first_pool(seen, ARGS, refused).evicted]
    assert refused.isdisjoint(moved)
    assert len(set(moved)) == len(moved)


@settings(max_examples=40, deadline=None)
@given(usages)
def test_a_dry_run_asks_for_nothing_and_reports_what_a_real_run_does(usage: Usage) -> None:
    asked: list[EvictAction] = []
    plugin = LowNodeLoad(BUILT_IN["LowNodeLoad"].read({**ARGS, "dryRun": True}), handle())
    report = drive(plugin.balance(observe(usage)), lambda one: bool(asked.append(one)) or True)[0]
    assert not asked
    assert report.evicted == first_pool(observe(usage), ARGS).evicted


@pytest.mark.parametrize("what", ["usage", "capacity"])
def test_a_node_with_amounts_that_cannot_be_true_is_left_out_and_hinders_nobody(what: str) -> None:
    usage = {"n0": [2000] * 4, "n1": [100], "n2": [2000] * 4}
    seen = observe(usage)
    if what == "usage":
        absurd = {f"n2-{index}": 10**30 for index in range(4)}
        seen = msgspec.structs.replace(seen, metrics={**seen.metrics, "n2": metric(absurd)})
    else:
        nodes = [node("n0"), node("n1"), node("n2", cpu="1e30")]
        seen = msgspec.structs.replace(seen, nodes=nodes)
    report = first_pool(seen, ARGS)
    assert [one.pod.spec.node_name for one in report.evicted] == ["n0"]
    assert report.found is not None and len(report.found.loads) == 2


@pytest.mark.parametrize("raw", ["null", " null\n", "{", "[]"])
def test_a_capacity_before_amplification_that_says_nothing_leaves_the_allocatable(raw: str) -> None:
    seen = observe({"n0": [2000] * 4, "n1": [100]})
    metadata = msgspec.structs.replace(node("n1").metadata, annotations={labels.NODE_RAW_ALLOCATABLE: raw})
    nodes = [node("n0"), msgspec.structs.replace(node("n1"), metadata=metadata)]
    report = first_pool(msgspec.structs.replace(seen, nodes=nodes), ARGS)
    assert report.found is not None and report.found.names(NodeClass.BOTH_LOW) == ["n1"]
    assert [one.pod.spec.node_name for one in report.evicted] == ["n0"]


def test_a_reason_leaves_out_what_has_no_high_threshold_and_tells_no_part_of_nothing() -> None:
    seen = observe({"n0": [2000] * 4, "n1": [100]})
    distances = {**ARGS, "useDeviationThresholds": True, "lowThresholds": {"cpu": 5, "pods": 1}}
    one = first_pool(seen, {**distances, "highThresholds": {"cpu": 5}}).evicted[0]
    assert one.reason == "node is overutilized, node cpu usage(80.00%)>threshold(5.00%)"

    nodes = [node("n0", cpu="0"), node("n1")]
    one = first_pool(msgspec.structs.replace(seen, nodes=nodes), ARGS).evicted[0]
    assert one.reason == "node is overutilized, node cpu usage(0.00%)>threshold(60.00%)"


def test_a_threshold_as_high_as_anybody_likes_is_never_exceeded() -> None:
    report = first_pool(observe({"n0": [2000] * 4, "n1": [100]}), {**ARGS, "highThresholds": {"cpu": 1e18}})
    assert report.outcome is BalanceOutcome.NO_SOURCE


@settings(max_examples=40, deadline=None)
@given(usages, st.sets(st.sampled_from([f"n{i}" for i in range(6)])))
def test_a_cordoned_node_is_never_a_target(usage: Usage, cordoned: set[str]) -> None:
    seen = observe(usage)
    nodes = [node(name, unschedulable=name in cordoned) for name in usage]
    found = first_pool(Observation(NOW_S, nodes, seen.pods_of, seen.metrics), ARGS).found
    assert found is not None
    for cls in (NodeClass.LOW, NodeClass.PROD_LOW, NodeClass.BOTH_LOW):
        assert cordoned.isdisjoint(found.names(cls))


@pytest.mark.parametrize("phase", ["to-batch", "to-online"])
def test_a_node_that_changes_the_side_of_its_tidal_pool_is_neither_source_nor_target(phase: str) -> None:
    seen = observe({"hot": [4000, 3000], "cold": [100], "turning": [4000, 4000], "emptied": []})
    for one in seen.nodes:
        if one.metadata.name in ("turning", "emptied"):
            one.metadata.labels[labels.TIDAL_PHASE] = phase
    report = first_pool(seen, ARGS)
    assert report.found is not None
    assert [load.name for load in report.found.loads] == ["hot", "cold"]
    assert {eviction.pod.spec.node_name for eviction in report.evicted} == {"hot"}


def told(seen: Observation, **by_node: dict[str, Any]) -> Observation:
    """The same with what nodes tell of services that suffer."""
    at, until = clock.rfc3339(NOW_S), clock.rfc3339(NOW_S + 600)
    metrics = dict(seen.metrics)
    for name, own in by_node.items():
        pairs = [
            {"victim": "default/Deployment/web", "culprit": each, "until": until} for each in own["culprits"]
        ]
        body = {"percent": own.get("percent", 80), "at": at, "pairs": pairs}
        found = from_builtins(body, interference.NodeInterference)
        metrics[name] = msgspec.structs.replace(metrics[name], interference=found)
    return Observation(seen.now_s, seen.nodes, seen.pods_of, metrics)


@settings(max_examples=40, deadline=None)
@given(usages)
def test_who_makes_services_suffer_leaves_first_and_nothing_else_changes(usage: Usage) -> None:
    seen = observe(usage)
    for own in seen.pods_of.values():
        for one in own[1:2]:
            one.metadata.owner_references[0] = msgspec.structs.replace(
                one.metadata.owner_references[0], kind="Job", name="train"
            )
    before = first_pool(seen, ARGS)
    hints = told(
        seen, **{name: {"culprits": ["default/Job/train"]} for name in usage if sum(usage[name]) > HIGH_MILLI}
    )
    after = first_pool(hints, ARGS)

    assert before.found is not None and after.found is not None
    assert before.found.classes.tolist() == after.found.classes.tolist()
    for name in usage:
        moved = [one.pod.metadata.name for one in after.evicted if one.pod.spec.node_name == name]
        assert f"{name}-1" not in moved[1:], "the culprit is the first who goes"


def test_a_node_whose_services_suffer_is_no_target() -> None:
    seen = told(observe({"hot": [4000, 3000], "held-back": [100]}), **{"held-back": {"culprits": []}})
    assert first_pool(seen, ARGS).outcome is BalanceOutcome.NO_TARGET

    faded = told(observe({"hot": [4000, 3000], "calm": [100]}), calm={"culprits": [], "percent": 30})
    assert first_pool(faded, ARGS).outcome is BalanceOutcome.BALANCED


def test_a_hint_that_cannot_be_read_is_none() -> None:
    body = {"status": {"nodeMetric": {}, "extensions": {"interference": {"percent": 500}}}}
    found = measured(from_builtins(body, NodeMetric))
    assert found.interference is None and not found.problem


def test_a_malformed_metric_leaves_out_its_node_only() -> None:
    seen = observe({"hot": [4000, 3000], "cold": [100], "odd": [100]})
    body = {"nodeMetric": {"systemUsage": {"resources": {"cpu": "much"}}}, "updateTime": clock.rfc3339(NOW_S)}
    broken = measured(from_builtins({"status": body}, NodeMetric))
    report = first_pool(Observation(NOW_S, seen.nodes, seen.pods_of, {**seen.metrics, "odd": broken}), ARGS)
    assert report.found is not None
    assert [load.name for load in report.found.loads] == ["hot", "cold"]
    assert report.outcome is BalanceOutcome.BALANCED


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 5), st.integers(1, 5))
def test_an_anomaly_needs_more_marks_than_the_rule_says(
    marks: list[bool], abnormal: int, normal: int
) -> None:
    detectors = Detectors(ttl_s=0)
    rule = AnomalyCondition(
        timeout="1000000000s", consecutive_abnormalities=abnormal, consecutive_normalities=normal
    )
    seen = 0
    for now_s, mark in enumerate(marks):
        if mark:
            seen += 1
            if detectors.mark_abnormal("n", rule, now_s):
                assert seen > abnormal
        else:
            detectors.mark_normal("n", now_s)
            detectors.reset(["other"], now_s)
