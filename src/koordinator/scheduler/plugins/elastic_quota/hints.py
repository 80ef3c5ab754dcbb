"""Find the refused pods that an event concerns, by flag (`enableQueueHint`).

Source: behaviour/elastic-quota 13.1.

The rules look at how trees were some time ago (`quotaSnapshotUpdateInterval`). A pod that came later counts as having
had a place: one woken in vain costs less than one that waits for minutes.
"""

import enum
from collections.abc import Mapping
from typing import Any

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


class QueueingHintReason(enum.Enum):
    """The reason to queue the waiting pod, or to skip it."""

    UNREADABLE = "an object of the event cannot be read"
    NO_SNAPSHOT = "the quotas are not known yet"
    SAME_QUOTA = "the pod's own quota"
    ANCESTOR = "an ancestor of the pod's quota"
    NO_QUOTA = "a pod without a quota"
    OTHER_TREE = "another tree"
    NO_TREE = "the tree is not known"
    UNCHANGED = "nothing that matters has changed"
    NOT_ASSIGNED = "the deleted pod used nothing"
    OTHER_QUOTA = "a quota that the pod does not depend on"

    @property
    def queues(self) -> bool:
        """Return whether the pod is worth another look."""
        cls = type(self)
        return self in (cls.UNREADABLE, cls.NO_SNAPSHOT, cls.SAME_QUOTA, cls.ANCESTOR)


class TreeSnapshot(msgspec.Struct, frozen=True):
    """A tree some time ago: the parent of each quota, and the pods that used each."""

    parents: Mapping[str, str]
    assigned: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, tree: GroupQuotaTree) -> "TreeSnapshot":
        """Return a tree as it is now."""
        quotas = tree.quotas()
        return cls(
            parents={quota.spec.name: quota.spec.parent for quota in quotas},
            assigned={
                quota.spec.name: frozenset(key for key, each in quota.pods.items() if each.is_assigned)
                for quota in quotas
            },
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
) -> QueueingHintReason:
    """A quota changed from `old` to `new` (None: could not be read) in tree `tree_id`."""
    if old is None or new is None:
        return QueueingHintReason.UNREADABLE
    if not waiting.name:
        return QueueingHintReason.NO_QUOTA
    if waiting.tree_id != tree_id:
        return QueueingHintReason.OTHER_TREE
    if not is_tree_known:
        return QueueingHintReason.NO_TREE
    if old == new and not hooks_see_change:
        return QueueingHintReason.UNCHANGED
    if waiting.name == new.name:
        return QueueingHintReason.SAME_QUOTA
    return _by_ancestry(waiting, new.name, snapshot, checks_ancestors=checks_ancestors)


def on_pod_delete(
    waiting: QuotaRef,
    deleted: QuotaRef | None,
    deleted_key: str,
    snapshot: TreeSnapshot | None,
    *,
    checks_ancestors: bool = False,
) -> QueueingHintReason:
    """A pod of quota `deleted` (None: could not be read) is gone."""
    if deleted is None:
        return QueueingHintReason.UNREADABLE
    if not (waiting.name and deleted.name):
        return QueueingHintReason.NO_QUOTA
    if waiting.tree_id != deleted.tree_id:
        return QueueingHintReason.OTHER_TREE
    if snapshot is None:
        return QueueingHintReason.NO_SNAPSHOT
    if deleted.name in snapshot.parents and deleted_key not in snapshot.assigned.get(deleted.name, ()):
        return QueueingHintReason.NOT_ASSIGNED
    if waiting.name == deleted.name:
        return QueueingHintReason.SAME_QUOTA
    return _by_ancestry(waiting, deleted.name, snapshot, checks_ancestors=checks_ancestors)


def _by_ancestry(
    waiting: QuotaRef, other: str, snapshot: TreeSnapshot | None, *, checks_ancestors: bool
) -> QueueingHintReason:
    """A quota that is not the pod's own matters only where ancestors are checked, and if it is one."""
    if not checks_ancestors:
        return QueueingHintReason.OTHER_QUOTA
    if snapshot is None:
        return QueueingHintReason.NO_SNAPSHOT
    is_above = snapshot.is_above(other, waiting.name)
    return QueueingHintReason.ANCESTOR if is_above else QueueingHintReason.OTHER_QUOTA


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
            decision = on_quota_update(
                waiting,
                subject.old,
                subject.new,
                subject.tree_id,
                self._snapshot(waiting.tree_id),
                is_tree_known=self._book.forest.tree(subject.tree_id) is not None,
                checks_ancestors=self._checks_ancestors,
                hooks_see_change=subject.hooks_see_change,
            )
            return decision.queues
        if event.kind is ClusterEvent.ASSIGNED_POD_DELETED:
            return self._deleted(event.old, waiting)
        return True

    def _deleted(self, gone: Any, waiting: Any) -> bool:
        deleted = self._book.quota_of(gone.pod) if isinstance(gone, PodInfo) else None
        snapshot = self._snapshot(waiting.tree_id)
        key = gone.key if isinstance(gone, PodInfo) else ""
        if snapshot is not None and deleted is not None and key not in self._known[waiting.tree_id]:
            snapshot = TreeSnapshot(snapshot.parents, {deleted.name: frozenset((key,))})
        return on_pod_delete(waiting, deleted, key, snapshot, checks_ancestors=self._checks_ancestors).queues

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
        self._known[tree_id] = frozenset(key for quota in tree.quotas() for key in quota.pods)
        return snapshot
