"""Pages of the audit log for readers: tokens, sizes, limits. Source: behaviour/koordlet-observe 13."""

import random
from collections.abc import Iterator

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.clock import Clock
from koordinator.koordlet import audit
from koordinator.koordlet.audit import AuditEvent, AuditLog

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


class _Reader:
    """The position of a reader; one line is read ahead to know the end."""

    def __init__(self, lines: Iterator[bytes], now_s: float) -> None:
        self._lines = lines
        self._ahead = self._next()
        self.used_s = now_s

    @property
    def is_at_end(self) -> bool:
        return self._ahead is None

    def take(self, count: int) -> list[AuditEvent]:
        events: list[AuditEvent] = []
        while self._ahead is not None and len(events) < count:
            events.append(self._ahead)
            self._ahead = self._next()
        return events

    def close(self) -> None:
        close = getattr(self._lines, "close", None)
        if close is not None:
            close()

    def _next(self) -> AuditEvent | None:
        for line in self._lines:
            try:
                return audit.decode(line)
            except msgspec.MsgspecError:
                continue  # torn by a crash
        return None


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

    def page(self, size: str = "", token: str = "") -> AuditPage:
        """Return the newest events, or those after a token. Raises: QueryError."""
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
            reader = self._opened(now_s)
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

    def _opened(self, now_s: float) -> _Reader:
        while len(self._readers) >= self._readers_max:
            oldest = min(self._readers, key=lambda each: self._readers[each].used_s)
            self._readers.pop(oldest).close()
        return _Reader(self._log.newest_first(), now_s)

    def _size(self, text: str) -> int:
        if not text:
            return min(SIZE_DEFAULT, self._size_max)
        if not (text.isascii() and text.isdigit()) or int(text) == 0:
            raise QueryError(_BAD_REQUEST, f"invalid size {text[:40]!r}: expected a positive number")
        if int(text) > self._size_max:
            raise QueryError(_BAD_REQUEST, f"size({int(text)}) exceeds the limit({self._size_max})")
        return int(text)
