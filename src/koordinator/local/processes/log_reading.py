"""Reading what a container wrote: the parts that were asked for, and on as it grows."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from koordinator import clock

POLL_S = 0.2
_CHUNK_BYTES = 64 * 1024


class LogRange(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a log that is wanted; None and 0 mean all of it."""

    tail_lines: int | None = None
    limit_bytes: int = 0
    since_time_s: float | None = None
    timestamps: bool = False
    follow: bool = False


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


def shown(entries: Iterable[LogLine], selection: LogRange) -> Iterator[bytes]:
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


async def read(path: Path, selection: LogRange, is_over: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the log in pieces; with `follow` until `is_over` and everything was read."""
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
