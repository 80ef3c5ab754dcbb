"""Print explanations of pods and gangs on a terminal: the verdict first, then what led to it, then what would help."""

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from koordinator.api import readable
from koordinator.cli.tables import table_of
from koordinator.scheduler.explain.answer import (
    EventLine,
    GangAnswer,
    NodeAnswer,
    PodAnswer,
    PodVerdict,
    PreemptionAnswer,
    QuotaAnswer,
    ReasonCount,
    Remedy,
    ReservationAnswer,
    ScoredNode,
)

EVENTS_MAX = 5
_COUNTS = ("nodes", "only this", "total", "pods", "minimum", "members", "pending", "waiting", "bound")
_AMOUNTS = ("held", "left", "used", "runtime", "asked for", "min", "max")
_STYLE = {
    PodVerdict.BOUND: "green",
    PodVerdict.SCHEDULABLE: "green",
    PodVerdict.PREEMPTION: "yellow",
    PodVerdict.WAITING: "yellow",
    PodVerdict.UNDECIDED: "yellow",
    PodVerdict.FINISHED: "dim",
}


def print_parts(console: Console, parts: Iterable[RenderableType | None]) -> None:
    """Print the parts that are not None, with blank lines between them."""
    for number, part in enumerate(each for each in parts if each is not None):
        if number:
            console.print()
        console.print(part)


def grid(*columns: str, title: str = "") -> Table:
    """Return a table of these columns; amounts and counts stand on the right."""
    return table_of(title, {column: column in (*_COUNTS, *_AMOUNTS) for column in columns})


def _reason_table(reasons: Sequence[ReasonCount], title: str) -> RenderableType | None:
    """Refusals with the nodes that they concern, and the figures behind them on an example."""
    if not reasons:
        return None
    table = grid("nodes", "only this", "plugin", "reason", "for example", title=title)
    for each in reasons:
        reason = each.reason if each.preemption_might_help else f"{each.reason} (eviction cannot help)"
        table.add_row(
            str(each.node_count), str(each.alone_count), each.plugin, reason, ", ".join(each.examples)
        )
    figures = {
        f"{each.examples[0]}, {each.plugin}: {'; '.join(each.facts)}": None for each in reasons if each.facts
    }
    return Group(table, Text("\n".join(figures))) if figures else table


def remedy_table(remedies: Sequence[Remedy]) -> Table | None:
    """Changes that would help."""
    if not remedies:
        return None
    table = grid("change", "nodes", "for example", title="What would help")
    for each in remedies:
        table.add_row(each.change, str(each.node_count or ""), ", ".join(each.examples))
    return table


def _preemption_table(preemption: PreemptionAnswer | None, said: str = "") -> RenderableType | None:
    """Return a table of the pods that would be evicted, or why none would be, unless `said` has that."""
    if preemption is None:
        return None
    if not preemption.nodes:
        return Text(preemption.message) if preemption.message and preemption.message not in said else None
    table = grid("node", "pods", "who would be evicted", "budgets violated", title="Preemption")
    for each in preemption.nodes:
        table.add_row(each.node, str(len(each.pods)), ", ".join(each.pods), str(each.budget_violations))
    return table


def _event_texts(events: Sequence[EventLine], said: Sequence[str] = ()) -> list[str]:
    """Return the last ones; texts that were `said` already are not repeated."""
    return [
        f"Event {e.time} {e.reason} (×{e.count}): {'the same' if e.message in said else e.message}"
        for e in events[-EVENTS_MAX:]
    ]


def _paragraph(lines: Sequence[str]) -> Text | None:
    return Text("\n".join(lines)) if lines else None


def print_answer(console: Console, answer: PodAnswer | GangAnswer | ReservationAnswer) -> None:
    """Print everything that the answer holds, in the order in which people ask."""
    verdict = Text(answer.sentence, style=f"bold {_STYLE.get(answer.verdict, 'red')}")
    match answer:
        case PodAnswer():
            parts = _pod_parts(answer)
        case GangAnswer():
            parts = _gang_parts(answer)
        case ReservationAnswer():
            parts = _reservation_parts(answer)
    print_parts(console, [verdict, *parts])


def _reservation_parts(answer: ReservationAnswer) -> list[RenderableType | None]:
    return [
        Text("\n".join(_reservation_facts(answer))),
        _reserved_amounts(answer),
        *(_pod_parts(answer.placing) if answer.placing is not None else ()),
        _pods_beside(answer),
        _paragraph(_event_texts(answer.events)),
    ]


def _reservation_facts(answer: ReservationAnswer) -> list[str]:
    lines = [f"phase {answer.phase}"]
    lines += [f"may be used by {each}" for each in answer.owners]
    lines += [f"used by {each}" for each in answer.users]
    lines += [f"ends {answer.ends}"] if answer.ends else []
    return [*lines, *answer.notes]


def _reserved_amounts(answer: ReservationAnswer) -> Table | None:
    if not answer.amounts:
        return None
    table = grid("resource", "held", "used", "left")
    for each in answer.amounts:
        table.add_row(each.resource, *(_cell(each.resource, a) for a in (each.held, each.used, each.left)))
    return table


def _pods_beside(answer: ReservationAnswer) -> Table | None:
    """Return the pods that do not use it although it is for them, or one that was asked about."""
    if not answer.pods:
        return None
    more = answer.pod_count - len(answer.pods)
    table = grid("pod", "the reservation", title=f"Other pods{f' ({more} more)' if more else ''}")
    for each in answer.pods:
        table.add_row(each.pod, each.says)
    return table


def _pod_parts(answer: PodAnswer) -> list[RenderableType | None]:
    parts: list[RenderableType | None] = [_facts(answer)]
    if answer.quota is not None:
        parts += [_quota(answer.quota), _above(answer.quota) if not answer.node else None]
    if answer.gang is not None:
        parts += _gang_parts(answer.gang)
    return [
        *parts,
        _reason_table(answer.reasons, "Why nodes refuse it"),
        remedy_table(answer.remedies),
        _preemption_table(answer.preemption, answer.message),
        _scores(answer.scores, answer.node),
        *(_node(each) for each in answer.nodes),
        _messages(answer),
    ]


def _facts(answer: PodAnswer) -> Text:
    requests = ", ".join(readable.lot(name, amount) for name, amount in answer.requests.items()) or "nothing"
    lines = [
        f"requests {requests}; priority {answer.priority}; scheduler {answer.scheduler_name or '(none)'}"
    ]
    if answer.node_count:
        lines.append(f"{answer.feasible_count} of {answer.node_count} nodes would take it")
    if answer.nominated_node:
        lines.append(f"nominated to {answer.nominated_node}")
    if answer.queue is not None:
        queue = answer.queue
        woken = f", woken by events for {', '.join(queue.wakes_on)}" if queue.wakes_on else ""
        lines.append(f"in the scheduler: {queue.area}, attempts so far: {queue.attempts}{woken}")
    return Text("\n".join([*lines, *answer.notes]))


def _quota(quota: QuotaAnswer) -> Table | None:
    """Return the way from the top to the pod's quota."""
    if not quota.levels or (quota.fits and not any(level.max for level in quota.levels)):
        return None  # the default quota, which refuses nobody
    title = f"Quota {quota.path}{'' if quota.fits else ': no room'}"
    table = grid("quota", "resource", "used", "runtime", "asked for", "min", "max", "held by", title=title)
    for level in quota.levels:
        table.add_row(
            level.quota,
            level.resource,
            *(
                _cell(level.resource, amount)
                for amount in (level.used, level.runtime, level.request, level.min)
            ),
            _cell(level.resource, level.max, "none"),
            level.held_by or "-",
            style="red" if level.quota == quota.quota and level.resource in quota.exceeded else "",
        )
    return table


def _cell(resource: str, amount: str | None, nothing: str = "-") -> str:
    return readable.cell(resource, amount) if amount else nothing


def _above(quota: QuotaAnswer) -> Text | None:
    """Return who has not given back yet, where there is room in the quota, but not on the nodes."""
    lines = []
    for each in quota.above:
        amounts = ", ".join(readable.lot(name, amount) for name, amount in each.amounts.items())
        lines.append(f"{each.quota} uses {amounts} above its runtime; it comes back as pods of it end")
    return _paragraph(lines)


def _scores(scores: list[ScoredNode], chosen: str) -> Table | None:
    if not scores:
        return None
    plugins = [share.plugin for share in scores[0].shares]
    title = "Best nodes (per plugin: weight × normalised score, raw score in brackets)"
    table = grid("node", "total", *plugins, title=title)
    for each in scores:
        shares = [f"{s.weight}×{s.normalised} ({s.raw})" for s in each.shares]
        table.add_row(each.node, str(each.total), *shares, style="bold" if each.node == chosen else "")
    return table


def _node(node: NodeAnswer) -> Group:
    verdict = "takes the pod" if node.fits else "refuses the pod"
    head = Text(f"{node.node} {verdict}; {node.pod_count} of {node.pods_max} pods", style="bold")
    answers = grid("plugin", "says", "why")
    for each in node.plugins:
        why = "; ".join([", ".join(each.reasons), *each.details]).strip("; ")
        answers.add_row(each.plugin, each.verdict, why, style="red" if each.verdict == "refuses" else "")
    amounts = grid("resource", "wanted", "free", "requested", "allocatable", "short by")
    for line in node.resources:
        amounts.add_row(
            line.resource,
            *(
                _cell(line.resource, amount, "")
                for amount in (line.wanted, line.free, line.requested, line.allocatable, line.short_by)
            ),
        )
    return Group(head, answers, *([amounts] if node.resources else []))


def _messages(answer: PodAnswer) -> Text | None:
    """Return the scheduler's message of now, the recorded one, and whatever else was said; nothing twice."""
    lines, said = [f"Message: {answer.message}"] if answer.message else [], [answer.message]
    for condition in answer.conditions:
        if condition.type == "PodScheduled":
            same = "the same" if condition.message in said else condition.message
            reason = f" {condition.reason}: {same}" if condition.reason else ""
            lines.append(f"Condition PodScheduled={condition.status}{reason}")
            said.append(condition.message)
    lines += _event_texts(answer.events, [text for text in said if text])
    return _paragraph(lines)


def _gang_parts(answer: GangAnswer) -> list[RenderableType | None]:
    """Return what stands below the verdict, also of a pod that goes with its gang."""
    fit = answer.fit
    where = f" in {fit.where}" if fit is not None and fit.where else ""
    title = f"Why nodes{where} refuse {fit.stuck}, next to the members before it" if fit is not None else ""
    return [
        _gang_facts(answer),
        _gangs(answer),
        _domains(answer),
        _reason_table(fit.reasons, title) if fit is not None else None,
        remedy_table(answer.remedies),
        _preemption_table(answer.preemption),
        _paragraph(_event_texts(answer.events)),
    ]


def _gang_facts(answer: GangAnswer) -> Text:
    lines = [f"state: {answer.state}"]
    if answer.representative:
        lines[0] += f"; {answer.representative} stands for it in the scheduling queue"
    if answer.fit is not None and answer.fit.nodes:
        nodes = ", ".join(f"{name} ({count})" for name, count in answer.fit.nodes.items())
        more = answer.fit.node_count - len(answer.fit.nodes)
        lines.append(
            f"members that find a place would go to {nodes}{f' and {more} more nodes' if more else ''}"
        )
    if answer.last_failure:
        lines.append(f"this round has failed: {answer.last_failure}")
    return Text("\n".join([*lines, *answer.notes]))


def _gangs(answer: GangAnswer) -> Table:
    table = grid(
        "gang", "minimum", "members", "pending", "waiting", "bound", "phase", "mode", "match policy", "from"
    )
    for line in answer.gangs:
        table.add_row(
            line.gang,
            str(line.minimum),
            str(line.existing),
            str(line.pending),
            str(line.waiting),
            str(line.bound),
            line.phase or "-",
            line.mode or "-",
            line.match_policy or "-",
            line.described_by or "nobody",
        )
    return table


def _domains(answer: GangAnswer) -> Table | None:
    if not answer.domains:
        return None
    table = grid("part of the network", "members that fit", title="Where all must be together")
    for each in answer.domains:
        table.add_row(f"{each.layer} {each.name}".strip(), str(each.fitting))
    return table
