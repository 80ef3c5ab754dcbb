"""Keep what the instances of ElasticQuota in several profiles share: the books, the news of them, and the loops.

Requests are counted from the pods that the API knows; what is in use from the pods that count on nodes, assumed ones
included. So a trial of the node table that takes pods away gives their quota its room back, too, and whoever asks
whether a pod could be placed without them gets the true answer.
"""

import asyncio
import logging
from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster import errors
from koordinator.scheduler.config.default_plugins import ElasticQuotaArgs
from koordinator.scheduler.plugin.capabilities import BackgroundController
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import Handle, Watch
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.evictions import OverUse
from koordinator.scheduler.plugins.elastic_quota.hints import QuotaUpdate
from koordinator.scheduler.plugins.elastic_quota.hooks import QuotaHooks
from koordinator.scheduler.plugins.elastic_quota.quota import DEFAULT, ROOT, SYSTEM
from koordinator.scheduler.plugins.elastic_quota.quota_changes import Latencies, QuotaChanges
from koordinator.scheduler.plugins.elastic_quota.statuses import Statuses
from koordinator.scheduler.table.nodes import RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo


def reserved_objects(args: ElasticQuotaArgs) -> list[dict[str, Any]]:
    """Return the three quotas that every cluster has."""
    root_labels = {
        labels.QUOTA_IS_PARENT: "true",
        labels.QUOTA_ALLOW_LENT_RESOURCE: "false",
        labels.QUOTA_PARENT: "",
    }
    namespace = args.quota_group_namespace

    def body(name: str, own: dict[str, str], spec: dict[str, Any]) -> dict[str, Any]:
        meta: dict[str, Any] = {"name": name, "namespace": namespace}
        return {"metadata": {**meta, "labels": own} if own else meta, **({"spec": spec} if spec else {})}

    return [
        body(ROOT, root_labels, {}),
        body(SYSTEM, {}, {"max": dict(args.system_quota_group_max)}),
        body(DEFAULT, {}, {"max": dict(args.default_quota_group_max)}),
    ]


log = logging.getLogger(__name__)

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
            log.warning("ElasticQuota: %s of the first profile count in all of them", ", ".join(differing))
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
                log.warning("reserved quota not looked at", extra={"quota": name, "error": str(error)})
        await asyncio.Event().wait()
