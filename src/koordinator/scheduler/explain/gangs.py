"""Why a gang is not placed, or how far it is. Pure: nothing is booked, evicted, queued or remembered. Source: spec 05,
sections 5 to 9.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from koordinator.api import labels
from koordinator.scheduler.engine import Engine
from koordinator.scheduler.explain import gang_remedies
from koordinator.scheduler.explain import survey as surveys
from koordinator.scheduler.explain.answer import GangAnswer, GangFit, GangLine, Preemption, Remedy, Verdict
from koordinator.scheduler.explain.gang_network import Ground, ground_of
from koordinator.scheduler.explain.gang_rehearsal import Group, Member, Outcome, group_of, rehearse
from koordinator.scheduler.plugins.coscheduling.config import GangSource
from koordinator.scheduler.plugins.coscheduling.gangs import Gang

NODES_MAX = 10
NAMED_MAX = 3
_SOURCES = {GangSource.POD_GROUP: "PodGroup", GangSource.POD: "pods", GangSource.NOBODY: ""}


def explain_gang(engine: Engine, gang_id: str, *, with_remedies: bool = True) -> GangAnswer | None:
    """All about a gang; None when nobody has named it. Columns that depend on the time must be current."""
    group = group_of(engine, gang_id)
    return explain_group(engine, group, with_remedies=with_remedies).answer if group is not None else None


class Told(msgspec.Struct, frozen=True):
    """The answer, and where members went that were tried."""

    answer: GangAnswer
    nodes: dict[str, str] = {}
    """Member → node."""


def explain_group(engine: Engine, group: Group, *, with_remedies: bool = True) -> Told:
    """All about a group of gangs."""
    now = group.books.rounds.round
    is_tried = now is not None and now.group_id == group.gang.group.group_id
    base = GangAnswer(
        gang=group.gang.gang_id,
        group=",".join(group.ids),
        verdict=Verdict.ERROR,
        sentence="",
        state=_state(group, is_tried=is_tried),
        gangs=[_line(group, gang_id) for gang_id in group.ids],
        representative=group.gang.group.representative,
        last_failure=now.failure if now is not None and is_tried else "",
        notes=_notes(group),
    )
    members = group.pending()
    if unready := _unready(group):
        return Told(_incomplete(base, group, unready))
    if not members:
        return Told(_nobody_pending(base, group))
    ground = ground_of(engine, group)
    outcome = _on(engine, group, members, ground)
    fit = _fit(group, outcome, members, ground.where if ground is not None else "")
    if ground is not None:
        notes = [*base.notes, ground.note] if ground.note else base.notes
        base = msgspec.structs.replace(base, domains=list(ground.domains), notes=notes)
    if group.has_started:
        return Told(_one_by_one(base, group, outcome, fit, members), outcome.placed)
    if outcome.is_enough:
        return Told(_with(base, Verdict.SCHEDULABLE, _fits(group, outcome, fit), fit), outcome.placed)
    base = _with(base, Verdict.UNSCHEDULABLE, "", fit)
    if ground is not None and ground.message:
        told = _not_together(base, group, outcome, fit, ground)
        if outcome.survey is not None and gang_remedies.makes_room_for_all(outcome.survey.profile):
            room = gang_remedies.preemption(engine, group, members, outcome)
            verdict = Verdict.PREEMPTION if room is not None and room.nodes else told.verdict
            told = msgspec.structs.replace(told, preemption=room, verdict=verdict)
        return Told(told)
    if with_remedies:
        made = gang_remedies.remedies(engine, group, members, outcome)
        base = msgspec.structs.replace(base, remedies=made)
    return Told(_does_not_fit(base, group, fit, gang_remedies.preemption(engine, group, members, outcome)))


def _on(engine: Engine, group: Group, members: Sequence[Member], ground: Ground | None) -> Outcome:
    """The members on the nodes that the network leaves them."""
    if ground is not None and ground.nodes:
        by_uid = {each.pod.uid: each.pod.key for each in members}
        placed = {by_uid[uid]: node for uid, node in ground.nodes.items() if uid in by_uid}
        missed = tuple(each for each in members if each.pod.key not in placed)
        return Outcome(placed=placed, missed=missed, is_enough=True)
    if ground is None or ground.rows is None:
        return rehearse(engine, group, members)
    outcome = rehearse(engine, group, members, rows=ground.rows, where=ground.where)
    return msgspec.structs.replace(outcome, is_enough=False)


def _not_together(
    base: GangAnswer, group: Group, outcome: Outcome, fit: GangFit, ground: Ground
) -> GangAnswer:
    """No part of the network holds all members."""
    begin = f"{_capital(group.name)} is pending"
    if outcome.missed and ground.where and not ground.is_about_multiples:
        text = f"{begin}: {fit.fitting} of {fit.members} members fit in {ground.where}; {_missing_one(fit)}."
    else:
        text = f"{begin}: {ground.message}."
    fit = msgspec.structs.replace(fit, message=ground.message, is_enough=False)
    return _with(base, Verdict.UNSCHEDULABLE, text, fit)


def _with(base: GangAnswer, verdict: Verdict, sentence: str, fit: GangFit | None = None) -> GangAnswer:
    return msgspec.structs.replace(base, verdict=verdict, sentence=sentence, fit=fit)


def _line(group: Group, gang_id: str) -> GangLine:
    gang = group.gangs.get(gang_id)
    if gang is None:
        return GangLine(gang=gang_id, described_by="")
    config = gang.config
    existing = len(gang.children)
    return GangLine(
        gang=gang_id,
        described_by=_SOURCES[config.source],
        minimum=config.minimum,
        mode=config.mode.value if config.is_initialised else "",
        match_policy=config.match_policy.value if config.is_initialised else "",
        wait_s=config.wait_s,
        existing=existing,
        pending=len(gang.pending),
        waiting=len(gang.waiting),
        bound=len(gang.bound),
        missing=max(config.minimum - gang.able_count, 0),
    )


def _state(group: Group, *, is_tried: bool) -> str:
    if group.has_started:
        return "started"
    if _unready(group):
        return "waiting for members"
    if is_tried:
        return "being tried"
    if any(gang.waiting for gang in group.gangs.values()):
        return "holding places"
    return "queued" if any(gang.pending for gang in group.gangs.values()) else "started"


def _notes(group: Group) -> list[str]:
    """What surprises people."""
    notes = []
    named = {each: gang.config.group for each, gang in group.gangs.items()}
    for gang_id, own in named.items():
        if own != group.ids:
            told = ", ".join(own)
            notes.append(
                f"{gang_id} names another group ({told}): all gangs of a group must name the same gangs"
            )
    if group.gang.gang_id not in group.ids:
        notes.append(f"the group does not name {group.gang.gang_id} itself")
    unreadable = [
        key
        for gang in group.gangs.values()
        for key in sorted(gang.pending)
        if group.books.pod(key) is not None and group.books.info(key) is None
    ]
    if unreadable:
        notes.append(f"requests that cannot be read: {_named(unreadable)}")
    return notes


def _unready(group: Group) -> list[str]:
    """Why members may not even enter the queue: gangs that are not complete."""
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


def _undescribed(group: Group, gang: Gang) -> str:
    """What the first of its pods is missing."""
    pods = (group.books.pod(key) for key in sorted(gang.children))
    pod = next((each for each in pods if each is not None), None)
    if pod is not None and labels.POD_GROUP in pod.metadata.labels:
        namespace, _, name = gang.gang_id.partition("/")
        return f"create PodGroup {name} in namespace {namespace}"
    return "its pods have no readable annotation gang.scheduling.koordinator.sh/min-available"


def _incomplete(base: GangAnswer, group: Group, reasons: list[str]) -> GangAnswer:
    sentence = f"{_capital(group.name)} waits for members: {'; '.join(reasons)}."
    base = msgspec.structs.replace(base, remedies=_complete(group))
    return _with(base, Verdict.GATED, sentence)


def _complete(group: Group) -> list[Remedy]:
    """What makes a gang complete that has too few members."""
    made = []
    for gang_id, gang in group.gangs.items():
        missing = gang.config.minimum - gang.able_count
        if not gang.config.is_initialised or missing <= 0:
            continue
        more = f"create {missing} more member{'s' if missing > 1 else ''} of {gang_id}"
        less = f"lower the minimum of {gang_id} from {gang.config.minimum} to {gang.able_count}"
        for kind, change in (("members", more), ("minimum", less if gang.able_count else "")):
            if change:
                made.append(Remedy(kind=kind, change=change, node_count=0, examples=[]))
    return made


def _nobody_pending(base: GangAnswer, group: Group) -> GangAnswer:
    bound = sum(len(gang.bound) for gang in group.gangs.values())
    waiting = sum(len(gang.waiting) for gang in group.gangs.values())
    if waiting:
        sentence = f"{_capital(group.name)}: {waiting} members hold places and are about to be bound."
    elif bound:
        sentence = f"{_capital(group.name)} is placed: all of its {bound} members have a node."
    else:
        sentence = f"{_capital(group.name)} has no members."
    return _with(base, Verdict.BOUND if bound or waiting else Verdict.GATED, sentence)


def _fit(group: Group, outcome: Outcome, members: Sequence[Member], where: str) -> GangFit:
    in_place = sum(len(gang.waiting) + len(gang.bound) for gang in group.gangs.values())
    nodes = Counter(outcome.placed.values())
    stuck = outcome.missed[0] if outcome.missed else None
    number = members.index(stuck) + 1 + in_place if stuck is not None else 0
    return GangFit(
        members=in_place + len(members),
        fitting=in_place + len(outcome.placed),
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


def _fits(group: Group, outcome: Outcome, fit: GangFit) -> str:
    name = _capital(group.name)
    nodes = (
        f"{fit.node_count} node{'s' if fit.node_count > 1 else ''}{f' of {fit.where}' if fit.where else ''}"
    )
    if outcome.is_whole:
        return f"{name} fits: all {fit.members} members find a place on {nodes}; the next round binds them together."
    minimum = sum(gang.config.minimum for gang in group.gangs.values())
    return (
        f"{name} fits: {fit.fitting} of {fit.members} members find a place, and {minimum} are enough to start; "
        f"{_missing_one(fit) if fit.lacks else 'the others find none there'}."
    )


def _does_not_fit(base: GangAnswer, group: Group, fit: GangFit, preemption: Preemption | None) -> GangAnswer:
    begin = f"{_capital(group.name)} is pending: {fit.fitting} of {fit.members} members fit"
    base = msgspec.structs.replace(base, preemption=preemption)
    if preemption is None or not preemption.nodes:
        return _with(base, Verdict.UNSCHEDULABLE, f"{begin}; {_missing_one(fit)}.", fit)
    count = sum(len(each.pods) for each in preemption.nodes)
    nodes = ", ".join(dict.fromkeys(each.node for each in preemption.nodes[:NAMED_MAX]))
    who = preemption.nodes[0].pods[0] if count == 1 else f"{count} pods"
    sentence = f"{begin}; evicting {who} from {nodes} makes room for enough of them."
    return _with(base, Verdict.PREEMPTION, sentence, fit)


def _missing_one(fit: GangFit) -> str:
    """`the 8th (default/w-7) lacks 2 nvidia.com/gpu on every node`."""
    return f"the {ordinal(fit.stuck_number)} ({fit.stuck}) {fit.lacks}"


def _one_by_one(
    base: GangAnswer, group: Group, outcome: Outcome, fit: GangFit, members: Sequence[Member]
) -> GangAnswer:
    """The gang has started once: there is no more together."""
    begin = f"{_capital(group.name)} has started, and its members are scheduled one by one since"
    if outcome.is_whole:
        sentence = f"{begin}: all {len(members)} that wait find a place."
        return _with(base, Verdict.SCHEDULABLE, sentence, fit)
    sentence = (
        f"{begin}: {len(outcome.placed)} of {len(members)} that wait find a place; {_missing_one(fit)}."
    )
    return _with(base, Verdict.UNSCHEDULABLE, sentence, fit)


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, …, 11th."""
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _named(keys: Iterable[str]) -> str:
    listed = list(keys)
    more = f" and {len(listed) - NAMED_MAX} more" if len(listed) > NAMED_MAX else ""
    return f"{', '.join(listed[:NAMED_MAX])}{more}"
