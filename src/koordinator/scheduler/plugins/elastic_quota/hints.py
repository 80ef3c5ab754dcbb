"""Find the refused pods that an event concerns, by flag (`enableQueueHint`).

Source: behaviour/elastic-quota 13.1.

The rules look at how trees were some time ago (`quotaSnapshotUpdateInterval`). A pod that came later counts as having
had a place: one woken in vain costs less than one that waits for minutes.
"""

from collections.abc import Mapping, Set

import msgspec

from koordinator.api import duration
from koordinator.clock import Clock
from koordinator.scheduler.config.default_plugins import ElasticQuotaArgs
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.forest import QuotaRef
from koordinator.scheduler.plugins.elastic_quota.quota import ROOT, QuotaSpec
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree
from koordinator.scheduler.table.pod_info import PodInfo


class TreeSnapshot(msgspec.Struct, frozen=True):
    """A tree some time ago: the parent of each quota, and the pods that used nothing."""

    parents: Mapping[str, str]
    idle: Set[str]

    @classmethod
    def of(cls, tree: GroupQuotaTree) -> "TreeSnapshot":
        """Return a tree as it is now."""
        quotas = tree.quotas()
        return cls(
            {quota.spec.name: quota.spec.parent for quota in quotas},
            {key for quota in quotas for key, each in quota.pods.items() if not each.is_assigned},
        )

    def is_above(self, ancestor: str, quota: str) -> bool:
        """Return whether one quota is on the other's way to the root."""
        seen = {quota, ROOT}
        parent = self.parents.get(quota, ROOT)
        while parent not in seen:
            if parent == ancestor:
                return True
            seen.add(parent)
            parent = self.parents.get(parent, ROOT)
        return False


def on_quota_update(
    waiting: QuotaRef,
    old: QuotaSpec | None,
    new: QuotaSpec | None,
    tree_id: str,
    snapshot: TreeSnapshot | None,
    *,
    is_tree_known: bool = True,
    checks_ancestors: bool = False,
    hooks_see_change: bool = False,
) -> bool:
    """Return whether it may help a waiting pod that a quota changed from `old` to `new` (None: could not be read) in
    tree `tree_id`."""
    if old is None or new is None:
        return True
    has_changed = old != new or hooks_see_change
    if not (waiting.name and waiting.tree_id == tree_id and is_tree_known and has_changed):
        return False
    return waiting.name == new.name or _is_below(waiting, new.name, snapshot, checks_ancestors)


def on_pod_delete(
    waiting: QuotaRef,
    deleted: QuotaRef | None,
    deleted_key: str,
    snapshot: TreeSnapshot | None,
    *,
    checks_ancestors: bool = False,
) -> bool:
    """Return whether it may help a waiting pod that one of quota `deleted` (None: could not be read) is gone."""
    if deleted is None:
        return True
    if not (waiting.name and deleted.name and waiting.tree_id == deleted.tree_id):
        return False
    if snapshot is None:
        return True
    if deleted_key in snapshot.idle:
        return False
    return waiting.name == deleted.name or _is_below(waiting, deleted.name, snapshot, checks_ancestors)


def _is_below(waiting: QuotaRef, other: str, snapshot: TreeSnapshot | None, checks_ancestors: bool) -> bool:
    """Return whether another quota has a say, as far as is known: where ancestors are checked, and if it is one."""
    return checks_ancestors and (snapshot is None or snapshot.is_above(other, waiting.name))


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

    def may_help(self, event: QueueingEvent, pod: PodInfo) -> bool:
        """Return whether it is worth looking at the pod's quota again."""
        waiting, subject = self._book.quota_of(pod.pod), event.new
        if isinstance(subject, QuotaUpdate):
            return on_quota_update(
                waiting,
                subject.old,
                subject.new,
                subject.tree_id,
                self._snapshot(waiting.tree_id),
                is_tree_known=self._book.forest.tree(subject.tree_id) is not None,
                checks_ancestors=self._checks_ancestors,
                hooks_see_change=subject.hooks_see_change,
            )
        gone = event.old
        if event.kind is not ClusterEvent.ASSIGNED_POD_DELETED or not isinstance(gone, PodInfo):
            return True
        deleted, snapshot = self._book.quota_of(gone.pod), self._snapshot(waiting.tree_id)
        return on_pod_delete(waiting, deleted, gone.key, snapshot, checks_ancestors=self._checks_ancestors)

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
        return snapshot
