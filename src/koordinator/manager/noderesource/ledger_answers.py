"""Answer where what nodes lend came from, of a minute that is remembered (`ledger_history`), for people and tools."""

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api import label_selector
from koordinator.api.errors import KoordinatorError, ProtocolError
from koordinator.manager.noderesource.decide import Withdrawal
from koordinator.manager.noderesource.ledger import KINDS, LedgerTerm, LentLedger
from koordinator.manager.noderesource.ledger_history import MINUTE_S, LedgerHistory, LentMinute, read
from koordinator.manager.noderesource.ledger_pages import KeptMinute
from koordinator.manager.noderesource.rows import NodeRow

Json = dict[str, Any]
UNDECIDED = "Undecided"


class LedgerQuestionError(KoordinatorError, ValueError):
    """A question that cannot be answered: `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class LentAnswers:
    """Answers of one manager; `rows` are its nodes as they are now, whose labels say which pool they are of."""

    def __init__(self, history: LedgerHistory, rows: Mapping[str, NodeRow], now: Callable[[], float]) -> None:
        self._history = history
        self._rows = rows
        self._now = now

    async def answer(self, node: str = "", at: str = "", pool: str = "") -> Json:
        """Return the ledger of a node, or the sums of a pool (a label selector) or of all nodes, at a time (RFC 3339)
        or now. Raises: LedgerQuestionError."""
        if not self._history.is_on:
            raise LedgerQuestionError(404, "no ledger is kept: --lent-ledger-hours is 0")
        minute = _minute(at, self._now())
        pages = self._history.minutes(minute, node)
        chosen = {node} if node else self._pool(pool)
        found = await asyncio.to_thread(_read_all, pages, chosen)
        if not found:
            raise LedgerQuestionError(404, self._nothing(minute, node, pool))
        return minute_body(found[0]) if node else sums_body(found)

    def _pool(self, text: str) -> set[str] | None:
        if not text:
            return None
        try:
            matches = label_selector.compile_selector(label_selector.of_text(text))
        except ProtocolError as error:
            raise LedgerQuestionError(400, f"pool: {error}") from error
        return {row.name for row in self._rows.values() if row.node and matches(row.node.metadata.labels)}

    def _nothing(self, minute: int, node: str, pool: str) -> str:
        what = f"node {node}" if node else f"nodes with {pool}" if pool else "any node"
        kept = self._history.first_minute
        since = "nothing yet: only the manager that leads keeps it, from when it leads"
        if kept is not None:
            since = f"minutes since {clock.rfc3339(kept * MINUTE_S)}"
        return f"nothing is kept of {what} at {clock.rfc3339(minute * MINUTE_S)}; this manager has {since}"


def _minute(at: str, now_s: float) -> int:
    if not at:
        return int(now_s) // MINUTE_S
    try:
        return int(clock.parse_rfc3339(at)) // MINUTE_S
    except ValueError as error:
        raise LedgerQuestionError(400, f"at: {at[:80]!r} is no time (RFC 3339)") from error


def _read_all(pages: Sequence[KeptMinute], chosen: set[str] | None) -> list[LentMinute]:
    found = [each for kept in pages for each in read(kept, chosen)]
    return sorted(found, key=lambda each: each.node)


def total(found: Iterable[Sequence[LentLedger]]) -> tuple[LentLedger, ...]:
    """Return the sums over nodes by kind and term; a resource that a node does not have counts as 0."""
    every = [ledger for ledgers in found for ledger in ledgers]
    by_kind = {kind: [ledger for ledger in every if ledger.kind == kind] for kind in KINDS}
    return tuple(_total(kind, of_kind) for kind, of_kind in by_kind.items() if of_kind)


def _total(kind: str, found: Sequence[LentLedger]) -> LentLedger:
    terms: dict[str, LedgerTerm] = {}
    for term in (term for ledger in found for term in ledger.terms):
        old = terms.get(term.name)
        terms[term.name] = term if old is None else _plus(old, term)
    return LentLedger(
        kind,
        tuple(terms.values()),
        sum(ledger.cpu_milli for ledger in found),
        sum(ledger.memory_bytes for ledger in found),
        (sum(ledger.on_node[0] or 0 for ledger in found), sum(ledger.on_node[1] or 0 for ledger in found)),
        functools.reduce(_plus, (ledger.unwritten for ledger in found)),
    )


def _plus(left: LedgerTerm, right: LedgerTerm) -> LedgerTerm:
    why = left.why if left.why == right.why else ""
    return LedgerTerm(
        left.name, left.cpu_milli + right.cpu_milli, left.memory_bytes + right.memory_bytes, why
    )


# As JSON; amounts in milli-cores and bytes


def minute_body(found: LentMinute) -> Json:
    """Return everything that is kept of one node at one minute."""
    return {
        "node": found.node,
        "at": clock.rfc3339(found.at_s),
        "state": state_of(found.withdrawal),
        "reported": _time(found.reported_s),
        "ageSeconds": found.at_s - found.reported_s if found.reported_s is not None else None,
        "written": _time(found.written_s),
        "lent": [ledger_body(ledger) for ledger in found.ledgers],
        "services": msgspec.to_builtins(found.services),
    }


def sums_body(found: Sequence[LentMinute]) -> Json:
    """Return sums over nodes at one minute, how many are in which state, and what each has."""
    return {
        "at": clock.rfc3339(max(each.at_s for each in found)),
        "states": dict(Counter(state_of(each.withdrawal) for each in found)),
        "lent": [ledger_body(ledger) for ledger in total(each.ledgers for each in found)],
        "nodes": [
            {
                "node": each.node,
                "state": state_of(each.withdrawal),
                "lent": {
                    ledger.kind: {"cpuMilli": ledger.cpu_milli, "memoryBytes": ledger.memory_bytes}
                    for ledger in each.ledgers
                },
            }
            for each in found
        ],
    }


def state_of(withdrawal: Withdrawal | None) -> str:
    """Return a word for whether a node lends, or why not."""
    if withdrawal is None:
        return UNDECIDED
    return withdrawal.value or "Lending"


def _time(at_s: int | None) -> str:
    return clock.rfc3339(at_s) if at_s is not None else ""


def ledger_body(ledger: LentLedger) -> Json:
    """Return one ledger: its terms sum to the decision, and with `unwritten` to `onNode`."""
    return {
        "kind": ledger.kind,
        "cpuMilli": ledger.cpu_milli,
        "memoryBytes": ledger.memory_bytes,
        "terms": msgspec.to_builtins(ledger.terms),
        "unwritten": msgspec.to_builtins(ledger.unwritten),
        "onNode": {"cpuMilli": ledger.on_node[0], "memoryBytes": ledger.on_node[1]},
    }
