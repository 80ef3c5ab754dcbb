"""Remember for a day, minute by minute, where what stands on each Node came from.

`take` notes each decision as it is made; once a minute `keep` works out the terms of the last ones, adds what stands on
the nodes and files the whole table away (`ledger_pages`). A past minute is told by the words that tell of this moment
(`ledger`).
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from copy import copy

import msgspec
import numpy as np

from koordinator.manager.config.colocation_config import NodeStrategy
from koordinator.manager.noderesource import ledger
from koordinator.manager.noderesource.account import NANO_PER_MILLI
from koordinator.manager.noderesource.batch import I64, MILLI
from koordinator.manager.noderesource.decide import Withdrawal
from koordinator.manager.noderesource.ledger import KINDS, TERM_COLUMNS, LedgerBasis, LentLedger
from koordinator.manager.noderesource.ledger_pages import (
    HOUR_MINUTES,
    PAGE_NODES,
    Interned,
    KeptMinute,
    PageHour,
)
from koordinator.manager.noderesource.rows import TOP_SERVICES, NodeRow
from koordinator.manager.noderesource.target import NodeTarget

MINUTE_S = 60
MISSED_MAX = 2
"""So many minutes may lie between what is asked for and what is kept."""
MEBI = 2**20
_NONE, _UNKNOWN, _UNREADABLE = -1, -1, -2
"""No text or amount; states beside the indices of withdrawals: not decided about, or a node that cannot be read."""
_WITHDRAWALS = tuple(Withdrawal)
_PERCENT = 100

_WRITTEN, _HAVE = 0, 1
_STATE = _HAVE + 2 * len(KINDS)
_REPORTED, _STRATEGY, _NORMALIZATION, _SERVICES = range(_STATE + 1, _STATE + 5)
_TERMS = _SERVICES + 3 * TOP_SERVICES
COLUMNS = _TERMS + 2 * len(TERM_COLUMNS)


class ServiceUse(msgspec.Struct, frozen=True, rename="camel"):
    """A service among those that use most of a node: milli-cores, and bytes to a mebibyte."""

    pod: str
    cpu_milli: int
    memory_bytes: int


class LentMinute(msgspec.Struct, frozen=True):
    """A node at one minute: what it lent, and why. Times are seconds of the clock, None for never or unknown."""

    node: str
    at_s: int
    withdrawal: Withdrawal | None
    """None: it could not be decided about."""
    reported_s: int | None
    written_s: int | None
    """Time at which this manager last wrote the amounts."""
    ledgers: tuple[LentLedger, ...]
    services: tuple[ServiceUse, ...]


class _Page:
    """Up to `PAGE_NODES` nodes: the table as it is now, and the hours that are kept."""

    def __init__(self) -> None:
        self.names: list[str | None] = [None] * PAGE_NODES
        self.free = list(range(PAGE_NODES - 1, -1, -1))
        self.gone: list[int] = []
        """Rows of nodes that went: others take them when the hour has ended."""
        self.table: I64 = np.zeros((PAGE_NODES, COLUMNS), np.int64)
        self.decided: dict[int, tuple[NodeRow, NodeTarget]] = {}
        """The last decision about nodes, by row, which the table lacks yet."""
        self.clear(slice(None))
        self.strategies: Interned[NodeStrategy] = Interned()
        self.pods: Interned[str] = Interned()
        self.hours: list[PageHour] = []

    def clear(self, at: int | slice) -> None:
        """Know nothing of the nodes of these rows."""
        self.table[at] = 0
        self.table[at, [*range(_HAVE, _REPORTED), _STRATEGY, *range(_SERVICES, _TERMS, 3)]] = _NONE

    def fill(self) -> None:
        """Put the last decisions into the table: together they cost a fraction of one after the other."""
        if not self.decided:
            return
        places = list(self.decided)
        rows, targets = zip(*self.decided.values(), strict=True)
        self.decided = {}
        self.table[places, _TERMS:] = ledger.terms_table(rows, targets).reshape(len(rows), -1)
        self.table[places, _STATE:_TERMS] = [
            (
                _WITHDRAWALS.index(row.withdrawal),
                int(row.reported_s or 0),
                self.strategies.number(row.strategy),
                round(target.normalization * _PERCENT),
                *self._services(row),
            )
            for row, target in zip(rows, targets, strict=True)
        ]

    def _services(self, row: NodeRow) -> list[int]:
        """Return the services that use most CPU, three numbers each."""
        found: list[int] = []
        for cpu, memory, key in row.top_services():
            found += (self.pods.number(key), cpu // NANO_PER_MILLI, memory // MILLI // MEBI)
        return found + [_NONE, 0, 0] * (TOP_SERVICES - len(found) // 3)

    def begin(self, hour: int) -> PageHour:
        """Begin an hour: texts nobody uses any more are forgotten, and rows of nodes that went are free."""
        for at in self.gone:
            self.names[at] = None
        self.free += self.gone
        self.gone = []
        strategies: Interned[NodeStrategy] = Interned()
        pods: Interned[str] = Interned()
        for at in range(PAGE_NODES):
            row = self.table[at]
            row[_STRATEGY] = strategies.number(self.strategies.of(int(row[_STRATEGY])))
            for column in range(_SERVICES, _TERMS, 3):
                row[column] = pods.number(self.pods.of(int(row[column])))
        self.strategies, self.pods = strategies, pods
        if self.hours:
            self.hours[-1].close()
        self.hours.append(PageHour(hour, self.names, (strategies, pods)))
        return self.hours[-1]


class LedgerHistory:
    """The last `hours` of all nodes, at most `bytes_max` of them; the oldest hours go first, and what a clock that was
    set back makes the future."""

    def __init__(self, *, hours: int, bytes_max: int) -> None:
        self._hours = hours
        self._bytes_max = bytes_max
        self._pages: list[_Page] = []
        self._place: dict[str, tuple[_Page, int]] = {}

    @property
    def is_on(self) -> bool:
        """Return whether anything is kept."""
        return self._hours > 0

    @property
    def byte_count(self) -> int:
        """Return the memory of what is kept, about."""
        return sum(hour.byte_count for page in self._pages for hour in page.hours)

    @property
    def first_minute(self) -> int | None:
        """Return the oldest minute that is kept of some node."""
        return min((page.hours[0].minutes[0] for page in self._pages if page.hours), default=None)

    # Writing

    def take(self, rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> None:
        """Note what was just decided about nodes."""
        if not self.is_on:
            return
        for row, target in zip(rows, targets, strict=True):
            page, at = self._place_of(row.name)
            row.top_services()  # noted in the copy, too: whether a pod counts, is known while it is there
            page.decided[at] = copy(row), target

    def written(self, name: str, now_s: float) -> None:
        """Note that the amounts of a node were written."""
        if self.is_on:
            page, at = self._place_of(name)
            page.table[at, _WRITTEN] = int(now_s)

    def forget(self, name: str) -> None:
        """Note that a node is gone; its past stays."""
        if (place := self._place.pop(name, None)) is not None:
            page, at = place
            page.decided.pop(at, None)
            page.clear(at)
            page.gone.append(at)

    def keep(self, known: Mapping[str, NodeRow], minute: int) -> Iterator[None]:
        """File away this minute (since the epoch), page by page: the caller may do other things in between."""
        hour = minute // HOUR_MINUTES
        for page in self._pages:
            page.fill()
            self._see_nodes(page, known)
            if page.hours and page.hours[-1].minutes[-1] > minute:  # the clock was set back
                page.hours = [each for each in page.hours if each.hour < hour]
            newest = page.hours[-1] if page.hours else None
            if newest is None or newest.hour != hour:
                newest = page.begin(hour)
            if newest.minutes[-1:] != [minute]:
                newest.names = list(page.names)
                newest.add(minute, page.table)
            yield
        self._drop_old(hour)

    def _see_nodes(self, page: _Page, known: Mapping[str, NodeRow]) -> None:
        names = [name for names in KINDS.values() for name in names]
        for at, node in enumerate(page.names):
            if node is None or (row := known.get(node)) is None:
                continue
            page.table[at, _HAVE:_STATE] = [row.have.get(name, _NONE) for name in names]
            if row.node is not None and row.facts is None:
                page.table[at, _STATE] = _UNREADABLE

    def _drop_old(self, hour: int) -> None:
        while True:
            oldest = min((page.hours[0].hour for page in self._pages if page.hours), default=hour)
            is_old = oldest < hour - self._hours
            if oldest >= hour or not (is_old or self.byte_count > self._bytes_max):
                return
            for page in self._pages:
                page.hours = [each for each in page.hours if each.hour != oldest]

    def _place_of(self, name: str) -> tuple[_Page, int]:
        place = self._place.get(name)
        if place is None:
            page = next((each for each in self._pages if each.free), None)
            if page is None:
                page = _Page()
                self._pages.append(page)
            at = page.free.pop()
            page.names[at] = name
            place = self._place[name] = page, at
        return place

    # Reading

    def minutes(self, minute: int, node: str = "") -> list[KeptMinute]:
        """Return that minute, or the last one kept within the two before, of the pages that have nodes, or one node."""
        found = []
        for page in self._pages:
            for each in reversed(page.hours):
                if each.hour > minute // HOUR_MINUTES or (node and node not in each.names):
                    continue
                kept = each.until(minute)
                if kept is not None and minute - kept.minute <= MISSED_MAX:
                    found.append(kept)
                break
        return found


def read(kept: KeptMinute, nodes: Container[str] | None = None) -> Iterator[LentMinute]:
    """Return what the nodes of a page lent at a minute; only some of them, if `nodes` says which."""
    table = kept.table()
    for at, name in enumerate(kept.names):
        if name is not None and (nodes is None or name in nodes) and table[at, _STATE] != _UNKNOWN:
            yield _read(kept, name, table[at])


def _read(kept: KeptMinute, name: str, row: I64) -> LentMinute:
    numbers = row.tolist()
    strategies, pods = kept.texts
    strategy: NodeStrategy | None = strategies.of(numbers[_STRATEGY])
    withdrawal = _WITHDRAWALS[numbers[_STATE]] if numbers[_STATE] >= 0 else None
    basis = LedgerBasis(
        strategy=strategy,
        withdrawal=Withdrawal.MISSING if withdrawal is None else withdrawal,
        normalization=numbers[_NORMALIZATION] / _PERCENT,
        on_node=tuple(None if amount < 0 else amount for amount in numbers[_HAVE:_STATE]),
    )
    services = [
        ServiceUse(str(pods.of(numbers[column])), numbers[column + 1], numbers[column + 2] * MEBI)
        for column in range(_SERVICES, _TERMS, 3)
        if numbers[column] >= 0
    ]
    return LentMinute(
        node=name,
        at_s=kept.minute * MINUTE_S,
        withdrawal=withdrawal,
        reported_s=numbers[_REPORTED] or None,
        written_s=numbers[_WRITTEN] or None,
        ledgers=ledger.ledgers_of(row[_TERMS:].reshape(-1, 2), basis),
        services=tuple(services),
    )
