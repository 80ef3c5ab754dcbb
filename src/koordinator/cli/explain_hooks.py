"""Carry out `koordinator explain hooks`: read from NodeMetrics in which modes hooks reach containers."""

from collections.abc import Iterable, Mapping
from typing import Any

import click

from koordinator.api.node_metric import NodeMetric, hook_delivery
from koordinator.cli import explain_sources
from koordinator.cli.tables import console, print_document, table_of

Json = dict[str, Any]
MODES = {"nri": "by NRI", "proxy": "by the runtime proxy", "reconciler": "by the reconciler"}
"""Modes of delivery, the earliest first."""
_NOBODY = "nobody"


def explain(node: str, kubeconfig: str, output: str) -> None:
    """Read and tell; the parameters are the command's options. Raises: ClickException when there is no answer."""
    found = document(explain_sources.node_metrics(node, kubeconfig))
    if output != "text":
        print_document(found, output)
    elif not found["nodes"]:
        whose = f"node {node}" if node else "any node"
        click.echo(f"No word of hooks from {whose}: is koordlet there, and is its NodeMetric's CRD ours?")
    elif node:
        _print_node(node, found["nodes"][0]["hooks"])
    else:
        _print_cluster(found)


def document(metrics: Iterable[NodeMetric]) -> Json:
    """Return the modes of each node's hooks, and by hook the number of nodes for each mode that comes first there."""
    nodes: list[Json] = []
    counts: dict[str, Json] = {}
    for metric in metrics:
        if hooks := hook_delivery(metric):
            nodes.append({"node": metric.metadata.name, "hooks": hooks})
            for hook, modes in hooks.items():
                of_hook = counts.setdefault(hook, dict.fromkeys((*MODES, _NOBODY), 0))
                of_hook[next((mode for mode in MODES if modes.get(mode)), _NOBODY)] += 1
    return {"nodes": nodes, "hooks": dict(sorted(counts.items()))}


def _print_node(node: str, hooks: Mapping[str, Mapping[str, bool]]) -> None:
    table = table_of(f"Hooks of node {node}", {"": False, "containers get it": False, "not now": False})
    for hook, modes in sorted(hooks.items()):
        is_on = [words for mode, words in MODES.items() if modes.get(mode)]
        is_off = [words for mode, words in MODES.items() if mode in modes and not modes[mode]]
        table.add_row(hook, ", ".join(is_on) or "by nobody", ", ".join(is_off))
    console().print(table)


def _print_cluster(found: Json) -> None:
    table = table_of(
        f"Nodes by the first mode that delivers a hook, of {len(found['nodes'])}",
        {"": False, "NRI": True, "runtime proxy": True, "reconciler only": True, "nobody": True},
    )
    for hook, counts in found["hooks"].items():
        table.add_row(hook, *(str(count or "") for count in counts.values()))
    console().print(table)
