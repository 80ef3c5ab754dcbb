"""Print answers: tables as wide as a terminal is, in files and pipes whole lines without padding; JSON and YAML."""

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TextIO

import click
import msgspec
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


@contextlib.contextmanager
def progress_bar(notes: Console, words: str) -> Iterator[Callable[[float], None]]:
    """Show a bar on a terminal; what is given is told how much is done (0–1)."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # which few commands need

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(
        *columns, TimeElapsedColumn(), console=notes, disable=not notes.is_terminal, transient=True
    ) as bar:
        task = bar.add_task(words, total=1.0)
        yield lambda done: bar.update(task, completed=done)


def write_report(
    found: msgspec.Struct,
    output: str,
    output_file: Path | None,
    *,
    show: Callable[[Console], None],
    page: Callable[[], str],
    indent: int,
) -> None:
    """Write a report to `output_file`, or to standard output; `output` is text (as `show` prints it), json or html."""
    if output == "text" and output_file is None:
        show(console())
        return
    if output == "text":
        stream = io.StringIO()
        show(Console(file=stream, highlight=False, width=UNBOUNDED))
        text = stream.getvalue()
    elif output == "json":
        text = msgspec.json.format(msgspec.json.encode(found), indent=indent).decode() + "\n"
    else:
        text = page()
    if output_file is not None:
        output_file.write_text(text, encoding="utf-8")
    else:
        click.echo(text, nl=False)
