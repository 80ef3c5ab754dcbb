"""A gang on a terminal: where its members stand, how many fit, what would help."""

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from koordinator.cli.explain_tables import (
    event_texts,
    grid,
    preemption_table,
    print_parts,
    reason_table,
    remedy_table,
    verdict_line,
)
from koordinator.scheduler.explain.answer import GangAnswer


def print_gang(console: Console, answer: GangAnswer) -> None:
    """Everything that the answer holds, in the order in which people ask."""
    print_parts(console, [verdict_line(answer.sentence, answer.verdict), *gang_parts(answer)])


def gang_parts(answer: GangAnswer) -> list[RenderableType | None]:
    """Return what stands below the verdict, also of a pod that goes with its gang."""
    fit = answer.fit
    where = f" in {fit.where}" if fit is not None and fit.where else ""
    title = f"Why nodes{where} refuse {fit.stuck}, next to the members before it" if fit is not None else ""
    return [
        _facts(answer),
        _gangs(answer),
        _domains(answer),
        reason_table(fit.reasons, title) if fit is not None else None,
        remedy_table(answer.remedies),
        preemption_table(answer.preemption),
        _events(answer),
    ]


def _facts(answer: GangAnswer) -> Text:
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


def _events(answer: GangAnswer) -> Text | None:
    lines = event_texts(answer.events)
    return Text("\n".join(lines)) if lines else None
