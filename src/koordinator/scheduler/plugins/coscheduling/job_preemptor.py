"""Preemption for a whole job: room for all members of a gang, or nobody is evicted. Source: behaviour/gangs 12.

Other than upstream, each member is assumed on its node before the next one is placed, so that victims make room for all
members at once.
"""

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from koordinator.scheduler.plugins.coscheduling.dry_run_cluster import PreemptionDryRun
from koordinator.scheduler.plugins.coscheduling.jobs import PlacedPod, PreemptorJob


class JobPlacement(msgspec.Struct, frozen=True):
    """A node for each member, or the words why there is none."""

    nodes: Mapping[str, str] = {}
    failure: str = ""


Placer = Callable[[PreemptorJob, PreemptionDryRun], JobPlacement]
"""Places all members of a job on nodes that it clears."""


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


class JobPreemption(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions of preemption for a job. Nominations change only when it got as far as looking for room."""

    reason: PreemptReason
    message: str = ""
    nominations: Mapping[str, str] = {}
    """Member → node on success."""
    evictions: tuple[PlacedPod, ...] = ()

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


def preempt(job: PreemptorJob, dry_run: PreemptionDryRun, placer: Placer | None = None) -> JobPreemption:
    """Choose whom to evict so that all pending members of the job find room.

    Without a `placer` members go to the nodes with the cheapest victims.
    """
    if not dry_run.has_victims:
        return JobPreemption(reason=PreemptReason.NO_ROOM, message=dry_run.failure(()))
    placing = (placer or cheapest)(job, dry_run)
    if placing.failure:
        return JobPreemption(reason=PreemptReason.NO_ROOM, message=placing.failure)
    waiting, pending = len(job.waiting), len(job.members)
    return JobPreemption(
        reason=PreemptReason.SUCCESS,
        message=f"preempt success, alreadyWaitingForBound: {waiting}/{waiting + pending}",
        nominations=placing.nodes,
        evictions=tuple(_evictions(set(placing.nodes.values()), dry_run)),
    )


def cheapest(job: PreemptorJob, dry_run: PreemptionDryRun) -> JobPlacement:
    """Return each member on the cheapest node that takes it beside those placed before it; members that are not needed
    where there is room for them."""
    nodes: dict[str, str] = {}
    for is_needed in (True, False):
        left = [each for key, each in job.members.items() if (key not in job.surplus) is is_needed]
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


def _evictions(used: set[str], dry_run: PreemptionDryRun) -> list[PlacedPod]:
    """Return the pods that must go for the members; of all others those come back first that matter most."""
    cleared = dry_run.cleared()
    idle = [pod for node, pods in cleared.items() if node not in used for pod in pods]
    worth = _Worth(pod for node in used for pod in cleared.get(node, ()))
    victims: list[PlacedPod] = []
    for pods in (idle, *(pods for node, pods in cleared.items() if node in used)):
        lost = restore(worth.order(pods), dry_run)
        worth.lose(lost)
        victims += lost
    return victims


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
        would break, the one that would lose most pods. Equals come back by job and name, as upstream."""
        found = sorted(pods, key=_by_name)
        dispensable: Counter[str] = Counter()
        keys: dict[str, tuple[bool, int, int, int]] = {}
        for pod in reversed(found):  # a job spares whoever would come back last
            left = pod.spare - self._lost[pod.job]
            if not pod.job or left > dispensable[pod.job]:
                need = 1
                dispensable[pod.job] += not pod.is_terminating  # who leaves is missed already
            else:
                need = 2 if left < 0 else 0
            count = 0 if need else self._counts[pod.job]
            keys[pod.pod.key] = (pod.is_terminating, -pod.pod.priority, need, count)
        return sorted(found, key=lambda pod: keys[pod.pod.key])


def _by_name(pod: PlacedPod) -> tuple[bool, int, str, str, str]:
    return pod.is_terminating, -pod.pod.priority, pod.job, pod.pod.pod.metadata.name, pod.pod.key


def restore(pods: Sequence[PlacedPod], dry_run: PreemptionDryRun) -> list[PlacedPod]:
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
