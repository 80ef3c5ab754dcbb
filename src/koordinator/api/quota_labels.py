"""Labels and annotations of ElasticQuotas and their profiles, and of pods about their quota.
Source: behaviour/api 4.6 and 6.9."""

from collections.abc import Mapping

from koordinator.api import labels, resource_list
from koordinator.api.annotations.codec import Annotation, Empty
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import ResourceList

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


def _amounts(key: str) -> Annotation[ResourceList]:
    return Annotation[ResourceList](key, ResourceList, empty=Empty.ABSENT)


RUNTIME = _amounts(labels.QUOTA_RUNTIME)
REQUEST = _amounts(labels.QUOTA_REQUEST)
CHILD_REQUEST = _amounts(labels.QUOTA_CHILD_REQUEST)
ALLOCATED = _amounts(labels.QUOTA_ALLOCATED)
GUARANTEED = _amounts(labels.QUOTA_GUARANTEED)
NON_PREEMPTIBLE_REQUEST = _amounts(labels.QUOTA_NON_PREEMPTIBLE_REQUEST)
NON_PREEMPTIBLE_USED = _amounts(labels.QUOTA_NON_PREEMPTIBLE_USED)
ADMISSION = _amounts(labels.QUOTA_ADMISSION)
TOTAL_RESOURCE = _amounts(labels.QUOTA_TOTAL_RESOURCE)
UNSCHEDULABLE_RESOURCE = _amounts(labels.QUOTA_UNSCHEDULABLE_RESOURCE)
MAX_STRICT_CHECK_RESOURCE_KEYS = Annotation(
    labels.QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS, list[str], empty=Empty.ABSENT
)
RESOURCE_KEYS = Annotation(labels.QUOTA_RESOURCE_KEYS, list[str])
SHARED_WEIGHT = _amounts(labels.QUOTA_SHARED_WEIGHT)
NAMESPACES = Annotation(labels.QUOTA_NAMESPACES, list[str])

DEFAULT_RESOURCE_KEYS = ("cpu", "memory")
"""The resource keys of an ElasticQuotaProfile that names none."""


def resource_keys(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the resources that a profile's quota counts; the default ones when absent or malformed."""
    try:
        keys = RESOURCE_KEYS.read(annotations)
    except ProtocolError:
        keys = None
    return DEFAULT_RESOURCE_KEYS if keys is None else tuple(keys)


def shared_weight(annotations: Mapping[str, str], spec_max: ResourceList) -> ResourceList:
    """Return a quota's weight in the sharing of what is left, `spec.max` unless said (properly) otherwise."""
    try:
        weight = SHARED_WEIGHT.read(annotations)
    except ProtocolError:
        return spec_max
    return spec_max if not weight or resource_list.is_zero(resource_list.of(weight)) else weight


def namespaces(annotations: Mapping[str, str]) -> list[str]:
    """Namespaces whose pods use the quota; none when absent or malformed."""
    try:
        return NAMESPACES.read(annotations) or []
    except ProtocolError:
        return []
