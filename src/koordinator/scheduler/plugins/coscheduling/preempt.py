"""Preemption for a whole job: room for all members of a gang, or nobody is evicted. Source: spec 05, section 12.

Other than upstream, each member is assumed on its node before the next one is placed, so that victims make
room for all members at once.
"""

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from koordinator.scheduler.status import Code

NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "no potential victims"


class Occupant(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that has a node, bound or waiting in Permit."""

    key: str
    node: str
    priority: int
    job: str = ""
    """Pods of one job cost as much as one of them; pods without a job count as one job together."""
    is_protected: bool = False
    """By itself, or by its quota."""
    is_terminating: bool = False
    is_preempted: bool = False
    """Terminating because it was preempted."""
    is_waiting: bool = False


class JobMember(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that needs a node."""

    key: str
    nominated: str = ""


Fit = Callable[[str, Sequence[Occupant], Sequence[JobMember], JobMember], str]
"""Why a node (its name, the pods left on it, the members placed there before) does not hold a member."""


class Placing(msgspec.Struct, frozen=True):
    """A node for each member, or the words why there is none."""

    nodes: Mapping[str, str] = {}
    failure: str = ""


Placer = Callable[[Mapping[str, Sequence[Occupant]]], Placing]
"""Places all members on nodes, given the pods that stay on each."""


class PreemptReason(enum.Enum):
    """How preemption for a job ended."""

    SUCCESS = "room for all members"
    ATTEMPTED = "tried before in this round"
    NO_MEMBERS = "no pending pods"
    NEVER = "not eligible due to preemptionPolicy=Never."
    TERMINATING = "not eligible due to terminating pod on the nominated node."
    NO_ROOM = "evictions do not make room for all members"


class VictimAction(enum.Enum):
    """What happens to a victim."""

    REJECT = "reject"
    """It only waits in Permit: it gives its place back."""
    NOTHING = "none"
    """It is on its way out already."""
    DELETE = "delete"


class Eviction(msgspec.Struct, frozen=True):
    """A victim and what is done with it."""

    victim: Occupant
    action: VictimAction


class JobPreemption(msgspec.Struct, frozen=True, kw_only=True):
    """What preemption for a job decided. Nominations change only when it got as far as looking for room."""

    reason: PreemptReason
    message: str = ""
    nominations: Mapping[str, str] = {}
    """Member → node on success."""
    evictions: tuple[Eviction, ...] = ()

    @property
    def clears_nominations(self) -> bool:
        """Whether all members lose the nodes that were kept for them."""
        return self.reason is PreemptReason.NO_ROOM

    def kept(self, trigger: str) -> str:
        """What the round remembers, so that nobody tries again."""
        return f"preemption already attempted by {trigger} with message {self.message}"


class JobPreemptor(msgspec.Struct, frozen=True, kw_only=True):
    """The job in question: the pod that failed, all pending members, and how many wait already."""

    trigger: JobMember
    priority: int
    never: bool = False
    members: tuple[JobMember, ...]
    waiting_count: int = 0
    earlier: str = ""
    """What was kept of an earlier attempt in the round."""


def preempt(
    job: JobPreemptor,
    codes: Mapping[str, Code],
    occupants: Mapping[str, Sequence[Occupant]],
    fit: Fit,
    placer: Placer | None = None,
) -> JobPreemption:
    """Whom to evict so that all pending members of the job find room.

    `codes` are the answers of the nodes in the failed attempt, `occupants` the pods of each node. Without a
    `placer` members go to the nodes with the cheapest victims.
    """
    if job.earlier:
        return JobPreemption(reason=PreemptReason.ATTEMPTED, message=job.earlier)
    if not job.members:
        return JobPreemption(reason=PreemptReason.NO_MEMBERS, message=PreemptReason.NO_MEMBERS.value)
    reason = _objection(job, codes, occupants)
    if reason is not PreemptReason.SUCCESS:
        return JobPreemption(reason=reason, message=reason.value)
    candidates = sorted(node for node, code in codes.items() if code is Code.UNSCHEDULABLE)
    hopeless = (node for node, code in codes.items() if code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE)
    reasons = dict.fromkeys(hopeless, NOT_HELPFUL)
    evictable = {
        node: [each for each in occupants.get(node, ()) if _may_evict(job, each)] for node in candidates
    }
    if not any(evictable.values()):
        reasons.update(dict.fromkeys(candidates, NO_VICTIMS))
        return _no_room(fit_error(len(codes), reasons))
    staying = {
        node: [each for each in occupants.get(node, ()) if not _may_evict(job, each)] for node in candidates
    }
    placing = placer(staying) if placer is not None else _cheapest(job, evictable, staying, fit, len(codes))
    if placing.failure:
        return _no_room(placing.failure)
    evictions: list[Eviction] = []
    for node in sorted(set(placing.nodes.values())):
        placed = [member for member in job.members if placing.nodes[member.key] == node]
        evictions += _victims(node, evictable[node], staying[node], placed, fit)
    waiting, pending = job.waiting_count, len(job.members)
    return JobPreemption(
        reason=PreemptReason.SUCCESS,
        message=f"preempt success, alreadyWaitingForBound: {waiting}/{waiting + pending}",
        nominations=placing.nodes,
        evictions=tuple(evictions),
    )


def _objection(
    job: JobPreemptor, codes: Mapping[str, Code], occupants: Mapping[str, Sequence[Occupant]]
) -> PreemptReason:
    if job.never:
        return PreemptReason.NEVER
    for member in job.members:
        is_trigger = member.key == job.trigger.key
        if is_trigger and codes.get(member.nominated) is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            continue
        there = occupants.get(member.nominated, ())
        if any(each.is_preempted and _may_evict(job, each) for each in there):
            return PreemptReason.TERMINATING
    return PreemptReason.SUCCESS


def _may_evict(job: JobPreemptor, pod: Occupant) -> bool:
    return pod.priority < job.priority and not pod.is_protected


def _no_room(message: str) -> JobPreemption:
    return JobPreemption(reason=PreemptReason.NO_ROOM, message=message)


def fit_error(node_count: int, reasons: Mapping[str, str]) -> str:
    """`0/5 nodes are available: 3 Insufficient cpu.`; a node without a reason is not listed."""
    counts = Counter(reasons.values())
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"0/{node_count} nodes are available: {listed}."


def costs(evictable: Mapping[str, Sequence[Occupant]]) -> dict[str, int]:
    """What it costs to empty each node: the rank of the priority, once per job; the lowest costs nothing."""
    priorities = sorted({pod.priority for pods in evictable.values() for pod in pods})
    rank = {priority: number for number, priority in enumerate(priorities)}
    return {
        node: sum(rank[priority] for priority, _ in {(pod.priority, pod.job) for pod in pods})
        for node, pods in evictable.items()
    }


def _cheapest(
    job: JobPreemptor,
    evictable: Mapping[str, Sequence[Occupant]],
    staying: Mapping[str, Sequence[Occupant]],
    fit: Fit,
    node_count: int,
) -> Placing:
    """Each member on the cheapest node that holds it beside those placed before it."""
    cost = costs(evictable)
    order = sorted(evictable, key=lambda node: (cost[node], node))
    placed: dict[str, list[JobMember]] = {node: [] for node in order}
    nodes: dict[str, str] = {}
    for member in job.members:
        reasons: dict[str, str] = {}
        for node in order:
            reason = fit(node, staying[node], placed[node], member)
            if not reason:
                placed[node].append(member)
                nodes[member.key] = node
                break
            reasons[node] = reason
        else:
            return Placing(failure=fit_error(node_count, reasons))
    return Placing(nodes)


def _victims(
    node: str,
    evictable: Sequence[Occupant],
    staying: Sequence[Occupant],
    placed: Sequence[JobMember],
    fit: Fit,
) -> list[Eviction]:
    """The pods of a node that must go for the members placed there; the most important may stay first."""
    stay, evictions = list(staying), []
    for pod in sorted(evictable, key=lambda each: (-each.priority, each.job, each.key)):
        beside = [*stay, pod]
        if all(not fit(node, beside, placed[:count], member) for count, member in enumerate(placed)):
            stay = beside
        else:
            evictions.append(Eviction(pod, _action(pod)))
    return evictions


def _action(pod: Occupant) -> VictimAction:
    if pod.is_waiting:
        return VictimAction.REJECT
    return VictimAction.NOTHING if pod.is_terminating else VictimAction.DELETE
