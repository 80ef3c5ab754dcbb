"""Options that several commands have, with the same words everywhere."""

import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., None]

HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"], "show_default": True}
"""Context settings of every command that is not named like one of upstream's."""
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


class FiniteRange(click.FloatRange):
    """Finite numbers within a range: NaN passes every comparison with a bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is no finite number.", param, ctx)
        return found


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return one decorator for all options, in this order of the help text."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def text_option(*names: str, words: str, metavar: str | None = None) -> Callable[[Command], Command]:
    """Return an option that takes any text; it is empty where nobody gives it, which the help does not show."""
    return click.option(*names, default="", show_default=False, help=words, metavar=metavar)


kubeconfig = text_option(
    "--kubeconfig", words="Path of the kubeconfig file; default: $KUBECONFIG or ~/.kube/config."
)
on_a_cluster = together(kubeconfig, text_option("--context", words="Context of the kubeconfig."))


def dump(kubectl: str, verb: str = "Look at") -> Callable[[Command], Command]:
    """Return the option `--dump FILE …`; `kubectl` names the commands that write a dump."""
    return click.option(
        "--dump",
        "dump_files",
        multiple=True,
        metavar="FILE",
        help=f"{verb} a dump instead of a running cluster: JSON or YAML of {kubectl}; - is standard input. "
        "May be given several times.",
    )


def output(*formats: str) -> Callable[[Command], Command]:
    """Return the option `-o FORMAT`; the first format is the default, for people."""
    return click.option("-o", "--output", type=click.Choice(formats), default=formats[0])


def scheduler_config(where: str = "") -> Callable[[Command], Command]:
    """Return the option `--config FILE`; `where` completes its help."""
    return click.option(
        "--config",
        "config_file",
        type=EXISTING_FILE,
        help=f"The scheduler's configuration{where}; default: the one of an installation.",
    )


descheduler_config = click.option(
    "--descheduler-config",
    "descheduler_file",
    type=EXISTING_FILE,
    help="The descheduler's configuration, with LowNodeLoad; default: the one of an installation, with LowNodeLoad on.",
)


def figures(report: str) -> Callable[[Command], Command]:
    """`--report FILE` (`report` unless it is given) and `--json FILE`: a measurement as a page and as numbers."""
    return together(
        click.option("--report", type=FILE, default=Path(report), metavar="FILE", help="Path of the report."),
        click.option(
            "--json", "json_path", type=FILE, metavar="FILE", help="Write all figures to this file, too."
        ),
    )


def refuse_unwritable(paths: Iterable[Path | None]) -> None:
    """Refuse now what would fail after minutes of measuring. Raises: BadParameter."""
    for path in filter(None, paths):
        folder = path.absolute().parent
        if not folder.is_dir():
            raise click.BadParameter(f"{path}: the folder {folder} does not exist")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise click.BadParameter(f"{path}: not allowed to write there")


quiet = click.option("--quiet", is_flag=True, help="Print only the table.")
prometheus = together(
    text_option(
        "--prometheus",
        "prometheus_url",
        words="Ask this Prometheus (or Thanos, Mimir, VictoriaMetrics) what containers used.",
        metavar="URL",
    ),
    click.option(
        "--days",
        type=FiniteRange(0.04, 92),
        default=7.0,
        help="With --prometheus: how far back to look.",
    ),
    text_option(
        "--prometheus-selector",
        words="With --prometheus: more label matchers, where it knows several clusters: 'cluster=\"prod\"'.",
        metavar="MATCHERS",
    ),
    click.option(
        "--prometheus-token-file",
        type=EXISTING_FILE,
        metavar="FILE",
        help="With --prometheus: the bearer token to ask with.",
    ),
    click.option(
        "--prometheus-ca-file",
        type=EXISTING_FILE,
        metavar="FILE",
        help="With --prometheus: the authority of its certificate.",
    ),
)
"""A Prometheus that knows the past."""
