"""Sums over columns are those that the manager makes node by node, pod by pod."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koordinator.manager.config.colocation_config import CalculatePolicy, ReclaimPolicy
from koordinator.manager.noderesource import batch, columns, decide
from koordinator.manager.noderesource.account import (
    AccountedNode,
    AccountedPod,
    MetricFigures,
    node_demand,
)
from koordinator.manager.noderesource.columns import NodeColumns, PodColumns
from koordinator.manager.noderesource.decide import NodeInputs

MILLI_CORES = st.integers(0, 128_000)
NANO_CORES = st.integers(0, 128 * 10**9)
MEMORY = st.integers(0, 2**50)
POD = st.tuples(st.tuples(MILLI_CORES, MEMORY), st.none() | st.tuples(NANO_CORES, MEMORY), st.booleans())
NODE = st.tuples(
    st.tuples(MILLI_CORES, MEMORY),
    st.tuples(MILLI_CORES, MEMORY),
    st.tuples(NANO_CORES, MEMORY),
    st.lists(POD, max_size=4),
)
POLICY = st.builds(
    ReclaimPolicy,
    st.integers(0, 120),
    st.integers(0, 120),
    st.sampled_from(CalculatePolicy),
    st.sampled_from(CalculatePolicy),
    st.none() | st.integers(0, 100),
    st.none() | st.integers(0, 100),
)


@given(st.lists(NODE, min_size=1, max_size=4), POLICY)
def test_whole_clusters_lend_what_node_by_node_is_decided(
    nodes: list[tuple[tuple[int, int], tuple[int, int], tuple[int, int], list]],  # type: ignore[type-arg]
    policy: ReclaimPolicy,
) -> None:
    inputs, rows = [], []
    for row, (capacity, reserved, system, pods) in enumerate(nodes):
        report = MetricFigures(
            {f"d/p{i}": (*used, True) for i, (_, used, _) in enumerate(pods) if used is not None}, system
        )
        known = {f"d/p{i}": AccountedPod(True, asked, lse) for i, (asked, _, lse) in enumerate(pods)}
        inputs.append(NodeInputs(AccountedNode(capacity, reserved), report, node_demand(known, report)))
        rows += [(row, asked, used or (0, 0), lse, used is not None) for asked, used, lse in pods]
    all_pods = PodColumns(
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.int64).reshape(-1, 2),
        np.array([row[3] for row in rows], np.bool_),
        np.array([row[4] for row in rows], np.bool_),
    )
    facts = NodeColumns(*(np.array([node[at] for node in nodes], np.int64) for at in range(3)))

    asked = columns.requested(all_pods, len(nodes))
    usage = np.array([row[2] for row in rows], np.int64).reshape(-1, 2)
    found = columns.batch_terms(facts, columns.demand(all_pods, usage, asked), batch.columns([policy]))

    assert found.lent.tolist() == decide.batch_amounts(inputs, [policy]).tolist()
