"""Find the refused pods that an event concerns, by flag (`enableQueueHint`). `requeue` decides.

Source: behaviour/elastic-quota 13.1.

The rules look at how trees were some time ago (`quotaSnapshotUpdateInterval`). A pod that came later counts as having
had a place: one woken in vain costs less than one that waits for minutes.
"""

from typing import Any

import msgspec

from koordinator.api import duration
from koordinator.clock import Clock
from koordinator.scheduler.config.plugin_args import ElasticQuotaArgs
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugins.elastic_quota import requeue
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.quota import QuotaSpec
from koordinator.scheduler.plugins.elastic_quota.requeue import QueueingHint, TreeSnapshot
from koordinator.scheduler.table.pod_info import PodInfo


class QuotaUpdate(msgspec.Struct, frozen=True):
    """A quota changed; what events about it carry."""

    old: QuotaSpec
    new: QuotaSpec
    tree_id: str
    hooks_see_change: bool = False


class QuotaQueueingHints:
    """Answers for events, with snapshots of trees that are taken anew when they are asked for and too old."""

    def __init__(self, args: ElasticQuotaArgs, book: QuotaBook, clock: Clock) -> None:
        self._book = book
        self._clock = clock
        self._checks_ancestors = args.enable_check_parent_quota
        self._interval_s = duration.parse(args.quota_snapshot_update_interval)
        self._taken: dict[str, tuple[float, TreeSnapshot]] = {}
        self._known: dict[str, frozenset[str]] = {}
        """Tree → pods that its snapshot knows."""

    def may_help(self, event: QueueingEvent, pod: PodInfo) -> bool:
        """Return whether it is worth looking at the pod's quota again."""
        waiting, subject = self._book.quota_of(pod.pod), event.new
        if isinstance(subject, QuotaUpdate):
            decision = requeue.on_quota_update(
                waiting,
                subject.old,
                subject.new,
                subject.tree_id,
                self._snapshot(waiting.tree_id),
                is_tree_known=self._book.forest.tree(subject.tree_id) is not None,
                checks_ancestors=self._checks_ancestors,
                hooks_see_change=subject.hooks_see_change,
            )
            return decision.hint is QueueingHint.QUEUE
        if event.kind is ClusterEvent.ASSIGNED_POD_DELETED:
            return self._deleted(event.old, waiting)
        return True

    def _deleted(self, gone: Any, waiting: Any) -> bool:
        deleted = self._book.quota_of(gone.pod) if isinstance(gone, PodInfo) else None
        snapshot = self._snapshot(waiting.tree_id)
        key = gone.key if isinstance(gone, PodInfo) else ""
        if snapshot is not None and deleted is not None and key not in self._known[waiting.tree_id]:
            snapshot = TreeSnapshot(snapshot.parents, {deleted.name: frozenset((key,))})
        decision = requeue.on_pod_delete(
            waiting, deleted, key, snapshot, checks_ancestors=self._checks_ancestors
        )
        return decision.hint is QueueingHint.QUEUE

    def _snapshot(self, tree_id: str) -> TreeSnapshot | None:
        now_s = self._clock.now()
        taken_s, snapshot = self._taken.get(tree_id, (0.0, None))
        if snapshot is not None and 0 <= now_s - taken_s < self._interval_s:
            return snapshot
        tree = self._book.forest.tree(tree_id)
        if tree is None:
            return None
        snapshot = TreeSnapshot.of(tree)
        self._taken[tree_id] = (now_s, snapshot)
        self._known[tree_id] = frozenset(
            key for name in tree.names() if (quota := tree.get(name)) is not None for key in quota.pods
        )
        return snapshot
