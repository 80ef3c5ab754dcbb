"""Carry out `koordinator explain shadow`: read the bills that node agents put into NodeMetrics, and add them up."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from koordinator.api import slo
from koordinator.api.node_metric import NodeMetric
from koordinator.cli import explain_sources
from koordinator.cli.tables import console, print_document, table_of

Json = dict[str, Any]
AMOUNTS = (
    "heldBackCoreSeconds",
    "raisedCoreSeconds",
    "relievedSeconds",
    "lentCoreSeconds",
    "evictedCount",
    "writes",
)
_COLUMNS = {
    "": False,
    "batch held back": True,
    "raised": True,
    "throttling relieved": True,
    "not lent": True,
    "pods evicted": True,
    "writes": True,
}
_CORE_SECONDS_PER_HOUR = 3_600
PODS_SHOWN = 20


def explain(node: str, kubeconfig: str, output: str) -> None:
    """Read and tell; the parameters are the command's options. Raises: ClickException when there is no answer."""
    found = document(explain_sources.node_metrics(node, kubeconfig))
    if output != "text":
        print_document(found, output)
    elif not found["nodes"]:
        whose = f"node {node}" if node else "any node"
        click.echo(
            f"No bill of {whose}: name strategies in shadow-config of slo-controller-config, and wait for a report."
        )
    else:
        _print(found, node)


def document(metrics: Iterable[NodeMetric]) -> Json:
    """Return the bills of all nodes that have one, and their sums by strategy."""
    nodes = []
    for metric in metrics:
        bill = metric.status.extensions.get(slo.SHADOW)
        if isinstance(bill, Mapping):
            nodes.append({"node": metric.metadata.name, **bill})
    return {
        "nodes": nodes,
        "wouldHave": _sums(each.get("wouldHave", {}) for each in nodes),
        "did": _sums(each.get("did", {}) for each in nodes),
    }


def _sums(found: Iterable[Mapping[str, Sequence[Json]]]) -> dict[str, Json]:
    """Return all hours of all nodes together, by strategy."""
    sums: dict[str, Json] = {}
    for bills in found:
        for strategy, hours in bills.items():
            of_strategy = sums.setdefault(strategy, dict.fromkeys(AMOUNTS, 0))
            for name in AMOUNTS:
                of_strategy[name] += sum(hour.get(name, 0) for hour in hours)
    return dict(sorted(sums.items()))


def _print(found: Json, node: str) -> None:
    (only,) = found["nodes"] if node else (None,)
    if only is not None:
        names = ", ".join(only["strategies"]) or "nothing"
        click.echo(f"Node {only['node']}: in shadow now: {names}")
    for member, title in (("wouldHave", "In shadow, of the last day"), ("did", "Live, of the last day")):
        if found[member]:
            table = table_of(title, _COLUMNS)
            for strategy, amounts in found[member].items():
                table.add_row(strategy, *_cells(amounts))
            console().print(table)
    if only is None:
        table = table_of("By node, in shadow", _COLUMNS | {"strategies": False})
        for each in found["nodes"]:
            sums = _sums([each.get("wouldHave", {})])
            total = {name: sum(of[name] for of in sums.values()) for name in AMOUNTS}
            table.add_row(each["node"], *_cells(total), ", ".join(each["strategies"]))
        console().print(table)
    else:
        _print_hours(only)


def _print_hours(bill: Json) -> None:
    table = table_of("In shadow, hour by hour", {"hour": False, **_COLUMNS})
    pods = []
    for strategy, hours in bill.get("wouldHave", {}).items():
        for hour in hours:
            table.add_row(hour["hour"], strategy, *_cells(hour))
            pods += hour.get("evicted", [])
    console().print(table)
    for pod in pods[-PODS_SHOWN:]:
        click.echo(f"  would have evicted {pod['pod']} at {pod['at']}: {pod['reason']}")


def _cells(amounts: Mapping[str, float]) -> list[str]:
    hours = [_core_hours(amounts.get(name, 0)) for name in ("heldBackCoreSeconds", "raisedCoreSeconds")]
    relieved = amounts.get("relievedSeconds", 0)
    return [
        *hours,
        f"{relieved:.1f} s" if relieved else "",
        _core_hours(amounts.get("lentCoreSeconds", 0)),
        *(str(amounts.get(name, 0) or "") for name in ("evictedCount", "writes")),
    ]


def _core_hours(core_seconds: float) -> str:
    return f"{core_seconds / _CORE_SECONDS_PER_HOUR:.3g} core-h" if core_seconds else ""
