"""Groups and processes of this machine in which benchmarks run what they measure."""

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence

from koordinator.host.cgroup_knobs import V2
from koordinator.host.cgroups import Cgroups

_CONTROLLERS = ("cpu", "cpuset", "memory", "io")


def make_group(found: Cgroups, name: str) -> None:
    """Make a group whose processes may use what its parent's may. Raises: SystemExit where that is not allowed."""
    problem = found.create(name)
    if problem is not None:
        raise SystemExit(f"groups cannot be made here: {problem}")
    parent = name.rpartition("/")[0]
    if found.version == V2:
        for controller in _CONTROLLERS:
            found.files.write(f"{found.directory(parent)}/cgroup.subtree_control", f"+{controller}")
    elif found.files.exists(found.directory(name, "cpuset")):
        for file in ("cpuset.cpus", "cpuset.mems"):
            text = found.files.read(f"{found.directory(parent, 'cpuset')}/{file}") or ""
            found.files.write(f"{found.directory(name, 'cpuset')}/{file}", text.strip())


class LineProcess:
    """A process that reads and writes lines."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._in, self._out, self._rest = process.stdin, process.stdout.fileno(), b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, line: str) -> None:
        self._in.write(line.encode() + b"\n")
        self._in.flush()

    def line(self, within_s: float) -> str:
        """Return its next line. Raises: SystemExit when it does not come in time."""
        found = self.lines_until(time.monotonic() + within_s, 1)
        if not found:
            raise SystemExit("a process did not start")
        return found[0]

    def lines_until(self, until_s: float, count: int = 0) -> list[str]:
        """Return its lines until a time, or until there are `count`. Raises: SystemExit when it has ended."""
        lines: list[str] = []
        while not count or len(lines) < count:
            left_s = until_s - time.monotonic()
            if self._process.poll() is not None:
                raise SystemExit(f"a process ended: {self._process.returncode}")
            if select.select([self._out], [], [], max(left_s, 0.0))[0]:
                *whole, self._rest = (self._rest + os.read(self._out, 65_536)).split(b"\n")
                lines += (line.decode() for line in whole)
            elif left_s <= 0:
                break
        return lines


@contextlib.contextmanager
def line_process(words: Sequence[str]) -> Iterator[LineProcess]:
    """Run a command, killed at the end; what it forked goes with its group."""
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield LineProcess(process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
