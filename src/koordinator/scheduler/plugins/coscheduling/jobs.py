"""Jobs in preemption: the one that asks, and those that may lose pods, with what it costs to take all of these off a
node. Source: behaviour/gangs 12.

Other than upstream, victims of one job are preferred to those of several. All pods on nodes stand in columns, with the
job that each belongs to and whether it may be evicted for another one.
"""

import enum
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import labels, quota_labels
from koordinator.api.core import Pod
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugins.preemption.victims import NEVER, Residents
from koordinator.scheduler.table.columns import Rows, grown
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo, job_of


class PreemptorJob(msgspec.Struct, frozen=True, kw_only=True):
    """A preemptor: a gang group, or a single pod."""

    name: str
    trigger: PodInfo
    """The pod that found no node."""
    members: Mapping[str, PodInfo]
    """All that need a node, by key, in the order in which they choose."""
    surplus: frozenset[str] = frozenset()
    """Members without which the gangs can start."""
    waiting: tuple[PodInfo, ...] = ()
    """Members that have a place and wait in Permit."""
    is_gang: bool = False
    is_complete: bool = True
    """Whether it starts once all members have a place."""

    @property
    def pods(self) -> tuple[PodInfo, ...]:
        """Return its members, with a place or without."""
        return (*self.members.values(), *self.waiting)


class VictimAction(enum.Enum):
    """The treatment of a victim."""

    REJECT = "reject"
    """It only waits in Permit: it gives its place back."""
    NOTHING = "none"
    """It is on its way out already."""
    DELETE = "delete"


class PlacedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that has a node, bound or waiting in Permit, and may lose it."""

    pod: PodInfo
    node: str
    job: str = ""
    """Pods of one job cost as much as one of them; a pod without one is a job of its own."""
    spare: int = 0
    """Pods that its job can lose and go on; negative where it cannot go on as it is."""
    is_terminating: bool = False
    is_waiting: bool = False

    @property
    def action(self) -> VictimAction:
        if self.is_waiting:
            return VictimAction.REJECT
        return VictimAction.NOTHING if self.is_terminating else VictimAction.DELETE


class JobResidents(Residents):
    """The `Residents` with (slots,) columns `jobs` (a number for each job, as long as it has pods on nodes) and
    `is_leaving`. Pods that quotas protect have the priority `NEVER`, too."""

    def __init__(self, table: NodeTable) -> None:
        self.jobs: I64 = np.zeros(0, np.int64)
        self.is_leaving: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._job_numbers: dict[str, tuple[int, int]] = {}
        """Job → its number, and how many pods have it."""
        self._next_number = 0
        super().__init__(table)
        self._extend()

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        super().pod_unassigned(row, pod)
        self._leave_job(pod.pod)

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        super().pod_changed(row, old, new)
        self._leave_job(old.pod)

    def _describe(self, slot: int, pod: PodInfo) -> None:
        super()._describe(slot, pod)
        self._extend()
        self.jobs[slot] = self._join_job(job_name(pod.pod))
        if quota_labels.is_pod_non_preemptible(pod.pod.metadata.labels):
            self.priorities[slot] = NEVER
        self.is_leaving[slot] = pod.pod.metadata.deletion_timestamp is not None

    def _extend(self) -> None:
        """Make as many slots as there are rows."""
        size = self.rows.size
        if size > self.jobs.size:
            self.jobs, self.is_leaving = grown(self.jobs, size), grown(self.is_leaving, size)

    def _join_job(self, job: str) -> int:
        number, count = self._job_numbers.get(job, (self._next_number, 0))
        if count == 0:
            self._next_number += 1
        if job:
            self._job_numbers[job] = (number, count + 1)
        return number

    def _leave_job(self, pod: Pod) -> None:
        job = job_name(pod)
        if not job:
            return
        number, count = self._job_numbers.pop(job)
        if count > 1:
            self._job_numbers[job] = (number, count - 1)


def job_name(pod: Pod) -> str:
    """Return the job that a pod says it belongs to, else its gangs; empty for a pod on its own."""
    return pod.metadata.labels.get(labels.QUESTIONED_OBJECT_KEY) or ",".join(job_of(pod))


class DrainCosts:
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
        pairs, where = np.unique(nodes * self._job_count + job, return_inverse=True)
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
        """Note that the jobs on a node lose pods: to take more from them costs nothing."""
        jobs, starts = self._jobs_of
        for job in jobs[starts[node] : starts[node + 1]].tolist():
            if self._is_hit[job]:
                continue
            self._is_hit[job] = True
            first, end = np.searchsorted(self._jobs, (job, job + 1))
            self.ranks[self._nodes[first:end]] -= self._tops[first:end]
            self.job_counts[self._nodes[first:end]] -= 1

    @property
    def combined(self) -> I64:
        """Return the costs as one number per node (nodes,): ranks first, then jobs."""
        return self.ranks * (self._job_count + 1) + self.job_counts

    def cheapest(self, nodes: Rows, order: I64) -> int:
        """Return the position in `nodes` of the cheapest one; `order` (all nodes,) decides between equals."""
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
