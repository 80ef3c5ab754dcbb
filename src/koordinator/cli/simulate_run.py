"""Carry out `koordinator simulate` once its command line is read."""

import time
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from koordinator.cli import logs, simulate_text
from koordinator.cli.explain_sources import read_config
from koordinator.simulate import replay, replay_input
from koordinator.simulate.replay_options import Gpu, Order


def scheduling(
    node_files: tuple[str, ...],
    pod_files: tuple[str, ...],
    config_file: Path | None,
    seed: int,
    order: str,
    timeline: bool,
    gpu: str,
    pods_per_node: int,
    output: str,
    output_file: Path | None,
) -> None:
    """Carry out `koordinator simulate scheduling`; the parameters are its options. Raises: UsageError when they
    contradict each other.
    """
    logs.keep_quiet()
    if timeline and order != Order.GIVEN.value:
        raise click.UsageError("--timeline orders pods by their times: it goes without --order")
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
            read_config(config_file),
            timer=time.perf_counter,
            seed=seed,
            order=Order(order),
            timeline=timeline,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    placed_s = time.perf_counter()
    simulate_text.write(given, result, read_s - started_s, placed_s - read_s, output, output_file)
