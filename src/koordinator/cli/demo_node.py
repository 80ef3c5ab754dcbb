"""`koordinator demo-node`: what the node agent does for a service on this machine, measured."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koordinator.cli import logs, options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from koordinator.node_demo.plan import DemoRun, DemoScenario
    from koordinator.node_demo.results import ResultRow
    from koordinator.node_demo.show import Prepared, ShownResults

SECONDS_MIN, SECONDS_MAX = 1.0, 600.0
REPEATS_MAX = 100
_LOADS = (40, 60)
_HOGS = ("cpu", "memory", "disk", "network")
_USUAL_HOGS = ("cpu", "memory", "disk")
_SERVICES = ("cpu", "memory", "redis", "nginx")
_MODES = ("alone", "awake", "unmanaged", "default", "managed", "closed-loop")
_MODES_BY_HAND = ("alone", "awake", "unmanaged", "managed")
_USUAL_MODES = (*_MODES_BY_HAND, "closed-loop")
_SECONDS, _REPEATS, _MATRIX_REPEATS = 4.0, 2, 1


@click.command(context_settings=options.HELP)
@click.option(
    "--load",
    "loads",
    type=click.IntRange(1, 95),
    multiple=True,
    default=_LOADS,
    help="CPU use of the service alone, in percent of all CPUs (of one for Redis). May be given several times.",
)
@click.option(
    "--hogs",
    type=click.Choice(_HOGS),
    multiple=True,
    show_default="cpu, memory, disk; in a matrix all",
    help="Resource that batch competes for. May be given several times. CPU hogs run at every load, the others "
    "at the lowest, unless it is a matrix.",
)
@click.option(
    "--services",
    type=click.Choice(_SERVICES),
    multiple=True,
    show_default="cpu; in a matrix all that are installed",
    help="What serves the requests: a program that computes, one that reads much memory, Redis, nginx. May be given "
    "several times.",
)
@click.option(
    "--matrix",
    is_flag=True,
    help="All services beside all hogs at every load, as one table.",
)
@click.option(
    "--modes",
    type=click.Choice(_MODES),
    multiple=True,
    show_default="all but default; by hand without closed-loop",
    help="Runs to compare: the service alone, alone on CPUs that are kept from idling, beside ordinary pods, beside "
    "best-effort pods under the policies of a plain installation, or under those of this demonstration, without or "
    "with the closed loop. May be given several times.",
)
@click.option(
    "--seconds",
    type=options.FiniteRange(SECONDS_MIN, SECONDS_MAX),
    default=_SECONDS,
    help="Length of a measurement; p99.9 needs longer ones.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1, REPEATS_MAX),
    show_default=f"{_REPEATS}; in a matrix {_MATRIX_REPEATS}",
    help="Repetitions of each measurement; the table shows medians.",
)
@click.option(
    "--minutes",
    type=options.FiniteRange(min=0, min_open=True),
    help="Stop in time: what would take longer than this is not begun.",
)
@click.option(
    "--resume",
    type=options.FILE,
    metavar="FILE",
    help="Go on with the figures in this file (as --json writes them): what is there is not measured again. It is "
    "made where it does not exist, and written anew.",
)
@options.figures("report-node.html")
@click.option(
    "--interference",
    "interference_path",
    type=options.FILE,
    metavar="FILE",
    help="Write p99 by load beside CPU hogs to this file; the simulator's interference model is made from it.",
)
@click.option(
    "--disk-dir",
    type=options.FOLDER,
    metavar="DIR",
    help="Folder for files of the service and the disk hog (about 600 MiB).  [default: the cache folder]",
)
@click.option(
    "--by-hand",
    is_flag=True,
    help="Set cpu.idle and disk limits directly, without cluster and agent: the best that this kernel can do.",
)
@click.option(
    "--busy",
    is_flag=True,
    help="Measure even while other processes use the machine; batch asks for no lent CPU then.",
)
@options.quiet
def demo_node(
    loads: tuple[int, ...],
    hogs: tuple[str, ...],
    services: tuple[str, ...],
    matrix: bool,
    modes: tuple[str, ...],
    seconds: float,
    repeats: int | None,
    minutes: float | None,
    resume: Path | None,
    report: Path,
    json_path: Path | None,
    interference_path: Path | None,
    disk_dir: Path | None,
    by_hand: bool,
    busy: bool,
    quiet: bool,
) -> None:
    """Show what the node agent does for a service on this machine, with real processes. Needs root and a C compiler.

    A service answers requests that arrive at a constant rate, beside batch work that takes all it gets: alone,
    with batch unmanaged, and with batch managed. Ends with one table, which promises were kept, and one HTML
    report.

    \b
    Try:
      koordinator demo-node                                     under seven minutes
      koordinator demo-node --load 40 --hogs cpu --repeats 1    a little more than one
      koordinator demo-node --seconds 60 --repeats 5            for p99.9
      koordinator demo-node --services redis --hogs network     a real server beside traffic
      koordinator demo-node --matrix --minutes 4 --resume matrix.json    everything, in parts
    """
    from rich.console import Console

    from koordinator.node_demo import kept, observe, page, plan, results, show

    options.refuse_unwritable((report, json_path, interference_path, resume))
    logs.set_up(logging.ERROR)
    notes = Console(stderr=True)
    chosen = modes or (_MODES_BY_HAND if by_hand else _USUAL_MODES)
    planned = plan.runs(
        _scenarios(loads, hogs, services, matrix, notes),
        repeats or (_MATRIX_REPEATS if matrix else _REPEATS),
        [mode for mode in plan.DemoMode if mode in chosen],
    )
    earlier = kept.read(resume) if resume is not None else None
    if earlier is not None:
        kept.check(earlier, show.Machine.here())
    runs = earlier.runs if earlier is not None else []
    prepared = show.prepare(
        kept.left(planned, earlier, seconds), seconds, disk_dir, by_hand, runs, minutes, busy
    )
    if not busy:
        observe.check_quiet()
    shown = _show(prepared, notes, quiet)
    shown, circumstances = kept.join(earlier, shown, show.circumstances(shown))
    rows = results.summarise(shown.measured)
    _report(Console(), rows, shown, matrix)
    report.write_text(page.render(shown, rows, matrix), encoding="utf-8")
    for path in (json_path, resume):
        if path is not None:
            kept.write(path, circumstances, rows, shown.measured)
    if interference_path is not None:
        kept.write_interference(interference_path, results.interference(shown.measured, circumstances))
    if not quiet:
        notes.print(f"The report is in {report}: open it in a browser.", highlight=False)
    if shown.stopped:
        raise plan.DemoError(f"it ended before everything was measured: {shown.stopped}")


def _scenarios(
    loads: tuple[int, ...], hogs: tuple[str, ...], services: tuple[str, ...], matrix: bool, notes: "Console"
) -> "list[DemoScenario]":
    """Return what was asked for; of a matrix without services that are not there, which is said."""
    from koordinator.node_demo import real_servers
    from koordinator.node_demo.plan import DemoScenario, Hog, ServiceKind

    kinds = [ServiceKind(each) for each in services] or [ServiceKind.CPU]
    if matrix and not services:
        kinds = list(ServiceKind)
        for what_to_do in filter(None, map(real_servers.missing, kinds)):
            notes.print(f"Left out: {what_to_do}", highlight=False)
        kinds = [kind for kind in kinds if not real_servers.missing(kind)]
    chosen = hogs or (_HOGS if matrix else _USUAL_HOGS)
    wanted = {
        DemoScenario(load, Hog(hog), kind)
        for load in loads
        for hog in chosen
        for kind in kinds
        if matrix or hog == Hog.CPU or load == min(loads)
    }
    return sorted(wanted)


def _show(prepared: "Prepared", notes: "Console", quiet: bool) -> "ShownResults":
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from koordinator.node_demo import plan, show, texts

    if quiet:
        return asyncio.run(show.show(prepared, lambda number, run: None))
    seconds = plan.expected_s(prepared.planned, prepared.seconds)
    bound = f", of which {prepared.at_most_s / 60:g} now" if prepared.at_most_s is not None else ""
    count = len(prepared.planned)
    notes.print(f"{count} measurements, about {seconds / 60:.1f} minutes{bound}.", highlight=False)

    def line(number: int, run: "DemoRun") -> str:
        return f"{run.scenario}: {texts.MODES[run.mode]}"

    if not notes.is_terminal:  # a bar that cannot move would only fill the log
        return asyncio.run(
            show.show(
                prepared,
                lambda number, run: notes.print(f"{number + 1}/{count} {line(number, run)}", highlight=False),
            )
        )
    columns = (TextColumn("{task.description:40}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes) as progress:
        task = progress.add_task("preparing", total=count)
        return asyncio.run(
            show.show(
                prepared,
                lambda number, run: progress.update(task, completed=number, description=line(number, run)),
            )
        )


def _report(console: "Console", rows: "list[ResultRow]", shown: "ShownResults", matrix: bool) -> None:
    from koordinator.node_demo import results, texts

    if matrix:
        _print_matrix(console, rows)
    else:
        _print_scenarios(console, rows)
    for line in texts.held(shown.measured, shown.written):
        console.print(line, highlight=False, soft_wrap=True)
    for sentence in results.disturbances(shown.measured):
        console.print(f"[yellow]not quiet[/yellow] {sentence}", highlight=False)
    columns = texts.MATRIX if matrix else texts.COLUMNS
    console.print(f"{columns} {texts.METHOD}", style="dim", highlight=False)


def _print_scenarios(console: "Console", rows: "list[ResultRow]") -> None:
    from koordinator.node_demo import texts

    for scenario in sorted({row.scenario for row in rows}):
        table = _table(texts.HEADER, str(scenario))
        for row in rows:
            if row.scenario == scenario:
                table.add_row(*texts.cells(row))
        console.print(table)
    for verdict in texts.verdicts(rows):
        mark = "[green]kept  [/green]" if verdict.is_kept else "[red]missed[/red]"
        console.print(f"{mark} {verdict.text}: {verdict.found}", highlight=False)


def _print_matrix(console: "Console", rows: "list[ResultRow]") -> None:
    from koordinator.node_demo import matrix

    table = _table(matrix.header(rows))
    for line in matrix.lines(rows):
        table.add_row(*matrix.cells(line, matrix.modes(rows)))
    console.print(table)


def _table(names: "Sequence[str]", title: str | None = None) -> "Table":
    """Return an empty table whose first column names the row."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    return table
