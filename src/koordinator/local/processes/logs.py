"""Keep what a container writes as container runtimes do (a line per line, with time and stream), and read the parts
that were asked for, and on as it grows.

`2026-01-02T03:04:05.123456789Z stdout F text`; `P` in place of `F` marks a line that goes on in the next.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from koordinator import clock
from koordinator.clock import Clock, rfc3339_micro
from koordinator.local.apiserver.pod_streams import LogOptions

POLL_S = 0.2
_CHUNK_BYTES = 64 * 1024


class LogLine(msgspec.Struct, frozen=True):
    """A line of a log file, or a part of one."""

    stamp: bytes
    is_whole: bool
    text: bytes


def parse(line: bytes) -> LogLine | None:
    """Return an entry in the form of container runtimes; None for anything else (a line cut by a full disk)."""
    stamp, _, rest = line.partition(b" ")
    stream, _, rest = rest.partition(b" ")
    tag, separator, text = rest.partition(b" ")
    if stream not in (b"stdout", b"stderr") or not separator or tag not in (b"F", b"P"):
        return None
    return LogLine(stamp, tag == b"F", text)


def shown(entries: Iterable[LogLine], selection: LogOptions) -> Iterator[bytes]:
    """Entries as they are shown, from the wanted time on; parts of a line are joined."""
    begins_line = True
    since = (
        None if selection.since_time_s is None else clock.rfc3339_micro(selection.since_time_s)[:-1].encode()
    )
    for entry in entries:
        if since is not None and entry.stamp < since:
            continue
        head = entry.stamp + b" " if selection.timestamps and begins_line else b""
        yield head + entry.text + (b"\n" if entry.is_whole else b"")
        begins_line = entry.is_whole


def last(entries: list[LogLine], lines: int) -> list[LogLine]:
    """Return the last so many lines."""
    wanted = lines
    for index in range(len(entries) - 1, -1, -1):
        if entries[index].is_whole:
            if wanted == 0:
                return entries[index + 1 :]
            wanted -= 1
    return entries if lines else []


async def read(path: Path, selection: LogOptions, is_over: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the log in pieces, from `since_time_s` on; with `follow` until `is_over` and everything was read."""
    left = selection.limit_bytes or None
    tail = _Tail(path)
    entries = tail.rotated() + tail.more()
    if selection.tail_lines is not None and selection.tail_lines >= 0:
        entries = last(entries, selection.tail_lines)
    while True:
        for piece in _joined(shown(entries, selection)):
            if left is not None:
                yield piece[:left]
                left -= len(piece)
                if left <= 0:
                    return
            else:
                yield piece
        if not selection.follow:
            return
        was_over = is_over()
        entries = tail.more()
        if not entries:
            if was_over:
                return
            yield b""
            await asyncio.sleep(POLL_S)


class _Tail:
    """A file that grows, and is now and then replaced by a new one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0
        self._offset = 0
        self._rest = b""

    def rotated(self) -> list[LogLine]:
        """Entries of the file that was there before."""
        return _entries(_content(self._path.with_name(self._path.name + ".1"), 0)[0])[0]

    def more(self) -> list[LogLine]:
        """Entries that were added since."""
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            return []
        before: list[LogLine] = []
        if self._inode not in (0, inode):
            data, _ = _content(self._path.with_name(self._path.name + ".1"), self._offset)
            before, _ = _entries(self._rest + data)
            self._offset, self._rest = 0, b""
        self._inode = inode
        data, self._offset = _content(self._path, self._offset)
        entries, self._rest = _entries(self._rest + data)
        return before + entries


def _content(path: Path, offset: int) -> tuple[bytes, int]:
    """Return the content of a file from a place on, and its end."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return b"", offset
    return data, offset + len(data)


def _entries(data: bytes) -> tuple[list[LogLine], bytes]:
    """Whole entries, and the rest that is not whole yet."""
    *lines, rest = data.split(b"\n")
    return [entry for line in lines if (entry := parse(line)) is not None], rest


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Pieces put together to what is worth a write."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _CHUNK_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


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
        """Note that the process has its ends."""
        for pipe in self._pipes:
            os.close(pipe.write_end)

    def finish(self) -> None:
        """Note that the container has ended: keep what is still in the pipes and close everything."""
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
