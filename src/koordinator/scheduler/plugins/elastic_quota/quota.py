"""One quota of a tree: what its owner wrote, and what its pods and its children add up to.

Source: spec 06, sections 2.1 and 5.
"""

import msgspec

from koordinator.api import labels, normalization, quota_labels, resource_list
from koordinator.api.annotations import quota as quota_annotations
from koordinator.api.resource_list import Amounts
from koordinator.api.sigs import ElasticQuota
from koordinator.scheduler.plugins.elastic_quota.amounts import limited

ROOT = labels.ROOT_QUOTA_NAME
SYSTEM = labels.SYSTEM_QUOTA_NAME
DEFAULT = labels.DEFAULT_QUOTA_NAME

OUTSIDE_THE_SHARES = frozenset((SYSTEM, DEFAULT))
"""Quotas whose use is taken out of the pool; they take no part in sharing the rest."""


class QuotaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an ElasticQuota says. The names in `max` are the resources that the quota counts."""

    name: str
    parent: str = ROOT
    is_parent: bool = False
    lends: bool = True
    min: Amounts = {}
    max: Amounts = {}
    weight: Amounts = {}

    @classmethod
    def of(cls, quota: ElasticQuota) -> "QuotaSpec":
        """Resource names in their current spelling; a weight that is absent or malformed is `max`.

        Raises: QuantityError.
        """
        quota = normalization.normalize_quota(quota)
        name, own = quota.metadata.name, quota.metadata.labels
        ceiling = resource_list.of(quota.spec.max)
        return cls(
            name=name,
            parent=quota_labels.parent_name(name, own),
            is_parent=quota_labels.is_parent(own),
            lends=quota_labels.allows_lending(own),
            min=resource_list.of(quota.spec.min),
            max=ceiling,
            weight=resource_list.of(
                quota_annotations.shared_weight(quota.metadata.annotations, quota.spec.max)
            ),
        )


class PodAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A pod as its quota sees it. `request` is the effective request of all its containers."""

    key: str
    """`namespace/name`."""
    request: Amounts
    is_on_node: bool = False
    is_over: bool = False
    """Succeeded or Failed."""
    is_preemptible: bool = True
    is_ignored: bool = False
    """Being deleted, and not to be counted any more."""


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod adds to its quota: exactly this is taken away again when it leaves."""

    amounts: Amounts
    is_preemptible: bool
    is_assigned: bool


class Sums(msgspec.Struct):
    """Amounts of pods: all of them, and the part of those that cannot be preempted."""

    request: Amounts = {}
    non_preemptible_request: Amounts = {}
    used: Amounts = {}
    non_preemptible_used: Amounts = {}


class Quota(msgspec.Struct, kw_only=True):
    """The state of one quota; only its tree changes it."""

    spec: QuotaSpec
    lends: bool
    auto_min: Amounts
    """The minimum, scaled down where the parent cannot give all minima."""
    own: Sums = msgspec.field(default_factory=Sums)
    """Pods directly in the quota."""
    below: Sums = msgspec.field(default_factory=Sums)
    """Own pods, and what the children pass on; `below.request` is what upstream calls child request."""
    allocated: Amounts = {}
    runtime: Amounts = {}
    """As of the last refresh."""
    pods: dict[str, Counted] = {}

    @property
    def request(self) -> Amounts:
        """What is asked for; one that does not lend always asks for its minimum."""
        asked = self.below.request
        return asked if self.lends else resource_list.maximum(asked, self.spec.min)

    @property
    def limited_request(self) -> Amounts:
        """What the parent sees: demand above max never reaches it."""
        return limited(self.request, self.spec.max)

    @property
    def guaranteed(self) -> Amounts:
        """What is never taken back: the minimum, or what was allocated already."""
        return resource_list.maximum(self.allocated, self.spec.min)
