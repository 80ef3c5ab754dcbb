"""Telling users what happened to an object: `v1` Events, written in the background.

Recording never blocks and never fails: what does not fit the queue, or what the API refuses, is counted.
"""

import asyncio
import enum
import logging
import random
import zlib
from functools import partial
from typing import Any, NoReturn

import msgspec

from koordinator import clock
from koordinator.api.core import Event
from koordinator.api.meta import Object
from koordinator.api.references import ObjectReference
from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff, BackoffPolicy
from koordinator.cluster.event_correlation import Action, Correlator, Occurrence, Verdict
from koordinator.cluster.protocol import Cluster, PatchType
from koordinator.cluster.supervise import Guard, supervise

log = logging.getLogger(__name__)

# A burst of bindings; beyond this the API is slower than we talk, and old news is no news. About 10 MB.
QUEUE_MAX = 10_000
# Events written at a time. Those about one object are written one after the other, in order.
WRITERS = 16
# As client-go: an unreachable API is tried for about two minutes per event.
TRIES_MAX = 12
RETRY = BackoffPolicy(initial_s=10.0, max_s=10.0, factor=1.0, jitter_ratio=0.1)
# Longer texts are refused by the API in the newer form of events.
MESSAGE_BYTES_MAX = 1024
# Events about cluster-scoped objects live here.
DEFAULT_NAMESPACE = "default"


class Severity(enum.Enum):
    """The `type` of an event."""

    NORMAL = "Normal"
    WARNING = "Warning"


class _Lane:
    """Events of some objects, written one after the other."""

    def __init__(self, backoff: Backoff) -> None:
        self.queue: asyncio.Queue[tuple[Occurrence, float]] = asyncio.Queue()
        self.backoff = backoff


class EventRecorder:
    """Writes events of one component (on one host, for node agents); `run` does the writing."""

    def __init__(self, cluster: Cluster, component: str, *, host: str = "", rng: random.Random) -> None:
        self.dropped_count = 0
        self.written_count = 0
        self.guard = Guard(f"events of {component}")
        self._cluster = cluster
        self._component = component
        self._host = host
        self._correlator = Correlator()
        self._lanes = [_Lane(Backoff(RETRY, random.Random(rng.getrandbits(64)))) for _ in range(WRITERS)]

    def event(self, obj: Object | ObjectReference, severity: Severity, reason: str, message: str) -> None:
        """Note that `reason` (a stable CamelCase word) happened to `obj`; `message` is for people."""
        occurrence = Occurrence(
            regarding=obj if isinstance(obj, ObjectReference) else reference(obj),
            severity=severity.value,
            reason=reason,
            message=_shortened(message),
        )
        if sum(lane.queue.qsize() for lane in self._lanes) >= QUEUE_MAX:
            self.dropped_count += 1
            return
        about = occurrence.regarding
        # Not hash(): it differs from run to run, and with it the order of writes.
        number = zlib.crc32(f"{about.kind}/{about.namespace}/{about.name}".encode()) % WRITERS
        self._lanes[number].queue.put_nowait((occurrence, self._cluster.clock.now()))

    def normal(self, obj: Object | ObjectReference, reason: str, message: str) -> None:
        self.event(obj, Severity.NORMAL, reason, message)

    def warning(self, obj: Object | ObjectReference, reason: str, message: str) -> None:
        self.event(obj, Severity.WARNING, reason, message)

    async def flush(self) -> None:
        """Until everything recorded so far is written or given up; needs `run` to be running."""
        for lane in self._lanes:
            await lane.queue.join()

    async def run(self) -> NoReturn:
        """Write events until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number, lane in enumerate(self._lanes):
                work = supervise(partial(self._step, lane), lane.backoff, self.guard)
                group.create_task(work, name=f"{self.guard.name}, writer {number}")
        raise AssertionError("writers never end")

    async def _step(self, lane: "_Lane") -> float:
        occurrence, at_s = await lane.queue.get()
        try:
            verdict = self._correlator.judge(occurrence, at_s)
            if verdict.action is Action.DROP:
                self.dropped_count += 1
            else:
                await self._deliver(occurrence, verdict, lane.backoff)
        finally:
            lane.queue.task_done()
        return 0.0

    async def _deliver(self, occurrence: Occurrence, verdict: Verdict, backoff: Backoff) -> None:
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
                self.written_count += 1
                return
        self.dropped_count += 1
        facts = {"object": occurrence.regarding.name, "reason": occurrence.reason, "error": str(error)}
        log.warning("event given up: %s about %s: %s", occurrence.reason, verdict.name, error, extra=facts)

    async def _write(self, occurrence: Occurrence, verdict: Verdict) -> None:
        namespace = occurrence.regarding.namespace or DEFAULT_NAMESPACE
        if verdict.action is Action.COUNT:
            patch = {
                "count": verdict.count,
                "lastTimestamp": clock.rfc3339(verdict.last_s),
                "message": verdict.message,
            }
            try:
                await self._cluster.patch(Event, verdict.name, patch, namespace, patch_type=PatchType.MERGE)
            except errors.NotFound:
                pass  # it aged out on the server: begin anew, with the count
            else:
                return
        await self._cluster.create(Event, self._body(occurrence, verdict, namespace), namespace)

    def _body(self, occurrence: Occurrence, verdict: Verdict, namespace: str) -> dict[str, Any]:
        source = {"component": self._component}
        if self._host:
            source["host"] = self._host
        return {
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


def reference(obj: Object) -> ObjectReference:
    """A reference to exactly this version of `obj`."""
    meta = obj.metadata
    return ObjectReference(
        api_version=obj.resource.api_version,
        kind=obj.resource.kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
    )


def _shortened(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= MESSAGE_BYTES_MAX:
        return message
    return encoded[: MESSAGE_BYTES_MAX - 4].decode(errors="ignore") + " ..."
