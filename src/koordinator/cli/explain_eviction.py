"""Carry out `koordinator explain eviction`: ask the descheduler, and say what it answers."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import click
import msgspec

from koordinator.cli import explain_sources as sources
from koordinator.cli.explain import SCHEDULER_URL
from koordinator.cli.tables import console, print_document, table_of
from koordinator.cluster import connect

HINT = (
    "; `koordinator up --descheduler` runs one; of an installation: "
    "kubectl -n koordinator-system port-forward deploy/koord-descheduler 10251"
)
RECORDS_MAX = 20

Json = Mapping[str, Any]


def explain(kind: str, name: str, namespace: str, kubeconfig: str, descheduler_url: str, output: str) -> None:
    """Ask and tell; the parameters are the command's options. Raises: ClickException when there is no answer."""
    answer = asyncio.run(_ask(kind, name, namespace, kubeconfig, descheduler_url))
    if output != "text":
        print_document(answer, output)
        return
    for line in {"pod": pod_lines, "job": job_lines, "node": node_lines}[kind](answer):
        click.echo(line)
    _print_records(answer.get("recent") or [])


async def _ask(kind: str, name: str, namespace: str, kubeconfig: str, url: str) -> dict[str, Any]:
    client = connect.load(kubeconfig_file=kubeconfig)
    own, slash, rest = name.partition("/")
    if kind == "pod":
        space, name = (own, rest) if slash else (namespace or client.namespace, name)
        name = f"{space}/{name}"
    where = await sources.where_of(client, url, "deschedulerURL", SCHEDULER_URL)
    status, body = await sources.fetch(where, f"{kind}s/{name}", {}, "descheduler", HINT)
    if status != 200:
        raise click.ClickException(sources.error_text(body))
    answer: dict[str, Any] = msgspec.json.decode(body)
    return answer


def pod_lines(answer: Json) -> Iterator[str]:
    """Say by profile whether the pod may go, and which jobs it has."""
    yield f"Pod {answer['pod']} on node {answer['node'] or '(none)'}"
    for profile, verdict in answer["profiles"].items():
        says = "may be evicted" if verdict["mayBeEvicted"] else f"stays: {verdict['why']}"
        yield f"  profile {profile}: {says}"
    if answer["profiles"] and all(one["mayBeEvicted"] for one in answer["profiles"].values()):
        yield "  No plugin need want it: see what was asked for below, and `koordinator explain eviction node`."
    for job in answer["jobs"]:
        yield from job_lines(job)


def job_lines(answer: Json) -> Iterator[str]:
    """Say how far a job is, who wanted it and why, and what it waits for."""
    step = f", at {answer['status']}" if answer["status"] else ""
    yield f"Job {answer['job']} for pod {answer['pod']}: {answer['phase']}{step}"
    wanted = f"{answer['trigger']}: {answer['evictReason']}".strip(": ")
    yield f"  wanted by {wanted or 'somebody, by hand'}"
    if answer["node"]:
        yield f"  room on node {answer['node']}"
    if answer["waitsFor"]:
        yield f"  {answer['waitsFor']}"
    if answer["message"] or answer["reason"]:
        yield f"  {': '.join(filter(None, (answer['reason'], answer['message'])))}"


def node_lines(answer: Json) -> Iterator[str]:
    """Say how LowNodeLoad sees the node, by which limits, and how old its data are."""
    if not answer["known"]:
        yield f"Node {answer['node']} is not known"
    else:
        age = answer["dataAgeSeconds"]
        data = "it has sent no report" if age is None else f"last report {age:g} s ago"
        yield f"Node {answer['node']}: {data}"
    if not answer["pools"]:
        yield "  no plugin that goes by usage has looked at it"
    for pool in answer["pools"]:
        whose = f"{pool['plugin']} of profile {pool['profile']}, pool {pool['pool']}"
        yield f"  {whose}: {pool['class']} ({pool['outcome']})"
        if pool.get("why"):
            yield f"    {pool['why']}"
        for resource, found in (pool.get("usage") or {}).items():
            yield f"    {resource}: used {found['used']:,}, low up to {found['low']:,}, high above {found['high']:,}"


def _print_records(records: list[Json]) -> None:
    if not records:
        click.echo("In the last cycles no plugin asked for an eviction here.")
        return
    columns = dict.fromkeys(("at", "plugin", "pod", "outcome", "reason", "why not"), False)
    table = table_of("What plugins asked for", columns)
    for one in records[-RECORDS_MAX:]:
        table.add_row(one["at"], one["plugin"], one["pod"], one["outcome"], one["reason"], one["why"])
    console().print(table)
