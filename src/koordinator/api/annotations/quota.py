"""Payloads on ElasticQuotas and their profiles."""

from collections.abc import Mapping

from koordinator.api import labels, resource_list
from koordinator.api.annotations.codec import Annotation, Empty
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import ResourceList


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
