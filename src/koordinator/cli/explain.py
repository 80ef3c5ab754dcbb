"""`koordinator explain`: why a pod or a gang is pending or where it is, and what would change that."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import msgspec
import yaml
from rich.console import Console

from koordinator.api.errors import KoordinatorError
from koordinator.cli import explain_sources as sources
from koordinator.cli import logs
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


@click.group(cls=KindSlashName, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Say why: decisions of the scheduler in words and figures."""


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say who is asked about what, and how the answer is written."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "-n",
        "--namespace",
        default="",
        help="Namespace of the pod or gang; that of the kubeconfig, or `default`.",
    ),
    click.option(
        "--dump",
        "dump_files",
        multiple=True,
        metavar="FILE",
        help="Ask a dump instead of a running cluster: JSON or YAML of `kubectl get "
        "nodes,pods,podgroups,elasticquotas -A -o json` or `kubectl cluster-info dump`; - is standard input. May be "
        "given several times.",
    ),
    click.option(
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="The scheduler's configuration, for --dump; without it the one that an installation brings.",
    ),
    click.option("--seed", default=0, show_default=True, help="The scheduler's seed, for --dump."),
    click.option("--kubeconfig", default="", help="kubeconfig file of the running cluster."),
    click.option(
        "--scheduler-url",
        default="",
        help=f"The scheduler's HTTP address; what `koordinator up` wrote into the kubeconfig, or {SCHEDULER_URL}.",
    ),
    click.option(
        "-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True
    ),
)


@main.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name")
@asking
@click.option("--node", "nodes", multiple=True, metavar="NODE", help="Every plugin's answer for this node.")
@click.option("-v", "--verbose", is_flag=True, help="Every plugin's answer for every node.")
@click.option(
    "--best", default=BEST_NODES, show_default=True, type=click.IntRange(0), help="Nodes in the score table."
)
def pod(
    name: str,
    namespace: str,
    dump_files: tuple[str, ...],
    config_file: Path | None,
    seed: int,
    kubeconfig: str,
    scheduler_url: str,
    output: str,
    nodes: tuple[str, ...],
    verbose: bool,
    best: int,
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
    namespace, name = _address(namespace, name, dump_files)
    ask = Ask(name=name, namespace=namespace, nodes=None if verbose else nodes, best=best, seed=seed)
    with _told_in_one_line():
        if dump_files:
            answer = sources.pod_from_dump(ask, dump_files, config_file)
        else:
            answer = asyncio.run(sources.pod_from_cluster(ask, kubeconfig, scheduler_url))
    _write(answer, output)


@main.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name")
@asking
def gang(
    name: str,
    namespace: str,
    dump_files: tuple[str, ...],
    config_file: Path | None,
    seed: int,
    kubeconfig: str,
    scheduler_url: str,
    output: str,
) -> None:
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
    namespace, name = _address(namespace, name, dump_files)
    ask = Ask(name=name, namespace=namespace, nodes=(), best=0, seed=seed)
    with _told_in_one_line():
        if dump_files:
            answer = sources.gang_from_dump(ask, dump_files, config_file)
        else:
            answer = asyncio.run(sources.gang_from_cluster(ask, kubeconfig, scheduler_url))
    _write(answer, output)


main.add_command(gang, "podgroup")


def _address(namespace: str, name: str, dump_files: Sequence[str]) -> tuple[str, str]:
    """Namespace (empty: that of the kubeconfig) and name; the name may bring its namespace along."""
    logs.keep_quiet()
    if "/" in name:
        namespace, _, name = name.partition("/")
    return namespace or ("default" if dump_files else ""), name


@contextlib.contextmanager
def _told_in_one_line() -> Iterator[None]:
    try:
        yield
    except (KoordinatorError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _write(answer: PodAnswer | GangAnswer, output: str) -> None:
    """Write the answer and end with its status."""
    _print(answer, output)
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
