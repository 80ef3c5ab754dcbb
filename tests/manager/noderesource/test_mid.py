"""Mid resources: what is lent, and that it is never more than there is."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetricStatus
from koordinator.api.slo_config import ColocationStrategy
from koordinator.manager.config.colocation_config import MidPolicy, mid_policy
from koordinator.manager.noderesource import account, decide
from koordinator.manager.noderesource.decide import MidInputs

CAPACITY_MAX = 2**40
ROW = st.tuples(st.integers(0, CAPACITY_MAX), st.integers(0, CAPACITY_MAX))
SIGNED = st.tuples(st.integers(-CAPACITY_MAX, CAPACITY_MAX), st.integers(-CAPACITY_MAX, CAPACITY_MAX))
PERCENT = st.integers(0, 100)
POLICY = st.builds(
    MidPolicy,
    is_static=st.booleans(),
    cpu_cap_percent=PERCENT,
    memory_cap_percent=PERCENT,
    unallocated_percent=PERCENT,
    static_cpu_percent=st.integers(0, 200),
    static_memory_percent=st.integers(0, 200),
)
ROWS = st.lists(
    st.tuples(ROW, ROW, ROW, ROW, SIGNED, st.tuples(st.booleans(), st.booleans())), min_size=1, max_size=6
)
Rows = list[tuple[tuple[int, int], ...]]


def inputs_of(rows: Rows) -> MidInputs:
    columns = np.array(rows, np.int64).transpose(1, 0, 2)
    return MidInputs(*columns[:5], *columns[5].astype(np.bool_).T)


def lent_of(inputs: MidInputs, policy: MidPolicy) -> decide.I64:
    return decide.mid_row_terms(inputs, decide.columns([policy])).lent


@given(rows=ROWS, policy=POLICY)
def test_many_nodes_give_what_each_gives_alone(rows: Rows, policy: MidPolicy) -> None:
    together = lent_of(inputs_of(rows), policy)

    alone = [lent_of(inputs_of([row]), policy)[0] for row in rows]
    assert together.tolist() == [row.tolist() for row in alone]


@given(rows=ROWS, policy=POLICY)
def test_no_node_lends_less_than_nothing_or_more_than_its_cap(rows: Rows, policy: MidPolicy) -> None:
    inputs = inputs_of(rows)

    lent = lent_of(inputs, policy)

    whole_bytes = -(-inputs.capacity[:, 1] // 1000) * 1000
    assert (lent >= 0).all()
    assert (lent[:, 0] <= inputs.capacity[:, 0] * policy.cpu_cap_percent / 100).all()
    assert (lent[:, 1] <= whole_bytes * policy.memory_cap_percent / 100).all()


@given(row=ROWS.map(lambda rows: rows[0]), more=ROW, policy=POLICY)
def test_a_busier_node_never_lends_more(row: Rows, more: tuple[int, int], policy: MidPolicy) -> None:
    capacity, reserved, request, usage, reclaimable, flags = row
    busier = (usage[0] + more[0], usage[1] + more[1])

    calm = lent_of(inputs_of([(capacity, reserved, request, usage, reclaimable, flags)]), policy)
    busy = lent_of(inputs_of([(capacity, reserved, request, busier, reclaimable, flags)]), policy)

    assert (busy <= calm).all()


def node_of(status: dict[str, Any]) -> decide.NodeInputs:
    """A node of 10 cores and 10G without pods, with a report."""
    report = account.report_of(from_builtins(status, NodeMetricStatus))
    return decide.NodeInputs(account.node_facts(_node()), report, account.node_demand({}, report))


def test_without_any_report_nothing_counts_as_unallocated() -> None:
    (row,) = decide.mid_terms([node_of({})], [MidPolicy(unallocated_percent=100)]).lent

    assert row.tolist() == [0, 0]


def test_an_absurd_report_of_one_node_leaves_the_others_alone() -> None:
    usage = {"resources": {"cpu": "8E", "memory": "8E"}}
    absurd = node_of({"nodeMetric": {"nodeUsage": usage}, "prodReclaimableMetric": {"resource": usage}})
    calm = node_of(
        {
            "nodeMetric": {"nodeUsage": {"resources": {"cpu": "1", "memory": "1G"}}},
            "prodReclaimableMetric": {"resource": {"resources": {"cpu": "4", "memory": "2G"}}},
        }
    )

    first, second = decide.mid_terms([absurd, calm], [MidPolicy()]).lent

    assert first.tolist() == [0, 0]
    assert second.tolist() == [4_000, 2 * 10**12]


def test_only_prod_applications_outside_of_pods_keep_mid_resources_away() -> None:
    usage = {"resources": {"cpu": "5", "memory": "1G"}}
    apps = [{"name": name, "usage": usage, "priority": f"koord-{name}"} for name in ("prod", "mid", "batch")]

    report = node_of({"nodeMetric": {}, "hostApplicationMetric": apps}).report

    assert report.prod_system_usage == (5_000, 10**12)
    assert report.system_usage == (10_000 * account.NANO_PER_MILLI, 2 * 10**12)


@pytest.mark.parametrize(
    ("priority", "phase", "counts"),
    [
        pytest.param(9_000, "Running", True, id="prod pods are services"),
        pytest.param(100, "Pending", True, id="so are pods without a class that ask for something"),
        pytest.param(7_000, "Running", False, id="mid pods live on mid resources"),
        pytest.param(5_000, "Running", False, id="batch pods live on batch resources"),
        pytest.param(9_000, "Succeeded", False, id="a pod that has ended holds nothing"),
    ],
)
def test_service_request(priority: int, phase: str, counts: bool) -> None:
    requests = {"cpu": "2", "memory": "1k"}
    pod = from_builtins(
        {
            "metadata": {"name": "p", "namespace": "d"},
            "spec": {
                "priority": priority,
                "containers": [{"name": "c", "resources": {"requests": requests}}],
            },
            "status": {"phase": phase},
        },
        Pod,
    )

    facts = account.pod_facts(pod)

    pods = {} if facts is None else {pod.key: facts}
    found = account.node_demand(pods, account.EMPTY_REPORT).service_request
    assert found == ((2_000, 1_000_000) if counts else (0, 0))


def test_what_a_strategy_leaves_open_is_the_default() -> None:
    assert mid_policy(ColocationStrategy(mid_unallocated_percent=7)) == MidPolicy(unallocated_percent=7)
    assert mid_policy(ColocationStrategy(mid_reclaim_mode="static")).is_static


def _node() -> Node:
    amounts = {"cpu": "10", "memory": "10G"}
    return from_builtins(
        {"metadata": {"name": "n1"}, "status": {"capacity": amounts, "allocatable": amounts}}, Node
    )
