"""Load-aware bookkeeping: sums that change with each event equal sums made anew; one row equals many."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import I64
from koordinator.clock import rfc3339
from koordinator.scheduler.plugins.load_aware import load
from koordinator.scheduler.plugins.load_aware.args import (
    LoadAwareArgs,
    LoadAwarePolicy,
    UsageAggregation,
    vector,
)
from koordinator.scheduler.plugins.load_aware.judgement import NodeLoadRulesTable, rules_of
from koordinator.scheduler.plugins.load_aware.load import AssignedPod, NodeLoad, NodeMetricReport
from koordinator.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from tests.scheduler.world import World, play, pod

AMOUNTS = st.tuples(st.integers(0, 50), st.integers(0, 50))
NAMES = [("default", f"pod-{number}") for number in range(4)]


@st.composite
def reports(draw: st.DrawFn) -> NodeMetricReport:
    reported = draw(st.dictionaries(st.sampled_from(NAMES), AMOUNTS))
    return NodeMetricReport(
        updated_s=draw(st.integers(0, 200)),
        is_dated=True,
        interval_s=60.0,
        node_usage=draw(AMOUNTS),
        system_usage=draw(AMOUNTS),
        aggregated={},
        pod_usages=reported,
        prod_pods=frozenset(name for name in reported if draw(st.booleans())),
    )


@st.composite
def assigned(draw: st.DrawFn) -> AssignedPod:
    return AssignedPod(
        name=draw(st.sampled_from(NAMES)),
        estimate=draw(AMOUNTS),
        since_s=draw(st.integers(0, 200)),
        deadline_s=draw(st.none() | st.integers(0, 300)),
        is_prod=draw(st.booleans()),
    )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.sampled_from("abcd"), assigned()),
        st.tuples(st.just("gone"), st.sampled_from("abcd"), st.none()),
        st.tuples(st.just("report"), st.just(""), reports() | st.none()),
    ),
    max_size=20,
)


def sums(load: NodeLoad) -> list[list[int]]:
    return [load.node_delta, load.prod_usage, load.prod_delta, load.node_estimated]


@settings(max_examples=200, deadline=None)
@given(steps=STEPS, include_system=st.booleans())
def test_sums_kept_by_event_equal_sums_made_anew(steps: list[tuple], include_system: bool) -> None:
    load = NodeLoad(2)
    pods: dict[str, AssignedPod] = {}
    report = None
    for what, uid, value in steps:
        if what == "pod":
            pods[uid] = value
            load.set_pod(uid, value)
        elif what == "gone":
            pods.pop(uid, None)
            load.remove_pod(uid)
        else:
            report = value
            load.set_report(value, include_system=include_system)

    anew = NodeLoad(2)
    for uid, each in pods.items():
        anew.set_pod(uid, each)
    anew.set_report(report, include_system=include_system)
    assert sums(load) == sums(anew)
    assert load.existing() == anew.existing()


@settings(max_examples=200, deadline=None)
@given(st.lists(assigned(), min_size=1, max_size=12), reports(), st.booleans())
def test_a_report_counts_each_pod_as_it_counts_alone(
    pods: list[AssignedPod], report: NodeMetricReport, include_system: bool
) -> None:
    node = NodeLoad(2)
    for number, each in enumerate(pods):
        node.set_pod(str(number), each)

    node.set_report(report, include_system=include_system)

    shares = [load.share_of(each, report, (0, 0)) for each in pods]
    system = [report.system_usage] if include_system else []
    assert sums(node) == [
        [sum(parts) for parts in zip((0, 0), *columns, strict=True)]
        for columns in (
            [each.node_delta for each in shares],
            [*system, *(each.prod_usage for each in shares)],
            [each.prod_delta for each in shares],
            [each.estimated for each in shares],
        )
    ]


BYTES = st.integers(0, 120) | st.integers(1 << 30, 1 << 40)


@given(capacity=BYTES, threshold=st.integers(-100, 100), step=st.integers(-2, 2), used=BYTES)
def test_a_limit_is_the_last_usage_within_the_threshold(
    capacity: int, threshold: int, step: int, used: int
) -> None:
    [limit] = load.limits([capacity], [threshold])

    if capacity == 0 or threshold == 0:
        assert limit is None
        return
    assert limit is not None
    for amount in (used, max(0, limit + step)):
        is_over = math.floor(amount / capacity * 100 + 0.5) > threshold
        assert (amount > limit) == is_over


@given(capacity=BYTES, threshold=st.integers(10**6, 2**63 - 1))
def test_a_threshold_that_nothing_reaches_is_a_limit_that_nothing_reaches(
    capacity: int, threshold: int
) -> None:
    [limit] = load.limits([capacity], [threshold])

    assert limit is None if capacity == 0 else limit is not None and limit >= 10_000 * capacity


COLUMNS = st.lists(st.tuples(*[BYTES for _ in range(4)]), min_size=1, max_size=8)


def scores_of(used: I64, capacity: I64, weights: list[int], dominant: int) -> I64:
    free = (capacity - used).astype(np.float64)
    divisor = np.maximum(capacity, 1).astype(np.float64)
    return load.usage_score(free, divisor, np.array(weights, np.int64), dominant)


@given(rows=COLUMNS, first=st.integers(0, 2), dominant=st.integers(0, 3))
def test_a_score_is_the_weighted_mean_of_what_is_left(
    rows: list[tuple[int, ...]], first: int, dominant: int
) -> None:
    used, capacity = np.array(rows, np.int64).T.reshape(2, 2, len(rows))

    scores = scores_of(used, capacity, [first, 1], dominant)

    for row in range(len(rows)):
        pairs = zip(used[:, row].tolist(), capacity[:, row].tolist(), strict=True)
        cpu, memory = (max(0, whole - part) * 100 // max(whole, 1) for part, whole in pairs)
        assert scores[row] == (first * cpu + memory + dominant * min(cpu, memory)) // (first + 1 + dominant)


@given(rows=COLUMNS, more=st.integers(0, 50))
def test_a_busier_node_never_scores_higher(rows: list[tuple[int, ...]], more: int) -> None:
    used, capacity = np.array(rows, np.int64).T.reshape(2, 2, len(rows))

    assert (scores_of(used + more, capacity, [1, 1], 1) <= scores_of(used, capacity, [1, 1], 1)).all()


def test_a_burst_of_pods_is_not_sent_to_the_node_that_was_cold_a_minute_ago() -> None:
    """Reports are a minute old: only the estimates of pods just placed tell the nodes apart."""

    async def story(world: World) -> None:
        world.nodes(2, cpu="16", memory="64Gi")
        for name, busy in (("node-0", "1"), ("node-1", "3")):
            world.api.put("NodeMetric", metric(world, name, busy))
        for number in range(8):
            world.api.put("Pod", pod(f"web-{number}", requests={}, priority=9500))
        await world.settle()

        places = list(world.api.placements().values())
        assert places.count("node-0") >= 5  # colder
        assert places.count("node-1") >= 1  # but not all go there

    play(story)


def test_the_first_report_counts_at_once_and_the_last_one_as_long_as_it_is_there() -> None:
    """Nobody is asked about load before anything is reported; pods of one kind share what was found then."""

    async def story(world: World) -> None:
        async def place(number: int) -> str:
            world.api.put("Pod", pod(f"web-{number}", requests={}, priority=9500))
            await world.settle()
            return str(world.api.placements()[f"web-{number}"])

        world.nodes(2, cpu="16", memory="64Gi")
        await world.settle()
        unreported = [await place(number) for number in range(4)]
        world.api.put("NodeMetric", metric(world, "node-1", "100m"))
        await world.settle()
        reported = [await place(number) for number in range(4, 10)]
        world.api.remove("NodeMetric", "node-1")
        await world.settle()
        forgotten = [await place(number) for number in range(10, 14)]

        assert set(unreported) == {"node-0", "node-1"}
        assert set(reported) == {"node-1"}  # an idle node is better than one of which nothing is known
        assert "node-0" in forgotten

    play(story)


def metric(world: World, name: str, cpu: str) -> dict[str, object]:
    usage_of_node = {"nodeUsage": {"resources": {"cpu": cpu, "memory": "1Gi"}}}
    return {
        "metadata": {"name": name},
        "status": {"updateTime": rfc3339(world.clock.now()), "nodeMetric": usage_of_node},
    }


@pytest.mark.parametrize(
    ("conditions", "args", "own", "until_s"),
    [
        pytest.param({}, {}, {}, None, id="nobody asks for it"),
        pytest.param({}, {"scheduled": 10}, {}, 1_010, id="since we saw it"),
        pytest.param({"PodScheduled": 500}, {"scheduled": 10}, {}, 510, id="since it was scheduled"),
        pytest.param(
            {"PodScheduled": 500}, {"scheduled": 10, "initialized": 5}, {}, 510, id="not initialized yet"
        ),
        pytest.param(
            {"PodScheduled": 500, "Initialized": 600},
            {"scheduled": 10, "initialized": 5},
            {},
            605,
            id="since it was initialized",
        ),
        pytest.param(
            {"Initialized": 600}, {"initialized": 5, "own": True}, {"initialized": 0}, None, id="own zero"
        ),
        pytest.param({"PodScheduled": 500}, {"own": True}, {"scheduled": 7}, 507, id="its own time"),
        pytest.param({"Initialized": 600}, {"own": True}, {"initialized": 8}, 608, id="its own after init"),
        pytest.param(
            {"PodScheduled": 500}, {"scheduled": 10, "own": True}, {"scheduled": -3}, 510, id="bad own"
        ),
        pytest.param(
            {"PodScheduled": 500}, {"scheduled": 10}, {"scheduled": 7}, 510, id="own time not allowed"
        ),
    ],
)
def test_an_estimate_holds_for_a_while_after_a_pod_was_scheduled_or_initialized(
    conditions: dict[str, float], args: dict[str, Any], own: dict[str, int], until_s: float | None
) -> None:
    names = {"scheduled": "pod-scheduled", "initialized": "initialized"}
    body = {
        "metadata": {
            "name": "p",
            "annotations": {
                f"scheduling.koordinator.sh/load-estimated-seconds-after-{names[name]}": str(seconds)
                for name, seconds in own.items()
            },
        },
        "status": {
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": rfc3339(at_s)}
                for kind, at_s in conditions.items()
            ]
        },
    }
    policy = LoadAwareArgs(
        estimated_seconds_after_pod_scheduled=args.get("scheduled", 0),
        estimated_seconds_after_initialized=args.get("initialized", 0),
        allow_customize_estimation=args.get("own", False),
    )
    found = load.assigned_pod(from_builtins(body, Pod), (1, 2), True, policy, 1_000.0)
    assert found.deadline_s == until_s
    assert found.since_s == conditions.get("PodScheduled", 1_000.0)


def test_pods_that_are_gone_are_not_remembered() -> None:
    async def story(world: World) -> None:
        world.nodes(4)
        for number in range(10):
            world.api.put("Pod", pod(f"pod-{number}"))
        await world.settle()
        assert all(world.api.placements().values())
        labelled = dict(world.api.objects["Pod"][("default", "pod-0")])
        labelled["metadata"] = labelled["metadata"] | {"labels": {labels.PRIORITY_CLASS: "koord-batch"}}
        world.api.put("Pod", labelled)  # its estimate is worked out anew
        await world.settle()
        for number in range(10):
            world.api.remove("Pod", f"pod-{number}", "default")
        world.api.put("Pod", pod("waiting", cpu="1k"))
        await world.settle()
        world.api.remove("Pod", "waiting", "default")
        await world.settle()

        (profile,) = world.scheduler.engine.profiles.values()
        plugin = next(each for each in profile.plugins if isinstance(each, LoadAwareScheduling))
        assert not plugin._recent

    play(story)


POLICY = LoadAwarePolicy.of(LoadAwareArgs(usage_thresholds={"cpu": 60}, prod_usage_thresholds={"cpu": 50}))
P95 = {"usageThresholds": {"cpu": 40}, "usageAggregationType": "p95", "usageAggregatedDuration": "5m0s"}


def node_with(thresholds: Any = None, *, cpu: str = "8", raw_cpu: str = "", batch: str = "0") -> Node:
    annotations = {}
    if thresholds is not None:
        annotations[labels.USAGE_THRESHOLDS] = (
            thresholds if isinstance(thresholds, str) else json.dumps(thresholds)
        )
    if raw_cpu:
        annotations[labels.NODE_RAW_ALLOCATABLE] = json.dumps({"cpu": raw_cpu})
    allocatable = {"cpu": cpu, "memory": "8Gi", "kubernetes.io/batch-cpu": batch}
    body = {"metadata": {"name": "n", "annotations": annotations}, "status": {"allocatable": allocatable}}
    return from_builtins(body, Node)


@pytest.mark.parametrize(
    ("own", "usage", "prod", "aggregation"),
    [
        pytest.param(None, 60, 50, None, id="those of the policy"),
        pytest.param({}, 60, 50, None, id="an annotation that says nothing"),
        pytest.param({"usageThresholds": {"cpu": 30}}, 30, 50, None, id="its own"),
        pytest.param({"prodUsageThresholds": {"cpu": 20}}, 60, 20, None, id="its own for prod pods"),
        pytest.param({"aggregatedUsage": P95}, 40, 50, UsageAggregation("p95", 300.0), id="of a percentile"),
        pytest.param(
            {"usageThresholds": {"cpu": 30}, "aggregatedUsage": P95},
            40,
            50,
            UsageAggregation("p95", 300.0),
            id="a percentile comes first",
        ),
        pytest.param(
            {"aggregatedUsage": {**P95, "usageThresholds": {}}}, 60, 50, None, id="a percentile of nothing"
        ),
        pytest.param(
            {"aggregatedUsage": {"usageThresholds": {"cpu": 40}}}, 60, 50, None, id="of no percentile"
        ),
        pytest.param("{", 60, 50, None, id="malformed"),
    ],
)
def test_thresholds_of_a_node_come_before_those_of_the_policy(
    own: Any, usage: int, prod: int, aggregation: UsageAggregation | None
) -> None:
    rules = rules_of(node_with(own), POLICY)

    assert rules.thresholds == vector(POLICY.names, {"cpu": usage})
    assert rules.prod_thresholds == vector(POLICY.names, {"cpu": prod})
    assert rules.aggregation == aggregation


@given(
    nodes=st.lists(
        st.builds(
            node_with,
            st.sampled_from([None, {"usageThresholds": {"cpu": 30}}, {"prodUsageThresholds": {"cpu": 20}}]),
            cpu=st.sampled_from(["8", "16"]),
            raw_cpu=st.sampled_from(["", "4"]),
            batch=st.sampled_from(["0", "1000"]),
        ),
        max_size=6,
    )
)
def test_rules_that_alike_nodes_share_are_those_of_each(nodes: list[Node]) -> None:
    table = NodeLoadRulesTable(POLICY)

    assert [table.of(node) for node in nodes] == [rules_of(node, POLICY) for node in nodes]
