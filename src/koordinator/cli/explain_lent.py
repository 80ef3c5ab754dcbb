"""Carry out `koordinator explain lent`: read the cluster and decide as the manager does, or ask the manager about a
minute that it remembers, and tell where the amounts come from."""

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from koordinator import clock
from koordinator.api import label_selector, slo_config
from koordinator.api.core import ConfigMap, Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.cli import explain_lent_text as text
from koordinator.cli import explain_sources as sources
from koordinator.cli.explain import MANAGER_URL
from koordinator.cli.tables import print_document
from koordinator.cluster import connect, errors
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.protocol import Cluster
from koordinator.manager.noderesource import ledger_answers
from koordinator.manager.noderesource.account import NANO_PER_MILLI
from koordinator.manager.noderesource.batch import MILLI
from koordinator.manager.noderesource.listed import LentNode, NodeObjects, lent_nodes

Json = dict[str, Any]
HINT = "; of an installation: kubectl -n koordinator-system port-forward deploy/koord-manager 8080"


HOURS = 24
"""Hours before that a page shows, as far as the manager remembers them."""
NOT_FOUND = 404


def explain(
    node: str,
    namespace: str,
    at: str,
    pool: str,
    manager_url: str,
    kubeconfig: str,
    output: str,
    output_file: Path | None,
) -> None:
    """Read and tell; the parameters are the command's options. Raises: ClickException when there is no answer,
    UsageError for a command line that asks for two things."""
    if node and pool:
        raise click.UsageError("give a NODE or --pool, not both")
    if output_file is not None and output != "html":
        raise click.UsageError("--output-file goes with -o html")
    about = f"node {node}" if node else f"pool {pool}" if pool else "the cluster"
    if at or manager_url:
        asked = _Question(node, at, pool, manager_url, kubeconfig)
        answer = asyncio.run(_ask_manager(asked))
        if output == "html":
            hours = asyncio.run(_ask_hours(asked, answer))
            _write_page(about, f"At {answer['at']}, as the manager remembers", answer, hours, output_file)
        elif output != "text":
            print_document(answer, output)
        elif node:
            text.print_minute(answer)
        else:
            text.print_sums(answer)
        return
    found, now_s = asyncio.run(_ask(node, namespace, pool, kubeconfig))
    if output == "html":
        shown = answer_of(found[0], now_s) if node else _document(found, now_s)
        _write_page(about, f"At {clock.rfc3339(now_s)}, decided anew", shown, (), output_file)
    elif output != "text":
        print_document(_document(found, now_s), output)
    elif node:
        text.print_node(answer_of(found[0], now_s), lines(found[0], now_s))
    else:
        text.print_nodes([(answer_of(each, now_s), each.row.withdrawal.value) for each in found])
        text.print_ledgers(_totals(found))


def _write_page(
    about: str, facts: str, answer: Json, hours: Sequence[Json], output_file: Path | None
) -> None:
    from koordinator.cli import explain_lent_page  # plotly, which only pages need

    body = explain_lent_page.render(about, facts, answer, hours)
    if output_file is not None:
        output_file.write_text(body, encoding="utf-8")
    else:
        click.echo(body, nl=False)


def _document(found: Sequence[LentNode], now_s: float) -> Json:
    return {"nodes": [answer_of(each, now_s) for each in found], "lent": _totals(found)}


def _totals(found: Sequence[LentNode]) -> list[Json]:
    return [ledger_answers.ledger_body(each) for each in ledger_answers.total(node.ledgers for node in found)]


# A minute that the manager remembers


class _Question(msgspec.Struct, frozen=True):
    """A question to the manager."""

    node: str
    at: str
    pool: str
    url: str
    kubeconfig: str


async def _ask_manager(asked: _Question) -> Json:
    """Return what the manager knows of a minute. Raises: ClickException."""
    client = connect.load(kubeconfig_file=asked.kubeconfig)
    where = await sources.where_of(client, asked.url, "managerURL", MANAGER_URL)
    params = {"at": text.time_of(asked.at, clock.SystemClock().now())} if asked.at else {}
    if asked.pool:
        params["pool"] = asked.pool
    path = f"lent/{asked.node}" if asked.node else "lent"
    status, body = await sources.fetch(where, path, params, "manager", HINT)
    if status == NOT_FOUND:
        raise _NothingKept(sources.error_text(body))
    if status != 200:
        raise click.ClickException(sources.error_text(body))
    answer: Json = msgspec.json.decode(body)
    return answer


class _NothingKept(click.ClickException):
    """The manager remembers nothing of that minute."""


async def _ask_hours(asked: _Question, newest: Json) -> list[Json]:
    """Return what the manager knows of the hours before an answer, oldest first. Raises: ClickException."""
    end_s = clock.parse_rfc3339(newest["at"])
    found = []
    for hour in range(HOURS, 0, -1):
        at = clock.rfc3339(end_s - 3_600 * hour)
        try:
            found.append(await _ask_manager(msgspec.structs.replace(asked, at=at)))
        except _NothingKept:
            continue
    return [*found, newest]


# This moment


async def _ask(node: str, namespace: str, pool: str, kubeconfig: str) -> tuple[list[LentNode], float]:
    client = connect.load(kubeconfig_file=kubeconfig)
    async with KubeCluster(client, rng=random.Random(0), component="koordinator") as cluster:
        now_s = cluster.clock.now()
        objects = await _objects(cluster, node, namespace)
    try:
        return lent_nodes(_of_pool(objects, pool), now_s), now_s
    except ProtocolError as error:
        raise click.ClickException(f"{error}: the manager goes on with what it had before") from error


def _of_pool(objects: NodeObjects, pool: str) -> NodeObjects:
    if not pool:
        return objects
    try:
        matches = label_selector.compile_selector(label_selector.of_text(pool))
    except ProtocolError as error:
        raise click.UsageError(f"--pool: {error}") from error
    nodes = [node for node in objects.nodes if matches(node.metadata.labels)]
    if not nodes:
        raise click.ClickException(f"no node has the labels {pool}")
    return msgspec.structs.replace(objects, nodes=nodes)


async def _objects(cluster: Cluster, node: str, namespace: str) -> NodeObjects:
    """Return what decides; of one node only, if `node` is given. Raises: ApiError, ClickException (no such node)."""
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
    try:
        one = await cluster.get(Node, node)
    except errors.NotFound as error:
        raise click.ClickException(f"no such node: {error}") from error
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
        "lent": [ledger_answers.ledger_body(ledger) for ledger in node.ledgers],
        "onNode": dict(row.have),
        "services": list(_services(node)),
        "notes": list(node.notes),
    }


def _services(node: LentNode) -> list[Mapping[str, Any]]:
    """Return the pods that lending yields to, by use. A pod that is not reported yet counts with its request; one that
    is gone, as it was reported."""
    row, usages = node.row, node.row.reading.report.pods
    found = []
    for key, pod in row.pods.items():
        if pod.is_high_priority:
            cpu, memory, _ = usages.get(key, (pod.request[0] * NANO_PER_MILLI, pod.request[1], True))
            found.append((key, cpu // NANO_PER_MILLI, memory // MILLI, pod.request[0]))
    for key, (cpu, memory, counts) in usages.items():
        if counts and key not in row.pods:
            found.append((key, cpu // NANO_PER_MILLI, memory // MILLI, 0))
    return [
        {"pod": key, "cpuMilli": cpu, "memoryBytes": memory, "requestCpuMilli": request}
        for key, cpu, memory, request in sorted(found, key=lambda each: (-each[1], each[0]))
    ]


def lines(node: LentNode, now_s: float) -> Iterator[str]:
    """Say how old the node's report is, and why it lends nothing if so."""
    row = node.row
    if row.reported_s is None:
        yield f"Node {row.name}: no report of its agent"
    else:
        yield f"Node {row.name}: report of {text.ago(now_s - row.reported_s)} ago"
    for note in node.notes:
        yield f"  {note}"
    if not node.ledgers and not node.notes:
        yield f"  nothing is lent: {row.withdrawal.value}"
