"""Carry out `koordinator simulate colocation` once its command line is read."""

import asyncio
import random
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from koordinator.api import slo_config
from koordinator.api.core import ConfigMap, Node, Pod
from koordinator.api.node_metric import NodeMetric
from koordinator.cli.prometheus_asked import PrometheusAsked, used_before
from koordinator.cli.tables import progress_bar, table_of, write_report
from koordinator.cluster import connect
from koordinator.cluster.kube import KubeCluster
from koordinator.local.nodes.usage import TraceError, read_trace
from koordinator.simulate import dump as dumps
from koordinator.simulate.dump import Dump
from koordinator.simulate.whatif import cluster as clusters
from koordinator.simulate.whatif import demand, history, series, strategy, summary
from koordinator.simulate.whatif.batch_queue import BatchQueue
from koordinator.simulate.whatif.cluster import WhatIfCluster
from koordinator.simulate.whatif.demand import DrawnJobs, Wanted
from koordinator.simulate.whatif.history import UsageHistory
from koordinator.simulate.whatif.pod_history import PodHistory
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
    memory_file: Path | None,
    trace: Path | None,
    step: float,
    hours: float | None,
    strategies: tuple[str, ...],
    batch_demand: str,
    price: float | None,
    seed: int,
    output: str,
    output_file: Path | None,
    **prometheus: Any,
) -> None:
    """Run every strategy and tell; the parameters are the command's options. Raises: KoordinatorError, OSError."""
    notes = Console(stderr=True, highlight=False)
    asked = PrometheusAsked(**prometheus)
    given = HistoryFiles(history_file, memory_file, trace)
    given.check(asked)
    dump = dumps.read(dump_files) if dump_files else asyncio.run(_fetched(kubeconfig))
    cluster = clusters.of_objects(dump.views(Node), dump.each(Pod), dump.each(NodeMetric))
    chosen = _strategies(strategies, dump)
    del dump  # a cluster's text takes as much memory as all columns
    met = _history(cluster, given, asked, step, seed, notes)
    wanted = _wanted(batch_demand, cluster)
    steps = met.steps if hours is None else max(round(hours * 3600 / met.step_s), 1)
    results = [_run(cluster, met, steps, each, wanted, price, seed, notes) for each in chosen]
    found = summary.answer(cluster, met, steps * met.step_s / 3600, wanted.source, price, results)
    write_report(
        found,
        output,
        output_file,
        show=lambda out: print_answer(out, found),
        page=lambda: _page(found),
        indent=1,
    )


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


class HistoryFiles(msgspec.Struct, frozen=True):
    """The files that say what was used."""

    cpu: Path | None
    memory: Path | None
    trace: Path | None

    def check(self, asked: PrometheusAsked) -> None:
        """Refuse two answers to one question. Raises: UsageError."""
        if sum(map(bool, (self.cpu, self.trace, asked.prometheus_url))) > 1:
            raise click.UsageError("--history, --trace and --prometheus all say what was used: give one")
        if self.memory is not None and self.cpu is None:
            raise click.UsageError("--memory-history goes with a --history of pods")


def _history(
    cluster: WhatIfCluster,
    given: HistoryFiles,
    asked: PrometheusAsked,
    step_s: float,
    seed: int,
    notes: Console,
) -> UsageHistory:
    if asked.prometheus_url:
        used = used_before(asked, step_s, notes)
        return PodHistory(cluster, used.cpu, used.memory, step_s, used.warnings)
    if given.cpu is not None and series.is_of_pods(given.cpu):
        memory = None if given.memory is None else series.read(given.memory)
        return PodHistory(cluster, series.read(given.cpu), memory, step_s)
    if given.memory is not None:
        raise click.UsageError("--memory-history goes with a --history of pods: this one is about nodes")
    system_milli = history.system_milli(cluster)
    try:
        if given.cpu is not None:
            return history.of_nodes(cluster, read_trace(given.cpu), step_s, system_milli)
        if given.trace is not None:
            return history.of_trace(cluster, read_trace(given.trace), step_s, system_milli, seed)
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
    queue = BatchQueue(DrawnJobs(wanted, seed))
    with progress_bar(notes, f"strategy {chosen.name}") as progress:
        run = WhatIfRun(cluster, met, chosen, queue, seed)
        run.run(steps, progress)
    return summary.result_of(cluster, chosen, run, queue, price)


def _page(found: WhatIfAnswer) -> str:
    from koordinator.simulate.report import whatif_page  # plotly, which only pages need

    return whatif_page.render(found)


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
    _print_workloads(out, found)
    _print_ledger(out, found)
    out.print("What to do first:", style="bold")
    for number, step in enumerate(found.first_steps, start=1):
        out.print(f" {number}. {step}")


def _print_workloads(out: Console, found: WhatIfAnswer) -> None:
    """Print who would feel it most under the advised strategy."""
    best = next(each for each in found.strategies if each.strategy == found.advised)
    shown = [each for each in best.workloads[:WORKLOADS_SHOWN] if each.p99_growth > 0]
    if not shown:
        return
    columns = {"workload": False, "replicas": True, "p99": True, "between": True, "worst": True}
    table = table_of(f"Who feels it most with {best.strategy} (growth of p99; 90 % sure)", columns)
    for each in shown:
        table.add_row(
            each.workload,
            f"{each.replicas:,}",
            f"{100 * each.p99_growth:+.1f} %",
            f"{100 * each.p99_growth_low:+.1f} to {100 * each.p99_growth_high:+.1f} %",
            f"{100 * each.worst:+.0f} %",
        )
    out.print(table)


def _print_ledger(out: Console, found: WhatIfAnswer) -> None:
    """Print where the lent amounts of the advised strategy come from."""
    best = next(each for each in found.strategies if each.strategy == found.advised)
    columns = {"": False, "cores": True, "memory, GiB": True, "why": False}
    table = table_of(f"Where it comes from with {best.strategy} (means)", columns)
    for each in best.ledger:
        table.add_row(each.term, f"{each.cores:+,.1f}", f"{each.memory_gib:+,.1f}", each.why)
    table.add_section()
    cores, memory = (sum(getattr(each, name) for each in best.ledger) for name in ("cores", "memory_gib"))
    table.add_row("lent", f"{cores:,.1f}", f"{memory:,.1f}", "", style="bold")
    out.print(table)
