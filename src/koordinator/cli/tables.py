"""Print tables: as wide as a terminal is; in files and pipes whole lines without padding."""

import sys
from typing import TextIO

from rich.console import Console

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
