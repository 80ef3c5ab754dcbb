"""Remember results for values that come again and again: the specs of replicas.

Pods of one workload are created with equal specs. They are decoded, completed and checked once, and then
share one object: objects in the store are immutable, so a cluster of replicas costs the memory of its templates.
"""

from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

KNOWN_MAX = 1_024
"""Values remembered; the oldest goes first. More templates than that are rarely written at the same time."""
TEXT_BYTES_MAX = 16 << 10


class ByIdentity(Generic[T]):
    """Results by the very object that they were found for, which must never change."""

    def __init__(self, count_max: int = KNOWN_MAX) -> None:
        self._entries: dict[int, tuple[Any, T]] = {}
        self._count_max = count_max

    def get(self, value: Any) -> T | None:
        found = self._entries.get(id(value))
        # The entry keeps its object alive, so an equal id is the same object.
        return None if found is None else found[1]

    def put(self, value: Any, result: T) -> None:
        entries = self._entries
        if len(entries) >= self._count_max:
            del entries[next(iter(entries))]
        entries[id(value)] = (value, result)


class InternTable:
    """One object for all equal ones, from the third on: what comes once is not worth a copy."""

    def __init__(self) -> None:
        self._by_text: dict[bytes, dict[str, Any] | None] = {}

    def text(self, value: dict[str, Any]) -> bytes | None:
        """Return what equal values have in common; None for one that is too large to be kept, or is no JSON."""
        try:
            text = msgspec.json.encode(value)
        except (TypeError, ValueError, RecursionError):
            return None
        return text if len(text) <= TEXT_BYTES_MAX else None

    def find(self, text: bytes) -> dict[str, Any] | None:
        """Return the object that all with this text share."""
        return self._by_text.get(text)

    def seen(self, text: bytes, value: dict[str, Any]) -> None:
        """Note that a value with this text came, and was read as `value`."""
        known = self._by_text
        if text not in known:
            if len(known) >= KNOWN_MAX:
                del known[next(iter(known))]
            known[text] = None
            return
        # A copy of our own: whoever sent the value may do with it what they like.
        shared = known[text] = msgspec.json.decode(msgspec.json.encode(value))
        share(shared)


_SHARED: ByIdentity[bool] = ByIdentity(3 * KNOWN_MAX)  # as sent, with defaults, and as admitted


def share(value: dict[str, Any]) -> None:
    """Say that a value is ours alone and will come again."""
    _SHARED.put(value, True)


def is_shared(value: Any) -> bool:
    """Return whether results may be remembered for this very object: nobody can change it."""
    return _SHARED.get(value) is not None
