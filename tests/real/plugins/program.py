"""The running program that asks kube-scheduler's own plugins (`main.go`)."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from typing import IO, Any, Self

from tests.real import binaries

Json = dict[str, Any]


class Theirs:
    """One line in, one line out."""

    def __init__(self, into: IO[str], out: IO[str]) -> None:
        self._in, self._out = into, out

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[Self]:
        """The program is built if it is not there yet. Raises: Missing."""
        [path] = binaries.provide((binaries.PLUGINS,)).values()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([str(path)], text=True, **pipes) as process:
            assert process.stdin is not None and process.stdout is not None
            try:
                yield cls(process.stdin, process.stdout)
            finally:
                process.kill()

    def answer(self, case: Json) -> Json:
        self._in.write(json.dumps(case) + "\n")
        self._in.flush()
        answer: Json = json.loads(self._out.readline())
        return answer
