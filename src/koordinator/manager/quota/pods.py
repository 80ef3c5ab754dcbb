"""Find the quota that a pod belongs to, and decide whether it may (behaviour/manager 17.5)."""

import enum
from collections.abc import Mapping
from typing import Self

import msgspec

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.feature_gates import FeatureGates
from koordinator.manager.quota.tree import QuotaTree


class PodRefusal(enum.StrEnum):
    """The rule that a pod breaks; empty when it breaks none."""

    NONE = ""
    PREEMPTIBLE = "preemptible"
    PARENT_QUOTA = "parent-quota"


class QuotaUseVerdict(msgspec.Struct, frozen=True):
    """The decision whether a pod may use its quota; if not, by which rule, and in words for the user."""

    refusal: PodRefusal = PodRefusal.NONE
    message: str = ""

    @property
    def allowed(self) -> bool:
        """No rule is broken."""
        return self.refusal is PodRefusal.NONE


class PodQuotaRules(msgspec.Struct, frozen=True, kw_only=True):
    """Feature gates that change the rules."""

    label_only: bool = False  # DisableDefaultQuota
    allows_parents: bool = False  # SupportParentQuotaSubmitPod

    @classmethod
    def of(cls, gates: FeatureGates) -> Self:
        """Return the rules of a manager's gates."""
        return cls(
            label_only=gates.is_on("DisableDefaultQuota"),
            allows_parents=gates.is_on("SupportParentQuotaSubmitPod"),
        )


def quota_name(
    tree: QuotaTree, pod_labels: Mapping[str, str], namespace: str, *, label_only: bool = False
) -> str:
    """Return the name of the quota that a pod belongs to, empty for none.

    By label; else the quota named like, and living in, its namespace; else the one that its namespace is
    bound to; else the default one. `label_only` leaves out all but the label.
    """
    if named := pod_labels.get(labels.QUOTA_NAME, ""):
        return named
    if label_only:
        return ""
    own = tree.get(namespace)
    if own is not None and own.namespace == namespace:
        return own.name
    bound = tree.bound_to(namespace)
    return bound.name if bound is not None else labels.DEFAULT_QUOTA_NAME


def check(
    tree: QuotaTree, pod: Pod, old: Pod | None, namespace: str, rules: PodQuotaRules
) -> QuotaUseVerdict:
    """Return whether a pod may be created or, with `old`, changed. A quota that nobody knows is the default one."""
    if old is not None:
        was, now = (each.metadata.labels.get(labels.QUOTA_PREEMPTIBLE, "") for each in (old, pod))
        if was != now:
            message = f'labels.{labels.QUOTA_PREEMPTIBLE}: Invalid value: "{now}": field is immutable'
            return QuotaUseVerdict(PodRefusal.PREEMPTIBLE, f"{message} (rule {PodRefusal.PREEMPTIBLE})")
    name = quota_name(tree, pod.metadata.labels, namespace, label_only=rules.label_only)
    quota = tree.get(name)
    if quota is not None and quota.is_parent and not rules.allows_parents:
        message = f"pod can not be linked to a parentQuotaGroup,quota:{name}, pod:{pod.metadata.name}"
        by = f"label {labels.QUOTA_NAME}" if pod.metadata.labels.get(labels.QUOTA_NAME) else "its namespace"
        where = f"ElasticQuota {quota.key} by {by}, rule {PodRefusal.PARENT_QUOTA}"
        return QuotaUseVerdict(PodRefusal.PARENT_QUOTA, f"{message} ({where})")
    return QuotaUseVerdict()
