"""Decide which events are worth an object of their own: count repeats, combine variants, drop floods.

Rules and figures are those of client-go's event correlator, so that users see what they are used to.
"""

import enum
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from koordinator.api.meta import ObjectReference
from koordinator.cluster.rate_limit import Rate, TokenBucket

V = TypeVar("V")

# More variants of one event than this within the window become one "combined" event.
SIMILAR_MAX = 10
SIMILAR_WINDOW_S = 600.0
# One object of one source: 25 events at once, then one every five minutes.
FLOOD_RATE = Rate(per_s=1 / 300, burst=25)
# Objects and event texts that are remembered; the least recently seen is forgotten.
REMEMBERED_MAX = 4096

COMBINED_PREFIX = "(combined from similar events): "


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """An incident that a component saw: `severity` is Normal or Warning."""

    regarding: ObjectReference
    severity: str
    reason: str
    message: str
    action: str = ""
    related: ObjectReference | None = None


class EventAction(enum.Enum):
    """The treatment of an occurrence."""

    CREATE = "first of its kind: write an object"
    COUNT = "seen before: raise the count of its object"
    DROP = "too many events about this object"


class CorrelatedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The event object that the occurrence belongs to, as it should be now; times in seconds since 1970."""

    action: EventAction
    name: str
    message: str
    count: int
    first_s: float
    last_s: float


class Correlator:
    """Remembers the events of one source (component and host).

    Objects, kinds of events and messages are remembered by digests: most of them are about pods that are long gone.
    """

    def __init__(self) -> None:
        self._variants: _Remembered[_Variants] = _Remembered()
        self._written: _Remembered[_Written] = _Remembered()
        self._floods: _Remembered[TokenBucket] = _Remembered()
        self._last_stamp = 0

    def judge(self, occurrence: Occurrence, now_s: float) -> CorrelatedEvent:
        """Return what to write for `occurrence`, which happened at `now_s`."""
        about = _object_of(occurrence)
        kind = _kind_of(occurrence, about)
        identity = _digest(kind, occurrence.message.encode())
        combined = self._is_one_of_many(kind, identity, now_s)
        if combined:
            identity = kind
        before = self._written.get(identity)
        if before is None:
            before = _Written(self._new_stamp(now_s), 0, now_s)
        written = _Written(before.stamp, before.count + 1, before.first_s)
        self._written.put(identity, written)
        flood = self._floods.get_or_make(about, lambda: TokenBucket(FLOOD_RATE, now_s))
        action = EventAction.CREATE if written.count == 1 else EventAction.COUNT
        return CorrelatedEvent(
            action=action if flood.try_take(now_s) else EventAction.DROP,
            name=f"{occurrence.regarding.name}.{written.stamp:x}",
            message=f"{COMBINED_PREFIX}{occurrence.message}" if combined else occurrence.message,
            count=written.count,
            first_s=written.first_s,
            last_s=now_s,
        )

    def _is_one_of_many(self, kind: bytes, identity: bytes, now_s: float) -> bool:
        variants = self._variants.get_or_make(kind, lambda: _Variants(now_s))
        if now_s - variants.last_s > SIMILAR_WINDOW_S:
            variants.identities = ()
        variants.last_s = now_s
        if identity in variants.identities:
            return False
        if len(variants.identities) + 1 >= SIMILAR_MAX:
            return True  # which ones they are, beyond that, need not be known
        variants.identities += (identity,)
        return False

    def _new_stamp(self, now_s: float) -> int:
        """Return the time in nanoseconds, made unique where time stands still: events are named `web-0.17a8c…`."""
        self._last_stamp = max(self._last_stamp + 1, int(now_s * 1e9))
        return self._last_stamp


class _Variants(msgspec.Struct, gc=False):
    """The different messages of otherwise equal events, one as a rule."""

    last_s: float
    identities: tuple[bytes, ...] = ()


class _Written(msgspec.Struct, frozen=True, gc=False):
    """An event object so far."""

    stamp: int
    count: int
    first_s: float


class _Remembered(Generic[V]):
    """A mapping that forgets the least recently used beyond `REMEMBERED_MAX`."""

    def __init__(self) -> None:
        self._items: OrderedDict[bytes, V] = OrderedDict()

    def get(self, key: bytes) -> V | None:
        found = self._items.get(key)
        if found is not None:
            self._items.move_to_end(key)
        return found

    def put(self, key: bytes, value: V) -> None:
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > REMEMBERED_MAX:
            self._items.popitem(last=False)

    def get_or_make(self, key: bytes, make: Callable[[], V]) -> V:
        found = self.get(key)
        if found is None:
            found = make()
            self.put(key, found)
        return found


def _object_of(occurrence: Occurrence) -> bytes:
    obj = occurrence.regarding
    return _digest(*(each.encode() for each in (obj.api_version, obj.kind, obj.namespace, obj.name, obj.uid)))


def _kind_of(occurrence: Occurrence, about: bytes) -> bytes:
    """Everything but the message."""
    related = occurrence.related.uid if occurrence.related is not None else ""
    words = (
        occurrence.regarding.field_path,
        occurrence.severity,
        occurrence.reason,
        occurrence.action,
        related,
    )
    return _digest(about, *(each.encode() for each in words))


def _digest(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"\0".join(parts), digest_size=16).digest()
