"""An explanation on a terminal: the verdict first, then what led to it, then what would help."""

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from koordinator.scheduler.explain.answer import (
    NodeAnswer,
    NodeScore,
    PodAnswer,
    Preemption,
    ReasonCount,
    Remedy,
    Verdict,
)

EVENTS_MAX = 5
_STYLE = {
    Verdict.BOUND: "green",
    Verdict.SCHEDULABLE: "green",
    Verdict.PREEMPTION: "yellow",
    Verdict.FINISHED: "dim",
}


def print_answer(console: Console, answer: PodAnswer) -> None:
    """Everything that the answer holds, in the order in which people ask."""
    console.print(Text(answer.sentence, style=f"bold {_STYLE.get(answer.verdict, 'red')}"))
    for part in (
        _facts(answer),
        _reasons(answer.reasons, answer),
        _remedies(answer.remedies),
        _preemption(answer.preemption),
        _scores(answer.scores, answer.node),
        *(_node(each) for each in answer.nodes),
        _messages(answer),
    ):
        if part is not None:
            console.print()
            console.print(part)


def _table(*columns: str, title: str = "") -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        is_number = column in ("nodes", "only this", "total", "pods")
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    return table


def _facts(answer: PodAnswer) -> Text:
    requests = ", ".join(f"{name} {amount}" for name, amount in answer.requests.items()) or "nothing"
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


def _reasons(reasons: list[ReasonCount], answer: PodAnswer) -> Table | None:
    if not reasons:
        return None
    table = _table("nodes", "only this", "plugin", "reason", "for example", title="Why nodes refuse it")
    for each in reasons:
        reason = each.reason if each.preemption_might_help else f"{each.reason} (eviction cannot help)"
        table.add_row(
            str(each.node_count), str(each.alone_count), each.plugin, reason, ", ".join(each.examples)
        )
    return table


def _remedies(remedies: list[Remedy]) -> Table | None:
    if not remedies:
        return None
    table = _table("change", "nodes", "for example", title="What would help")
    for each in remedies:
        table.add_row(each.change, str(each.node_count), ", ".join(each.examples))
    return table


def _preemption(preemption: Preemption | None) -> RenderableType | None:
    if preemption is None:
        return None
    if not preemption.nodes:
        return Text(preemption.message) if preemption.message else None
    table = _table("node", "pods", "who would be evicted", "budgets violated", title="Preemption")
    for each in preemption.nodes:
        table.add_row(each.node, str(len(each.pods)), ", ".join(each.pods), str(each.budget_violations))
    return table


def _scores(scores: list[NodeScore], chosen: str) -> Table | None:
    if not scores:
        return None
    plugins = [share.plugin for share in scores[0].shares]
    title = "Best nodes (per plugin: weight × normalised score, raw score in brackets)"
    table = _table("node", "total", *plugins, title=title)
    for each in scores:
        shares = [f"{s.weight}×{s.normalised} ({s.raw})" for s in each.shares]
        table.add_row(each.node, str(each.total), *shares, style="bold" if each.node == chosen else "")
    return table


def _node(node: NodeAnswer) -> Group:
    verdict = "takes the pod" if node.fits else "refuses the pod"
    head = Text(f"{node.node} {verdict}; {node.pod_count} of {node.pods_max} pods", style="bold")
    answers = _table("plugin", "says", "why")
    for each in node.plugins:
        why = "; ".join([", ".join(each.reasons), *each.details]).strip("; ")
        answers.add_row(each.plugin, each.verdict, why, style="red" if each.verdict == "refuses" else "")
    amounts = _table("resource", "wanted", "free", "requested", "allocatable", "short by")
    for line in node.resources:
        amounts.add_row(
            line.resource, line.wanted, line.free, line.requested, line.allocatable, line.short_by
        )
    return Group(head, answers, *([amounts] if node.resources else []))


def _messages(answer: PodAnswer) -> Text | None:
    lines = [f"Message: {answer.message}"] if answer.message else []
    for condition in answer.conditions:
        if condition.type == "PodScheduled":
            told = f" {condition.reason}: {condition.message}" if condition.reason else ""
            lines.append(f"Condition PodScheduled={condition.status}{told}")
    lines += [
        f"Event {each.time} {each.reason} (×{each.count}): {each.message}"
        for each in answer.events[-EVENTS_MAX:]
    ]
    return Text("\n".join(lines)) if lines else None
