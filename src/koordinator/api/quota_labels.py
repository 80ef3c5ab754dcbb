"""Labels of ElasticQuotas, and of pods about their quota. Source: behaviour/api 4.6 and 6.9."""

from collections.abc import Mapping

from koordinator.api import labels

Labels = Mapping[str, str]


def parent_name(quota: str, quota_labels: Labels) -> str:
    """Return the parent of a quota: the root quota unless said otherwise; the root itself has none."""
    if quota == labels.ROOT_QUOTA_NAME:
        return ""
    return quota_labels.get(labels.QUOTA_PARENT) or labels.ROOT_QUOTA_NAME


def is_parent(quota_labels: Labels) -> bool:
    """Return whether other quotas may have this one as parent."""
    return quota_labels.get(labels.QUOTA_IS_PARENT) == "true"


def is_tree_root(quota_labels: Labels) -> bool:
    """Return whether the quota is the root of a tree of its own."""
    return quota_labels.get(labels.QUOTA_IS_ROOT) == "true"


def tree_id(quota_or_pod_labels: Labels) -> str:
    """Return the tree that the quota or pod belongs to, empty for the default one."""
    return quota_or_pod_labels.get(labels.QUOTA_TREE_ID, "")


def allows_lending(quota_labels: Labels) -> bool:
    """Return whether others may use what the quota leaves of its minimum."""
    return quota_labels.get(labels.QUOTA_ALLOW_LENT_RESOURCE) != "false"


def allows_forced_update(quota_labels: Labels) -> bool:
    """Return whether admission skips some of its checks of updates."""
    return quota_labels.get(labels.QUOTA_ALLOW_FORCE_UPDATE) == "true"


def ignores_default_tree(quota_labels: Labels) -> bool:
    """Return whether the tree's total is not deducted from the default tree."""
    return quota_labels.get(labels.QUOTA_IGNORE_DEFAULT_TREE) == "true"


def is_pod_non_preemptible(pod_labels: Labels) -> bool:
    """Return whether the pod counts against its quota's minimum and is never preempted for it."""
    return pod_labels.get(labels.QUOTA_PREEMPTIBLE) == "false"
