"""Carry out `koordinator explain` once its command line is read."""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from koordinator.cli import explain_sources as sources
from koordinator.cli import logs
from koordinator.cli.explain_gang_text import print_gang
from koordinator.cli.explain_sources import Ask
from koordinator.cli.explain_text import print_answer
from koordinator.cli.tables import console
from koordinator.scheduler.explain.answer import GangAnswer, PodAnswer, PodVerdict

CANNOT_BE_PLACED = 3
PLACED = (PodVerdict.BOUND, PodVerdict.SCHEDULABLE, PodVerdict.FINISHED)


class ExplainOptions(msgspec.Struct, frozen=True):
    """The options that `pod` and `gang` share: the scheduler to ask, and the form of the answer."""

    namespace: str
    dump_files: tuple[str, ...]
    config_file: Path | None
    seed: int
    kubeconfig: str
    scheduler_url: str
    output: str


def pod(name: str, nodes: tuple[str, ...], verbose: bool, best: int, **shared: Any) -> None:
    """Carry out `koordinator explain pod`; the parameters are its options."""
    asked = ExplainOptions(**shared)
    ask = _ask(name, asked, None if verbose else nodes, best)
    _tell(asked, ask, sources.pod_from_dump, sources.pod_from_cluster)


def gang(name: str, **shared: Any) -> None:
    """Carry out `koordinator explain gang`; the parameters are its options."""
    asked = ExplainOptions(**shared)
    _tell(asked, _ask(name, asked, (), 0), sources.gang_from_dump, sources.gang_from_cluster)


def _ask(name: str, asked: ExplainOptions, nodes: tuple[str, ...] | None, best: int) -> Ask:
    """The name may bring its namespace along; an empty namespace is that of the kubeconfig."""
    namespace, slash, own = name.partition("/")
    if not slash:
        namespace, own = asked.namespace, name
    if asked.dump_files:
        namespace = namespace or "default"
    return Ask(name=own, namespace=namespace, nodes=nodes, best=best, seed=asked.seed)


def _tell(
    asked: ExplainOptions,
    ask: Ask,
    from_dump: Callable[[Ask, Sequence[str], Path | None], PodAnswer | GangAnswer],
    from_cluster: Callable[[Ask, str, str], Coroutine[Any, Any, PodAnswer | GangAnswer]],
) -> None:
    """Write the answer and end with its status. Raises: ClickException, in one line, when there is none."""
    logs.keep_quiet()
    if asked.dump_files:
        answer = from_dump(ask, asked.dump_files, asked.config_file)
    else:
        answer = asyncio.run(from_cluster(ask, asked.kubeconfig, asked.scheduler_url))
    _print(answer, asked.output)
    if answer.verdict not in PLACED:
        sys.exit(CANNOT_BE_PLACED)


def _print(answer: PodAnswer | GangAnswer, output: str) -> None:
    if output == "text":
        if isinstance(answer, PodAnswer):
            print_answer(console(), answer)
        else:
            print_gang(console(), answer)
        return
    body = msgspec.to_builtins(answer)
    if output == "json":
        click.echo(json.dumps(body, indent=2))
    else:
        click.echo(yaml.safe_dump(body, sort_keys=False, allow_unicode=True), nl=False)
