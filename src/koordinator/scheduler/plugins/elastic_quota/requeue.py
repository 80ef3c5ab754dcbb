"""Decide whether an event may make a pod fit that its quota refused. Source: behaviour/elastic-quota 13.1."""

import enum
from collections.abc import Mapping

import msgspec

from koordinator.scheduler.plugins.elastic_quota.pods import QuotaRef
from koordinator.scheduler.plugins.elastic_quota.quota import ROOT, QuotaSpec
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree


class QueueingHint(enum.Enum):
    """The treatment of the waiting pod."""

    QUEUE = "Queue"
    SKIP = "Skip"


class QueueingHintReason(enum.Enum):
    """The reason; the value tells the hint."""

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


_QUEUE = frozenset(
    (
        QueueingHintReason.UNREADABLE,
        QueueingHintReason.NO_SNAPSHOT,
        QueueingHintReason.SAME_QUOTA,
        QueueingHintReason.ANCESTOR,
    )
)


class QueueingHintDecision(msgspec.Struct, frozen=True):
    """The hint's reason."""

    reason: QueueingHintReason

    @property
    def hint(self) -> QueueingHint:
        return QueueingHint.QUEUE if self.reason in _QUEUE else QueueingHint.SKIP


class TreeSnapshot(msgspec.Struct, frozen=True):
    """A tree some time ago: the parent of each quota, and the pods that used each."""

    parents: Mapping[str, str]
    assigned: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, tree: GroupQuotaTree) -> "TreeSnapshot":
        """A tree as it is now."""
        quotas = [quota for name in tree.names() if (quota := tree.get(name)) is not None]
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


def is_relevant(old: QuotaSpec, new: QuotaSpec) -> bool:
    """Return whether an update changes anything that shares are computed from."""
    return old != new


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
) -> QueueingHintDecision:
    """A quota changed from `old` to `new` (None: could not be read) in tree `tree_id`."""
    if old is None or new is None:
        return QueueingHintDecision(QueueingHintReason.UNREADABLE)
    if not waiting.name:
        return QueueingHintDecision(QueueingHintReason.NO_QUOTA)
    if waiting.tree_id != tree_id:
        return QueueingHintDecision(QueueingHintReason.OTHER_TREE)
    if not is_tree_known:
        return QueueingHintDecision(QueueingHintReason.NO_TREE)
    if not (is_relevant(old, new) or hooks_see_change):
        return QueueingHintDecision(QueueingHintReason.UNCHANGED)
    if waiting.name == new.name:
        return QueueingHintDecision(QueueingHintReason.SAME_QUOTA)
    return _by_ancestry(waiting, new.name, snapshot, checks_ancestors=checks_ancestors)


def on_pod_delete(
    waiting: QuotaRef,
    deleted: QuotaRef | None,
    deleted_key: str,
    snapshot: TreeSnapshot | None,
    *,
    checks_ancestors: bool = False,
) -> QueueingHintDecision:
    """A pod of quota `deleted` (None: could not be read) is gone."""
    if deleted is None:
        return QueueingHintDecision(QueueingHintReason.UNREADABLE)
    if not (waiting.name and deleted.name):
        return QueueingHintDecision(QueueingHintReason.NO_QUOTA)
    if waiting.tree_id != deleted.tree_id:
        return QueueingHintDecision(QueueingHintReason.OTHER_TREE)
    if snapshot is None:
        return QueueingHintDecision(QueueingHintReason.NO_SNAPSHOT)
    if deleted.name in snapshot.parents and deleted_key not in snapshot.assigned.get(deleted.name, ()):
        return QueueingHintDecision(QueueingHintReason.NOT_ASSIGNED)
    if waiting.name == deleted.name:
        return QueueingHintDecision(QueueingHintReason.SAME_QUOTA)
    return _by_ancestry(waiting, deleted.name, snapshot, checks_ancestors=checks_ancestors)


def _by_ancestry(
    waiting: QuotaRef, other: str, snapshot: TreeSnapshot | None, *, checks_ancestors: bool
) -> QueueingHintDecision:
    """A quota that is not the pod's own matters only where ancestors are checked, and if it is one."""
    if not checks_ancestors:
        return QueueingHintDecision(QueueingHintReason.OTHER_QUOTA)
    if snapshot is None:
        return QueueingHintDecision(QueueingHintReason.NO_SNAPSHOT)
    is_above = snapshot.is_above(other, waiting.name)
    return QueueingHintDecision(QueueingHintReason.ANCESTOR if is_above else QueueingHintReason.OTHER_QUOTA)
