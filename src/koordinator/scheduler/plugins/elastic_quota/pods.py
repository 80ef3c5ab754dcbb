"""Find the quota that a pod belongs to, and whether it still counts there. Source: behaviour/elastic-quota 10."""

import enum
from collections.abc import Iterable, Mapping

import msgspec

from koordinator.scheduler.plugins.elastic_quota.quota import DEFAULT


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


class Binding(msgspec.Struct, frozen=True):
    """An ElasticQuota as a target of pods: where it lives, and namespaces that are bound to it."""

    namespace: str
    name: str
    namespaces: tuple[str, ...] = ()


class QuotaRef(msgspec.Struct, frozen=True):
    """A quota and its tree. An empty name: the pod is in no quota."""

    name: str
    tree_id: str = ""


NO_QUOTA = QuotaRef("")


def resolve(
    label: str,
    namespace: str,
    quotas: Iterable[Binding],
    trees: Mapping[str, str],
    *,
    has_default: bool = True,
) -> QuotaRef:
    """The quota of a pod: by its label, by the name of its namespace, by a binding of its namespace, and
    the default quota where nothing applies or the quota is not known.

    `trees` has the tree id of each known quota. Without a default quota (gate `DisableDefaultQuota`) only
    the label counts.
    """
    name = label or (_by_namespace(namespace, quotas) if has_default else "")
    if name and name in trees:
        return QuotaRef(name, trees[name])
    return QuotaRef(DEFAULT) if has_default else NO_QUOTA


def _by_namespace(namespace: str, quotas: Iterable[Binding]) -> str:
    bound = ""
    for quota in quotas:
        if quota.namespace == quota.name == namespace:
            return quota.name
        if not bound and namespace in quota.namespaces:
            bound = quota.name
    return bound
