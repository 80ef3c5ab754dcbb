"""Kinds of flags that commands named like upstream's share, and the way Go's standard library writes flags."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from koordinator.api import duration, scalars
from koordinator.api.errors import KoordinatorError
from koordinator.cli.options import FiniteRange

Decorate = Callable[[Any], Any]

SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda name: name.replace("_", "-"),  # as pflag reads names
    "max_content_width": 120,
}
"""Context settings of commands that are named like upstream's."""


class DurationText(click.ParamType):  # type: ignore[type-arg] # generic in newer releases only
    """Text such as 15s or 1m30s."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            duration.parse(str(value))
        except KoordinatorError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class CommaList(click.ParamType):  # type: ignore[type-arg] # generic in newer releases only
    """Texts separated by commas."""

    name = "list"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(part.strip() for part in str(value).split(",") if part.strip())


class Switch(click.ParamType):  # type: ignore[type-arg] # generic in newer releases only
    """true or false."""

    name = "boolean"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        if isinstance(value, bool):
            return value
        try:
            return scalars.parse_bool(str(value))
        except scalars.ScalarError as error:
            self.fail(str(error), param, ctx)


class Verbosity(click.IntRange):
    """The number of `-v`, which others' command lines write as `-v=4`, too."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        written: Any = value.removeprefix("=") if isinstance(value, str) else value
        return super().convert(written, param, ctx)


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
PORT = click.IntRange(0, 65_535)
COUNT = click.IntRange(min=1)
RATE = FiniteRange(0, min_open=True)


def text(name: str, default: str | None, words: str) -> Decorate:
    """Return an option that takes any text."""
    return click.option(f"--{name}", default=default, show_default=bool(default), help=words)


def switch(name: str, default: bool | None, words: str, *more: str) -> Decorate:
    """Return a switch: `--name`, `--name=true` or `--name=false`; `more` are other names."""
    return click.option(
        f"--{name}",
        *more,
        type=Switch(),
        is_flag=False,
        flag_value="true",
        default=default,
        show_default=default is not None,
        help=words,
    )


def time(name: str, default: str | None, words: str) -> Decorate:
    """Return an option that takes a duration; the value stays text."""
    shown = default is not None
    return click.option(f"--{name}", type=DurationText(), default=default, show_default=shown, help=words)


def listed(name: str, default: str, words: str) -> Decorate:
    """Return an option that takes a list, separated by commas."""
    return click.option(
        f"--{name}", type=CommaList(), default=default, show_default=bool(default), help=words
    )


def file(name: str, words: str) -> Decorate:
    """Return an option that takes the path of an existing file."""
    return click.option(f"--{name}", type=FILE, help=words)


def count(name: str, default: float, words: str, kind: Any = COUNT) -> Decorate:
    """Return an option that takes a number within the range of `kind`."""
    return click.option(f"--{name}", type=kind, default=default, show_default=True, help=words)


def verbosity() -> Decorate:
    """Return the option `-v`, also `--v`."""
    return click.option(
        "-v",
        "--v",
        type=Verbosity(),
        default=0,
        show_default=True,
        help="Log verbosity: 0 warnings, 1 changes, 4 decisions.",
    )


def without_effect(name: str, why: str, *, is_switch: bool = False) -> Decorate:
    """Return an option that is accepted for compatibility and ignored; None when it is not given."""
    words = f"Ignored, accepted for compatibility: {why}."
    kind = Switch() if is_switch else click.STRING
    return click.option(f"--{name}", type=kind, is_flag=False, flag_value="true", help=words)


class GoFlagCommand(click.Command):
    """A command that parses flags as Go's `flag` package does.

    One dash or two, `-name=value` or `-name value`; a switch may stand alone and never takes the next word.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, double_dashed(args, self._takes_value(ctx)))

    def _takes_value(self, ctx: click.Context) -> dict[str, bool]:
        """Return whether each flag needs a value, by name with underscores as dashes."""
        found = {}
        for param in self.get_params(ctx):
            alone = isinstance(param.type, Switch) or getattr(param, "is_flag", False)
            for name in (*param.opts, *param.secondary_opts):
                found[name.lstrip("-")] = not alone
        return found


def double_dashed(arguments: Sequence[str], takes_value: dict[str, bool]) -> list[str]:
    """Return the arguments with each flag as `--name=value`; other words, and all after `--`, stay as they are."""
    written: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--":
            return [*written, argument, *waiting]
        if not argument.startswith("-") or argument == "-":
            written.append(argument)
            continue
        name, equals, value = argument.lstrip("-").partition("=")
        known = takes_value.get(name.replace("_", "-"))
        if not equals and known is False:
            written.append(f"-{name}" if len(name) == 1 else f"--{name}")
        elif not equals and known and (following := next(waiting, None)) is not None:
            written.append(f"--{name}={following}")
        else:
            written.append(f"--{name}{equals}{value}")
    return written
