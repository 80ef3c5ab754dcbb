"""Print answers: tables as wide as a terminal is, in files and pipes whole lines without padding; JSON and YAML."""

import json
import sys
from collections.abc import Mapping
from typing import TextIO

import click
import yaml
from rich import box
from rich.console import Console
from rich.table import Table

UNBOUNDED = 10_000
"""Characters of a line that nobody reads on a terminal: nothing is wrapped or folded."""


class _Trimmed:
    """A stream whose lines end where their text ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._stream.write(line.rstrip() + "\n")
        return len(text)

    def flush(self) -> None:
        self._stream.write(self._rest.rstrip())
        self._rest = ""
        self._stream.flush()

    def isatty(self) -> bool:
        return False


def console() -> Console:
    """Return a console on standard output."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=UNBOUNDED, file=_Trimmed(sys.stdout))  # type: ignore[arg-type]


def table_of(title: str, columns: Mapping[str, bool]) -> Table:
    """Return an empty table of these columns; those with true stand on the right."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column, is_number in columns.items():
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    return table


def print_document(body: object, output: str, *, ascii_only: bool = True) -> None:
    """Print an answer for tools; `output` is json or yaml."""
    if output == "json":
        click.echo(json.dumps(body, indent=2, ensure_ascii=ascii_only))
    else:
        click.echo(yaml.safe_dump(body, sort_keys=False, allow_unicode=True), nl=False)
