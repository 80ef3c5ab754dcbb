"""`koordinator explain pod`: why a pod is pending or where it is, and what would change that."""

import asyncio
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import click
import msgspec
import yaml
from rich.console import Console

from koordinator.api.core import Event, Pod
from koordinator.api.errors import KoordinatorError
from koordinator.cli import logs
from koordinator.cli.explain_text import print_answer
from koordinator.cluster import connect, errors
from koordinator.cluster.kube import KubeCluster
from koordinator.scheduler import config, default_plugins
from koordinator.scheduler.config import SchedulerConfig
from koordinator.scheduler.explain.answer import EventLine, PodAnswer, Verdict
from koordinator.scheduler.explain.decide import BEST_NODES, Question, explain
from koordinator.scheduler.explain.service import condition_lines, names_alike
from koordinator.scheduler.pod_info import PodInfo
from koordinator.simulate import dump as dumps

SCHEDULER_URL = "http://127.0.0.1:10251"
DEFAULT_SCHEDULER = "default-scheduler"
CANNOT_BE_PLACED = 3
ANSWER_TIMEOUT_S = 30.0
_PLACED = (Verdict.BOUND, Verdict.SCHEDULABLE, Verdict.FINISHED)


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says."""

    name: str
    namespace: str
    nodes: tuple[str, ...] | None
    best: int
    seed: int

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Say why: decisions of the scheduler in words and figures."""


@main.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name")
@click.option(
    "-n", "--namespace", default="", help="Namespace of the pod; that of the kubeconfig, or `default`."
)
@click.option(
    "--dump",
    "dump_files",
    multiple=True,
    metavar="FILE",
    help="Ask a dump instead of a running cluster: JSON or YAML of `kubectl get nodes,pods -A -o json` or "
    "`kubectl cluster-info dump`; - is standard input. May be given several times.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The scheduler's configuration, for --dump; without it the one that an installation brings.",
)
@click.option("--seed", default=0, show_default=True, help="The scheduler's seed, for --dump.")
@click.option("--kubeconfig", default="", help="kubeconfig file of the running cluster.")
@click.option(
    "--scheduler-url",
    default="",
    help=f"The scheduler's HTTP address; what `koordinator up` wrote into the kubeconfig, or {SCHEDULER_URL}.",
)
@click.option("--node", "nodes", multiple=True, metavar="NODE", help="Every plugin's answer for this node.")
@click.option("-v", "--verbose", is_flag=True, help="Every plugin's answer for every node.")
@click.option(
    "--best", default=BEST_NODES, show_default=True, type=click.IntRange(0), help="Nodes in the score table."
)
@click.option(
    "-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True
)
def pod(
    name: str,
    namespace: str,
    dump_files: tuple[str, ...],
    config_file: Path | None,
    seed: int,
    kubeconfig: str,
    scheduler_url: str,
    nodes: tuple[str, ...],
    verbose: bool,
    best: int,
    output: str,
) -> None:
    """Why is this pod pending, or why on that node, and what would have to change?

    \b
    Try:
      koordinator explain pod web-0 -n shop
      koordinator explain pod web-0 -n shop --node node-7
      kubectl get nodes,pods -A -o json | koordinator explain pod web-0 -n shop --dump -

    Ends with 0 when the pod has a node or would get one, 3 when it cannot be placed now, 1 when there is no
    answer, 2 when the command line is wrong.
    """
    logs.keep_quiet()
    if "/" in name:
        namespace, _, name = name.partition("/")
    if not namespace and dump_files:
        namespace = "default"
    ask = Ask(name=name, namespace=namespace, nodes=None if verbose else nodes, best=best, seed=seed)
    try:
        if dump_files:
            answer = from_dump(ask, dump_files, config_file)
        else:
            answer = asyncio.run(from_cluster(ask, kubeconfig, scheduler_url))
    except (KoordinatorError, OSError) as error:
        raise click.ClickException(str(error)) from error
    _write(answer, output)
    if answer.verdict not in _PLACED:
        sys.exit(CANNOT_BE_PLACED)


def _write(answer: PodAnswer, output: str) -> None:
    if output == "text":
        # Files and pipes get the lines whole, whatever the terminal's width is.
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
        print_answer(console, answer)
        return
    body = msgspec.to_builtins(answer)
    if output == "json":
        click.echo(json.dumps(body, indent=2))
    else:
        click.echo(yaml.safe_dump(body, sort_keys=False, allow_unicode=True), nl=False)


# Offline


def from_dump(ask: Ask, files: Sequence[str], config_file: Path | None) -> PodAnswer:
    """The answer for a pod in a dump. A dump of a cluster whose pods name `default-scheduler` is answered with
    the same profile under that name, unless a configuration says otherwise.

    Raises: KoordinatorError, OSError.
    """
    found = dumps.snapshot(dumps.read(files), read_config(config_file), seed=ask.seed)
    wanted = found.pods.get(ask.key)
    if wanted is None:
        raise no_such_pod(ask.key, list(found.pods))
    engine = found.engine
    for each in ask.nodes or ():
        if engine.table.row_of(each) is None:
            names = [engine.table.name_of(row) for row in engine.table.rows.tolist()]
            raise click.ClickException(f"no node is called {each}{_alike(each, names)}")
    profile = engine.profiles.get(wanted.spec.scheduler_name)
    if profile is not None:
        engine.refresh(profile, found.now_s)
    answer = explain(
        engine,
        PodInfo.of(wanted, engine.table.registry),
        Question(nodes=ask.nodes, best=ask.best),
    )
    about = [each for each in found.events if _is_about(each, wanted)]
    return msgspec.structs.replace(answer, conditions=condition_lines(wanted), events=event_lines(about))


def read_config(config_file: Path | None) -> SchedulerConfig:
    """The file, or the shipped profile under its own name and that of the stock scheduler.

    Raises: ConfigError, OSError.
    """
    if config_file is not None:
        return config.parse(config_file.read_bytes())
    return default_plugins.shipped_config("koord-scheduler", DEFAULT_SCHEDULER)


def no_such_pod(key: str, known: list[str]) -> click.ClickException:
    """What a person needs who mistyped a name."""
    return click.ClickException(f"no pod is called {key}{_alike(key, known)}")


def _alike(wanted: str, known: list[str]) -> str:
    alike = names_alike(wanted, known)
    return f"; there are {', '.join(alike)}" if alike else ""


def _is_about(event: Event, wanted: Pod) -> bool:
    about, meta = event.involved_object, wanted.metadata
    is_named = (about.kind, about.namespace, about.name) == ("Pod", meta.namespace, meta.name)
    return is_named and (not about.uid or not meta.uid or about.uid == meta.uid)


def event_lines(events: Sequence[Event]) -> list[EventLine]:
    """Oldest first."""
    lines = [
        EventLine(
            time=(each.series.last_observed_time if each.series else None)
            or each.last_timestamp
            or each.event_time
            or each.metadata.creation_timestamp
            or "",
            type=each.type,
            reason=each.reason,
            message=each.message,
            count=max(each.count, each.series.count if each.series else 0, 1),
        )
        for each in events
    ]
    return sorted(lines, key=lambda line: line.time)


# Live


async def from_cluster(ask: Ask, kubeconfig_file: str, scheduler_url: str) -> PodAnswer:
    """The answer of the running scheduler, with the pod's events.

    Raises: KoordinatorError, click.ClickException.
    """
    client = connect.load(kubeconfig_file=kubeconfig_file)
    url = scheduler_url or _published_url(client.extensions) or SCHEDULER_URL
    ask = msgspec.structs.replace(ask, namespace=ask.namespace or client.namespace)
    async with KubeCluster(client, rng=random.Random(0), component="koordinator") as cluster:
        try:
            wanted = await cluster.get(Pod, ask.name, ask.namespace)
        except errors.NotFound as error:
            pods = await cluster.list(Pod)
            raise no_such_pod(ask.key, [each.key for each in pods.items]) from error
        selector = f"involvedObject.kind=Pod,involvedObject.name={ask.name}"
        events = await cluster.list(Event, ask.namespace, field_selector=selector)
    answer = await _ask_scheduler(url, ask)
    about = [each for each in events.items if _is_about(each, wanted)]
    return msgspec.structs.replace(answer, events=event_lines(about))


def _published_url(extensions: Mapping[str, Any]) -> str:
    """Where the scheduler of a `koordinator up` answers: its kubeconfig says so."""
    own = extensions.get("koordinator")
    return str(own.get("schedulerURL", "")) if isinstance(own, dict) else ""


async def _ask_scheduler(url: str, ask: Ask) -> PodAnswer:
    address = f"{url.rstrip('/')}/apis/v1/explain/{ask.namespace}/{ask.name}"
    params = {"best": str(ask.best), "nodes": "*" if ask.nodes is None else ",".join(ask.nodes)}
    hint = "; give --scheduler-url, or ask a dump: kubectl get nodes,pods -A -o json > FILE, then --dump FILE"
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(address, params=params) as response,
        ):
            body = await response.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise click.ClickException(f"no scheduler answers at {url}: {error}{hint}") from error
    if response.status == 200:
        return msgspec.json.decode(body, type=PodAnswer)
    raise click.ClickException(f"the scheduler at {url} answers {response.status}: {_told(body)}{hint}")


def _told(body: bytes) -> str:
    try:
        told: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body.decode(errors="replace")[:200]
    return str(told.get("message", told)) if isinstance(told, dict) else str(told)
