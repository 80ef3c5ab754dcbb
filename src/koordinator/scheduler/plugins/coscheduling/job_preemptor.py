"""Preemption for a whole job: room for all members of a gang, or nobody is evicted. Source: behaviour/gangs 12.

Other than upstream, each member is assumed on its node before the next one is placed, so that victims make
room for all members at once; and victims of one job are preferred to those of several. All pods on nodes stand in
columns, with the job that each belongs to and whether it may be evicted for another one; emptying nodes costs the
importance of the jobs that would lose pods.
"""

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import labels, pod_labels, quota_labels
from koordinator.api.core import Pod
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.status import Code
from koordinator.scheduler.plugins.preemption.victims import NOWHERE, Residents
from koordinator.scheduler.table.columns import Rows, grown
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo, job_of


class JobResidents(Residents):
    """The `Residents` with (slots,) columns `jobs` (a number for each job, as long as it has pods on nodes), `may_go`
    and `is_leaving`."""

    def __init__(self, table: NodeTable) -> None:
        self.jobs: I64 = np.zeros(0, np.int64)
        self.may_go: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.is_leaving: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._job_numbers: dict[str, tuple[int, int]] = {}
        """Job → its number, and how many pods have it."""
        self._next_number = 0
        super().__init__(table)
        self._extend()

    def victims_below(self, priority: int) -> I64:
        """Slots of pods that may be evicted for one of this priority."""
        found: I64 = np.flatnonzero((self.rows != NOWHERE) & self.may_go & (self.priorities < priority))
        return found

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
        self.may_go[slot] = may_go(pod.pod)
        self.is_leaving[slot] = pod.pod.metadata.deletion_timestamp is not None

    def _extend(self) -> None:
        """Make as many slots as there are rows."""
        size = self.rows.size
        if size > self.jobs.size:
            self.jobs, self.may_go = grown(self.jobs, size), grown(self.may_go, size)
            self.is_leaving = grown(self.is_leaving, size)

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


def may_go(pod: Pod) -> bool:
    """Return whether a pod may be evicted for a more important job at all."""
    marks = pod.metadata.labels
    is_protected = marks.get(labels.DISABLE_PREEMPTIBLE) == "true"
    is_protected = is_protected or pod_labels.is_reserve_pod(pod.metadata.annotations)
    return not (is_protected or quota_labels.is_pod_non_preemptible(marks))


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


NO_VICTIMS = "no potential victims"


class PlacedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that has a node, bound or waiting in Permit."""

    key: str
    node: str
    priority: int
    job: str = ""
    """Pods of one job cost as much as one of them; a pod without one is a job of its own."""
    spare: int = 0
    """Pods that its job can lose and go on; negative where it cannot go on as it is."""
    is_terminating: bool = False
    is_waiting: bool = False


class JobMember(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that needs a node."""

    key: str
    nominated: str = ""
    is_needed: bool = True
    """Whether the job cannot start without it."""


class PreemptionCluster(Protocol):
    """The cluster in thought: pods leave nodes and members take their room, and nothing really happens."""

    def code_of(self, node: str) -> Code:
        """Return what the node answered in the failed attempt."""
        ...

    def is_vacating(self, node: str) -> bool:
        """Return whether a pod that the job may evict is leaving the node because it was preempted."""
        ...

    @property
    def has_victims(self) -> bool:
        """Return whether the job may evict anybody from the nodes that come into question."""
        ...

    def clear(self, members: Sequence[JobMember]) -> Sequence[str]:
        """Take all that the job may evict off more nodes, the cheapest ones first: about as many nodes as these
        members need. The nodes to try now; none when there are no more."""
        ...

    def room_for(self, member: JobMember) -> I64:
        """Return how many such members nodes would take once all that may go has gone, as far as resources tell:
        (table rows,)."""
        ...

    def place(self, node: str, member: JobMember) -> bool:
        """Put a member on a node if that takes it beside what is there."""
        ...

    def cleared(self) -> Mapping[str, Sequence[PlacedPod]]:
        """Node → the pods that were taken off it, in the order of clearing."""
        ...

    def costs(self) -> Mapping[str, int]:
        """Node → what it costs that the pods which were taken off it go, whatever goes elsewhere."""
        ...

    def may_hold(self, pods: Sequence[PlacedPod]) -> bool:
        """A first glance: False only where pods of a node could not all come back."""
        ...

    def put_back(self, pods: Sequence[PlacedPod]) -> None:
        """Put the pods back where they were."""
        ...

    def take(self, pods: Sequence[PlacedPod]) -> None:
        """Off their nodes."""
        ...

    def holds(self, nodes: Collection[str]) -> bool:
        """Return whether the members that pods on these nodes matter to can be where they are."""
        ...

    def failure(self, members: Sequence[JobMember]) -> str:
        """Return why no node takes the first of these members, in words."""
        ...


class JobPlacement(msgspec.Struct, frozen=True):
    """A node for each member, or the words why there is none."""

    nodes: Mapping[str, str] = {}
    failure: str = ""


Placer = Callable[[Sequence[JobMember], PreemptionCluster], JobPlacement]
"""Places all members on nodes that it clears."""


class PreemptReason(enum.Enum):
    """The end of preemption for a job."""

    SUCCESS = "room for all members"
    ATTEMPTED = "tried before in this round"
    NO_MEMBERS = "no pending pods"
    NEVER = "not eligible due to preemptionPolicy=Never."
    TERMINATING = "not eligible due to terminating pod on the nominated node."
    INCOMPLETE = "not eligible due to fewer pending members than the gang needs."
    """Room would not start it."""
    NO_ROOM = "evictions do not make room for all members"


class VictimAction(enum.Enum):
    """The treatment of a victim."""

    REJECT = "reject"
    """It only waits in Permit: it gives its place back."""
    NOTHING = "none"
    """It is on its way out already."""
    DELETE = "delete"


class VictimEviction(msgspec.Struct, frozen=True):
    """A victim and what is done with it."""

    victim: PlacedPod
    action: VictimAction


class JobPreemption(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions of preemption for a job. Nominations change only when it got as far as looking for room."""

    reason: PreemptReason
    message: str = ""
    nominations: Mapping[str, str] = {}
    """Member → node on success."""
    evictions: tuple[VictimEviction, ...] = ()

    @property
    def is_success(self) -> bool:
        return self.reason is PreemptReason.SUCCESS

    @property
    def clears_nominations(self) -> bool:
        """Return whether all members lose the nodes that were kept for them."""
        return self.reason in (PreemptReason.NO_ROOM, PreemptReason.INCOMPLETE)

    def kept(self, trigger: str) -> str:
        """Return what the round remembers, so that nobody tries again."""
        return f"preemption already attempted by {trigger} with message {self.message}"


class JobPreemptor(msgspec.Struct, frozen=True, kw_only=True):
    """The job in question: the pod that failed, all pending members, and those that wait in Permit already."""

    trigger: JobMember
    never: bool = False
    is_complete: bool = True
    """Whether it starts once all members have room."""
    members: tuple[JobMember, ...]
    waiting: tuple[JobMember, ...] = ()
    earlier: str = ""
    """Message kept of an earlier attempt in the round."""


def preempt(job: JobPreemptor, dry_run: PreemptionCluster, placer: Placer | None = None) -> JobPreemption:
    """Choose whom to evict so that all pending members of the job find room.

    Without a `placer` members go to the nodes with the cheapest victims.
    """
    if job.earlier:
        return JobPreemption(reason=PreemptReason.ATTEMPTED, message=job.earlier)
    if not job.members:
        return JobPreemption(reason=PreemptReason.NO_MEMBERS, message=PreemptReason.NO_MEMBERS.value)
    reason = _objection(job, dry_run)
    if reason is not PreemptReason.SUCCESS:
        return JobPreemption(reason=reason, message=reason.value)
    if not dry_run.has_victims:
        return JobPreemption(reason=PreemptReason.NO_ROOM, message=dry_run.failure(()))
    placing = (placer or cheapest)(job.members, dry_run)
    if placing.failure:
        return JobPreemption(reason=PreemptReason.NO_ROOM, message=placing.failure)
    waiting, pending = len(job.waiting), len(job.members)
    return JobPreemption(
        reason=PreemptReason.SUCCESS,
        message=f"preempt success, alreadyWaitingForBound: {waiting}/{waiting + pending}",
        nominations=placing.nodes,
        evictions=tuple(_evictions(set(placing.nodes.values()), dry_run)),
    )


def _objection(job: JobPreemptor, dry_run: PreemptionCluster) -> PreemptReason:
    if job.never:
        return PreemptReason.NEVER
    if not job.is_complete:
        return PreemptReason.INCOMPLETE
    for member in job.members:
        is_trigger = member.key == job.trigger.key
        if not member.nominated or (
            is_trigger and dry_run.code_of(member.nominated) is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
        ):
            continue
        if dry_run.is_vacating(member.nominated):
            return PreemptReason.TERMINATING
    return PreemptReason.SUCCESS


def cheapest(members: Sequence[JobMember], dry_run: PreemptionCluster) -> JobPlacement:
    """Return each member on the cheapest node that takes it beside those placed before it; members that are not needed
    where there is room for them."""
    nodes: dict[str, str] = {}
    for is_needed in (True, False):
        left = [member for member in members if member.is_needed is is_needed]
        while left:
            cleared = dry_run.clear(left)
            if not cleared and is_needed:
                return JobPlacement(failure=dry_run.failure(left))
            if not cleared:
                break  # the job can start without them
            for node in cleared:
                # Node by node places as member by member would: each goes to the first node that takes it.
                nodes.update((member.key, node) for member in left if dry_run.place(node, member))
                left = [member for member in left if member.key not in nodes]
                if not left:
                    break
    return JobPlacement(nodes)


def _evictions(used: set[str], dry_run: PreemptionCluster) -> Iterable[VictimEviction]:
    """Return the pods that must go for the members; of all others those come back first that matter most."""
    cleared = dry_run.cleared()
    idle = [pod for node, pods in cleared.items() if node not in used for pod in pods]
    worth = _Worth(pod for node in used for pod in cleared.get(node, ()))
    victims: list[PlacedPod] = []
    for pods in (idle, *(pods for node, pods in cleared.items() if node in used)):
        lost = restore(worth.order(pods), dry_run)
        worth.lose(lost)
        victims += lost
    return (VictimEviction(pod, _action(pod)) for pod in victims)


class _Worth:
    """The order in which pods come back: the most important first, and of equally important pods those without which a
    job breaks, so that few jobs do. `pods` are all that may have to go."""

    def __init__(self, pods: Iterable[PlacedPod]) -> None:
        self._counts = Counter(pod.job for pod in pods)
        self._lost: Counter[str] = Counter()

    def lose(self, pods: Iterable[PlacedPod]) -> None:
        """These have to go."""
        self._lost.update(pod.job for pod in pods if pod.job)

    def order(self, pods: Iterable[PlacedPod]) -> list[PlacedPod]:
        """Whoever leaves anyhow last, before them jobs that are broken, then whom no other pod misses; of jobs that
        would break, the one that would lose most pods."""
        dispensable: Counter[str] = Counter()
        keys: dict[str, tuple[bool, int, int, int, str, str]] = {}
        found = list(pods)
        for pod in found:
            left = pod.spare - self._lost[pod.job]
            if not pod.job or left > dispensable[pod.job]:
                need = 1
                dispensable[pod.job] += 1
            else:
                need = 2 if left < 0 else 0
            count = 0 if need else self._counts[pod.job]
            keys[pod.key] = (pod.is_terminating, -pod.priority, need, count, pod.job, pod.key)
        return sorted(found, key=lambda pod: keys[pod.key])


def restore(pods: Sequence[PlacedPod], dry_run: PreemptionCluster) -> list[PlacedPod]:
    """Put pods back one after the other as long as all members can stay where they are; those that cannot come
    back. Asks about many pods at once where nobody objects to any of them."""
    if not pods:
        return []
    if dry_run.may_hold(pods):
        dry_run.put_back(pods)
        if dry_run.holds({pod.node for pod in pods}):
            return []
        dry_run.take(pods)
    if len(pods) == 1:
        return list(pods)
    half = len(pods) // 2
    return restore(pods[:half], dry_run) + restore(pods[half:], dry_run)


def _action(pod: PlacedPod) -> VictimAction:
    if pod.is_waiting:
        return VictimAction.REJECT
    return VictimAction.NOTHING if pod.is_terminating else VictimAction.DELETE
