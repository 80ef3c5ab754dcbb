"""An explanation on a terminal: the verdict first, then what led to it, then what would help."""

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from koordinator.api import readable
from koordinator.cli.explain_gang_text import gang_parts
from koordinator.cli.explain_tables import (
    event_texts,
    grid,
    preemption_table,
    print_parts,
    reason_table,
    remedy_table,
    verdict_line,
)
from koordinator.scheduler.explain.answer import NodeAnswer, PodAnswer, QuotaAnswer, ScoredNode


def print_answer(console: Console, answer: PodAnswer) -> None:
    """Everything that the answer holds, in the order in which people ask."""
    parts: list[RenderableType | None] = [verdict_line(answer.sentence, answer.verdict), _facts(answer)]
    if answer.quota is not None:
        parts += [_quota(answer.quota), _above(answer.quota) if not answer.node else None]
    if answer.gang is not None:
        parts += gang_parts(answer.gang)
    parts += [
        reason_table(answer.reasons, "Why nodes refuse it"),
        remedy_table(answer.remedies),
        preemption_table(answer.preemption, answer.message),
        _scores(answer.scores, answer.node),
        *(_node(each) for each in answer.nodes),
        _messages(answer),
    ]
    print_parts(console, parts)


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
    return Text("\n".join(lines)) if lines else None


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
            told = f" {condition.reason}: {same}" if condition.reason else ""
            lines.append(f"Condition PodScheduled={condition.status}{told}")
            said.append(condition.message)
    lines += event_texts(answer.events, [text for text in said if text])
    return Text("\n".join(lines)) if lines else None
