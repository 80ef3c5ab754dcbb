"""Telling users what happened to an object: `v1` Events, written in the background.

Recording never blocks and never fails: what does not fit the queue, or what the API refuses, is counted.

An event with an action has all that the newer form knows (`events.k8s.io`, as kube-scheduler writes it: action,
related object, event time, who exactly reports, a series when it repeats) beside what readers of the older one
look for (count, first and last time).
"""

import asyncio
import enum
import hashlib
import logging
import random
import zlib
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from koordinator import clock
from koordinator.api.core import Event
from koordinator.api.meta import Object, ObjectReference, reference
from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff, BackoffPolicy, Rate, TokenBucket, new_rng
from koordinator.cluster.protocol import Cluster, PatchType
from koordinator.cluster.supervise import Guard, supervise

log = logging.getLogger(__name__)

V = TypeVar("V")

# More variants of one event than this within the window become one "combined" event.
SIMILAR_MAX = 10
SIMILAR_WINDOW_S = 600.0
# One object of one source: 25 events at once, then one every five minutes.
FLOOD_RATE = Rate(per_s=1 / 300, burst=25)
# Objects and event texts that are remembered; those not seen for longest are forgotten.
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
    """A mapping that remembers the last `REMEMBERED_MAX` keys at most, and at least half as many.

    Two generations of plain dicts: an OrderedDict takes twice as much memory.
    """

    def __init__(self) -> None:
        self._recent: dict[bytes, V] = {}
        self._older: dict[bytes, V] = {}

    def get(self, key: bytes) -> V | None:
        found = self._recent.get(key)
        if found is None and (found := self._older.pop(key, None)) is not None:
            self.put(key, found)
        return found

    def put(self, key: bytes, value: V) -> None:
        self._recent[key] = value
        if len(self._recent) >= REMEMBERED_MAX // 2:
            self._older, self._recent = self._recent, {}

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


# A burst of bindings; beyond this the API is slower than we talk, and old news is no news. About 10 MB.
QUEUE_MAX = 10_000
# With more events waiting than this, writing does not stand back for anybody.
STAND_BACK_MAX = QUEUE_MAX // 2
STAND_BACK_S = 0.005
# Nor with events older than this.
STAND_BACK_S_MAX = 5.0
# Events of one lane written before other tasks get their turn.
TURN = 16
# Events written at a time. Those about one object are written one after the other, in order.
WRITERS = 16
# As client-go: an unreachable API is tried for about two minutes per event.
TRIES_MAX = 12
RETRY = BackoffPolicy(initial_s=10.0, max_s=10.0, factor=1.0, jitter_ratio=0.1)
# Longer texts are refused by the API in the newer form of events.
MESSAGE_BYTES_MAX = 1024
# Events about cluster-scoped objects live here.
DEFAULT_NAMESPACE = "default"


class EventSeverity(enum.Enum):
    """The `type` of an event."""

    NORMAL = "Normal"
    WARNING = "Warning"


class _Lane:
    """Events of some objects, written one after the other."""

    def __init__(self, backoff: Backoff) -> None:
        self.waiting: deque[tuple[Occurrence, float]] = deque()
        self.backoff = backoff
        self.parked: asyncio.Future[None] | None = None


class EventRecorder:
    """Writes events of one component (on one host, for node agents); `run` does the writing.

    While `stand_back` says so, what the component does is more urgent than telling about it, and events wait.
    """

    def __init__(
        self,
        cluster: Cluster,
        component: str,
        *,
        host: str = "",
        instance: str = "",
        rng: random.Random,
        stand_back: Callable[[], bool] = lambda: False,
    ) -> None:
        """`instance` tells this process from others of the component: the name of its machine or pod."""
        self.dropped_count = 0
        self.pending_count = 0
        """Events that are recorded, and neither written nor given up yet."""
        self.guard = Guard(f"events of {component}")
        self._cluster = cluster
        self._component = component
        self._host = host
        self._instance = f"{component}-{instance}" if instance else component
        self._correlator = Correlator()
        self._lanes = [_Lane(Backoff(RETRY, new_rng(rng))) for _ in range(WRITERS)]
        self._stand_back = stand_back
        self._resumed: asyncio.Event | None = None
        self._flushed: list[asyncio.Future[None]] = []
        self._is_dropping = False

    def event(
        self,
        obj: Object | ObjectReference,
        severity: EventSeverity,
        reason: str,
        message: str,
        *,
        action: str = "",
        related: Object | None = None,
    ) -> None:
        """Note that `reason` (a stable CamelCase word) happened to `obj`; `message` is for people.

        `action` is what the component was doing, one CamelCase word; `related` who else it is about.
        """
        if self.pending_count >= QUEUE_MAX:
            self.dropped_count += 1
            if not self._is_dropping:
                self._is_dropping = True
                log.warning(
                    "%s: event queue full (%d), further events are dropped", self.guard.name, QUEUE_MAX
                )
            return
        about = obj if isinstance(obj, ObjectReference) else reference(obj)
        occurrence = Occurrence(
            regarding=about,
            severity=severity.value,
            reason=reason,
            message=_shortened(message),
            action=action,
            related=None if related is None else reference(related),
        )
        # Not hash(): it differs from run to run, and with it the order of writes.
        number = zlib.crc32(f"{about.kind}/{about.namespace}/{about.name}".encode()) % WRITERS
        lane = self._lanes[number]
        lane.waiting.append((occurrence, self._cluster.clock.now()))
        self.pending_count += 1
        if lane.parked is not None and not lane.parked.done():
            lane.parked.set_result(None)

    def normal(self, obj: Object | ObjectReference, reason: str, message: str, *, action: str = "") -> None:
        self.event(obj, EventSeverity.NORMAL, reason, message, action=action)

    def warning(self, obj: Object | ObjectReference, reason: str, message: str, *, action: str = "") -> None:
        self.event(obj, EventSeverity.WARNING, reason, message, action=action)

    async def flush(self) -> None:
        """Until nothing is left to be written; needs `run` to be running. Nothing is more urgent meanwhile."""
        if not self.pending_count:
            return
        flushed = asyncio.get_running_loop().create_future()
        self._flushed.append(flushed)
        self._resume()
        try:
            await flushed
        finally:
            if flushed in self._flushed:
                self._flushed.remove(flushed)

    async def run(self) -> NoReturn:
        """Write events until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number, lane in enumerate(self._lanes):
                work = supervise(partial(self._step, lane), lane.backoff, self.guard)
                group.create_task(work, name=f"{self.guard.name}, writer {number}")
        raise AssertionError("writers never end")

    async def _step(self, lane: "_Lane") -> float:
        """Write some of what waits in a lane."""
        while not lane.waiting:
            lane.parked = asyncio.get_running_loop().create_future()
            try:
                await lane.parked
            finally:
                lane.parked = None
        for _ in range(min(TURN, len(lane.waiting))):
            if self._has_to_wait(lane.waiting[0][1]):
                await self._wait()
                break
            occurrence, at_s = lane.waiting.popleft()
            try:
                verdict = self._correlator.judge(occurrence, at_s)
                if verdict.action is EventAction.DROP:
                    self.dropped_count += 1
                else:
                    await self._deliver(occurrence, verdict, lane.backoff)
            finally:
                self._settled()
        return 0.0

    def _has_to_wait(self, at_s: float) -> bool:
        """Return whether an event that was recorded at `at_s` must not be written yet."""
        return (
            self._stand_back()
            and not self._flushed
            and self.pending_count <= STAND_BACK_MAX
            and self._cluster.clock.now() - at_s < STAND_BACK_S_MAX
        )

    async def _wait(self) -> None:
        """Stand back for a moment."""
        if self._resumed is None:
            self._resumed = asyncio.Event()
            asyncio.get_running_loop().call_later(STAND_BACK_S, self._resume)
        await self._resumed.wait()

    def _resume(self) -> None:
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    def _settled(self) -> None:
        """One event less."""
        self.pending_count -= 1
        if self.pending_count <= STAND_BACK_MAX:
            self._is_dropping = False
        if self.pending_count == 0:
            for flushed in self._flushed:
                if not flushed.done():
                    flushed.set_result(None)
            self._flushed.clear()

    async def _deliver(self, occurrence: Occurrence, verdict: CorrelatedEvent, backoff: Backoff) -> None:
        error: errors.ApiError | None = None
        for _ in range(TRIES_MAX):
            try:
                await self._write(occurrence, verdict)
            except errors.ServiceUnavailable as caught:
                error = caught
                await asyncio.sleep(backoff.next_s(caught))
            except (
                errors.ApiError
            ) as caught:  # refused (the namespace ends, no permission): trying again is idle
                error = caught
                break
            else:
                return
        self.dropped_count += 1
        facts = {"object": occurrence.regarding.name, "reason": occurrence.reason, "error": str(error)}
        log.warning("event not written: %s about %s: %s", occurrence.reason, verdict.name, error, extra=facts)

    async def _write(self, occurrence: Occurrence, verdict: CorrelatedEvent) -> None:
        namespace = occurrence.regarding.namespace or DEFAULT_NAMESPACE
        if verdict.action is EventAction.COUNT:
            patch = {
                "count": verdict.count,
                "lastTimestamp": clock.rfc3339(verdict.last_s),
                "message": verdict.message,
            }
            if occurrence.action:
                patch["series"] = _series(verdict)
            try:
                await self._cluster.patch(Event, verdict.name, patch, namespace, patch_type=PatchType.MERGE)
            except errors.NotFound:
                pass  # it aged out on the server: begin anew, with the count
            else:
                return
        await self._cluster.create(Event, self._body(occurrence, verdict, namespace), namespace)

    def _body(self, occurrence: Occurrence, verdict: CorrelatedEvent, namespace: str) -> dict[str, Any]:
        source = {"component": self._component}
        if self._host:
            source["host"] = self._host
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": verdict.name, "namespace": namespace},
            "involvedObject": msgspec.to_builtins(occurrence.regarding),
            "reason": occurrence.reason,
            "message": verdict.message,
            "source": source,
            "type": occurrence.severity,
            "count": verdict.count,
            "firstTimestamp": clock.rfc3339(verdict.first_s),
            "lastTimestamp": clock.rfc3339(verdict.last_s),
            "reportingComponent": self._component,
            "reportingInstance": self._host,
        }
        if occurrence.action:
            body["action"] = occurrence.action
            body["eventTime"] = clock.rfc3339_micro(verdict.first_s)
            body["reportingInstance"] = self._instance
            if occurrence.related is not None:
                body["related"] = msgspec.to_builtins(occurrence.related)
            if verdict.count > 1:
                body["series"] = _series(verdict)
        return body


def _series(verdict: CorrelatedEvent) -> dict[str, Any]:
    return {"count": verdict.count, "lastObservedTime": clock.rfc3339_micro(verdict.last_s)}


def _shortened(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= MESSAGE_BYTES_MAX:
        return message
    return encoded[: MESSAGE_BYTES_MAX - 4].decode(errors="ignore") + " ..."
