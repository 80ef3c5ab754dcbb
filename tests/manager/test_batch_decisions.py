"""Batch resources: what is lent never exceeds what is there, and one node cannot spoil another."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import resources
from koordinator.manager.noderesource import batch, decide
from koordinator.manager.noderesource.account import MetricFacts, NodeFacts, PodFacts
from koordinator.manager.noderesource.batch import BatchInputs, CalculatePolicy, ReclaimPolicy

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


def node(capacity: tuple[int, int], used: tuple[int, int], *pods: PodFacts) -> decide.NodeInputs:
    usage = {pod.key: used for pod in pods}
    return decide.NodeInputs(
        NodeFacts(capacity, (0, 0)), MetricFacts((0, 0), usage, frozenset(usage)), list(pods)
    )


def service(request: tuple[int, int], key: str = "default/web") -> PodFacts:
    return PodFacts(key, True, request, False, ())


@given(capacity=amounts, used=amounts, request=amounts, policy=policies)
def test_at_most_the_threshold_of_the_capacity_is_lent(
    capacity: tuple[int, int], used: tuple[int, int], request: tuple[int, int], policy: ReclaimPolicy
) -> None:
    (found,) = decide.calculate([node(capacity, used, service(request))], policy)

    # One whole unit of rounding, since memory is scaled in whole bytes.
    cpu_max = capacity[0] * max(policy.cpu_percent, 0) / 100 + 1
    memory_max = capacity[1] * max(policy.memory_percent, 0) / 100 + batch.MILLI
    assert 0 <= found.amounts[resources.BATCH_CPU] / batch.MILLI <= cpu_max
    assert 0 <= found.amounts[resources.BATCH_MEMORY] <= memory_max


@given(capacity=amounts, calm=amounts, more=amounts, request=amounts, policy=policies)
def test_busier_services_never_lend_more(
    capacity: tuple[int, int],
    calm: tuple[int, int],
    more: tuple[int, int],
    request: tuple[int, int],
    policy: ReclaimPolicy,
) -> None:
    busy = (calm[0] + more[0], calm[1] + more[1])
    idle_node, busy_node = (node(capacity, used, service(request)) for used in (calm, busy))

    less, lent = decide.calculate([busy_node, idle_node], policy)

    for name in resources.BATCH_RESOURCES:
        assert less.amounts[name] <= lent.amounts[name]


@given(st.lists(st.tuples(amounts, amounts, amounts), min_size=1, max_size=8), policies)
def test_many_nodes_at_once_are_as_each_alone(
    rows: list[tuple[tuple[int, int], ...]], policy: ReclaimPolicy
) -> None:
    nodes = [node(capacity, used, service(request)) for capacity, used, request in rows]

    together = decide.calculate(nodes, policy)

    assert together == [decide.calculate([alone], policy)[0] for alone in nodes]


def test_an_absurd_report_of_one_node_leaves_the_others_alone() -> None:
    sane = node((100_000, 1_000_000), (10_000, 100_000), service((20_000, 200_000)))
    absurd = node((100_000, 1_000_000), (10**40, 10**40), service((20_000, 200_000)))

    first, second = decide.calculate([absurd, sane], ReclaimPolicy())

    assert set(first.amounts.values()) == {0}
    assert second.amounts == decide.calculate([sane], ReclaimPolicy())[0].amounts


def test_a_pod_bound_to_a_zone_counts_there_alone() -> None:
    bound = batch.PodDemand(request=(4_000, 4_000), used=(2_000, 2_000), zones=(1,))
    spread = batch.PodDemand(request=(1_000, 1_000), used=None)

    demand = batch.sum_zone_demand([bound, spread], [], 2)

    assert demand.used.tolist() == [[500, 500], [2_500, 2_500]]
    assert demand.request.sum() == 2 * (4_000 + 1_000)


def test_policy_text_that_nobody_knows_means_usage() -> None:
    assert CalculatePolicy.parse("guess") is CalculatePolicy.USAGE
    zero = np.zeros((1, 2), np.int64)
    capacity = np.full((1, 2), 100_000, np.int64)
    inputs = BatchInputs(capacity, zero, zero, capacity, zero, capacity)

    by_request = ReclaimPolicy(cpu_policy=CalculatePolicy.REQUEST)
    assert batch.batch_allocatable(inputs, by_request)[0, batch.CPU] == 60_000
