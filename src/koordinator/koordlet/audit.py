"""Record what the agent did to the node and why, as events: in memory, in rotating files, and page by page for
readers.

A full or failing disk never stops the agent: events then stay in memory, the oldest are dropped, and `dropped_count`
tells how many never reached the disk. Source: behaviour/koordlet-observe 13; behaviour/koordlet-act 25.
"""

import contextlib
import enum
import errno
import os
import random
import re
from collections import deque
from collections.abc import Iterator
from datetime import datetime

import msgspec

from koordinator import clock
from koordinator.api.errors import KoordinatorError
from koordinator.clock import Clock
from koordinator.host.files import FileProblem, problem_of

CURRENT = "audit.log"
ROTATE_BYTES = 2 * 1024 * 1024
BUFFER_BYTES_MAX = 1024 * 1024
FLUSH_INTERVAL_S = 5.0
EVENTS_IN_MEMORY_MAX = 4_096
_ROTATED = re.compile(r"audit-.+-[0-9]\.log")
_ROTATIONS_PER_SECOND_MAX = 9
_BLOCK_BYTES = 64 * 1024


class AuditEventType(enum.StrEnum):
    """The subject of an event."""

    NODE = "node"
    POD = "pod"
    GROUP = "group"
    UNKNOWN = "unknown"


class AuditEvent(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One line of the log."""

    created_at: str
    type: AuditEventType = AuditEventType.UNKNOWN
    level: int = 0
    namespace: str = ""
    name: str = ""
    container: str = ""
    reason: str = ""
    message: str = ""


_encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(AuditEvent).decode
"""An event from its line. Raises: msgspec.MsgspecError."""


class AuditLog:
    """Events up to level `verbose` go to `directory` (empty: only to memory); `is_enabled` false drops all."""

    def __init__(
        self,
        clock: Clock,
        *,
        directory: str = "",
        verbose: int = 3,
        disk_mb_max: int = 16,
        is_enabled: bool = True,
    ) -> None:
        self._clock = clock
        self._directory = directory
        self._verbose = verbose
        self._files_max = max(disk_mb_max * 1024 * 1024 // ROTATE_BYTES, 1)
        self._is_enabled = is_enabled
        self._recent: deque[bytes] = deque(maxlen=EVENTS_IN_MEMORY_MAX)
        """The newest events, where there are no files to read them from."""
        self._unwritten: deque[bytes] = deque()
        self._unwritten_bytes = 0
        self._size_bytes = -1
        """Size of the current file; -1 until it was looked at."""
        self.dropped_count = 0
        self.problem: FileProblem | None = None
        """Reason for which events could not be written last."""

    # Recording

    def node(self, level: int, reason: str, message: str) -> None:
        """Something about the whole node."""
        self._record(AuditEvent(self._now(), AuditEventType.NODE, level, reason=reason, message=message))

    def pod(
        self, level: int, namespace: str, name: str, reason: str, message: str, *, container: str = ""
    ) -> None:
        """Something about a pod, or one of its containers."""
        self._record(
            AuditEvent(self._now(), AuditEventType.POD, level, namespace, name, container, reason, message)
        )

    def group(self, level: int, name: str, reason: str, message: str) -> None:
        """Something about a group of processes."""
        self._record(AuditEvent(self._now(), AuditEventType.GROUP, level, "", name, "", reason, message))

    def _now(self) -> str:
        return clock.rfc3339_micro(self._clock.now())

    def _record(self, line: AuditEvent) -> None:
        if not self._is_enabled or line.level > self._verbose:
            return
        data = _encode(line) + b"\n"
        if not self._directory:
            self._recent.append(data)
            return
        self._unwritten.append(data)
        self._unwritten_bytes += len(data)
        if self._unwritten_bytes >= BUFFER_BYTES_MAX:
            self.flush()
            while self._unwritten_bytes >= BUFFER_BYTES_MAX:
                self._unwritten_bytes -= len(self._unwritten.popleft())
                self.dropped_count += 1

    # Writing

    def flush(self) -> None:
        """Write what waits; to be called every `FLUSH_INTERVAL_S` and at the end. `problem` tells of failure."""
        while self._unwritten:
            try:
                if self._size_bytes < 0:
                    self._open()
                if self._size_bytes and self._size_bytes + len(self._unwritten[0]) > ROTATE_BYTES:
                    self._rotate()
                self._write_some()
            except OSError as error:
                self.problem = problem_of(self._directory, error)
                self._size_bytes = -1
                return
        self.problem = None

    def _write_some(self) -> None:
        """Write as many events as the current file takes, in one write."""
        lines: list[bytes] = []
        size = self._size_bytes
        for line in self._unwritten:
            if lines and size + len(line) > ROTATE_BYTES:
                break
            lines.append(line)
            size += len(line)
        data = b"".join(lines)
        fd = os.open(self._path(CURRENT), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            written = os.write(fd, data)
            if written < len(data):  # the disk is full: take the torn part back
                os.ftruncate(fd, self._size_bytes)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)
        self._size_bytes = size
        for _ in lines:
            self._unwritten_bytes -= len(self._unwritten.popleft())

    def _open(self) -> None:
        os.makedirs(self._directory, exist_ok=True)
        try:
            self._size_bytes = os.stat(self._path(CURRENT)).st_size
        except FileNotFoundError:
            self._size_bytes = 0

    def _rotate(self) -> None:
        """Set the current file aside under the time's name, and remove the oldest."""
        stamp = datetime.fromtimestamp(self._clock.now()).strftime(
            "%Y-%m-%d-%H-%M-%S"
        )  # local, as documented
        names = (f"audit-{stamp}-{number}.log" for number in range(_ROTATIONS_PER_SECOND_MAX))
        free = next((name for name in names if not os.path.exists(self._path(name))), None)
        # Nine files within a second: the rest of that second is lost rather than the files before it.
        if free is None:
            os.truncate(self._path(CURRENT), 0)
        else:
            os.rename(self._path(CURRENT), self._path(free))
        self._size_bytes = 0
        rotated = self._rotated()
        for name in rotated[: max(len(rotated) + 1 - self._files_max, 0)]:
            os.remove(self._path(name))

    # Reading

    def newest_first(self) -> Iterator[bytes]:
        """Lines without newline as they are now, the newest first; files stay open until the iterator is closed."""
        self.flush()
        waiting = list(self._unwritten) if self._directory else list(self._recent)
        descriptors = self._open_for_reading()
        return _newest_first(waiting, descriptors)

    def _open_for_reading(self) -> list[int]:
        descriptors: list[int] = []
        if self._directory:
            with contextlib.suppress(OSError):
                for name in [CURRENT, *reversed(self._rotated())]:
                    with contextlib.suppress(FileNotFoundError):
                        descriptors.append(os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC))
        return descriptors

    def _rotated(self) -> list[str]:
        """Return names of files set aside, the oldest first."""
        return sorted(name for name in os.listdir(self._directory) if _ROTATED.fullmatch(name))

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


def _newest_first(waiting: list[bytes], descriptors: list[int]) -> Iterator[bytes]:
    try:
        for line in reversed(waiting):
            yield line.rstrip(b"\n")
        for fd in descriptors:
            yield from _backwards(fd, os.fstat(fd).st_size)
    finally:
        for fd in descriptors:
            os.close(fd)


def _backwards(fd: int, end: int) -> Iterator[bytes]:
    """Lines of a file from its end to its start."""
    rest = b""
    while end > 0:
        start = max(end - _BLOCK_BYTES, 0)
        lines = (os.pread(fd, end - start, start) + rest).split(b"\n")
        rest = lines[0]
        yield from (line for line in reversed(lines[1:]) if line)
        end = start
    if rest:
        yield rest


SIZE_DEFAULT = 256
SIZE_MAX = 2_048
READERS_MAX = 4
TOKEN_LIFE_S = 600.0
_BAD_REQUEST, _CONFLICT = 400, 409


class QueryError(KoordinatorError, ValueError):
    """A request that cannot be answered; `status` is the HTTP status to answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status, self.reason = status, reason

    def __str__(self) -> str:
        return self.reason


class AuditPage(msgspec.Struct, frozen=True):
    """Events, the newest first; the token for the next page is empty at the end."""

    next_page_token: str = msgspec.field(name="NextPageToken")
    events: list[AuditEvent] = msgspec.field(name="Events")


class AuditFilter(msgspec.Struct, frozen=True):
    """The events that are asked for; an empty field takes all."""

    type: str = ""
    namespace: str = ""
    name: str = ""
    container: str = ""
    reason: str = ""

    def events(self, lines: Iterator[bytes]) -> Iterator[AuditEvent]:
        """Yield events that match, from lines of the log; what a crash has torn is left out."""
        asked = {field: text for field in self.__struct_fields__ if (text := getattr(self, field))}
        for text in asked.values():
            lines = _holding(lines, msgspec.json.encode(text))  # decoding them all would take too long
        for line in lines:
            try:
                event = decode(line)
            except msgspec.MsgspecError:
                continue
            if all(getattr(event, field) == text for field, text in asked.items()):
                yield event


def _holding(lines: Iterator[bytes], part: bytes) -> Iterator[bytes]:
    return (line for line in lines if part in line)


ALL_EVENTS = AuditFilter()


class _Reader:
    """The position of a reader; one event is read ahead to know the end."""

    def __init__(self, lines: Iterator[bytes], wanted: AuditFilter, now_s: float) -> None:
        self._lines = lines
        self._events = wanted.events(lines)
        self._ahead = next(self._events, None)
        self.used_s = now_s

    @property
    def is_at_end(self) -> bool:
        return self._ahead is None

    def take(self, count: int) -> list[AuditEvent]:
        events: list[AuditEvent] = []
        while self._ahead is not None and len(events) < count:
            events.append(self._ahead)
            self._ahead = next(self._events, None)
        return events

    def close(self) -> None:
        close = getattr(self._lines, "close", None)
        if close is not None:
            close()


class AuditQuery:
    """Hands out pages; at most `readers_max` readers at once, the least recently used is closed for a new one."""

    def __init__(
        self,
        log: AuditLog,
        clock: Clock,
        rng: random.Random,
        *,
        size_max: int = SIZE_MAX,
        readers_max: int = READERS_MAX,
    ) -> None:
        self._log = log
        self._clock = clock
        self._rng = rng
        self._size_max = size_max
        self._readers_max = max(readers_max, 1)
        self._readers: dict[str, _Reader] = {}

    def page(self, size: str = "", token: str = "", wanted: AuditFilter = ALL_EVENTS) -> AuditPage:
        """Return the newest events that are wanted; with a token the next ones of that query. Raises: QueryError."""
        count = self._size(size)
        now_s = self._clock.now()
        for each in [each for each, reader in self._readers.items() if now_s - reader.used_s > TOKEN_LIFE_S]:
            self._readers.pop(each).close()
        if token:
            reader = self._readers.get(token)
            if reader is None:
                raise QueryError(
                    _CONFLICT, f"invalid pageToken {token[:80]}: unknown, or expired; start anew"
                )
        else:
            reader = self._opened(wanted, now_s)
            token = f"{self._rng.getrandbits(128):032x}"
            self._readers[token] = reader
        reader.used_s = now_s
        events = reader.take(count)
        if reader.is_at_end:
            self._readers.pop(token).close()
            token = ""
        return AuditPage(token, events)

    def close(self) -> None:
        """Close all readers."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _opened(self, wanted: AuditFilter, now_s: float) -> _Reader:
        while len(self._readers) >= self._readers_max:
            oldest = min(self._readers, key=lambda each: self._readers[each].used_s)
            self._readers.pop(oldest).close()
        return _Reader(self._log.newest_first(), wanted, now_s)

    def _size(self, text: str) -> int:
        if not text:
            return min(SIZE_DEFAULT, self._size_max)
        if not (text.isascii() and text.isdigit()) or int(text) == 0:
            raise QueryError(_BAD_REQUEST, f"invalid size {text[:40]!r}: expected a positive number")
        if int(text) > self._size_max:
            raise QueryError(_BAD_REQUEST, f"size({int(text)}) exceeds the limit({self._size_max})")
        return int(text)
