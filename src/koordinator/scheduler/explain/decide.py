"""Explain why a pod is pending, or why it is on its node. Pure: nothing is booked, evicted, queued or remembered."""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from koordinator.api import readable, resource_vector
from koordinator.scheduler.engine import pick
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.post_filter import CycleDiagnosis
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.engine.results import Steering, steer
from koordinator.scheduler.explain import reserved_room
from koordinator.scheduler.explain import survey as surveys
from koordinator.scheduler.explain.answer import (
    BEST_NODES,
    NAMED_MAX,
    NodeAnswer,
    PodAnswer,
    PodVerdict,
    Remedy,
    ResourceLine,
)
from koordinator.scheduler.explain.gang_group import GangSet, group_of_pod
from koordinator.scheduler.explain.gangs import GangExplanation, explain_group
from koordinator.scheduler.explain.quotas import explain_quota, refused_by_quota
from koordinator.scheduler.explain.quotas import remedies as quota_remedies
from koordinator.scheduler.explain.remedies import preemption_of, remedies
from koordinator.scheduler.explain.survey import Steps, Survey, finish
from koordinator.scheduler.plugin.status import NO_NODES, Status
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import trial_of

NODES_PER_SLICE = 100
"""Nodes told in detail before others have a turn, some 0.07 ms each."""


class PodQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The question beyond the verdict: details of these nodes (None: of all), how many of the best ones, and whether to
    search for remedies. `attempt` is the number of the cycle that is foreseen; ties between nodes fall as they will in
    it."""

    nodes: tuple[str, ...] | None = ()
    best: int = BEST_NODES
    with_remedies: bool = True
    attempt: int = 1


def explain(
    engine: Engine, pod: PodInfo, question: PodQuestion | None = None, gang: GangExplanation | None = None
) -> PodAnswer:
    """Return the verdict of a cycle that ran now, with everything that led to it. `gang`: what was found out about
    the gang of the pod already.

    Columns that depend on the time must be current (`Engine.refresh`). Reserve and Permit are not asked: they
    book. Nodes that `question` names and the cluster does not have are left out.
    """
    question = question or PodQuestion()
    profile = engine.profiles.get(pod.pod.spec.scheduler_name)
    base = PodAnswer(
        pod=pod.key,
        uid=pod.uid,
        verdict=PodVerdict.ERROR,
        sentence="",
        scheduler_name=pod.pod.spec.scheduler_name,
        priority=pod.priority,
        node=pod.node_name,
        nominated_node=engine.nominations.node_for(pod),
        node_count=engine.table.node_count,
        requests={
            name: resource_vector.amount_text(name, number)
            for name, number in engine.table.registry.named(pod.requests).items()
        },
    )
    if pod.is_terminal or pod.pod.metadata.deletion_timestamp is not None:
        state = f"has ended ({pod.pod.status.phase})" if pod.is_terminal else "is being deleted"
        return _with(base, PodVerdict.FINISHED, f"Pod {pod.key} {state}: nobody looks for a node.")
    place = engine.table.place_of(pod.uid)
    if place is None:
        if profile is None:
            return _foreign(base, engine)
        return _pending(engine, profile, pod, question, base, gang)
    here = engine.table.name_of(place.row)
    if place.assumed and (group := group_of_pod(engine, pod.pod)) is not None:
        answer = (gang or _explain_gang(engine, group, question)).answer
        sentence = f"Pod {pod.key} holds a place on {here} and goes with its gang. {answer.sentence}"
        verdict = PodVerdict.BOUND if answer.verdict is PodVerdict.BOUND else PodVerdict.WAITING
        return _with(base, verdict, sentence, node=here, gang=answer)
    base = msgspec.structs.replace(base, node=here)
    if profile is None:
        names = ", ".join(sorted(engine.profiles))
        note = f"scheduler {pod.pod.spec.scheduler_name!r} placed it, which is none of ours ({names})"
        sentence = f"Pod {pod.key} is on {here}; {note}."
        return _with(base, PodVerdict.BOUND, sentence)
    with trial_of(engine.table) as trial, contextlib.ExitStack() as aside:
        trial.take(place.pod)
        rest = [aside.enter_context(plugin.aside(place.pod, place.row)) for plugin in profile.plugins]
        found = _bound(engine, profile, _unbound(pod), here, question, base)
        return msgspec.structs.replace(found, notes=[*found.notes, *filter(None, rest)])


def _explain_gang(engine: Engine, group: GangSet, question: PodQuestion) -> GangExplanation:
    return finish(explain_group(engine, group, with_remedies=question.with_remedies))


def _with(base: PodAnswer, verdict: PodVerdict, sentence: str, **more: Any) -> PodAnswer:
    return msgspec.structs.replace(base, verdict=verdict, sentence=sentence, **more)


def _broken(base: PodAnswer, failure: Status) -> PodAnswer:
    """Return the answer when a plugin raised, or what it asked did not answer."""
    sentence = f"Pod {base.pod} cannot be judged: {failure.plugin} failed: {failure.message}."
    return _with(base, PodVerdict.ERROR, sentence, message=failure.message, rejected_by=[failure.plugin])


def _foreign(base: PodAnswer, engine: Engine) -> PodAnswer:
    names = ", ".join(sorted(engine.profiles))
    wanted = base.scheduler_name or "(none)"
    sentence = f"Pod {base.pod} asks for scheduler {wanted}; the profiles here are: {names}."
    return _with(base, PodVerdict.FOREIGN, sentence)


def _pending(
    engine: Engine,
    profile: Profile,
    pod: PodInfo,
    question: PodQuestion,
    base: PodAnswer,
    gang: GangExplanation | None,
) -> PodAnswer:
    group = group_of_pod(engine, pod.pod)
    for gate in profile.pre_enqueues:
        status = gate.look(pod)
        if status.is_success:
            continue
        if group is not None and isinstance(gate, Coscheduling):
            base = msgspec.structs.replace(
                base, notes=[*base.notes, f"not in the queue itself: {status.message}"]
            )
        else:
            sentence = f"Pod {pod.key} may not enter the queue: {status.message}."
            return _with(base, PodVerdict.GATED, sentence, message=status.message, rejected_by=[gate.name])
    if engine.table.node_count == 0:
        sentence = f"Pod {pod.key} is pending: the cluster has no nodes."
        return _with(base, PodVerdict.UNSCHEDULABLE, sentence, message=NO_NODES)
    base = msgspec.structs.replace(base, quota=explain_quota(profile, pod))
    if group is not None:
        return _with_gang(
            engine, profile, pod, question, base, gang or _explain_gang(engine, group, question)
        )
    found = surveys.survey(engine, profile, pod)
    base = _facts(found, question, base)
    if found.evaluation.failure is not None:
        return _broken(base, found.evaluation.failure)
    rows = found.takers
    steering = steer(profile.extensions, found.evaluation, pod)
    if not (steering.status.is_success or steering.status.is_rejected):
        return _broken(base, steering.status)
    row = _row_among(rows, found, base.nominated_node)
    if row is None and steering.planned:
        row = _row_among(rows, found, steering.planned)
        rows = rows if row is not None else rows[:0]
    if rows.size == 0 or not steering.status.is_success:
        return _no_fit(found, steering, question, base)
    return _fits(found, rows, steering, question, base)


def _with_gang(
    engine: Engine,
    profile: Profile,
    pod: PodInfo,
    question: PodQuestion,
    base: PodAnswer,
    explained: GangExplanation,
) -> PodAnswer:
    """Return a member that goes with its gang or not at all: what the gang meets is what it meets."""
    answer = explained.answer
    base = _facts(surveys.survey(engine, profile, pod), question, base)
    sentence = f"Pod {pod.key} goes with its gang. {answer.sentence}"
    is_stuck = answer.fit is not None and answer.fit.stuck == pod.key
    return _with(
        base,
        answer.verdict,
        sentence,
        gang=answer,
        node=explained.nodes.get(pod.key, ""),
        message=answer.fit.message if is_stuck and answer.fit is not None else answer.last_failure,
        rejected_by=[] if answer.verdict is PodVerdict.SCHEDULABLE else [Coscheduling.name],
    )


def _facts(found: Survey, question: PodQuestion, base: PodAnswer) -> PodAnswer:
    """Return what holds for pending and bound pods alike."""
    return msgspec.structs.replace(
        base,
        feasible_count=int(found.takers.size),
        pre_filter=list(found.pre_filter),
        reasons=surveys.reasons(found),
        nodes=_node_answers(found, question.nodes),
    )


def _fits(found: Survey, rows: Rows, steering: Steering, question: PodQuestion, base: PodAnswer) -> PodAnswer:
    """Return the node that the next cycle would choose."""
    pod, table = found.pod, found.engine.table
    row = _row_among(rows, found, base.nominated_node)
    notes = [*base.notes, *_pointed_at(found, rows, steering)]
    wanted = (steering.planned,) if steering.planned else steering.preferred
    hinted = next((r for name in wanted if (r := _row_among(rows, found, name)) is not None), None)
    if row is not None:
        notes.append("the pod is nominated to this node, which takes it: no other one is compared")
    elif hinted is not None:
        row = hinted
        who = f"{steering.planned_by} planned" if steering.planned else "a plugin prefers"
        notes.append(f"{who} this node, which takes the pod: no other one is compared")
    else:
        totals = found.evaluation.totals_of(rows)
        position = pick.best(totals, pick.chance_of(found.engine.seed, pod.uid, question.attempt))
        assert position is not None, pod.key
        row = int(rows[position])
        best = int((totals == totals.max()).sum())
        if best > 1:
            notes.append(f"{best} nodes share the best score; the seed decides between them")
        if found.profile.sample_percent is not None and rows.size > _sample_size(found):
            notes.append(
                f"the scheduler looks for {_sample_size(found)} nodes that fit and takes the best of them "
                "(percentageOfNodesToScore): it may choose another one"
            )
    name = table.name_of(row)
    sentence = (
        f"Pod {pod.key} fits {rows.size} of {table.node_count} nodes; the next cycle would choose {name}."
    )
    return _with(
        base,
        PodVerdict.SCHEDULABLE,
        sentence,
        node=name,
        notes=notes,
        scores=surveys.scores(found, rows, question.best, [row]),
    )


def _row_among(rows: Rows, found: Survey, name: str) -> int | None:
    """Return the node's row if it is one of `rows`."""
    row = found.engine.table.row_of(name) if name else None
    return row if row is not None and bool(np.isin(row, rows)) else None


def _sample_size(found: Survey) -> int:
    percent = found.profile.sample_percent
    assert percent is not None
    return pick.nodes_to_find(int(found.evaluation.candidates.size), percent)


def _no_fit(found: Survey, steering: Steering, question: PodQuestion, base: PodAnswer) -> PodAnswer:
    pod, profile = found.pod, found.profile
    asked = found.diagnosis(steering)
    is_free = steering.status.is_success and not steering.planned
    preemption = preemption_of(found, asked)
    message = asked.fit_error(preemption.message)
    verdict = PodVerdict.PREEMPTION if preemption.nodes else PodVerdict.UNSCHEDULABLE
    if preemption.nodes:
        best = preemption.nodes[0]
        sentence = (
            f"Pod {pod.key} is pending: no node takes it as it is, but evicting {_counted(best.pods)} from "
            f"{best.node} makes room."
        )
    else:
        sentence = f"Pod {pod.key} is pending: {_why(found, asked, steering, base)}."
    return _with(
        base,
        verdict,
        sentence,
        message=message,
        preemption=preemption,
        rejected_by=sorted(asked.rejected_by),
        remedies=_remedies(found, is_free=is_free) if question.with_remedies else [],
        notes=[*base.notes, *reserved_room.notes(profile, pod)],
    )


def _remedies(found: Survey, *, is_free: bool) -> list[Remedy]:
    if refused_by_quota(found.evaluation.status):
        return quota_remedies(found.profile, found.pod)
    # Where a plugin points at one node or refuses, a change that opens others does not help.
    return remedies(found) if is_free else []


def _counted(pods: Sequence[str]) -> str:
    return pods[0] if len(pods) == 1 else f"{len(pods)} pods"


def _pointed_at(found: Survey, rows: Rows, steering: Steering) -> list[str]:
    """Return what plugins say about nodes beforehand, where the pod does not simply follow it."""
    notes = []
    if steering.plan is not None and found.profile.extensions.batches and len(steering.plan.pods) > 1:
        notes.append(
            f"{steering.planned_by} places it together with {len(steering.plan.pods) - 1} other pods"
        )
    refused = []
    for name in steering.preferred:
        if _row_among(rows, found, name) is not None:
            break
        refused.append(name)
    if refused:
        notes.append(f"preferred nodes that do not take it: {readable.some_of(refused, NAMED_MAX)}")
    return notes


def _why(found: Survey, asked: CycleDiagnosis, steering: Steering, base: PodAnswer) -> str:
    if not steering.status.is_success:
        return f"{steering.status.plugin} refuses it: {steering.status.message}"
    if steering.planned:
        row = found.engine.table.row_of(steering.planned)
        why = asked.status_of(row).message if row is not None else "there is no such node"
        return f"{steering.planned_by} planned it for {steering.planned}, which does not take it: {why}"
    if refused_by_quota(found.evaluation.status) and base.quota is not None:
        return base.quota.sentence
    if not found.evaluation.status.is_success:
        return f"{found.evaluation.status.plugin} refuses it everywhere: {found.evaluation.status.message}"
    parts = [f"{each.reason} ({each.node_count})" for each in base.reasons[:3]]
    more = f", and {len(base.reasons) - 3} more reasons" if len(base.reasons) > 3 else ""
    return f"none of {base.node_count} nodes takes it: {', '.join(parts)}{more}"


def _unbound(pod: PodInfo) -> PodInfo:
    """Return the pod as it was before it got its node: `spec.nodeName` would pin it there."""
    spec = msgspec.structs.replace(pod.pod.spec, node_name="")
    return msgspec.structs.replace(pod, pod=msgspec.structs.replace(pod.pod, spec=spec))


def _bound(
    engine: Engine, profile: Profile, pod: PodInfo, here: str, question: PodQuestion, base: PodAnswer
) -> PodAnswer:
    """Return a pod that has a node: whether it would get it again, and which ones are preferred now."""
    row = engine.table.row_of(here)
    if row is None:
        sentence = f"Pod {pod.key} is on {here}, which is no node of the cluster any more."
        return _with(base, PodVerdict.BOUND, sentence)
    found = surveys.survey(engine, profile, pod)
    nodes = None if question.nodes is None else tuple(dict.fromkeys((*question.nodes, here)))
    base = _facts(found, msgspec.structs.replace(question, nodes=nodes), base)
    rows = found.takers
    is_there = bool(np.isin(row, rows))
    sentence = f"Pod {pod.key} is on {here}."
    if not is_there:
        status = found.evaluation.status_of(row)
        sentence = f"Pod {pod.key} is on {here}, where it would not be placed any more: {status.message}."
    table = surveys.scores(found, rows, question.best, [row] if is_there else [])
    if is_there and table:
        own = next(each.total for each in table if each.node == here)
        better = int((found.evaluation.totals_of(rows) > own).sum())
        if better:
            sentence = (
                f"Pod {pod.key} is on {here} (score {own}); {better} of {rows.size} nodes that fit score "
                f"better now, the best is {table[0].node} with {table[0].total}."
            )
        else:
            sentence = f"Pod {pod.key} is on {here}, and no node scores better now ({rows.size} fit)."
    return _with(base, PodVerdict.BOUND, sentence, scores=table)


def _node_answers(found: Survey, names: tuple[str, ...] | None) -> list[NodeAnswer]:
    table = found.engine.table
    if names is None:
        positions = list(range(int(found.rows.size)))
    else:
        rows = [row for row in map(table.row_of, names) if row is not None]
        positions = np.searchsorted(found.rows, rows).tolist()
    takers = set(found.takers.tolist())
    return [_node_answer(found, position, takers) for position in positions]


def every_node(engine: Engine, pod: PodInfo) -> Steps[list[NodeAnswer]]:
    """Yield every plugin's answer for every node, for a pod without a place; some nodes per slice."""
    profile = engine.profiles.get(pod.pod.spec.scheduler_name)
    if profile is None:
        return []
    found = surveys.survey(engine, profile, pod)
    takers, answers = set(found.takers.tolist()), []
    for position, row in enumerate(found.rows.tolist(), 1):
        if engine.table.node_at(row) is not None:
            answers.append(_node_answer(found, position - 1, takers))
        if position % NODES_PER_SLICE == 0:
            yield
    return answers


def _node_answer(found: Survey, position: int, takers: set[int]) -> NodeAnswer:
    table, row = found.engine.table, int(found.rows[position])
    return NodeAnswer(
        node=table.name_of(row),
        fits=row in takers,
        plugins=surveys.plugin_answers(found, position),
        resources=_resource_lines(found, position),
        pod_count=int(found.pod_count[position]),
        pods_max=int(table.pods_max[row]),
    )


def _resource_lines(found: Survey, position: int) -> list[ResourceLine]:
    table, row = found.engine.table, int(found.rows[position])
    lines = []
    for column, wanted in found.wanted.items():
        name = table.registry.names[column]
        allocatable, requested = int(table.allocatable[column, row]), int(found.requested[column, position])
        short = wanted - (allocatable - requested)
        text = functools.partial(resource_vector.amount_text, name)
        lines.append(
            ResourceLine(
                resource=name,
                wanted=text(wanted),
                allocatable=text(allocatable),
                requested=text(requested),
                free=text(allocatable - requested),
                short_by=text(short) if short > 0 else "",
            )
        )
    return lines
