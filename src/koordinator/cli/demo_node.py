"""`koordinator demo-node`: what the node agent does for a service on this machine, measured."""

import asyncio
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koordinator.cli import logs, options

if TYPE_CHECKING:
    from rich.console import Console

    from koordinator.node_demo.plan import DemoScenario
    from koordinator.node_demo.results import ResultRow
    from koordinator.node_demo.show import Prepared, ShownResults

SECONDS_MIN, SECONDS_MAX = 1.0, 600.0
REPEATS_MAX = 100
_LOADS = (40, 60)
_HOGS = ("cpu", "memory", "disk")
_MODES = ("alone", "unmanaged", "default", "managed")


@click.command(context_settings=options.HELP)
@click.option(
    "--load",
    "loads",
    type=click.IntRange(1, 95),
    multiple=True,
    default=_LOADS,
    help="CPU use of the service alone, in percent of all CPUs. May be given several times.",
)
@click.option(
    "--hogs",
    type=click.Choice(_HOGS),
    multiple=True,
    default=_HOGS,
    help="Resource that batch competes for. May be given several times. CPU hogs run at every load, the others "
    "at the lowest.",
)
@click.option(
    "--modes",
    type=click.Choice(_MODES),
    multiple=True,
    default=("alone", "unmanaged", "managed"),
    help="Runs to compare: the service alone, beside ordinary pods, beside best-effort pods under the policies of a "
    "plain installation, or under those of this demonstration. May be given several times.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(SECONDS_MIN, SECONDS_MAX),
    default=5.0,
    help="Length of a measurement; p99.9 needs longer ones.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1, REPEATS_MAX),
    default=3,
    help="Repetitions of each measurement; the table shows medians.",
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
@click.option("--busy", is_flag=True, help="Measure even while other processes use the machine.")
@options.quiet
def demo_node(
    loads: tuple[int, ...],
    hogs: tuple[str, ...],
    modes: tuple[str, ...],
    seconds: float,
    repeats: int,
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
      koordinator demo-node                                     about six minutes
      koordinator demo-node --load 40 --hogs cpu --repeats 1    a little more than one
      koordinator demo-node --seconds 60 --repeats 5            for p99.9
    """
    from rich.console import Console

    from koordinator.node_demo import observe, page, plan, results, show, texts

    for path in (report, json_path, interference_path):
        if path is not None and not path.absolute().parent.is_dir():
            raise click.BadParameter(f"{path}: the folder {path.parent} does not exist")
    logs.set_up(logging.ERROR)
    notes = Console(stderr=True)
    chosen = [mode for mode in plan.DemoMode if mode in modes]
    prepared = show.prepare(_scenarios(loads, hogs), repeats, seconds, disk_dir, by_hand, chosen)
    if not busy:
        observe.check_quiet()
    shown = _show(prepared, notes, quiet)
    rows = results.summarise(shown.measured)
    _report(Console(), rows, shown)
    report.write_text(page.render(shown, rows), encoding="utf-8")
    if json_path is not None:
        import msgspec

        document = {
            "circumstances": show.circumstances(shown),
            "rows": rows,
            "verdicts": texts.verdicts(rows),
            "runs": results.plain(shown.measured),
        }
        json_path.write_text(json.dumps(msgspec.to_builtins(document), indent=1) + "\n", encoding="utf-8")
    if interference_path is not None:
        import msgspec

        curve = results.interference(shown.measured, show.circumstances(shown))
        interference_path.write_bytes(msgspec.json.format(msgspec.json.encode(curve)) + b"\n")
    if not quiet:
        notes.print(f"The report is in {report}: open it in a browser.", highlight=False)


def _scenarios(loads: tuple[int, ...], hogs: tuple[str, ...]) -> "list[DemoScenario]":
    from koordinator.node_demo.plan import DemoScenario, Hog

    wanted = {
        DemoScenario(load, Hog(hog)) for load in loads for hog in hogs if hog == Hog.CPU or load == min(loads)
    }
    return sorted(wanted)


def _show(prepared: "Prepared", notes: "Console", quiet: bool) -> "ShownResults":
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from koordinator.node_demo import plan, show, texts

    if quiet:
        return asyncio.run(show.show(prepared, lambda number, run: None))
    minutes = plan.expected_s(prepared.planned, prepared.seconds) / 60
    notes.print(f"{len(prepared.planned)} measurements, about {minutes:.1f} minutes.", highlight=False)
    if not notes.is_terminal:  # a bar that cannot move would only fill the log
        return asyncio.run(show.show(prepared, lambda number, run: None))
    columns = (TextColumn("{task.description:40}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes) as progress:
        task = progress.add_task("preparing", total=len(prepared.planned))
        return asyncio.run(
            show.show(
                prepared,
                lambda number, run: progress.update(
                    task, completed=number, description=f"{run.scenario}: {texts.MODES[run.mode]}"
                ),
            )
        )


def _report(console: "Console", rows: "list[ResultRow]", shown: "ShownResults") -> None:
    from rich.table import Table

    from koordinator.node_demo import results, texts

    for scenario in sorted({row.scenario for row in rows}):
        table = Table(
            title=str(scenario), title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0)
        )
        for name in texts.HEADER:
            table.add_column(name, justify="left" if len(table.columns) == 0 else "right", no_wrap=True)
        for row in rows:
            if row.scenario == scenario:
                table.add_row(*texts.cells(row))
        console.print(table)
    for verdict in texts.verdicts(rows):
        mark = "[green]kept  [/green]" if verdict.is_kept else "[red]missed[/red]"
        console.print(f"{mark} {verdict.text}: {verdict.found}", highlight=False)
    for line in texts.held(shown.measured, shown.written):
        console.print(line, highlight=False, soft_wrap=True)
    for sentence in results.disturbances(shown.measured):
        console.print(f"[yellow]not quiet[/yellow] {sentence}", highlight=False)
    console.print(f"{texts.COLUMNS} {texts.METHOD}", style="dim", highlight=False)
