"""The loop that makes ElasticQuota objects say how quotas stand; and the metric that says the same.

Changes by pods are written within a second; the runtime, which changes by others' demand only, every ten. Source:
behaviour/elastic-quota 16.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

from koordinator.api import labels, resource_list
from koordinator.api.annotations import quota as quota_annotations
from koordinator.api.annotations.codec import Annotation
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError, ResourceList
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster import errors
from koordinator.prometheus import Gauge, Histogram, exponential
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.hooks import QuotaHooks
from koordinator.scheduler.plugins.elastic_quota.quota import (
    ROOT,
    Nanos,
    Quota,
    amounts_of,
    nanos_of,
    nanos_per_unit,
    to_units,
)
from koordinator.scheduler.plugins.elastic_quota.quota_changes import ChangeListener, QuotaChanges


class QuotaGauge:
    """`scheduler_elastic_quota_status`, of all quotas but roots; in milli-cores and whole units.

    Ten thousand quotas are some 160,000 samples: the text of each is kept, and written anew when the quota has changed
    since somebody last asked. Source: behaviour/elastic-quota 16.
    """

    name = "scheduler_elastic_quota_status"
    kind = Gauge.kind
    labels = ("name", "resource", "tree", "is_parent", "parent", "field")

    def __init__(self, book: QuotaBook, changes: QuotaChanges) -> None:
        self._book = book
        self._changes = changes
        self._listener: ChangeListener | None = None
        self._gauge = Gauge(self.name, "What quotas have, ask for and use.", self.labels)
        self._texts: dict[str, str] = {}
        """Quota → its lines."""

    def lines(self) -> Iterator[str]:
        """HELP, TYPE, and all lines of a quota at once."""
        if self._listener is None:
            self._listener = self._changes.listen()
        self._changes.spread()
        touched, drifted = self._listener.take()
        for name in touched | drifted:
            if text := self._text_of(name):
                self._texts[name] = text
            else:
                self._texts.pop(name, None)
        yield from self._gauge.head()
        for name in sorted(self._texts):
            yield self._texts[name]

    def _text_of(self, name: str) -> str:
        found = self._book.find(name)
        if found is None or name == ROOT:
            return ""
        tree, quota = found
        tree.bring_up_to_date(name)
        own = (self._book.forest.tree_ids.get(name, ""), str(quota.spec.is_parent).lower(), quota.spec.parent)
        samples = {
            (name, resource, *own, field): to_units(number, nanos_per_unit(resource))
            for field, nanos in (*fields_of(quota), *self._unschedulable(quota))
            for resource, number in nanos.items()
        }
        return "\n".join(self._gauge.line(number, *values) for values, number in sorted(samples.items()))

    def _unschedulable(self, quota: Quota) -> Iterator[tuple[str, Nanos]]:
        """Yield what the root quota of a tree says of nodes that take no pods."""
        found = self._book.objects.get(quota.spec.name)
        if found is None or labels.QUOTA_UNSCHEDULABLE_RESOURCE not in found.metadata.annotations:
            return
        try:
            told = quota_annotations.UNSCHEDULABLE_RESOURCE.read(found.metadata.annotations, found.key)
            yield "unschedulable-resource", nanos_of(resource_list.of(told or {}))
        except (ProtocolError, QuantityError):
            return


def fields_of(quota: Quota) -> Iterator[tuple[str, Nanos]]:
    """Yield what the metric tells, by field."""
    below = quota.below
    counted = quota.runtime if quota.spec.name == ROOT else quota.max
    yield from (
        ("runtime", {name: number for name, number in quota.runtime.items() if name in counted}),
        ("request", quota.request),
        ("child-request", below.request),
        ("guaranteed", quota.guaranteed),
        ("allocated", quota.allocated),
        ("non-preemptible-request", below.non_preemptible_request),
        ("non-preemptible-used", below.non_preemptible_used),
        ("used", below.used),
        ("min", quota.min),
        ("max", quota.max),
        ("sharedWeight", quota.weight),
    )


log = logging.getLogger(__name__)

STATUS_PERIOD_S = 1.0
REFRESH_PERIOD_S = 10.0
SETTLING_S = 3.0
"""How long admission's sum of requests stands after it grew: its pods may be on their way to us."""
WRITES_AT_ONCE = 16
READS_AT_ONCE = 64
"""Quotas that are compared with their objects before others have their turn."""


class Statuses:
    """Follows the news and writes what differs."""

    def __init__(self, handle: Handle, book: QuotaBook, changes: QuotaChanges, hooks: QuotaHooks) -> None:
        self._handle = handle
        self._book = book
        self._changes = changes
        self._hooks = hooks
        self._admitted: dict[str, tuple[str, float]] = {}
        """Quota → its child-request as an admission webhook (or we) wrote it, and since when."""
        self._again: set[str] = set()
        registry = handle.metrics.registry
        registry.shared(QuotaGauge(book, changes))
        self._took = registry.shared(
            Histogram(
                "scheduler_update_elastic_quota_status_duration_seconds",
                "How long writing the status of a quota takes.",
                exponential(0.001, 2, 15),
            )
        ).of()

    async def run(self) -> None:
        """Waits for news, and writes at most once a second."""
        listener = self._changes.listen()
        drifted: set[str] = set()
        refreshed_s = self._handle.clock.now()
        try:
            while True:
                await self._wait(listener, is_waiting=bool(drifted))
                await asyncio.sleep(STATUS_PERIOD_S)
                self._book.expire()
                self._changes.spread()
                touched, more = listener.take()
                drifted |= more
                now_s = self._handle.clock.now()
                if now_s - refreshed_s >= REFRESH_PERIOD_S:
                    touched |= drifted
                    drifted, refreshed_s = set(), now_s
                touched |= self._again
                self._again = set()
                await self._write(sorted(touched))
        finally:
            self._changes.leave(listener)

    async def _wait(self, listener: ChangeListener, *, is_waiting: bool) -> None:
        """Until there is something to do; a second too early at most."""
        if self._again or is_waiting:
            return
        expiry_s = self._book.next_expiry_s
        await listener.wait(None if expiry_s is None else max(expiry_s - self._handle.clock.now(), 0.0))

    async def _write(self, names: list[str]) -> None:
        if len(self._admitted) > 2 * len(self._book.objects) + WRITES_AT_ONCE:
            self._admitted.clear()  # quotas that are gone
        writes: list[tuple[ElasticQuota, dict[str, Any]]] = []
        for number, name in enumerate(names):
            found, place = self._book.objects.get(name), self._book.find(name)
            if found is not None and place is not None:
                tree, quota = place
                tree.bring_up_to_date(name)
                if body := self._difference(found, quota):
                    writes.append((found, body))
            if len(writes) == WRITES_AT_ONCE:
                await asyncio.gather(*(self._patch(each, body) for each, body in writes))
                writes.clear()
            elif number % READS_AT_ONCE == READS_AT_ONCE - 1:
                await asyncio.sleep(0)
        await asyncio.gather(*(self._patch(each, body) for each, body in writes))

    def _difference(self, found: ElasticQuota, quota: Quota) -> dict[str, Any]:
        is_settled = self._is_settled(found)
        if not is_settled:
            self._again.add(found.metadata.name)
        try:
            return self._hooks.update_status(found, status_patch(found, quota, may_lower=is_settled))
        except (ProtocolError, QuantityError) as error:
            log.warning("quota status not written", extra={"quota": found.key, "error": str(error)})
            return {}

    async def _patch(self, found: ElasticQuota, body: dict[str, Any]) -> None:
        meta, began_s = found.metadata, self._handle.clock.now()
        try:
            await self._handle.cluster.patch(ElasticQuota, meta.name, body, meta.namespace)
        except errors.NotFound:
            return
        except errors.ApiError as error:
            self._again.add(meta.name)
            log.warning("quota status not written", extra={"quota": found.key, "error": str(error)})
        self._took.observe(max(self._handle.clock.now() - began_s, 0.0))

    def _is_settled(self, found: ElasticQuota) -> bool:
        """Return whether nobody admitted pods to the quota just now."""
        text = found.metadata.annotations.get(labels.QUOTA_CHILD_REQUEST, "")
        known, now_s = self._admitted.get(found.key), self._handle.clock.now()
        if known is None or known[0] != text:
            self._admitted[found.key] = known = (text, now_s)
        return now_s - known[1] >= SETTLING_S


_ANNOTATIONS: tuple[tuple[str, Annotation[ResourceList]], ...] = (
    ("runtime", quota_annotations.RUNTIME),
    ("request", quota_annotations.REQUEST),
    ("child-request", quota_annotations.CHILD_REQUEST),
    ("guaranteed", quota_annotations.GUARANTEED),
    ("allocated", quota_annotations.ALLOCATED),
    ("non-preemptible-request", quota_annotations.NON_PREEMPTIBLE_REQUEST),
    ("non-preemptible-used", quota_annotations.NON_PREEMPTIBLE_USED),
)


def status_patch(found: ElasticQuota, quota: Quota, *, may_lower: bool = True) -> dict[str, Any]:
    """Return the merge patch that makes an object say how its quota stands; {} when it does, zeros left aside.

    `may_lower`: whether child-request may fall, which admission counts with.

    Raises: ProtocolError, QuantityError when what it says now is not readable.
    """
    obj, now = f"ElasticQuota {found.key}", dict(fields_of(quota))
    annotations: dict[str, str] = {}
    for field, codec in _ANNOTATIONS:
        said = resource_list.of(codec.read(found.metadata.annotations, obj) or {})
        stands = amounts_of(now[field])
        if codec is quota_annotations.CHILD_REQUEST and not may_lower:
            stands = resource_list.maximum(said, stands)
        if not resource_list.is_equal_ignoring_zeros(said, stands):
            annotations[codec.key] = codec.encode(resource_list.to_wire(stands))
    body: dict[str, Any] = {"metadata": {"annotations": annotations}} if annotations else {}
    used = amounts_of(now["used"])
    if not resource_list.is_equal_ignoring_zeros(resource_list.of(found.status.used), used):
        body["status"] = {"used": resource_list.to_wire(used)}
    return body
