"""Find changes that help a gang: after each of them enough of its members find a place. Each one is tried out."""

import bisect
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from koordinator.api import readable, resources
from koordinator.api.affinity import Toleration
from koordinator.api.core import Pod
from koordinator.api.errors import KoordinatorError
from koordinator.scheduler.config.default_plugins import FIT
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.explain import survey as surveys
from koordinator.scheduler.explain.answer import NAMED_MAX, PreemptionAnswer, Remedy
from koordinator.scheduler.explain.gang_group import GangSet, PendingMember, PendingMembers, kind_of
from koordinator.scheduler.explain.gang_rehearsal import Prepare, RehearsalOptions, RehearsalResult, rehearse
from koordinator.scheduler.explain.quotas import refused_by_quota
from koordinator.scheduler.explain.remedies import (
    Ways,
    model_row,
    offers_for,
    preemption_of,
    variants_of,
    victims,
)
from koordinator.scheduler.explain.survey import Steps, Survey
from koordinator.scheduler.explain.tries import Tries
from koordinator.scheduler.explain.variants import Variant, for_requests
from koordinator.scheduler.plugin.framework import PreemptionOffer
from koordinator.scheduler.plugins.coscheduling.config import GangSource
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial, rehearsal_of

VARIANTS_MAX = 8
"""Changes of all members that are tried; each places the whole gang once."""
PLACEMENTS_MAX = 10_000
"""Members placed for one answer, some 90 µs each: of larger gangs fewer changes are tried."""
ROWS_PER_SLICE = 512
EVICTIONS_MAX = 128
"""Members for whom room is made."""
KINDS_MAX = 4
"""Kinds of members for whom room is made: asking who would go is one long look at all nodes for each."""
BESIDE_MAX = 250
"""Members that may have a place beside those for whom room is made, about 0.05 ms each."""
CORDONED = "node.kubernetes.io/unschedulable"


def remedies(
    engine: Engine, group: GangSet, outcome: RehearsalResult, *, is_live: bool
) -> Steps[list[Remedy]]:
    """Changes of the members first, then of the gang, then of the cluster."""
    found = outcome.survey
    if found is None or outcome.status is None or not found.rows.size:
        return []
    is_last = _short_in_all(group, outcome) == 1
    if refused_by_quota(outcome.status):
        own = [each for each in outcome.rooms if each.kind != "requests"]  # that would be of one member
        rooms = list(outcome.rooms) if outcome.is_room_for_all else own if is_last else []
        return [*rooms, *_lower_minimum(group, outcome)]
    if outcome.quota_full:
        return _lower_minimum(group, outcome)  # no other change is enough by itself
    try_it = _Attempts(engine, group, outcome.job, is_live=is_live)
    made = yield from _changed_members(try_it, found)
    made += yield from _lower_requests(try_it, found, outcome)
    made += _lower_minimum(group, outcome)
    if is_last:
        made += outcome.rooms
    made += yield from _leaving(try_it)
    made += yield from _uncordon(try_it, found)
    return made + _new_nodes(try_it, found, outcome)


def remedies_together(
    engine: Engine, group: GangSet, outcome: RehearsalResult, rows: Rows, where: str, *, is_live: bool
) -> Steps[list[Remedy]]:
    """Return remedies for a gang that must be in one part of the network, of which `rows` (rows,), called `where`, take
    most members."""
    found = outcome.survey
    if found is None or outcome.status is None or refused_by_quota(outcome.status) or outcome.quota_full:
        return _start_with_less(group, outcome)
    try_it = _Attempts(engine, group, outcome.job, is_live=is_live)
    anywhere = yield from try_it.placed(outcome.job)
    made = _start_with_less(group, outcome)
    if anywhere.is_enough:
        made.append(_remedy("network", f"let the members be outside of {where}, too (MustGather)", anywhere))
    if _short_in_all(group, outcome) == 1:
        made += outcome.rooms
    return made + _new_nodes(try_it, found, outcome, among=rows, where=where)


class _Attempts:
    """The members placed anew under changed conditions."""

    def __init__(self, engine: Engine, group: GangSet, job: PendingMembers, *, is_live: bool) -> None:
        self.engine, self.group, self.job = engine, group, job
        self._is_live = is_live
        self._left = max(PLACEMENTS_MAX, len(job.singly))

    def changed(self, apply: Callable[[Pod], Pod]) -> Steps[RehearsalResult | None]:
        """With every member changed; None when a change makes an amount that is none, or enough was tried."""
        self._left -= len(self.job.singly)
        if self._left < 0:
            return None
        try:
            changed = self.job.changed(self.engine, apply)
        except KoordinatorError:
            return None
        return (yield from self.placed(changed))

    def placed(self, job: PendingMembers, prepare: Prepare | None = None) -> Steps[RehearsalResult]:
        """Members on all nodes, where `prepare` may have taken pods away beforehand."""
        question = RehearsalOptions(prepare=prepare, is_brief=True, is_live=self._is_live)
        return (yield from rehearse(self.engine, self.group, job, question))


def _remedy(kind: str, change: str, outcome: RehearsalResult) -> Remedy:
    nodes = Counter(outcome.placed.values())
    best = sorted(nodes, key=lambda name: (-nodes[name], name))
    return Remedy(kind=kind, change=change, node_count=len(nodes), examples=best[:3])


# Changes of the members


def _changed_members(attempts: _Attempts, found: Survey) -> Steps[list[Remedy]]:
    made = []
    for variant in variants_of(found, but=(FIT,))[:VARIANTS_MAX]:
        outcome = yield from attempts.changed(variant.apply)
        if outcome is not None and outcome.is_enough:
            made.append(_remedy(variant.kind, f"{variant.change}, on every member", outcome))
    return made


def _lower_requests(attempts: _Attempts, found: Survey, outcome: RehearsalResult) -> Steps[list[Remedy]]:
    """Requests so low that all members fit: one resource at a time, of members that ask for the same."""
    pod = outcome.missed[0].pod
    alike = [each for each in attempts.job.members if each.pod.asks_like(pod)]
    profile = attempts.engine.profiles.get(pod.pod.spec.scheduler_name)
    if profile is None:
        return []
    empty = surveys.survey(attempts.engine, profile, pod)  # without the members
    names = attempts.engine.table.registry.names
    wanted = attempts.engine.table.registry.named(pod.requests)
    made = []
    for column in empty.wanted:
        target = _largest_fitting(empty, column, len(alike))
        if target is None:
            continue
        variant = for_requests(pod.pod, wanted, {names[column]: target})
        after = yield from attempts.changed(_of_those(variant, alike))
        if after is not None and after.is_enough:
            made.append(_remedy("requests", f"{variant.change}, on every member", after))
    return made


def _of_those(variant: Variant, members: Sequence[PendingMember]) -> Callable[[Pod], Pod]:
    keys = {each.pod.key for each in members}
    return lambda pod: variant.apply(pod) if pod.key in keys else pod


def _largest_fitting(found: Survey, column: int, count: int) -> int | None:
    """Return the largest request of one resource with which `count` pods fit on the nodes that object to nothing but
    room, the other resources as they are; None when lowering this one does not help."""
    table, wanted = found.engine.table, found.wanted
    index = found.index_of(FIT)
    refused = found.refused.copy()
    if index is not None:
        refused[index] = False
    rows = found.rows[~refused.any(axis=0)]
    if rows.size == 0:
        return None
    slots = np.clip(table.pods_max[rows] - table.pod_count[rows], 0, count)
    for other, amount in wanted.items():
        if other != column:
            free = table.allocatable[other, rows] - table.requested[other, rows]
            slots = np.minimum(slots, np.maximum(free, 0) // amount)
    free = np.maximum(table.allocatable[column, rows] - table.requested[column, rows], 0)

    def fit(amount: int) -> bool:
        return int(np.minimum(free // amount, slots).sum()) >= count

    if fit(wanted[column]):
        return None  # something else is in the way
    largest = bisect.bisect_left(range(1, wanted[column]), True, key=lambda amount: not fit(amount))
    return _rounded(table.registry.names[column], largest) or None


def _rounded(name: str, amount: int) -> int:
    """Down to what people write: hundredths of cores, mebibytes."""
    unit = {resources.CPU: 10}.get(name, 2**20 if amount >= 2**30 else 1)
    return amount // unit * unit if amount >= unit else amount


# Changes of the gang


def _short_in_all(group: GangSet, outcome: RehearsalResult) -> int:
    """Return how many more members would have to find a place."""
    placed = _placed_by_gang(group, outcome)
    return sum(group.short_of(gang, placed[gang_id]) for gang_id, gang in group.gangs.items())


def _placed_by_gang(group: GangSet, outcome: RehearsalResult) -> Counter[str]:
    return Counter(
        gang_id for gang_id, gang in group.gangs.items() for key in gang.pending if key in outcome.placed
    )


def _start_with_less(group: GangSet, outcome: RehearsalResult) -> list[Remedy]:
    """For a gang that one part of the network cannot take. Nothing where it takes members by multiples only."""
    topology = group.gang.config.topology
    if topology is None or any(each.pod_count_multiple > 1 for each in topology.gather_strategy):
        return []
    return _lower_minimum(group, outcome) if outcome.missed else []


def _lower_minimum(group: GangSet, outcome: RehearsalResult) -> list[Remedy]:
    """Return what fits before the first member that does not would start."""
    members, first = outcome.job.members, outcome.first_missed
    before = Counter(each.gang_id for each in members[:first])
    made = []
    for gang_id, gang in sorted(group.gangs.items()):
        short = group.short_of(gang, before[gang_id])
        minimum = gang.config.minimum - short
        if short and minimum <= 0:
            return []
        if short:
            made.append(
                f"{minimum_of(gang.config.source)} of {gang_id} from {gang.config.minimum} to {minimum}"
            )
    if not made:
        return []
    nodes = sorted({outcome.placed[each.pod.key] for each in members[:first]})
    count = first + sum(len(gang.waiting) for gang in group.gangs.values())
    change = f"lower {' and '.join(made)}: {count} {'member' if count == 1 else 'members'} would start"
    return [Remedy(kind="minimum", change=change, node_count=len(nodes), examples=nodes[:3])]


def minimum_of(source: GangSource) -> str:
    """Return where the minimum of a gang is written."""
    return "spec.minMember" if source is GangSource.POD_GROUP else "annotation min-available"


# Changes of the cluster


def _leaving(attempts: _Attempts) -> Steps[list[Remedy]]:
    table = attempts.engine.table
    leaving: list[PodInfo] = []
    for number, row in enumerate(table.rows.tolist(), 1):
        leaving += [
            pod for pod in table.pods_at(row).values() if pod.pod.metadata.deletion_timestamp is not None
        ]
        if number % ROWS_PER_SLICE == 0:
            yield
    if not leaving:
        return []

    def take(trial: Trial) -> None:
        for pod in leaving:
            if table.place_of(pod.uid) is not None:
                trial.take(pod)

    outcome = yield from attempts.placed(attempts.job, take)
    if not outcome.is_enough:
        return []
    return [_remedy("wait", f"wait until {len(leaving)} pods that are being deleted have left", outcome)]


def _uncordon(attempts: _Attempts, found: Survey) -> Steps[list[Remedy]]:
    """Cordoned nodes are tried by members that tolerate it."""
    index = found.index_of("NodeUnschedulable")
    if index is None or not found.codes[index].any():
        return []
    tolerated = Toleration(key=CORDONED, operator="Exists", effect="NoSchedule")

    def tolerate(pod: Pod) -> Pod:
        spec = msgspec.structs.replace(pod.spec, tolerations=[*pod.spec.tolerations, tolerated])
        return msgspec.structs.replace(pod, spec=spec)

    outcome = yield from attempts.changed(tolerate)
    if outcome is None or not outcome.is_enough:
        return []
    table = attempts.engine.table
    nodes = sorted(set(outcome.placed.values()))
    cordoned = [
        name
        for name in nodes
        if (row := table.row_of(name)) is not None
        and (node := table.node_at(row)) is not None
        and node.spec.unschedulable
    ]
    change = f"uncordon {readable.some_of(cordoned, NAMED_MAX)}"
    return [Remedy(kind="uncordon", change=change, node_count=len(cordoned), examples=cordoned[:3])]


def _new_nodes(
    attempts: _Attempts, found: Survey, outcome: RehearsalResult, among: Rows | None = None, where: str = ""
) -> list[Remedy]:
    """Return how many empty nodes like one that exists would hold the members that found no place; of a part of
    the cluster where it is to be `among` these."""
    short = _short_in_all(attempts.group, outcome)
    row = model_row(found, among)
    if row is None or not short or len({each.pod.request_key for each in outcome.missed}) > 1:
        return []
    table = attempts.engine.table
    with rehearsal_of(table) as trial:
        for pod in list(table.pods_at(row).values()):
            trial.take(pod)
        with Tries(attempts.engine, trial, np.array([row], np.intp)) as tries:
            slots = 0
            for member in outcome.missed:
                if table.place_of(member.pod.uid) is not None or not isinstance(tries.place(member.pod), str):
                    break
                slots += 1
    if not slots:
        return []
    name, count = table.name_of(row), -(-short // slots)
    nodes = f"{count} nodes" if count > 1 else "a node"
    each = f"each takes {slots} of the members" if slots > 1 else "each takes one member"
    if count == 1:
        each = f"empty, it takes the {short} members" if short > 1 else "empty, it takes the member"
    to = f" to {where}" if where else ""
    change = f"add {nodes} like {name}{to}: {each}"
    return [Remedy(kind="node", change=change, node_count=count, examples=[name])]


# Evictions


def preemption(engine: Engine, group: GangSet, outcome: RehearsalResult) -> Steps[PreemptionAnswer | None]:
    """Yield whom the scheduler would evict for the gang, and whether that is enough (then there are `nodes`)."""
    found = outcome.survey
    if found is None:
        return None
    jobs = [each for each in found.profile.post_filters if isinstance(each, Coscheduling)]
    if makes_room_for_all(found.profile):
        alone = surveys.survey(engine, found.profile, found.pod)
        return preemption_of(alone, alone.diagnosis(), jobs, nodes_max=None)
    offers = yield from _evicted(engine, group, outcome)
    return PreemptionAnswer(message="", nominated_node="", nodes=victims(offers)) if offers else None


def makes_room_for_all(profile: Profile) -> bool:
    """Return whether gangs of a profile evict for all members at once."""
    gangs = (each for each in profile.post_filters if isinstance(each, Coscheduling))
    return any(each.preemption.is_for_jobs for each in gangs)


def _evicted(engine: Engine, group: GangSet, outcome: RehearsalResult) -> Steps[Ways]:
    """Room made for the members that are needed and find none, as the other PostFilter plugins would; nothing when
    that does not bring enough members to a place. Equal members go to different nodes."""
    waiting = _needed(group, outcome)
    if len(waiting) > EVICTIONS_MAX or len(outcome.placed) > BESIDE_MAX:
        return ()
    made: list[tuple[PendingMember, PreemptionOffer]] = []
    for _ in range(KINDS_MAX):
        if not waiting:
            return tuple(offer for _, offer in made)
        yield
        kind = kind_of(engine, waiting[0].pod)
        alike = [each for each in waiting if kind_of(engine, each.pod) == kind]
        found = list(zip(alike, _offers_beside(engine, outcome, made, alike[0]), strict=False))
        if not found:
            return ()
        made += found
        helped = {member.pod.uid for member, _ in found}
        waiting = [each for each in waiting if each.pod.uid not in helped]
    return ()


def _needed(group: GangSet, outcome: RehearsalResult) -> list[PendingMember]:
    """Return members without a place, as many of each gang as it needs."""
    placed = _placed_by_gang(group, outcome)
    short = Counter({gang_id: max(need - placed[gang_id], 0) for gang_id, need in group.needs().items()})
    waiting = []
    for member in outcome.missed:
        if short[member.gang_id] > 0:
            short[member.gang_id] -= 1
            waiting.append(member)
    return waiting


def _offers_beside(
    engine: Engine,
    outcome: RehearsalResult,
    made: Sequence[tuple[PendingMember, PreemptionOffer]],
    member: PendingMember,
) -> Ways:
    """Room for a member beside those that have a place, and those for whom room was made already."""
    profile, table = engine.profiles.get(member.pod.pod.spec.scheduler_name), engine.table
    if profile is None:
        return ()
    others = [each for each in profile.post_filters if not isinstance(each, Coscheduling)]
    with rehearsal_of(table) as trial, Tries(engine, trial) as tries:
        for each in outcome.job.members:
            node = outcome.placed.get(each.pod.key)
            if node is not None and table.place_of(each.pod.uid) is None:
                tries.again(each.pod, node)
        for helped, offer in made:
            for victim in offer.pods:
                if table.place_of(victim.uid) is not None:
                    trial.take(victim)
            if table.place_of(helped.pod.uid) is None:
                tries.again(helped.pod, offer.node_name)
        if table.place_of(member.pod.uid) is not None:
            return ()
        return offers_for(surveys.survey(engine, profile, member.pod), others)
