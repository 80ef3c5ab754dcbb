"""Batch resources: what is lent never exceeds what is there, and one node cannot spoil another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetricStatus
from koordinator.manager.config.colocation_config import CalculatePolicy, ReclaimPolicy
from koordinator.manager.noderesource import account, batch, decide
from koordinator.manager.noderesource.account import (
    NANO_PER_MILLI,
    AccountedNode,
    AccountedPod,
    MetricFigures,
)
from koordinator.manager.noderesource.batch import BatchInputs

milli = st.integers(0, 200_000)
amounts = st.tuples(milli, milli)
policies = st.builds(
    ReclaimPolicy,
    cpu_percent=st.integers(0, 120),
    memory_percent=st.integers(0, 120),
    cpu_policy=st.sampled_from(CalculatePolicy),
    memory_policy=st.sampled_from(CalculatePolicy),
    cpu_cap_percent=st.none() | st.integers(0, 100),
    memory_cap_percent=st.none() | st.integers(0, 100),
)


def node(capacity: account.Amount, used: account.Amount, request: account.Amount) -> decide.NodeInputs:
    """A node with one service, which the report knows."""
    report = MetricFigures({"default/web": (used[0] * NANO_PER_MILLI, used[1], True)}, has_node=True)
    pods = {"default/web": AccountedPod(True, request)}
    return decide.NodeInputs(AccountedNode(capacity, (0, 0)), report, account.node_demand(pods, report))


@given(capacity=amounts, used=amounts, request=amounts, policy=policies)
def test_at_most_the_threshold_of_the_capacity_is_lent(
    capacity: tuple[int, int], used: tuple[int, int], request: tuple[int, int], policy: ReclaimPolicy
) -> None:
    (found,) = decide.batch_amounts([node(capacity, used, request)], [policy])

    # One whole unit of rounding, since memory is scaled in whole bytes.
    cpu_max = capacity[0] * max(policy.cpu_percent, 0) / 100 + 1
    memory_max = capacity[1] * max(policy.memory_percent, 0) / 100 + batch.MILLI
    assert 0 <= found[batch.CPU] <= cpu_max
    assert 0 <= found[batch.MEMORY] <= memory_max


@given(capacity=amounts, calm=amounts, more=amounts, request=amounts, policy=policies)
def test_busier_services_never_lend_more(
    capacity: tuple[int, int],
    calm: tuple[int, int],
    more: tuple[int, int],
    request: tuple[int, int],
    policy: ReclaimPolicy,
) -> None:
    busy = (calm[0] + more[0], calm[1] + more[1])
    idle_node, busy_node = (node(capacity, used, request) for used in (calm, busy))

    less, lent = decide.batch_amounts([busy_node, idle_node], [policy])

    assert (less <= lent).all()


@given(st.lists(st.tuples(amounts, amounts, amounts, policies), min_size=1, max_size=8))
def test_many_nodes_of_many_policies_at_once_are_as_each_alone(
    rows: list[tuple[tuple[int, int], tuple[int, int], tuple[int, int], ReclaimPolicy]],
) -> None:
    nodes = [node(*amounts_of) for *amounts_of, _ in rows]
    their = [policy for *_, policy in rows]

    together = decide.batch_amounts(nodes, their)

    alone = [decide.batch_amounts([one], [policy])[0] for one, policy in zip(nodes, their, strict=True)]
    assert together.tolist() == [row.tolist() for row in alone]


def test_an_absurd_report_of_one_node_leaves_the_others_alone() -> None:
    sane = node((100_000, 1_000_000), (10_000, 100_000), (20_000, 200_000))
    absurd = node((100_000, 1_000_000), (10**40, 10**40), (20_000, 200_000))

    first, second = decide.batch_amounts([absurd, sane], [ReclaimPolicy()])

    assert first.tolist() == [0, 0]
    assert second.tolist() == decide.batch_amounts([sane], [ReclaimPolicy()])[0].tolist()


@pytest.mark.parametrize("percent", [10**30, -(10**30)])
def test_an_absurd_percentage_overflows_nothing(percent: int) -> None:
    policy = ReclaimPolicy(percent, percent, cpu_cap_percent=100, memory_cap_percent=100)
    huge = node((account.AMOUNT_MAX, account.AMOUNT_MAX), (0, 0), (0, 0))

    (found,) = decide.batch_amounts([huge], [policy])

    assert (found >= 0).all() and (found <= account.AMOUNT_MAX + batch.MILLI).all()


def test_a_pod_bound_to_a_zone_counts_there_alone() -> None:
    pods = {
        "d/bound": AccountedPod(True, (4_000, 4_000), zones=(1,)),
        "d/spread": AccountedPod(True, (1_000, 1_000)),
    }
    report = MetricFigures({"d/bound": (2_000 * NANO_PER_MILLI, 2_000, True)})

    first, second = account.zone_demands(pods, report, 2)

    assert (first[:2], second[:2]) == ((500, 500), (4_500, 4_500))  # requested
    assert (first[2:4], second[2:4]) == ((500, 500), (2_500, 2_500))  # used


def test_a_zone_named_twice_holds_the_part_of_one_entry() -> None:
    pods = {"d/bound": AccountedPod(True, (4_000, 4_000), zones=(1, 1, 7))}

    first, second = account.zone_demands(pods, MetricFigures({}), 2)

    assert (first[:2], second[:2]) == ((0, 0), (2_000, 2_000))


@pytest.mark.parametrize(
    ("used_cpu", "expected"),
    [
        pytest.param(2_000, 4_000, id="idle: its request"),
        pytest.param(6_000, 6_000, id="busy: its use, which is more than its request"),
    ],
)
@pytest.mark.parametrize("zones", [(0,), ()], ids=["bound to a zone", "spread"])
def test_the_larger_of_request_and_use_is_that_of_an_lse_pod_too(
    used_cpu: int, expected: int, zones: tuple[int, ...]
) -> None:
    pods = {"d/lse": AccountedPod(True, (4_000, 4_000), is_exclusive=True, zones=zones)}
    report = MetricFigures({"d/lse": (used_cpu * NANO_PER_MILLI, 1_000, True)})

    node_level = account.node_demand(pods, report)
    per_zone = account.zone_demands(pods, report, 2)

    assert node_level.used[0] == 4_000 * NANO_PER_MILLI and sum(zone[2] for zone in per_zone) == 4_000
    assert node_level.maximum[0] == expected * NANO_PER_MILLI
    assert sum(zone[4] for zone in per_zone) == expected


@pytest.mark.parametrize("policy", [CalculatePolicy.USAGE, CalculatePolicy.MAX_USAGE_REQUEST])
def test_measured_cpu_is_rounded_once_however_many_pods_there_are(policy: CalculatePolicy) -> None:
    def status(pods: int, cpu: str, system: str) -> NodeMetricStatus:
        usage = {"resources": {"cpu": cpu, "memory": "1Mi"}}
        return from_builtins(
            {
                "nodeMetric": {"systemUsage": {"resources": {"cpu": system, "memory": "0"}}},
                "podsMetric": [{"name": str(at), "namespace": "d", "podUsage": usage} for at in range(pods)],
            },
            NodeMetricStatus,
        )

    def lent(body: NodeMetricStatus) -> int:
        report = account.report_of(body)
        known = decide.NodeInputs(
            AccountedNode((100_000, 10**12), (0, 0)), report, account.node_demand({}, report)
        )
        strategy = ReclaimPolicy(cpu_percent=100, cpu_policy=policy)
        return int(decide.batch_amounts([known], [strategy])[0, batch.CPU])

    # 100 pods of 10.0004 m and 0.3 m of the system: 1000.34 m, so 98,999.66 m are left, 99,000 in whole ones.
    assert lent(status(100, "10000400n", "300u")) == 99_000
    assert lent(status(1, "1000040000n", "300u")) == 99_000
    assert lent(status(1, "1000999999n", "1n")) == 98_999


def test_policy_text_that_nobody_knows_means_usage() -> None:
    assert CalculatePolicy.parse("guess") is CalculatePolicy.USAGE
    zero = np.zeros((1, 2), np.int64)
    capacity = np.full((1, 2), 100_000, np.int64)
    inputs = BatchInputs(capacity, zero, capacity, zero, capacity)

    by_request = ReclaimPolicy(cpu_policy=CalculatePolicy.REQUEST)
    assert batch.batch_terms(inputs, batch.columns([by_request])).lent[0, batch.CPU] == 60_000


def test_a_pod_that_is_not_reported_yet_counts_with_its_request_under_every_policy() -> None:
    pods = {"d/new": AccountedPod(True, (4_000, 4_000))}

    found = account.node_demand(pods, MetricFigures({}))

    assert found.request == (4_000, 4_000)
    assert found.used == found.maximum == (4_000 * NANO_PER_MILLI, 4_000)


@pytest.mark.parametrize(
    ("old", "new", "is_due"),
    [
        pytest.param(20_000, 22_000, False, id="a change by exactly the threshold waits"),
        pytest.param(20_000, 22_001, True, id="one thousandth more is written"),
        pytest.param(20_000, 18_000, False, id="downwards alike"),
        pytest.param(20_000, 17_999, True, id="downwards, beyond the threshold"),
        pytest.param(0, 1, True, id="anything differs from nothing"),
        pytest.param(0, None, True, id="an amount that goes"),
    ],
)
def test_changes_beyond_the_threshold_are_written(old: int, new: int | None, is_due: bool) -> None:
    assert batch.differs(old, new, 0.1) is is_due
