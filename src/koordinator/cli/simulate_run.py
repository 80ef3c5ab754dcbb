"""Carry out `koordinator simulate` once its command line is read.

Its result is one screen, all figures, or a page with plots.
"""

import time
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from koordinator.api import readable
from koordinator.api.readable import percent
from koordinator.cli.tables import table_of, write_report
from koordinator.scheduler.config.config import SchedulerConfig
from koordinator.scheduler.config.default_plugins import read_config
from koordinator.simulate import replay, replay_config, replay_input, replay_report
from koordinator.simulate.gpu_course import GpuReport
from koordinator.simulate.replay_options import Gpu, GpuScore, Order
from koordinator.simulate.replay_report import ReplayReport
from koordinator.simulate.replay_reservations import ReservationOutcome

BAR_WIDTH = 30
RESOURCES_SHOWN = 2
LEFT_OVER_SHOWN = 8
UNPLACED_MAX = 5


def scheduling(
    node_files: tuple[str, ...],
    pod_files: tuple[str, ...],
    config_file: Path | None,
    seed: int,
    order: str,
    timeline: bool,
    gpu: str,
    score: str | None,
    arrivals: float | None,
    pods_per_node: int,
    output: str,
    output_file: Path | None,
) -> None:
    """Carry out `koordinator simulate scheduling`; the parameters are its options. Raises: UsageError when they
    contradict each other."""
    if timeline and order != Order.GIVEN.value:
        raise click.UsageError("--timeline orders pods by their times: it goes without --order")
    if arrivals is not None and (timeline or order != Order.GIVEN.value):
        raise click.UsageError("--arrivals draws pods at random: it goes without --timeline and --order")
    if score is not None and (gpu != Gpu.SHARE.value or config_file is not None):
        raise click.UsageError(
            "--score goes with --gpu share, and without --config, which names scores itself"
        )
    notes = Console(stderr=True, highlight=False)
    started_s = time.perf_counter()
    given = replay_input.read(node_files, pod_files, Gpu(gpu), pods_per_node)
    read_s = time.perf_counter()
    with Progress(
        TextColumn("placing pods"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=notes, disable=not notes.is_terminal, transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task("", total=len(given.pods))
        result = replay.run(
            given,
            _config(config_file, Gpu(gpu), score),
            timer=time.perf_counter,
            seed=seed,
            order=Order(order),
            timeline=timeline,
            arrivals=arrivals,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    placed_s = time.perf_counter()
    found = replay_report.report(given, result, read_s - started_s, placed_s - read_s)
    write_report(
        found,
        output,
        output_file,
        show=lambda out: print_report(out, found),
        page=lambda: _page(found),
        indent=2,
    )


def _config(config_file: Path | None, gpu: Gpu, score: str | None) -> SchedulerConfig:
    """Return the file's configuration; without a file the shipped one, and for shared GPUs the one of a score."""
    if config_file is None and gpu is Gpu.SHARE:
        return replay_config.config_of(GpuScore(score or GpuScore.FRAGMENTATION_GRADIENT))
    return read_config(config_file)


def _page(found: ReplayReport) -> str:
    from koordinator.simulate.report import replay_page  # plotly, which only pages need

    return replay_page.render(found)


def print_report(console: Console, found: ReplayReport) -> None:
    """One screen."""
    verdict = (
        f"{found.placed:,} of {found.pods:,} pods placed on {found.nodes_used:,} of {found.nodes:,} nodes"
    )
    if found.timeline:
        verdict = (
            f"{found.placed:,} of {found.pods:,} pods were placed on {found.nodes:,} nodes in their time"
        )
    console.print(verdict + ".", style="bold green" if not found.unplaced else "bold yellow")
    if found.gpu_pods_left_out:
        console.print(f"{found.gpu_pods_left_out:,} pods that ask for GPUs are left out (--gpu).")
    if found.ended_left_out:
        console.print(f"{found.ended_left_out:,} pods of the files had ended already.")
    if found.reservations is not None:
        _reservations(console, found.reservations)
    speed = found.speed
    console.print(
        f"{speed.placing_s:.2f} s for {speed.attempts:,} attempts ({speed.pods_per_s:,.0f} pods/s; "
        f"p50 {speed.attempt_p50_us:,.0f} µs, p99 {speed.attempt_p99_us:,.0f} µs), "
        f"{speed.reading_s:.2f} s to read the files."
    )
    if found.gpu is not None:
        console.print(_gpu(found.gpu))
    console.print(_resources(found))
    if found.headroom:
        console.print(_headroom(found))
    if found.waiting is not None:
        waiting = found.waiting
        console.print(
            f"Waiting: {waiting.at_once:,} pods placed at once; p50 {waiting.p50_s:,.0f} s, "
            f"p90 {waiting.p90_s:,.0f} s, p99 {waiting.p99_s:,.0f} s, "
            f"at most {waiting.max_s:,.0f} s of virtual time.\n"
        )
    if found.left_over:
        console.print(_left_over(found))
    console.print(_histogram(found))


def _reservations(console: Console, found: ReservationOutcome) -> None:
    console.print(
        f"Reservations: {found.held:,} held room already, {found.placed:,} found a node, "
        f"{len(found.unplaced):,} did not; {found.pods_inside:,} pods were placed in them."
    )
    for name, why in sorted(found.unplaced.items())[:UNPLACED_MAX]:
        console.print(f"  {name}: {why}")


def _grid(title: str, *columns: str) -> Table:
    words = ("resource", "shape", "reasons", "for example", "requests")
    return table_of(title, {column: column not in words for column in columns})


def _resources(found: ReplayReport) -> Table:
    shares = ("when fullest", "mean", "peak") if found.timeline else ("share",)
    columns = ("resource", "allocatable", "wanted", "allocated", *shares, "unusable", "stranded")
    table = _grid("Allocation, and what is free but of no use (docs/replay.md has the formulas)", *columns)
    for use in found.resources:
        figures = [percent(use.allocated_ratio)]
        if found.timeline:
            figures += [percent(found.mean[use.resource]), percent(found.peak[use.resource])]
        table.add_row(
            use.resource,
            readable.cell(use.resource, use.allocatable),
            readable.cell(use.resource, use.wanted),
            readable.cell(use.resource, use.allocated),
            *figures,
            percent(use.unusable_ratio),
            percent(use.stranded_ratio),
        )
    return table


def _gpu(found: GpuReport) -> Table:
    table = _grid("GPUs while pods arrive", "arrived", "allocated", "at most", "left: no pod for the model",
                  "no CPU", "no memory", "parts too small", "of use")  # fmt: skip
    last = found.course[-1]
    full = found.allocated_percent_at_full_arrivals
    if full is not None and found.bound_percent_at_full_arrivals is not None:
        bound = found.bound_percent_at_full_arrivals
        table.add_row("100.0 %", f"{full:.2f} %", f"{bound:.2f} %", *[""] * 5)
    left = last.left
    parts = (left.wrong_model, left.no_cpu, left.no_memory, left.too_small, left.usable)
    table.add_row(
        f"{found.arrived_percent:.1f} %",
        f"{found.allocated_percent:.2f} %",
        f"{found.bound_percent:.2f} %",
        *(f"{each:.2f} %" for each in parts),
    )
    return table


def _headroom(found: ReplayReport) -> Table:
    table = _grid("Room for more pods of the list's shapes", "shape", "requests", "fit", "if pooled", "lost")
    for room in found.headroom:
        requests = ", ".join(f"{readable.lot(name, amount)}" for name, amount in room.requests.items())
        table.add_row(room.shape, requests, f"{room.fits:,}", f"{room.pooled:,}", percent(room.lost_ratio))
    return table


def _left_over(found: ReplayReport) -> Table:
    table = _grid("Not placed", "pods", "reasons", "for example")
    for each in found.left_over[:LEFT_OVER_SHOWN]:
        table.add_row(f"{each.pods:,}", ", ".join(each.reasons), ", ".join(each.examples))
    more = sum(each.pods for each in found.left_over[LEFT_OVER_SHOWN:])
    if more:
        table.add_row(f"{more:,}", "other reasons (-o json has all)", "")
    return table


def _histogram(found: ReplayReport) -> Table:
    names = list(found.histogram)[:RESOURCES_SHOWN]
    table = _grid("Nodes by how much of them is allocated", "allocated", *names)
    largest = max((max(found.histogram[name]) for name in names), default=0) or 1
    for number in range(replay_report.BINS):
        bars = [
            f"{'█' * -(-BAR_WIDTH * found.histogram[name][number] // largest)} {found.histogram[name][number]:,}"
            for name in names
        ]
        low = 100 * number // replay_report.BINS
        table.add_row(f"{low}–{low + 100 // replay_report.BINS} %", *bars)
    for column in table.columns[1:]:
        column.justify = "left"
    return table
