"""Several quota trees side by side: the default one, and others that own a part of the cluster; and which quota a pod
belongs to. Source: behaviour/elastic-quota 9 and 10."""

import enum
from collections.abc import Mapping

import msgspec

from koordinator.api import resource_list
from koordinator.api.resource_list import Amounts
from koordinator.scheduler.plugins.elastic_quota.quota import QuotaPodRequest, QuotaSpec
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree


class TerminatingPolicy(enum.Enum):
    """The time until which a pod that is being deleted counts (feature gates `ElasticQuota…IgnoreTerminatingPod`)."""

    COUNT = "until it is gone"
    AFTER_GRACE = "until its grace period is over"
    IMMEDIATE = "not any more"


def is_ignored(
    policy: TerminatingPolicy, now_s: float, deleted_s: float | None, grace_s: float | None
) -> bool:
    """Return whether a pod no longer counts; `deleted_s` is its deletion timestamp, None when it stays."""
    if deleted_s is None or policy is TerminatingPolicy.COUNT:
        return False
    return policy is TerminatingPolicy.IMMEDIATE or now_s > deleted_s + (grace_s or 0)


class QuotaRef(msgspec.Struct, frozen=True):
    """A quota and its tree. An empty name: the pod is in no quota."""

    name: str
    tree_id: str = ""


NO_QUOTA = QuotaRef("")


DEFAULT_TREE = ""


class TreeRoot(msgspec.Struct, frozen=True):
    """The content of a tree's root quota."""

    total: Amounts
    """Amount that belongs to the tree."""
    leaves_default_tree: bool = True
    """Whether the default tree has that much less."""


class QuotaForest:
    """The trees by id, and the tree of each quota. The default tree is always there."""

    def __init__(
        self, reserved: Mapping[str, Amounts], *, scales_min: bool = True, keeps_guarantee: bool = False
    ) -> None:
        default = GroupQuotaTree(reserved=reserved, scales_min=scales_min, keeps_guarantee=keeps_guarantee)
        self._trees: dict[str, GroupQuotaTree] = {DEFAULT_TREE: default}
        self.tree_ids: dict[str, str] = dict.fromkeys(reserved, DEFAULT_TREE)
        """Quota → id of its tree: what is known at all."""
        self._roots: dict[str, tuple[str, TreeRoot]] = {}
        """Tree id → name of its root quota, and what that says."""
        self._capacity: Amounts = {}

    def tree(self, tree_id: str) -> GroupQuotaTree | None:
        """Return the tree, None when there is none of the id."""
        return self._trees.get(tree_id)

    def trees(self) -> list[tuple[str, GroupQuotaTree]]:
        """Return all trees with their ids, sorted: the default tree comes first."""
        return sorted(self._trees.items())

    def set_capacity(self, capacity: Amounts) -> None:
        """Set what all nodes have together."""
        self._capacity = capacity
        self._share_out()

    def set_quota(self, spec: QuotaSpec, tree_id: str = DEFAULT_TREE, root: TreeRoot | None = None) -> None:
        """Note that a quota is new or has changed; `root` when it is the root of its tree and says what that has.

        A quota stays in the tree that it was first seen in.
        """
        tree_id = self.tree_ids.setdefault(spec.name, tree_id)
        if tree_id not in self._trees:
            self._trees[tree_id] = self._trees[DEFAULT_TREE].bare()
        if root is not None and tree_id != DEFAULT_TREE:
            self._roots[tree_id] = (spec.name, root)
            self._share_out()
        self._trees[tree_id].set_quota(spec)

    def remove_quota(self, name: str) -> None:
        """Note that a quota is gone; with its root goes a whole tree, and the default tree gets its part back."""
        tree_id = self.tree_ids.get(name)
        if tree_id is None:
            return
        self._trees[tree_id].remove_quota(name)
        if self._trees[tree_id].get(name) is not None:
            return  # a reserved one
        del self.tree_ids[name]
        if self._roots.get(tree_id, ("",))[0] == name:
            del self._roots[tree_id], self._trees[tree_id]
            self.tree_ids = {each: its for each, its in self.tree_ids.items() if its != tree_id}
            self._share_out()

    def _share_out(self) -> None:
        left = self._capacity
        for tree_id, (_, root) in self._roots.items():
            self._trees[tree_id].total = root.total
            if root.leaves_default_tree:
                left = resource_list.sub(left, root.total)
        self._trees[DEFAULT_TREE].total = left

    def move_pod(self, pod: QuotaPodRequest, was_in: QuotaRef, now_in: QuotaRef) -> None:
        """Note that a pod changed, and perhaps its quota or tree; an unknown tree counts nothing."""
        if was_in.tree_id == now_in.tree_id:
            if (tree := self._trees.get(now_in.tree_id)) is not None:
                tree.update_pod(now_in.name, pod, was_in.name)
            return
        if (former := self._trees.get(was_in.tree_id)) is not None:
            former.remove_pod(was_in.name, pod.key)
        if (tree := self._trees.get(now_in.tree_id)) is not None:
            tree.add_pod(now_in.name, pod)
