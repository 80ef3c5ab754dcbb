"""Carry out `koordinator explain slow`: read the pod, its node's report and events, and the node agent where it can be
reached; tell how the pod suffers and who was named."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp
import click
import msgspec

from koordinator import clock
from koordinator.api import workload_profile
from koordinator.api.annotations.koordlet import LATENCY_OBJECTIVE
from koordinator.api.core import Event, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.node_metric import NodeMetric
from koordinator.cli.tables import print_document
from koordinator.cluster import connect, errors
from koordinator.cluster.informer import key_of
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.protocol import Cluster
from koordinator.koordlet.interference.scrape import NOT_HEARD
from koordinator.koordlet.interference.verdict_reporter import SLOWED, SLOWS

Json = dict[str, Any]
REASONS = frozenset((SLOWED, SLOWS, NOT_HEARD))
EVENTS_SHOWN = 10
ASK_S = 5.0


def explain(name: str, namespace: str, kubeconfig: str, koordlet_url: str, output: str) -> None:
    """Read and tell; the parameters are the command's options. Raises: ClickException when there is no answer."""
    answer = asyncio.run(_ask(name, namespace, kubeconfig, koordlet_url))
    if output != "text":
        print_document(answer, output)
        return
    for line in lines(answer):
        click.echo(line)


async def _ask(name: str, namespace: str, kubeconfig: str, koordlet_url: str) -> Json:
    client = connect.load(kubeconfig_file=kubeconfig)
    space = namespace or client.namespace or "default"
    async with KubeCluster(client, rng=random.Random(0), component="koordinator") as cluster:
        try:
            found = await gather(cluster, space, name)
        except errors.NotFound as error:
            raise click.ClickException(f"no pod {space}/{name}: {error}") from error
    if koordlet_url:
        found["now"] = await _of_koordlet(koordlet_url, f"{space}/{name}")
    return found


async def gather(cluster: Cluster, namespace: str, name: str) -> Json:
    """Return what the API knows: the objective, the node's last report of the pod, its events. Raises: ApiError."""
    pod = await cluster.get(Pod, name, namespace)
    selector = f"involvedObject.name={name}"
    events = (await cluster.list(Event, namespace, field_selector=selector)).items
    events = sorted(
        (each for each in events if each.reason in REASONS and each.involved_object.name == name),
        key=lambda each: each.last_timestamp or each.event_time or "",
    )
    return {
        "pod": f"{namespace}/{name}",
        "node": pod.spec.node_name,
        "objective": _objective(pod),
        "report": await _report(cluster, pod),
        "events": [
            {
                "at": each.last_timestamp or each.event_time or "",
                "reason": each.reason,
                "count": max(each.count, 1),
                "message": each.message,
            }
            for each in events[-EVENTS_SHOWN:]
        ],
    }


def _objective(pod: Pod) -> Json | None:
    try:
        found = LATENCY_OBJECTIVE.read(pod.metadata.annotations, f"pod {pod.key}")
    except ProtocolError as error:
        return {"problem": str(error)}
    if found is None:
        return None
    return {"percentile": found.percentile, "targetMilliseconds": found.target_milliseconds}


async def _report(cluster: Cluster, pod: Pod) -> Json | None:
    """Return what the NodeMetric said last of the pod; None where the agent does not look at it."""
    try:
        metric = await cluster.get(NodeMetric, pod.spec.node_name) if pod.spec.node_name else None
    except errors.NotFound:
        return None
    own = key_of(pod)
    for each in metric.status.pods_metric if metric is not None else ():
        raw = each.extensions.get(workload_profile.EXTENSION)
        read = workload_profile.of_extension(raw) if raw is not None else None
        if (each.namespace, each.name) == own and read is not None and metric is not None:
            return {"at": metric.status.update_time or "", **msgspec.to_builtins(read)}
    return None


async def _of_koordlet(url: str, pod: str) -> Json:
    """Raises: ClickException."""
    timeout = aiohttp.ClientTimeout(total=ASK_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url.rstrip('/')}/interference", params={"pod": pod}) as answer,
        ):
            if answer.status != 200:
                raise click.ClickException(f"{url}: HTTP {answer.status}: is the gate Interference on?")
            found: Json = msgspec.json.decode(await answer.read())
            return found
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
        raise click.ClickException(f"{url}: {error or type(error).__name__}") from error


def lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the answer in words."""
    yield f"Pod {answer['pod']} on node {answer['node'] or '(none yet)'}"
    objective = answer["objective"]
    if objective is None:
        yield "  It has no latency objective (annotation koordinator.sh/latency-objective)."
    elif "problem" in objective:
        yield f"  Its latency objective cannot be read: {objective['problem']}"
    else:
        yield f"  Objective: p{objective['percentile']:g} within {objective['targetMilliseconds']:g} ms."
    yield from _report_lines(answer["report"])
    now = answer.get("now")
    if now is not None:
        yield from _now_lines(now, answer["pod"])
    yield "" if answer["events"] else "  No event tells of a neighbour that slows it, or that it slows."
    for each in answer["events"]:
        yield f"  {each['at']}  {each['reason']} ×{each['count']}: {each['message']}"


def _report_lines(report: Mapping[str, Any] | None) -> Iterator[str]:
    if report is None:
        yield "  Its node does not report how it suffers: gate Interference of koordlet is off, or it is no service."
        return
    slack = report.get("slack")
    left = "" if slack is None else f", slack {slack:.0%}"
    yield f"  Reported {report['at']}: level {report.get('level', 0.0):.2f} (1: suffers){left}."
    seconds = report.get("sufferingSeconds")
    if seconds is not None:
        yield f"  It had suffered for {seconds:.0f} s then."
    if report.get("culprit"):
        yield f"  Named: {report['culprit']}, by {report['resource']}, confidence {report.get('confidence', 0.0):.2f}."


def _now_lines(now: Mapping[str, Any], pod: str) -> Iterator[str]:
    own = now.get("services", {}).get(pod)
    if own is not None:
        senses = ", ".join(f"{sense} {level:.2f}" for sense, level in sorted(own["senses"].items()))
        yield f"  Now: level {own['level']:.2f} ({senses or 'no sense tells anything'})."
    for each in now.get("verdicts", ()):
        yield f"  {each['at']}: {each['message']} (after {each['afterSeconds']:.1f} s)"
    yield f"  Asked the agent at {clock.rfc3339(clock.SystemClock().now())}."
