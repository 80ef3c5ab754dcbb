"""Explain why a gang is not placed, or how far it is. Pure: nothing is booked, evicted, queued or remembered.
Source: behaviour/gangs 5 to 9."""

from collections import Counter
from collections.abc import Mapping

import msgspec

from koordinator.api import labels, readable
from koordinator.api.errors import KoordinatorError
from koordinator.api.network_topology import OBJECT_NAME
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.explain import gang_remedies
from koordinator.scheduler.explain import survey as surveys
from koordinator.scheduler.explain.answer import (
    NAMED_MAX,
    DomainFit,
    GangAnswer,
    GangFit,
    GangLine,
    PodVerdict,
    PreemptionAnswer,
    Remedy,
)
from koordinator.scheduler.explain.gang_group import GangSet, PendingMembers, group_of, job_of
from koordinator.scheduler.explain.gang_rehearsal import RehearsalOptions, RehearsalResult, rehearse
from koordinator.scheduler.explain.survey import Steps, finish
from koordinator.scheduler.plugins.coscheduling.config import GangSource
from koordinator.scheduler.plugins.coscheduling.gangs import Gang
from koordinator.scheduler.plugins.coscheduling.planning import GangPlanning
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.table.columns import Rows

DOMAINS_MAX = 5
NO_TREE = (
    "no cluster network topology (it takes the ClusterNetworkTopology default, and the scheduler's flag "
    "--enable-network-topology-manager)"
)


class EligibleNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the cluster that a gang with a network topology may use. With `nodes` (by uid) it is planned; else
    `rows` are the nodes of the part that takes most members, `where` its name, and `message` the scheduler's words."""

    nodes: Mapping[str, str] = {}
    where: str = ""
    rows: Rows | None = None
    domains: tuple[DomainFit, ...] = ()
    message: str = ""
    is_about_multiples: bool = False
    """Whether it is the number of members that nothing can take."""
    note: str = ""


def eligible_nodes_of(engine: Engine, group: GangSet) -> Steps[EligibleNodes | None]:
    """None for a gang that asks for nothing."""
    if group.gang.config.topology is None or group.has_started:
        return None
    planning = _planning(engine)
    if planning is None:
        return EligibleNodes(
            note="its network topology is not looked at: awareNetworkTopology of Coscheduling is off"
        )
    try:
        seen = yield from planning.outlook(group.gang)
    except KoordinatorError as error:
        return EligibleNodes(message=str(error))
    if seen is None:
        return EligibleNodes(message=NO_TREE)
    plan = seen.found.plan
    if plan.is_placed:
        where = f"{plan.place_layer} {plan.place_name}" if plan.place_name else ""
        return EligibleNodes(nodes=plan.nodes, where=where)
    parts = [each for each in seen.places if each.name]
    unknown = planning.unknown_layers(group.gang) if not parts else ()
    if unknown:
        names = ", ".join(unknown)
        return EligibleNodes(
            message=f"ClusterNetworkTopology {OBJECT_NAME} has no {names}, of which it must have one place"
        )
    return EligibleNodes(
        where=f"{parts[0].layer} {parts[0].name}" if parts else "",
        rows=parts[0].rows if parts else None,
        domains=tuple(
            DomainFit(layer=each.layer, name=each.name, fitting=len(each.nodes))
            for each in parts[:DOMAINS_MAX]
        ),
        message=seen.no_multiple or seen.found.message,
        is_about_multiples=bool(seen.no_multiple),
    )


def _planning(engine: Engine) -> GangPlanning | None:
    plugins = (plugin for profile in engine.profiles.values() for plugin in profile.plugins)
    gangs = (plugin.planning for plugin in plugins if isinstance(plugin, Coscheduling))
    return next((planning for planning in gangs if planning.is_aware), None)


NODES_MAX = 10
_SOURCES = {GangSource.POD_GROUP: "PodGroup", GangSource.POD: "pods", GangSource.NOBODY: ""}


def explain_gang(engine: Engine, gang_id: str) -> GangAnswer | None:
    """Return all about a gang, in one piece; None when nobody has named it. Columns that depend on the time must be
    current."""
    group = group_of(engine, gang_id)
    return finish(explain_group(engine, group)).answer if group is not None else None


class GangExplanation(msgspec.Struct, frozen=True):
    """The answer, and where members went that were tried."""

    answer: GangAnswer
    nodes: dict[str, str] = {}
    """Member → node."""


def explain_group(
    engine: Engine, group: GangSet, *, with_remedies: bool = True, is_live: bool = False
) -> Steps[GangExplanation]:
    """Yield all about a group of gangs. `is_live`: others wait for the end of each slice, so that what takes too long
    is cut short."""
    now = group.books.rounds.round
    is_tried = now is not None and now.group_id == group.gang.group.group_id
    base = GangAnswer(
        gang=group.gang.gang_id,
        group=",".join(group.ids),
        verdict=PodVerdict.ERROR,
        sentence="",
        state=_state(group, is_tried=is_tried),
        gangs=[_line(group, gang_id) for gang_id in group.ids],
        representative=group.gang.group.representative,
        last_failure=now.failure if now is not None and is_tried else "",
        notes=_notes(group),
    )
    if unready := _unready(group):
        return GangExplanation(_incomplete(base, group, unready))
    job = yield from job_of(engine, group, is_live=is_live)
    if job.unreadable:
        unreadable = f"requests that cannot be read: {readable.some_of(job.unreadable, NAMED_MAX)}"
        base = msgspec.structs.replace(base, notes=[*base.notes, unreadable])
    if not len(job):
        return GangExplanation(_nobody_pending(base, group))
    eligible = yield from eligible_nodes_of(engine, group)
    outcome = yield from _on(engine, group, job, eligible, is_live=is_live)
    fit = _fit(group, outcome, eligible.where if eligible is not None else "")
    base = msgspec.structs.replace(base, notes=[*base.notes, *_left_out(group, outcome, eligible)])
    if eligible is not None:
        base = msgspec.structs.replace(base, domains=list(eligible.domains))
    if group.has_started:
        return GangExplanation(_one_by_one(base, group, outcome, fit), dict(outcome.placed))
    if outcome.is_enough:
        return GangExplanation(
            _with(base, PodVerdict.SCHEDULABLE, _fits(group, outcome, fit), fit), dict(outcome.placed)
        )
    if outcome.untried and not (outcome.missed and group.is_strict):
        return GangExplanation(_undecided(base, group, outcome, fit))
    base = _with(base, PodVerdict.UNSCHEDULABLE, "", fit)
    if eligible is not None and eligible.message:
        refused = _not_together(base, group, outcome, fit, eligible)
        if with_remedies and eligible.rows is not None and eligible.where and not eligible.is_about_multiples:
            made = yield from gang_remedies.remedies_together(
                engine, group, outcome, eligible.rows, eligible.where, is_live=is_live
            )
            refused = msgspec.structs.replace(refused, remedies=made)
        if outcome.survey is not None and gang_remedies.makes_room_for_all(outcome.survey.profile):
            room = yield from gang_remedies.preemption(engine, group, outcome)
            verdict = PodVerdict.PREEMPTION if room is not None and room.nodes else refused.verdict
            refused = msgspec.structs.replace(refused, preemption=room, verdict=verdict)
        return GangExplanation(refused)
    if with_remedies:
        made = yield from gang_remedies.remedies(engine, group, outcome, is_live=is_live)
        base = msgspec.structs.replace(base, remedies=made)
    room = yield from gang_remedies.preemption(engine, group, outcome)
    return GangExplanation(_does_not_fit(base, group, fit, room))


def _on(
    engine: Engine, group: GangSet, job: PendingMembers, eligible: EligibleNodes | None, *, is_live: bool
) -> Steps[RehearsalResult]:
    """Yield the members on the nodes that the network leaves them."""
    if eligible is not None and eligible.nodes:
        placed = {
            each.pod.key: eligible.nodes[each.pod.uid]
            for each in job.members
            if each.pod.uid in eligible.nodes
        }
        missed = tuple(each for each in job.members if each.pod.key not in placed)
        return RehearsalResult(job=job, placed=placed, missed=missed, is_enough=True)
    if eligible is None or not eligible.message:
        return (yield from rehearse(engine, group, job, RehearsalOptions(is_live=is_live)))
    question = RehearsalOptions(rows=eligible.rows, where=eligible.where, is_live=is_live)
    outcome = yield from rehearse(engine, group, job, question)
    return msgspec.structs.replace(outcome, is_enough=False)


def _left_out(group: GangSet, outcome: RehearsalResult, eligible: EligibleNodes | None) -> list[str]:
    """Return what was not looked at."""
    notes = [eligible.note] if eligible is not None and eligible.note else []
    if outcome.quota_full:
        notes.append(f"nodes are not all: their quota has no room for them either: {outcome.quota_full}")
    if outcome.unasked:
        names = ", ".join(outcome.unasked)
        notes.append(f"not looked at: what {names} books for each member (Reserve); a node may still refuse")
    if outcome.untried:
        namespace, _, name = group.gang.gang_id.partition("/")
        notes.append(
            f"cut short: {outcome.untried} members were not tried, so as not to hold up the scheduler; the whole "
            f"answer: kubectl get nodes,pods,podgroups,elasticquotas -A -o json | koordinator explain gang {name} "
            f"-n {namespace} --dump -"
        )
    return notes


def _undecided(base: GangAnswer, group: GangSet, outcome: RehearsalResult, fit: GangFit) -> GangAnswer:
    tried = fit.members - outcome.untried
    sentence = (
        f"{group.title}: {fit.fitting} of the first {tried} members fit, and the other {outcome.untried} "
        "were not tried: it is not known whether the gang can start."
    )
    return _with(base, PodVerdict.UNDECIDED, sentence, fit)


def _not_together(
    base: GangAnswer, group: GangSet, outcome: RehearsalResult, fit: GangFit, eligible: EligibleNodes
) -> GangAnswer:
    """No part of the network holds all members."""
    begin = f"{group.title} is pending"
    if outcome.missed and eligible.where and not eligible.is_about_multiples:
        text = (
            f"{begin}: {fit.fitting} of {fit.members} members fit in {eligible.where}; {_missing_one(fit)}."
        )
    else:
        text = f"{begin}: {eligible.message.rstrip('.')}."
    fit = msgspec.structs.replace(fit, message=eligible.message, is_enough=False)
    return _with(base, PodVerdict.UNSCHEDULABLE, text, fit)


def _with(base: GangAnswer, verdict: PodVerdict, sentence: str, fit: GangFit | None = None) -> GangAnswer:
    return msgspec.structs.replace(base, verdict=verdict, sentence=sentence, fit=fit)


def _line(group: GangSet, gang_id: str) -> GangLine:
    gang = group.gangs.get(gang_id)
    if gang is None:
        return GangLine(gang=gang_id, described_by="")
    config = gang.config
    return GangLine(
        gang=gang_id,
        described_by=_SOURCES[config.source],
        minimum=config.minimum,
        mode=config.mode.value if config.is_initialised else "",
        match_policy=config.match_policy.value if config.is_initialised else "",
        wait_s=config.wait_s,
        existing=len(gang.children),
        pending=len(gang.pending),
        waiting=len(gang.waiting),
        bound=len(gang.bound),
        missing=max(config.minimum - gang.able_count, 0),
    )


def _state(group: GangSet, *, is_tried: bool) -> str:
    if group.has_started:
        return "started"
    if _unready(group):
        return "waiting for members"
    if is_tried:
        return "being tried"
    if any(gang.waiting for gang in group.gangs.values()):
        return "holding places"
    return "queued" if any(gang.pending for gang in group.gangs.values()) else "started"


def _notes(group: GangSet) -> list[str]:
    """Return what surprises people."""
    notes = []
    named = {each: gang.config.group for each, gang in group.gangs.items()}
    for gang_id, own in named.items():
        if own != group.ids:
            names = ", ".join(own)
            notes.append(
                f"{gang_id} names another group ({names}): all gangs of a group must name the same gangs"
            )
    if group.gang.gang_id not in group.ids:
        notes.append(f"the group does not name {group.gang.gang_id} itself")
    return notes


def _unready(group: GangSet) -> list[str]:
    """Return why members may not even enter the queue: gangs that are not complete."""
    if group.has_started:
        return []
    reasons = []
    for gang_id in group.ids:
        gang = group.gangs.get(gang_id)
        if gang is None:
            reasons.append(f"{gang_id} does not exist: no PodGroup and no pod names it")
        elif not gang.config.is_initialised:
            reasons.append(f"nobody has described {gang_id}: {_undescribed(group, gang)}")
        elif not gang.is_complete:
            reasons.append(f"{gang_id} has {gang.able_count} of at least {gang.config.minimum} members")
    return reasons


def _undescribed(group: GangSet, gang: Gang) -> str:
    """Return what the first of its pods is missing."""
    pods = (group.books.pod(key) for key in sorted(gang.children))
    pod = next((each for each in pods if each is not None), None)
    if pod is not None and labels.POD_GROUP in pod.metadata.labels:
        namespace, _, name = gang.gang_id.partition("/")
        return f"create PodGroup {name} in namespace {namespace}"
    return "its pods have no readable annotation gang.scheduling.koordinator.sh/min-available"


def _incomplete(base: GangAnswer, group: GangSet, reasons: list[str]) -> GangAnswer:
    sentence = f"{group.title} waits for members: {'; '.join(reasons)}."
    base = msgspec.structs.replace(base, remedies=_complete(group))
    return _with(base, PodVerdict.GATED, sentence)


def _complete(group: GangSet) -> list[Remedy]:
    """Return what makes a gang complete that has too few members."""
    made = []
    for gang_id, gang in group.gangs.items():
        missing = gang.config.minimum - gang.able_count
        if not gang.config.is_initialised or missing <= 0:
            continue
        more = f"create {missing} more member{'s' if missing > 1 else ''} of {gang_id}"
        where = gang_remedies.minimum_of(gang.config.source)
        less = f"lower {where} of {gang_id} from {gang.config.minimum} to {gang.able_count}"
        for kind, change in (("members", more), ("minimum", less if gang.able_count else "")):
            if change:
                made.append(Remedy(kind=kind, change=change))
    return made


def _nobody_pending(base: GangAnswer, group: GangSet) -> GangAnswer:
    bound = sum(len(gang.bound) for gang in group.gangs.values())
    waiting = sum(len(gang.waiting) for gang in group.gangs.values())
    if waiting:
        sentence = f"{group.title}: {waiting} members hold places and are about to be bound."
    elif bound:
        sentence = f"{group.title} is placed: all of its {bound} members have a node."
    else:
        sentence = f"{group.title} has no members."
    return _with(base, PodVerdict.BOUND if bound or waiting else PodVerdict.GATED, sentence)


def _fit(group: GangSet, outcome: RehearsalResult, where: str) -> GangFit:
    in_place = sum(len(gang.waiting) + len(gang.bound) for gang in group.gangs.values())
    nodes = Counter(outcome.placed.values())
    stuck = outcome.missed[0] if outcome.missed else None
    number = outcome.first_missed + 1 + in_place if stuck is not None else 0
    return GangFit(
        members=in_place + len(outcome.job),
        fitting=in_place + len(outcome.placed),
        untried=outcome.untried,
        is_enough=outcome.is_enough,
        where=where,
        nodes=dict(sorted(nodes.items(), key=lambda pair: (-pair[1], pair[0]))[:NODES_MAX]),
        node_count=len(nodes),
        stuck=stuck.pod.key if stuck is not None else "",
        stuck_number=number,
        lacks=outcome.lacks,
        message=outcome.status.message if outcome.status is not None else "",
        reasons=surveys.reasons(outcome.survey) if outcome.survey is not None else [],
    )


def _fits(group: GangSet, outcome: RehearsalResult, fit: GangFit) -> str:
    nodes = (
        f"{fit.node_count} node{'s' if fit.node_count > 1 else ''}{f' of {fit.where}' if fit.where else ''}"
    )
    if outcome.is_whole:
        return (
            f"{group.title} fits: all {fit.members} members find a place on {nodes}; the next round binds them "
            "together."
        )
    minimum = sum(gang.config.minimum for gang in group.gangs.values())
    rest = f"the other {fit.untried} were not tried" if fit.untried else "the others find none there"
    return (
        f"{group.title} fits: {fit.fitting} of {fit.members} members find a place, and {minimum} are enough to start; "
        f"{_missing_one(fit) if fit.lacks else rest}."
    )


def _does_not_fit(
    base: GangAnswer, group: GangSet, fit: GangFit, preemption: PreemptionAnswer | None
) -> GangAnswer:
    begin = f"{group.title} is pending: {fit.fitting} of {fit.members} members fit"
    base = msgspec.structs.replace(base, preemption=preemption)
    if preemption is None or not preemption.nodes:
        return _with(base, PodVerdict.UNSCHEDULABLE, f"{begin}; {_missing_one(fit)}.", fit)
    count = sum(len(each.pods) for each in preemption.nodes)
    nodes = ", ".join(dict.fromkeys(each.node for each in preemption.nodes[:NAMED_MAX]))
    who = preemption.nodes[0].pods[0] if count == 1 else f"{count} pods"
    sentence = f"{begin}; evicting {who} from {nodes} makes room for enough of them."
    return _with(base, PodVerdict.PREEMPTION, sentence, fit)


def _missing_one(fit: GangFit) -> str:
    """`the 8th (default/w-7) lacks 2 nvidia.com/gpu on every node`."""
    return f"the {ordinal(fit.stuck_number)} ({fit.stuck}) {fit.lacks}"


def _one_by_one(base: GangAnswer, group: GangSet, outcome: RehearsalResult, fit: GangFit) -> GangAnswer:
    """Return the answer for a gang that has started once: there is no more together."""
    begin = f"{group.title} has started, and its members are scheduled one by one since"
    count = len(outcome.job)
    if outcome.is_whole:
        sentence = f"{begin}: all {count} that wait find a place."
        return _with(base, PodVerdict.SCHEDULABLE, sentence, fit)
    rest = f"the other {outcome.untried} were not tried"
    if outcome.missed:
        rest = f"{fit.stuck} {fit.lacks}"
        namespace, _, name = fit.stuck.partition("/")
        ask = f"what would help one of them: koordinator explain pod {name} -n {namespace}"
        base = msgspec.structs.replace(base, notes=[*base.notes, ask])
    sentence = f"{begin}: {len(outcome.placed)} of {count} that wait find a place; {rest}."
    verdict = PodVerdict.UNSCHEDULABLE if outcome.missed else PodVerdict.UNDECIDED
    return _with(base, verdict, sentence, fit)


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, …, 11th."""
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
