"""Carry out `koordinator simulate colocation` once its command line is read."""

import asyncio
import random
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from koordinator.api import slo_config
from koordinator.api.core import ConfigMap, Node, Pod
from koordinator.api.node_metric import NodeMetric
from koordinator.cli import logs
from koordinator.cli.tables import console, table_of
from koordinator.cluster import connect
from koordinator.cluster.kube import KubeCluster
from koordinator.local.nodes.usage import TraceError, read_trace
from koordinator.simulate import dump as dumps
from koordinator.simulate.dump import Dump
from koordinator.simulate.whatif import cluster as clusters
from koordinator.simulate.whatif import demand, history, strategy, summary
from koordinator.simulate.whatif.cluster import WhatIfCluster
from koordinator.simulate.whatif.demand import BatchQueue, Wanted
from koordinator.simulate.whatif.history import UsageHistory
from koordinator.simulate.whatif.run import WhatIfRun
from koordinator.simulate.whatif.strategy import WhatIfStrategy
from koordinator.simulate.whatif.summary import StrategyResult, WhatIfAnswer

VIEWS = (Node, NodeMetric, Pod, ConfigMap)
CURRENT = "current"
WORKLOADS_SHOWN = 10


def colocation(
    dump_files: tuple[str, ...],
    kubeconfig: str,
    history_file: Path | None,
    trace: Path | None,
    step: float,
    hours: float | None,
    strategies: tuple[str, ...],
    batch_demand: str,
    price: float | None,
    seed: int,
    output: str,
    output_file: Path | None,
) -> None:
    """Run every strategy and tell; the parameters are the command's options. Raises: KoordinatorError, OSError."""
    logs.keep_quiet()
    notes = Console(stderr=True, highlight=False)
    dump = dumps.read(dump_files) if dump_files else asyncio.run(_fetched(kubeconfig))
    cluster = clusters.of_objects(dump.views(Node), dump.each(Pod), dump.each(NodeMetric))
    chosen = _strategies(strategies, dump)
    met = _history(cluster, history_file, trace, step, seed)
    wanted = _wanted(batch_demand, cluster)
    steps = met.steps if hours is None else max(round(hours * 3600 / met.step_s), 1)
    results = [_run(cluster, met, steps, each, wanted, price, seed, notes) for each in chosen]
    found = summary.answer(cluster, met, steps * met.step_s / 3600, wanted.source, price, results)
    _write(found, output, output_file)


async def _fetched(kubeconfig: str) -> Dump:
    client = connect.load(kubeconfig_file=kubeconfig)
    async with KubeCluster(client, rng=random.Random(0), component="koordinator") as cluster:
        return await dumps.fetch(cluster, VIEWS)


def _strategies(names: tuple[str, ...], dump: Dump) -> list[WhatIfStrategy]:
    """Return what was asked for; else what an installation does, and what the cluster's own configuration says."""
    config = next(
        (each.data for each in dump.views(ConfigMap) if each.metadata.name == slo_config.CONFIG_NAME), None
    )
    if not names:
        names = ("installed", *((CURRENT,) if config is not None else ()))
    return [
        strategy.of_config(CURRENT, config) if name == CURRENT else strategy.of_name(name) for name in names
    ]


def _history(
    cluster: WhatIfCluster, file: Path | None, trace: Path | None, step_s: float, seed: int
) -> UsageHistory:
    if file is not None and trace is not None:
        raise click.UsageError("--history and --trace both say what was used: give one")
    system_milli = history.system_milli(cluster)
    try:
        if file is not None:
            return history.of_nodes(cluster, read_trace(file), step_s, system_milli)
        if trace is not None:
            return history.of_trace(cluster, read_trace(trace), step_s, system_milli, seed)
    except TraceError as error:
        raise click.ClickException(str(error)) from error
    return history.MomentHistory(cluster)


def _wanted(text: str, cluster: WhatIfCluster) -> Wanted:
    if text == "max":
        return demand.unlimited()
    try:
        ratio = float(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither max nor a ratio", param_hint="--batch-demand"
        ) from None
    if not 0 <= ratio <= 10:
        raise click.BadParameter(f"{text} is not from 0 to 10", param_hint="--batch-demand")
    return demand.of_ratio(ratio, float(cluster.nodes.cpu_milli.sum()) / 1000)


def _run(
    cluster: WhatIfCluster,
    met: UsageHistory,
    steps: int,
    chosen: WhatIfStrategy,
    wanted: Wanted,
    price: float | None,
    seed: int,
    notes: Console,
) -> StrategyResult:
    queue = BatchQueue(wanted, seed)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(
        *columns, TimeElapsedColumn(), console=notes, disable=not notes.is_terminal, transient=True
    ) as bar:
        task = bar.add_task(f"strategy {chosen.name}", total=1.0)
        run = WhatIfRun(cluster, met, chosen, queue, seed)
        added = run.run(steps, lambda done: bar.update(task, completed=done))
    return summary.result_of(cluster, chosen, added, queue, price)


def _write(found: WhatIfAnswer, output: str, output_file: Path | None) -> None:
    if output == "text":
        print_answer(console(), found)
        return
    text = msgspec.json.format(msgspec.json.encode(found), indent=1).decode() + "\n"
    if output_file is not None:
        output_file.write_text(text, encoding="utf-8")
    else:
        click.echo(text, nl=False)


def print_answer(out: Console, found: WhatIfAnswer) -> None:
    """One screen."""
    out.print(
        f"{found.nodes:,} nodes, {found.cores:,.0f} cores, {found.service_pods:,} service pods of "
        f"{found.workloads:,} workloads; {found.hours:,.1f} h."
    )
    out.print(f"Load: {found.history}. Batch: {found.demand}.")
    for note in found.notes:
        out.print(f"Note: {note}.", style="yellow")
    table = table_of(
        "Without → with co-location", {"": False, **{s.strategy: True for s in found.strategies}}
    )
    for row in summary.rows(found):
        table.add_row(row.name, *row.texts)
    out.print(table)
