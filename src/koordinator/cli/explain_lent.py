"""Carry out `koordinator explain lent`: read the cluster, decide as the manager does, and tell where the amounts come
from."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from koordinator import clock
from koordinator.api import duration, readable, resources, slo_config
from koordinator.api.core import ConfigMap, Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.quantity import Quantity
from koordinator.cli import logs
from koordinator.cli.tables import console, print_document, table_of
from koordinator.cluster import connect, errors
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.protocol import Cluster
from koordinator.manager.noderesource.account import NANO_PER_MILLI
from koordinator.manager.noderesource.batch import MILLI
from koordinator.manager.noderesource.listed import LentNode, NodeObjects, lent_nodes

Json = dict[str, Any]
PODS_SHOWN = 10


def explain(node: str, namespace: str, kubeconfig: str, output: str) -> None:
    """Read and tell; the parameters are the command's options. Raises: ClickException when there is no answer."""
    logs.keep_quiet()
    found, now_s = asyncio.run(_ask(node, namespace, kubeconfig))
    if output != "text":
        print_document({"nodes": [answer_of(each, now_s) for each in found]}, output)
        return
    if node:
        _print_node(found[0], now_s)
    else:
        _print_nodes(found)


async def _ask(node: str, namespace: str, kubeconfig: str) -> tuple[list[LentNode], float]:
    client = connect.load(kubeconfig_file=kubeconfig)
    try:
        async with KubeCluster(client, rng=random.Random(0), component="koordinator") as cluster:
            now_s = cluster.clock.now()
            objects = await _objects(cluster, node, namespace)
    except errors.NotFound as error:
        raise click.ClickException(f"no such node: {error}" if node else str(error)) from error
    except errors.ApiError as error:
        raise click.ClickException(str(error)) from error
    try:
        return lent_nodes(objects, now_s), now_s
    except ProtocolError as error:
        raise click.ClickException(f"{error}: the manager goes on with what it had before") from error


async def _objects(cluster: Cluster, node: str, namespace: str) -> NodeObjects:
    """Return what decides; of one node only, if `node` is given. Raises: ApiError."""
    try:
        data = (await cluster.get(ConfigMap, slo_config.CONFIG_NAME, namespace)).data
    except errors.NotFound:
        data = None
    if not node:
        return NodeObjects(
            (await cluster.list(Node)).items,
            (await cluster.list(Pod)).items,
            (await cluster.list(NodeMetric)).items,
            (await cluster.list(NodeResourceTopology)).items,
            data,
        )
    one = await cluster.get(Node, node)
    pods = (await cluster.list(Pod, field_selector=f"spec.nodeName={node}")).items
    own: dict[Any, list[Any]] = {NodeMetric: [], NodeResourceTopology: []}
    for view, found in own.items():
        try:
            found.append(await cluster.get(view, node))
        except errors.NotFound:
            continue  # which the answer says
    return NodeObjects([one], pods, own[NodeMetric], own[NodeResourceTopology], data)


def answer_of(node: LentNode, now_s: float) -> Json:
    """Return everything that is told of a node, as JSON; amounts in milli-cores and bytes."""
    row = node.row
    return {
        "node": row.name,
        "reported": clock.rfc3339(row.reported_s) if row.reported_s is not None else "",
        "ageSeconds": round(now_s - row.reported_s, 1) if row.reported_s is not None else None,
        "lent": [
            {
                "kind": ledger.kind,
                "cpuMilli": ledger.cpu_milli,
                "memoryBytes": ledger.memory_bytes,
                "terms": [
                    {
                        "name": term.name,
                        "cpuMilli": term.cpu_milli,
                        "memoryBytes": term.memory_bytes,
                        "why": term.why,
                    }
                    for term in ledger.terms
                ],
            }
            for ledger in node.ledgers
        ],
        "onNode": dict(row.have),
        "services": [
            {"pod": key, "cpuMilli": cpu, "memoryBytes": memory, "requestCpuMilli": request}
            for key, cpu, memory, request in _services(node)
        ],
        "notes": list(node.notes),
    }


def _services(node: LentNode) -> list[tuple[str, int, int, int]]:
    """Return the pods that lending yields to, by use: key, milli-cores and bytes used, milli-cores requested. A pod
    that is not reported yet counts with its request; one that is gone, as it was reported."""
    row, usages = node.row, node.row.reading.report.pods
    found = []
    for key, pod in row.pods.items():
        if pod.is_high_priority:
            cpu, memory, _ = usages.get(key, (pod.request[0] * NANO_PER_MILLI, pod.request[1], True))
            found.append((key, cpu // NANO_PER_MILLI, memory // MILLI, pod.request[0]))
    for key, (cpu, memory, counts) in usages.items():
        if counts and key not in row.pods:
            found.append((key, cpu // NANO_PER_MILLI, memory // MILLI, 0))
    return sorted(found, key=lambda each: (-each[1], each[0]))


def _print_node(node: LentNode, now_s: float) -> None:
    for line in lines(node, now_s):
        click.echo(line)
    for ledger in node.ledgers:
        table = table_of(
            f"{ledger.kind.capitalize()} resources", {"": False, "CPU": True, "memory": True, "why": False}
        )
        for term in ledger.terms:
            table.add_row(
                term.name,
                _signed(term.cpu_milli, cpu_text),
                _signed(term.memory_bytes, memory_text),
                term.why,
            )
        table.add_section()
        have = _have(node, ledger.kind)
        table.add_row(
            "lent", cpu_text(ledger.cpu_milli), memory_text(ledger.memory_bytes), have, style="bold"
        )
        console().print(table)
    services = _services(node)
    if services and node.ledgers:
        columns = {"pod": False, "CPU used": True, "requested": True, "memory used": True}
        table = table_of("Services on the node", columns)
        for key, cpu, memory, request in services[:PODS_SHOWN]:
            table.add_row(key, cpu_text(cpu), cpu_text(request), memory_text(memory))
        if len(services) > PODS_SHOWN:
            table.add_row(f"and {len(services) - PODS_SHOWN} more", "", "", "")
        console().print(table)


def lines(node: LentNode, now_s: float) -> Iterator[str]:
    """Say how old the node's report is, and why it lends nothing if so."""
    row = node.row
    if row.reported_s is None:
        yield f"Node {row.name}: no report of its agent"
    else:
        yield f"Node {row.name}: report of {duration.text_of(max(round(now_s - row.reported_s), 0))} ago"
    for note in node.notes:
        yield f"  {note}"
    if not node.ledgers and not node.notes:
        yield f"  nothing is lent: {row.withdrawal.value}"


def _have(node: LentNode, kind: str) -> str:
    """Say what stands on the node, which changes only when the difference is worth a write."""
    names = resources.BATCH_RESOURCES if kind == "batch" else resources.MID_RESOURCES
    if not all(name in node.row.have for name in names):
        return "not on the node yet"
    cpu, memory = (node.row.have[name] for name in names)
    return f"on the node: {cpu_text(cpu)} cores, {memory_text(memory)}"


def _print_nodes(found: Sequence[LentNode]) -> None:
    columns = {
        "node": False,
        "batch CPU": True,
        "batch memory": True,
        "mid CPU": True,
        "mid memory": True,
        "": False,
    }
    table = table_of("Lent", columns)
    totals = [0, 0, 0, 0]
    for node in found:
        amounts = [part for ledger in node.ledgers for part in (ledger.cpu_milli, ledger.memory_bytes)]
        amounts = amounts or [0, 0, 0, 0]
        totals = [total + amount for total, amount in zip(totals, amounts, strict=True)]
        why = "; ".join(node.notes) or ("" if node.ledgers else node.row.withdrawal.value)
        table.add_row(node.row.name, *_cells(amounts), why)
    table.add_section()
    table.add_row(f"{len(found)} nodes", *_cells(totals), "", style="bold")
    console().print(table)


def _cells(amounts: Sequence[int]) -> list[str]:
    return [text(amount) for amount, text in zip(amounts, (cpu_text, memory_text) * 2, strict=True)]


def cpu_text(milli: int) -> str:
    """Return cores for people."""
    return readable.cell(resources.CPU, Quantity.of_milli(milli))


def memory_text(number: int) -> str:
    """Return bytes for people."""
    return readable.cell(resources.MEMORY, number)


def _signed(number: int, text: Callable[[int], str]) -> str:
    """Return an amount with its sign; nothing for none."""
    return f"{'+' if number > 0 else ''}{text(number)}" if number else ""
