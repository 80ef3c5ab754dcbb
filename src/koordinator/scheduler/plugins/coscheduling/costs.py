"""Work out what it costs to empty nodes for a job: the importance of the jobs that would lose pods. Pure.

Source: behaviour/gangs 12 (7).
"""

import numpy as np

from koordinator.api.resource_vector import I64
from koordinator.scheduler.table.columns import Rows


class EmptyingCosts:
    """`ranks` (nodes,) sums the ranks of priorities, once per job on the node; the lowest of all priorities has rank
    0. `job_counts` (nodes,) are the jobs that lose pods there, of those that have not lost any elsewhere (`hit`).

    `nodes`, `priorities` and `jobs` are (pods,): where each pod is, and a number for its job. Upstream counts a job
    once per priority, never mind where else it loses pods, and has no `job_counts`.
    """

    def __init__(self, nodes: I64, priorities: I64, jobs: I64, node_count: int) -> None:
        assert nodes.shape == priorities.shape == jobs.shape, (nodes.shape, priorities.shape, jobs.shape)
        self.ranks: I64 = np.zeros(node_count, np.int64)
        self.job_counts: I64 = np.zeros(node_count, np.int64)
        _, rank = np.unique(priorities, return_inverse=True)
        names, job = np.unique(jobs, return_inverse=True)
        self._job_count = max(names.size, 1)
        pair = nodes * self._job_count + job
        pairs, where = np.unique(pair, return_inverse=True)
        top: I64 = np.zeros(pairs.size, np.int64)
        np.maximum.at(top, where, rank)
        order = np.argsort(pairs % self._job_count, kind="stable")
        self._jobs: I64 = (pairs % self._job_count)[order]
        self._nodes: I64 = (pairs // self._job_count)[order]
        self._tops: I64 = top[order]
        self._is_hit = np.zeros(names.size, np.bool_)
        self._jobs_of = _by_node(self._nodes, self._jobs, node_count)
        np.add.at(self.ranks, self._nodes, self._tops)
        np.add.at(self.job_counts, self._nodes, 1)

    def hit(self, node: int) -> None:
        """The jobs on a node lose pods: to take more from them costs nothing."""
        jobs, starts = self._jobs_of
        for job in jobs[starts[node] : starts[node + 1]].tolist():
            if self._is_hit[job]:
                continue
            self._is_hit[job] = True
            first, end = np.searchsorted(self._jobs, (job, job + 1))
            self.ranks[self._nodes[first:end]] -= self._tops[first:end]
            self.job_counts[self._nodes[first:end]] -= 1

    def cheapest(self, nodes: Rows, order: I64) -> int:
        """The position in `nodes` of the cheapest one; `order` (all nodes,) decides between equals."""
        ranks = self.ranks[nodes]
        best = np.flatnonzero(ranks == ranks.min())
        counts = self.job_counts[nodes[best]]
        best = best[counts == counts.min()]
        return int(best[order[nodes[best]].argmin()])


def _by_node(nodes: I64, jobs: I64, node_count: int) -> tuple[I64, I64]:
    """Jobs sorted by node, and where those of each node begin (nodes + 1,)."""
    order = np.argsort(nodes, kind="stable")
    starts = np.zeros(node_count + 1, np.int64)
    np.cumsum(np.bincount(nodes, minlength=node_count), out=starts[1:])
    return jobs[order], starts
