"""`koordinator explain`: why a pod or a gang is pending or where it is, and what would change that."""

import asyncio
import functools
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml
from rich.console import Console

from koordinator.api.errors import KoordinatorError
from koordinator.cli import explain_sources as sources
from koordinator.cli import logs, options
from koordinator.cli.explain_gang_text import print_gang
from koordinator.cli.explain_sources import SCHEDULER_URL, Ask
from koordinator.cli.explain_text import print_answer
from koordinator.scheduler.explain.answer import GangAnswer, PodAnswer, Verdict
from koordinator.scheduler.explain.decide import BEST_NODES

CANNOT_BE_PLACED = 3
_PLACED = (Verdict.BOUND, Verdict.SCHEDULABLE, Verdict.FINISHED)


class KindSlashName(click.Group):
    """Takes `pod/web-0`, too, as kubectl writes it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        kind, slash, name = args[0].partition("/") if args else ("", "", "")
        if slash and kind in self.commands:
            args = [kind, name, *args[1:]]
        return super().parse_args(ctx, args)


@click.group(cls=KindSlashName, context_settings=options.HELP)
def main() -> None:
    """Say why: decisions of the scheduler in words and figures."""


class Asked(msgspec.Struct, frozen=True):
    """Who is asked, and how the answer is written: what the options of `asking` say."""

    namespace: str
    dump_files: tuple[str, ...]
    config_file: Path | None
    seed: int
    kubeconfig: str
    scheduler_url: str
    output: str


_OPTIONS = options.together(
    click.option(
        "-n",
        "--namespace",
        default="",
        help="Namespace of the pod or gang; that of the kubeconfig, or `default`.",
    ),
    options.dump(
        "`kubectl get nodes,pods,podgroups,elasticquotas -A -o json` or `kubectl cluster-info dump`", "Ask"
    ),
    options.scheduler_config(", for --dump"),
    click.option("--seed", default=0, show_default=True, help="The scheduler's seed, for --dump."),
    options.kubeconfig,
    click.option(
        "--scheduler-url",
        default="",
        help=f"The scheduler's HTTP address; what `koordinator up` wrote into the kubeconfig, or {SCHEDULER_URL}.",
    ),
    options.output("text", "json", "yaml"),
)


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say who is asked and how the answer is written, which `command` gets as `asked`."""

    @functools.wraps(command)
    def gathered(**given: Any) -> None:
        asked = Asked(**{name: given.pop(name) for name in Asked.__struct_fields__})
        command(asked=asked, **given)

    return _OPTIONS(gathered)


@main.command(context_settings=options.HELP)
@click.argument("name")
@asking
@click.option("--node", "nodes", multiple=True, metavar="NODE", help="Every plugin's answer for this node.")
@click.option("-v", "--verbose", is_flag=True, help="Every plugin's answer for every node.")
@click.option(
    "--best", default=BEST_NODES, show_default=True, type=click.IntRange(0), help="Nodes in the score table."
)
def pod(name: str, asked: Asked, nodes: tuple[str, ...], verbose: bool, best: int) -> None:
    """Why is this pod pending, or why on that node, and what would have to change?

    \b
    Try:
      koordinator explain pod web-0 -n shop
      koordinator explain pod web-0 -n shop --node node-7
      kubectl get nodes,pods -A -o json | koordinator explain pod web-0 -n shop --dump -

    Ends with 0 when the pod has a node or would get one, 3 when it cannot be placed now, 1 when there is no
    answer, 2 when the command line is wrong.
    """
    ask = _ask(name, asked, None if verbose else nodes, best)
    _tell(asked, ask, sources.pod_from_dump, sources.pod_from_cluster)


@main.command(context_settings=options.HELP)
@click.argument("name")
@asking
def gang(name: str, asked: Asked) -> None:
    """Why does this gang not start, or how far is it, and what would have to change?

    All members are tried side by side, as the scheduler tries them. NAME is that of the PodGroup, or of the
    annotation on the pods; gangs that start with it are told, too.

    \b
    Try:
      koordinator explain gang train -n ai
      koordinator explain podgroup/train -n ai
      kubectl get nodes,pods,podgroups -A -o json | koordinator explain gang ai/train --dump -

    Ends with 0 when the gang is placed or would be, 3 when it cannot start now, 1 when there is no answer, 2 when
    the command line is wrong.
    """
    _tell(asked, _ask(name, asked, (), 0), sources.gang_from_dump, sources.gang_from_cluster)


main.add_command(gang, "podgroup")


def _ask(name: str, asked: Asked, nodes: tuple[str, ...] | None, best: int) -> Ask:
    """The name may bring its namespace along; an empty namespace is that of the kubeconfig."""
    namespace, slash, own = name.partition("/")
    if not slash:
        namespace, own = asked.namespace, name
    if asked.dump_files:
        namespace = namespace or "default"
    return Ask(name=own, namespace=namespace, nodes=nodes, best=best, seed=asked.seed)


def _tell(
    asked: Asked,
    ask: Ask,
    from_dump: Callable[[Ask, Sequence[str], Path | None], PodAnswer | GangAnswer],
    from_cluster: Callable[[Ask, str, str], Coroutine[Any, Any, PodAnswer | GangAnswer]],
) -> None:
    """Write the answer and end with its status. Raises: ClickException, in one line, when there is none."""
    logs.keep_quiet()
    try:
        if asked.dump_files:
            answer = from_dump(ask, asked.dump_files, asked.config_file)
        else:
            answer = asyncio.run(from_cluster(ask, asked.kubeconfig, asked.scheduler_url))
    except (KoordinatorError, OSError) as error:
        raise click.ClickException(str(error)) from error
    _print(answer, asked.output)
    if answer.verdict not in _PLACED:
        sys.exit(CANNOT_BE_PLACED)


def _print(answer: PodAnswer | GangAnswer, output: str) -> None:
    if output == "text":
        # Files and pipes get the lines whole, whatever the terminal's width is.
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
        if isinstance(answer, PodAnswer):
            print_answer(console, answer)
        else:
            print_gang(console, answer)
        return
    body = msgspec.to_builtins(answer)
    if output == "json":
        click.echo(json.dumps(body, indent=2))
    else:
        click.echo(yaml.safe_dump(body, sort_keys=False, allow_unicode=True), nl=False)
