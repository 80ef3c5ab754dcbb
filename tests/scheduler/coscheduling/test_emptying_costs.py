"""What it costs to empty a node for a job: each job on it once, and nothing for those that lose pods anyway."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koordinator.scheduler.plugins.coscheduling.jobs import DrainCosts

NODES = 4
PODS = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.integers(-2, 2), st.integers(0, 5).map(lambda job: 10 * job)),
    max_size=12,
)


def slow_costs(pods: list[Any], hit: set[int]) -> tuple[list[int], list[int]]:
    """Ranks and jobs of each node, looked up anew for each."""
    priorities = sorted({priority for _, priority, _ in pods})
    lost = {job for node, _, job in pods if node in hit}
    ranks, counts = [], []
    for at in range(NODES):
        tops: dict[int, int] = {}
        for node, priority, job in pods:
            if node == at and job not in lost:
                tops[job] = max(tops.get(job, 0), priorities.index(priority))
        ranks.append(sum(tops.values()))
        counts.append(len(tops))
    return ranks, counts


@given(pods=PODS, hits=st.lists(st.integers(0, NODES - 1), max_size=3), order=st.permutations(range(NODES)))
def test_jobs_count_once_per_node_until_they_are_hit(
    pods: list[Any], hits: list[int], order: list[int]
) -> None:
    nodes, priorities, jobs = (np.array([each[part] for each in pods], np.int64) for part in range(3))
    costs = DrainCosts(nodes, priorities, jobs, NODES)
    for number in range(len(hits) + 1):
        ranks, counts = slow_costs(pods, set(hits[:number]))
        assert (costs.ranks.tolist(), costs.job_counts.tolist()) == (ranks, counts)
        among = [3, 1, 0]
        cheapest = min(range(3), key=lambda at: (ranks[among[at]], counts[among[at]], order[among[at]]))
        assert costs.cheapest(np.array(among), np.array(order)) == cheapest
        if number < len(hits):
            costs.hit(hits[number])
