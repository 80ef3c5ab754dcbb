"""Keep what a container writes as container runtimes do: a line per line, with time and stream.

`2026-01-02T03:04:05.123456789Z stdout F text`; `P` in place of `F` marks a line that goes on in the next.
"""

import asyncio
import contextlib
import os
from pathlib import Path

from koordinator.clock import Clock, rfc3339_micro

LINE_BYTES_MAX = 16 * 1024
"""Longer lines are kept in parts, as runtimes do."""
FILE_BYTES_MAX = 10 * 2**20
"""A longer log becomes the file before (`.1`); the one before that is dropped. The kubelet's containerLogMaxSize."""
_READ_BYTES = 64 * 1024
_PAUSE_S = 0.05
"""After a full read; so a container may write about 1.2 MB/s and cannot keep the loop that it shares with the
control plane busy. Whoever writes more waits, as at any pipe."""
_DRAIN_READS_MAX = 16


class LogFile:
    """The log of one container run."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._size = os.fstat(self._file).st_size

    def write(self, stream: str, line: bytes, *, is_whole: bool) -> None:
        """Add a line, or a part of one; a full disk loses it."""
        stamp = f"{rfc3339_micro(self._clock.now())[:-1]}000Z {stream} {'F' if is_whole else 'P'} "
        entry = stamp.encode() + line + b"\n"
        if self._size + len(entry) > FILE_BYTES_MAX:
            self._rotate()
        with contextlib.suppress(OSError):
            self._size += os.write(self._file, entry)

    def close(self) -> None:
        os.close(self._file)

    def _rotate(self) -> None:
        os.close(self._file)
        with contextlib.suppress(OSError):
            os.replace(self.path, self.path.with_name(self.path.name + ".1"))
        self._file = os.open(
            self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o640
        )
        self._size = 0


class Output:
    """The pipes of one container run, drained into its log until both are closed."""

    def __init__(self, log: LogFile) -> None:
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._pipes = [_Pipe("stdout", log), _Pipe("stderr", log)]
        for pipe in self._pipes:
            self._loop.add_reader(pipe.read_end, self._drain, pipe)

    @property
    def ends(self) -> tuple[int, int]:
        """Descriptors for stdout and stderr of the process; `handed_over` closes ours."""
        return self._pipes[0].write_end, self._pipes[1].write_end

    def handed_over(self) -> None:
        """The process has its ends."""
        for pipe in self._pipes:
            os.close(pipe.write_end)

    def finish(self) -> None:
        """The container has ended: keep what is still in the pipes and close everything."""
        for pipe in self._pipes:
            if pipe.is_open:
                self._loop.remove_reader(pipe.read_end)
                for _ in range(_DRAIN_READS_MAX):
                    if pipe.read() <= 0:
                        break
                pipe.close()
        self._log.close()

    def _drain(self, pipe: "_Pipe") -> None:
        count = pipe.read()
        if count == 0:
            self._loop.remove_reader(pipe.read_end)
            pipe.close()
        elif count >= _READ_BYTES:
            self._loop.remove_reader(pipe.read_end)
            self._loop.call_later(_PAUSE_S, self._resume, pipe)

    def _resume(self, pipe: "_Pipe") -> None:
        if pipe.is_open:
            self._loop.add_reader(pipe.read_end, self._drain, pipe)


class _Pipe:
    """One stream; a line is kept back until it is whole."""

    def __init__(self, stream: str, log: LogFile) -> None:
        self.read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.read_end, False)
        self.is_open = True
        self._stream = stream
        self._log = log
        self._rest = b""

    def read(self) -> int:
        """Take what is there and say how much; 0 when all writers are gone, -1 when nothing is there now."""
        try:
            data = os.read(self.read_end, _READ_BYTES)
        except BlockingIOError:
            return -1
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._write(line, is_whole=True)
        while len(self._rest) > LINE_BYTES_MAX:
            self._log.write(self._stream, self._rest[:LINE_BYTES_MAX], is_whole=False)
            self._rest = self._rest[LINE_BYTES_MAX:]
        return len(data)

    def close(self) -> None:
        if self._rest:
            self._write(self._rest, is_whole=True)
            self._rest = b""
        os.close(self.read_end)
        self.is_open = False

    def _write(self, line: bytes, *, is_whole: bool) -> None:
        while len(line) > LINE_BYTES_MAX:
            self._log.write(self._stream, line[:LINE_BYTES_MAX], is_whole=False)
            line = line[LINE_BYTES_MAX:]
        self._log.write(self._stream, line, is_whole=is_whole)
