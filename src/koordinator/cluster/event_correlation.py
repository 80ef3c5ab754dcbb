"""Decide which events are worth an object of their own: count repeats, combine variants, drop floods.

Rules and figures are those of client-go's event correlator, so that users see what they are used to.
"""

import enum
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from koordinator.api.references import ObjectReference
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
    """Remembers the events of one source (component and host)."""

    def __init__(self) -> None:
        self._variants: _Remembered[_Variants] = _Remembered()
        self._written: _Remembered[CorrelatedEvent] = _Remembered()
        self._floods: _Remembered[TokenBucket] = _Remembered()
        self._last_stamp = 0

    def judge(self, occurrence: Occurrence, now_s: float) -> CorrelatedEvent:
        """What to write for `occurrence`, which happened at `now_s`."""
        about = _object_of(occurrence)
        kind = _kind_of(occurrence, about)
        combined = self._is_one_of_many(kind, occurrence.message, now_s)
        message = f"{COMBINED_PREFIX}{occurrence.message}" if combined else occurrence.message
        identity = kind if combined else (kind, occurrence.message)
        before = self._written.get(identity)
        verdict = CorrelatedEvent(
            action=EventAction.CREATE if before is None else EventAction.COUNT,
            name=self._new_name(occurrence, now_s) if before is None else before.name,
            message=message,
            count=1 if before is None else before.count + 1,
            first_s=now_s if before is None else before.first_s,
            last_s=now_s,
        )
        self._written.put(identity, verdict)
        flood = self._floods.get_or_make(about, lambda: TokenBucket(FLOOD_RATE, now_s))
        if not flood.try_take(now_s):
            return msgspec.structs.replace(verdict, action=EventAction.DROP)
        return verdict

    def _is_one_of_many(self, kind: Hashable, message: str, now_s: float) -> bool:
        variants = self._variants.get_or_make(kind, lambda: _Variants(now_s))
        if now_s - variants.last_s > SIMILAR_WINDOW_S:
            variants.messages = ()
        variants.last_s = now_s
        if message in variants.messages:
            return False
        if len(variants.messages) + 1 >= SIMILAR_MAX:
            return True  # which ones they are, beyond that, need not be known
        variants.messages += (message,)
        return False

    def _new_name(self, occurrence: Occurrence, now_s: float) -> str:
        """`web-0.17a8c…`: the object and the time in nanoseconds, made unique where time stands still."""
        self._last_stamp = max(self._last_stamp + 1, int(now_s * 1e9))
        return f"{occurrence.regarding.name}.{self._last_stamp:x}"


class _Variants(msgspec.Struct):
    """The different messages of otherwise equal events, one as a rule."""

    last_s: float
    messages: tuple[str, ...] = ()


class _Remembered(Generic[V]):
    """A mapping that forgets the least recently used beyond `REMEMBERED_MAX`."""

    def __init__(self) -> None:
        self._items: OrderedDict[Hashable, V] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        found = self._items.get(key)
        if found is not None:
            self._items.move_to_end(key)
        return found

    def put(self, key: Hashable, value: V) -> None:
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > REMEMBERED_MAX:
            self._items.popitem(last=False)

    def get_or_make(self, key: Hashable, make: Callable[[], V]) -> V:
        found = self.get(key)
        if found is None:
            found = make()
            self.put(key, found)
        return found


def _object_of(occurrence: Occurrence) -> Hashable:
    obj = occurrence.regarding
    return obj.api_version, obj.kind, obj.namespace, obj.name, obj.uid


def _kind_of(occurrence: Occurrence, about: Hashable) -> Hashable:
    """Everything but the message."""
    related = occurrence.related.uid if occurrence.related is not None else ""
    field_path = occurrence.regarding.field_path
    return about, field_path, occurrence.severity, occurrence.reason, occurrence.action, related
