"""Keep what the instances of ElasticQuota in several profiles share: the books, the news of them, and the loops,
one of which makes ElasticQuota objects say how quotas stand (so does a metric).

Requests are counted from the pods that the API knows; what is in use from the pods that count on nodes, assumed ones
included. So a trial of the node table that takes pods away gives their quota its room back, too, and whoever asks
whether a pod could be placed without them gets the true answer.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import msgspec

from koordinator.api import labels, quota_labels, resource_list
from koordinator.api.annotations.codec import Annotation
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError, ResourceList
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster import errors
from koordinator.prometheus import GaugeOfObjects, Histogram, Samples, exponential
from koordinator.scheduler.config.default_plugins import ElasticQuotaArgs
from koordinator.scheduler.plugin.capabilities import BackgroundController
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import Handle, Watch
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.evictions import OverUse
from koordinator.scheduler.plugins.elastic_quota.hints import QuotaUpdate
from koordinator.scheduler.plugins.elastic_quota.hooks import QuotaHooks
from koordinator.scheduler.plugins.elastic_quota.quota import (
    DEFAULT,
    ROOT,
    SYSTEM,
    Nanos,
    Quota,
    amounts_of,
    nanos_of,
    nanos_per_unit,
    to_units,
)
from koordinator.scheduler.plugins.elastic_quota.quota_changes import ChangeListener, Latencies, QuotaChanges
from koordinator.scheduler.table.nodes import RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo


class QuotaGauge(GaugeOfObjects):
    """`scheduler_elastic_quota_status`, of all quotas but roots; in milli-cores and whole units.

    Ten thousand quotas are some 160,000 samples. Source: behaviour/elastic-quota 16.
    """

    def __init__(self, book: QuotaBook, changes: QuotaChanges) -> None:
        labels = ("name", "resource", "tree", "is_parent", "parent", "field")
        super().__init__(
            "scheduler_elastic_quota_status", "What quotas have, ask for and use.", labels, self._samples
        )
        self._book = book
        self._changes = changes
        self._listener: ChangeListener | None = None

    def lines(self) -> Iterator[str]:
        """HELP, TYPE, and all lines of a quota at once."""
        if self._listener is None:
            self._listener = self._changes.listen()
        self._changes.spread()
        for names in self._listener.take():
            self.changed(names)
        yield from super().lines()

    def _samples(self, name: str) -> Samples:
        found = self._book.find(name)
        if found is None or name == ROOT:
            return ()
        tree, quota = found
        tree.bring_up_to_date(name)
        own = (self._book.forest.tree_ids.get(name, ""), str(quota.spec.is_parent).lower(), quota.spec.parent)
        samples = {
            (name, resource, *own, field): to_units(number, nanos_per_unit(resource))
            for field, nanos in (*fields_of(quota), *self._unschedulable(quota))
            for resource, number in nanos.items()
        }
        return samples.items()

    def _unschedulable(self, quota: Quota) -> Iterator[tuple[str, Nanos]]:
        """Yield what the root quota of a tree says of nodes that take no pods."""
        found = self._book.objects.get(quota.spec.name)
        if found is None or labels.QUOTA_UNSCHEDULABLE_RESOURCE not in found.metadata.annotations:
            return
        try:
            annotated = quota_labels.UNSCHEDULABLE_RESOURCE.read(found.metadata.annotations, found.key)
            yield "unschedulable-resource", nanos_of(resource_list.of(annotated or {}))
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
"""Time for which admission's sum of requests stands after it grew: its pods may be on their way to us."""
WRITES_AT_ONCE = 16
READS_AT_ONCE = 64
"""Quotas that are compared with their objects before others have their turn."""


class Statuses:
    """Follows the news and writes what differs: changes by pods within a second; the runtime, which changes by others'
    demand only, every ten. Source: behaviour/elastic-quota 16."""

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
    ("runtime", quota_labels.RUNTIME),
    ("request", quota_labels.REQUEST),
    ("child-request", quota_labels.CHILD_REQUEST),
    ("guaranteed", quota_labels.GUARANTEED),
    ("allocated", quota_labels.ALLOCATED),
    ("non-preemptible-request", quota_labels.NON_PREEMPTIBLE_REQUEST),
    ("non-preemptible-used", quota_labels.NON_PREEMPTIBLE_USED),
)


def status_patch(found: ElasticQuota, quota: Quota, *, may_lower: bool = True) -> dict[str, Any]:
    """Return the merge patch that makes an object say how its quota stands; {} when it does, zeros left aside.

    `may_lower`: whether child-request may fall, which admission counts with.

    Raises: ProtocolError, QuantityError when what it says now is not readable.
    """
    obj, now = f"ElasticQuota {found.key}", dict(fields_of(quota))
    annotations: dict[str, str] = {}
    for field, codec in _ANNOTATIONS:
        annotated = resource_list.of(codec.read(found.metadata.annotations, obj) or {})
        current = amounts_of(now[field])
        if codec is quota_labels.CHILD_REQUEST and not may_lower:
            current = resource_list.maximum(annotated, current)
        if not resource_list.is_equal_ignoring_zeros(annotated, current):
            annotations[codec.key] = codec.encode(resource_list.to_wire(current))
    body: dict[str, Any] = {"metadata": {"annotations": annotations}} if annotations else {}
    used = amounts_of(now["used"])
    if not resource_list.is_equal_ignoring_zeros(resource_list.of(found.status.used), used):
        # A name that a merge patch leaves out would stay.
        body["status"] = {"used": {**dict.fromkeys(found.status.used), **resource_list.to_wire(used)}}
    return body


def reserved_objects(args: ElasticQuotaArgs) -> list[dict[str, Any]]:
    """Return the three quotas that every cluster has."""
    namespace = args.quota_group_namespace
    root_labels = {
        labels.QUOTA_IS_PARENT: "true",
        labels.QUOTA_ALLOW_LENT_RESOURCE: "false",
        labels.QUOTA_PARENT: "",
    }
    maxima = {SYSTEM: args.system_quota_group_max, DEFAULT: args.default_quota_group_max}
    return [
        {"metadata": {"name": ROOT, "namespace": namespace, "labels": root_labels}},
        *(
            {"metadata": {"name": name, "namespace": namespace}, "spec": {"max": dict(most)}}
            for name, most in maxima.items()
        ),
    ]


OWN = (
    "enable_check_parent_quota",
    "disable_default_quota_preemption",
    "enable_queue_hint",
    "quota_snapshot_update_interval",
)
"""Arguments that each profile may have of its own; all others are about the quotas, of which there is one set."""


class QuotaAccounts(RowKeeper):
    """Follows quotas, pods, nodes and placements."""

    def __init__(self, args: ElasticQuotaArgs, handle: Handle) -> None:
        self._args = args
        self._handle = handle
        hooks = self.hooks = QuotaHooks.of(args.hook_plugins, handle)
        book = self.book = QuotaBook(args, handle.gates, handle.clock, hooks)
        changes = self.changes = QuotaChanges(book, has_runtime=args.enable_runtime_quota)
        timed = self.timed = Latencies(handle)
        self._statuses = Statuses(handle, book, changes, hooks)
        self.over_use = OverUse(args, handle, book, changes)
        self._set_quota = timed.of("UpdateQuota", book.set_quota)
        self._remove_quota = timed.of("DeleteQuota", book.remove_quota)
        self._reserve = timed.of("ReservePod", book.reserve)
        self._unreserve = timed.of("UnreservePod", book.unreserve)
        added = changes.after(timed.of("OnPodAdd", book.set_pod))
        updated = changes.after(timed.of("OnPodUpdate", book.set_pod))
        deleted = changes.after(timed.of("OnPodDelete", book.remove_pod))
        set_node = changes.after(book.set_node)
        handle.watch(Watch.newest(ElasticQuota, self._quota_set, self._quota_gone))
        handle.watch(Watch(Pod, added, lambda _, new: updated(new), deleted))
        handle.watch(Watch.newest(Node, set_node, changes.after(book.remove_node)))
        handle.table.add_keeper(self)

    @classmethod
    def of(cls, args: ElasticQuotaArgs, handle: Handle) -> "QuotaAccounts":
        """Return the scheduler's one. Arguments that concern all are those of its first profile. Raises: ValueError."""
        return handle.shared(cls, lambda first: cls(args, first))

    def args_of(self, args: ElasticQuotaArgs) -> ElasticQuotaArgs:
        """Return the arguments that count in a profile."""
        counting = msgspec.structs.replace(self._args, **{name: getattr(args, name) for name in OWN})
        differing = [
            field.encode_name
            for field in msgspec.structs.fields(ElasticQuotaArgs)
            if getattr(args, field.name) != getattr(counting, field.name)
        ]
        if differing:
            log.warning("ElasticQuota: %s of the first profile apply to all profiles", ", ".join(differing))
        return counting

    def _quota_set(self, quota: ElasticQuota) -> None:
        name = quota.metadata.name
        before, former = self.book.spec_of(name), self.book.objects.get(name)
        if self._set_quota(quota):
            after = self.book.spec_of(name)
            update: QuotaUpdate | None = None
            if before is not None and after is not None and former is not None:
                tree_id = self.book.forest.tree_ids.get(name, "")
                update = QuotaUpdate(before, after, tree_id, self.hooks.see_change(former, quota))
            self._handle.happened(QueueingEvent(ClusterEvent.ELASTIC_QUOTA, new=update))
        self.changes.happened()

    def _quota_gone(self, quota: ElasticQuota) -> None:
        self._remove_quota(quota)
        self._handle.happened(QueueingEvent(ClusterEvent.ELASTIC_QUOTA))
        self.changes.happened()

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        self._reserve(pod.key)
        self.changes.happened()

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        self._unreserve(pod.key)
        self.changes.happened()

    # Loops, which run on the leader. Source: behaviour/elastic-quota 2.2, 15 and 16.

    def loops(self) -> list[BackgroundController]:
        """Return the controllers that run beside scheduling."""
        found = [
            BackgroundController("ElasticQuota reserved quotas", self._keep_reserved),
            BackgroundController("ElasticQuota status", self._statuses.run),
        ]
        if self._args.enable_runtime_quota and self._args.monitor_all_quotas:
            found.append(BackgroundController("ElasticQuota over-use", self.over_use.run))
        return found

    async def _keep_reserved(self) -> None:
        namespace = self._args.quota_group_namespace
        for body in reserved_objects(self._args):
            name = body["metadata"]["name"]
            try:
                await self._handle.cluster.get(ElasticQuota, name, namespace)
            except errors.NotFound:
                try:
                    await self._handle.cluster.create(ElasticQuota, body, namespace)
                except errors.AlreadyExists:
                    continue
                except errors.ApiError as error:
                    log.warning("reserved quota not created", extra={"quota": name, "error": str(error)})
            except errors.ApiError as error:
                log.warning("reserved quota not read", extra={"quota": name, "error": str(error)})
        await asyncio.Event().wait()
