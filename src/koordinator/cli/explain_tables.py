"""Tables and lines that explanations of pods, gangs and quotas have in common."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from koordinator.scheduler.explain.answer import EventLine, PodVerdict, PreemptionAnswer, ReasonCount, Remedy

EVENTS_MAX = 5
_COUNTS = ("nodes", "only this", "total", "pods", "minimum", "members", "pending", "waiting", "bound")
_AMOUNTS = ("used", "runtime", "asked for", "min", "max")
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


def verdict_line(sentence: str, verdict: PodVerdict) -> Text:
    """Return the first line."""
    return Text(sentence, style=f"bold {_STYLE.get(verdict, 'red')}")


def grid(*columns: str, title: str = "") -> Table:
    """Return a table of these columns; amounts and counts stand on the right."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        is_number = column in (*_COUNTS, *_AMOUNTS)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    return table


def reason_table(reasons: Sequence[ReasonCount], title: str) -> Table | None:
    """Refusals with the nodes that they concern."""
    if not reasons:
        return None
    table = grid("nodes", "only this", "plugin", "reason", "for example", title=title)
    for each in reasons:
        reason = each.reason if each.preemption_might_help else f"{each.reason} (eviction cannot help)"
        table.add_row(
            str(each.node_count), str(each.alone_count), each.plugin, reason, ", ".join(each.examples)
        )
    return table


def remedy_table(remedies: Sequence[Remedy]) -> Table | None:
    """Changes that would help."""
    if not remedies:
        return None
    table = grid("change", "nodes", "for example", title="What would help")
    for each in remedies:
        table.add_row(each.change, str(each.node_count or ""), ", ".join(each.examples))
    return table


def preemption_table(preemption: PreemptionAnswer | None, said: str = "") -> RenderableType | None:
    """Return a table of the pods that would be evicted, or why none would be, unless `said` has that."""
    if preemption is None:
        return None
    if not preemption.nodes:
        return Text(preemption.message) if preemption.message and preemption.message not in said else None
    table = grid("node", "pods", "who would be evicted", "budgets violated", title="Preemption")
    for each in preemption.nodes:
        table.add_row(each.node, str(len(each.pods)), ", ".join(each.pods), str(each.budget_violations))
    return table


def event_texts(events: Sequence[EventLine], said: Sequence[str] = ()) -> list[str]:
    """Return the last ones; texts that were `said` already are not repeated."""
    return [
        f"Event {e.time} {e.reason} (×{e.count}): {'the same' if e.message in said else e.message}"
        for e in events[-EVENTS_MAX:]
    ]
