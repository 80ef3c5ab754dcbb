"""Carry out `koordinator simulate descheduling` once its command line is read."""

import asyncio
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import yaml
from rich.console import Console

from koordinator.api import readable
from koordinator.cli.tables import console, print_document, table_of
from koordinator.cluster import connect
from koordinator.cluster.kube import KubeCluster
from koordinator.descheduler import configuration
from koordinator.descheduler.configuration import DeschedulerConfig
from koordinator.descheduler.plan_input import PROD
from koordinator.descheduler.plugins.built_in import installed_plugins
from koordinator.install import configs
from koordinator.scheduler.config.config import SchedulerConfig
from koordinator.scheduler.config.default_plugins import read_config
from koordinator.simulate import descheduling as plans
from koordinator.simulate import dump as dumps
from koordinator.simulate.descheduling import HotNode, PlanReport

STAYS_HOT = 3
SHOWN_MAX = 40


def descheduling(
    dump_files: tuple[str, ...],
    kubeconfig: str,
    descheduler_file: Path | None,
    config_file: Path | None,
    seed: int,
    output: str,
) -> None:
    """Plan and tell; the parameters are the command's options. Raises: KoordinatorError, OSError."""
    scheduler, descheduler = read_config(config_file), descheduler_config(descheduler_file)
    report = asyncio.run(_plan(dump_files, kubeconfig, scheduler, descheduler, seed))
    if output == "text":
        print_report(console(), report)
    else:
        print_document(msgspec.to_builtins(report), output)
    if report.hot_after:
        sys.exit(STAYS_HOT)


async def _plan(
    files: tuple[str, ...],
    kubeconfig: str,
    scheduler: SchedulerConfig,
    descheduler: DeschedulerConfig,
    seed: int,
) -> PlanReport:
    if files:
        return await plans.plan(dumps.read(files), scheduler, descheduler, seed)
    client = connect.load(kubeconfig_file=kubeconfig)
    async with KubeCluster(client, rng=random.Random(seed), component="koordinator") as cluster:
        dump = await plans.fetch(cluster, scheduler)
    return await plans.plan(dump, scheduler, descheduler, seed)


def descheduler_config(file: Path | None) -> DeschedulerConfig:
    """Return the file's configuration; without a file the shipped one, with LowNodeLoad switched on.

    Raises: DeschedulerConfigError, OSError.
    """
    registry = installed_plugins()
    if file is not None:
        return configuration.read(file, registry)
    body = yaml.safe_load(configs.shipped_descheduling("koordinator-system", "10251"))
    body["profiles"][0]["plugins"]["balance"] = {"enabled": [{"name": "LowNodeLoad"}]}
    return configuration.parse(json.dumps(body), registry)


def print_report(out: Console, found: PlanReport) -> None:
    """One screen."""
    if not found.hot_before:
        out.print(f"None of {found.nodes:,} nodes is hot: nothing need move.", style="bold green")
    else:
        steps = f"{len(found.moves):,} moves"
        verdict = f"{steps}: {found.hot_before:,} of {found.nodes:,} nodes are hot, {found.hot_after:,} would stay hot."
        out.print(verdict, style="bold yellow" if found.hot_after else "bold green")
    if found.unmeasured:
        out.print(
            f"{found.unmeasured:,} nodes have no fresh NodeMetric: they are neither sources nor targets."
        )
    if found.moves:
        columns = {"step": True, "pod": False, "workload": False, "from": False, "to": False}
        table = table_of("Moves, in this order; two of one step change places", columns)
        for move in found.moves[:SHOWN_MAX]:
            table.add_row(str(move.step + 1), move.pod, move.workload, move.source, move.target)
        out.print(table)
        _print_more(out, len(found.moves))
        columns = {"workload": False, "pods that move": True, "replicas": True}
        table = table_of("Whom it disturbs", columns)
        for one in found.workloads[:SHOWN_MAX]:
            table.add_row(one.workload, f"{one.moves:,}", f"{one.replicas:,}")
        out.print(table)
    if found.hot:
        columns = {
            "node": False,
            "resource": False,
            "limit": True,
            "now": True,
            "after": True,
            "verdict": False,
        }
        table = table_of("Hot nodes", columns)
        for node in found.hot[:SHOWN_MAX]:
            _add_node(table.add_row, node)
        out.print(table)
        _print_more(out, len(found.hot))
    for node in found.hot[:SHOWN_MAX]:
        if not node.is_cooled:
            out.print(_needs(node))
    for why, count in found.not_movable.items():
        out.print(f"{count:,} pods of hot nodes stay: {why}.")


def _print_more(out: Console, count: int) -> None:
    if count > SHOWN_MAX:
        out.print(f"{count - SHOWN_MAX:,} more (-o json has all).")


def _add_node(add_row: Callable[..., None], node: HotNode) -> None:
    for resource, heat in node.resources.items():
        if heat.before <= heat.limit:
            continue
        cells = [_cell(resource, amount) for amount in (heat.limit, heat.before, heat.after)]
        add_row(node.node, resource, *cells, "cooled" if node.is_cooled else "stays hot")


def _needs(node: HotNode) -> str:
    """Say what keeps a node hot, and what would have to be there."""
    excess = " and ".join(_lot(name, amount) for name, amount in node.excess.items())
    text = f"{node.node} stays hot by {excess}: "
    if not node.pod:
        return text + node.why + "."
    needs = ", ".join(_lot(name, amount) for name, amount in node.needs.items() if not name.startswith(PROD))
    return f"{text}{node.pod} stays ({node.why}); it needs a node with {needs} left below its thresholds that takes it."


def _amount(resource: str, amount: int) -> str:
    return f"{amount}m" if resource == "cpu" else str(amount)


def _cell(column: str, amount: int) -> str:
    resource = column.removeprefix(PROD)
    return readable.cell(resource, _amount(resource, amount))


def _lot(column: str, amount: int) -> str:
    resource = column.removeprefix(PROD)
    return (
        f"{readable.lot(resource, _amount(resource, amount))}{' of prod pods' if column != resource else ''}"
    )
