"""Carry out `koordinator demo` once its command line is read."""

import json
import time
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from koordinator.cli import options
from koordinator.local.nodes.contention import Protection
from koordinator.local.nodes.usage import TraceError, read_trace
from koordinator.simulate import summary
from koordinator.simulate.report import page
from koordinator.simulate.scenario import Scenario, switched_off
from koordinator.simulate.summary import Comparison, compare


def demo(
    nodes: int,
    hours: float,
    trace: Path | None,
    seed: int,
    no_colocation: bool,
    no_load_aware: bool,
    protection: str,
    lend_ahead_minutes: int,
    closed_loop: bool,
    without: tuple[str, ...],
    report: Path,
    json_path: Path | None,
    figures: Path | None,
    quiet: bool,
) -> None:
    """Carry out `koordinator demo`; the parameters are its options."""
    console, notes = Console(), Console(stderr=True)
    _check(trace)
    options.refuse_unwritable((report, json_path, figures))
    scenario = Scenario(
        nodes=nodes,
        hours=hours,
        seed=seed,
        trace=trace,
        colocation=not no_colocation,
        load_aware=not no_load_aware,
        protection=Protection(protection),
        lend_ahead_minutes=lend_ahead_minutes,
        closed_loop=closed_loop,
    )
    scenario = switched_off(scenario, without)
    started_s = time.perf_counter()
    comparison = _compare(scenario, notes, quiet)
    wall_s = time.perf_counter() - started_s
    console.print(_table(comparison))
    report.write_text(page.render(comparison), encoding="utf-8")
    if json_path is not None:
        json_path.write_text(json.dumps(summary.document(comparison), indent=1) + "\n", encoding="utf-8")
    if figures is not None:
        text = json.dumps(summary.figures(comparison), indent=1, ensure_ascii=False)
        figures.write_text(text + "\n", encoding="utf-8")
    if not quiet:
        simulated_h = 2 * nodes * (scenario.end_s / 3_600)
        rate = f"{simulated_h:,.0f} node-hours in {wall_s:.0f} s ({simulated_h / wall_s:,.0f} per second)"
        notes.print(f"Simulated {rate}.", highlight=False)
        notes.print(f"The report is in {report}: open it in a browser.", highlight=False)


def _check(trace: Path | None) -> None:
    """Refuse now what would fail in the middle of a simulation."""
    if trace is not None:
        try:
            read_trace(trace)
        except TraceError as error:
            raise click.BadParameter(str(error), param_hint="--trace") from error


def _compare(scenario: Scenario, notes: Console, quiet: bool) -> Comparison:
    if quiet:
        return compare(scenario)
    if not notes.is_terminal:  # a bar that cannot move would only fill the log
        notes.print(f"Simulating {scenario.hours:g} hours of {scenario.nodes} nodes, twice.", highlight=False)
        return compare(scenario)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=notes) as progress:
        second = "with co-location" if scenario.colocation else "without, again"
        tasks = {
            "before": progress.add_task("without co-location", total=1.0),
            "after": progress.add_task(second, total=1.0),
        }
        return compare(scenario, lambda name, done: progress.update(tasks[name], completed=done))


def _table(comparison: Comparison) -> Table:
    before, after = summary.summarise(comparison.before), summary.summarise(comparison.after)
    table = Table(title=summary.title(comparison))
    table.add_column("")
    for name in ("before", "after", "change"):
        table.add_column(name, justify="right")
    for row in summary.rows(before, after):
        table.add_row(row.name, row.before, row.after, row.change)
    return table
