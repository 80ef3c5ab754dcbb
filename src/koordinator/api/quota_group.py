"""Typed view of the group `quota.koordinator.sh`: ElasticQuotaProfile. Source: behaviour/crds 7."""

from typing import Annotated, ClassVar

from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import Object, Resource, ViewPart
from koordinator.api.schema import ATOMIC, REQUIRED, always


class ElasticQuotaProfileSpec(ViewPart, frozen=True, kw_only=True):
    """The nodes that make up a quota tree."""

    quota_name: Annotated[str, REQUIRED, "Name of the ElasticQuota to keep up to date."] = always("")
    node_selector: Annotated[LabelSelector, REQUIRED, ATOMIC, "Nodes of the tree."] = always(LabelSelector())
    quota_labels: Annotated[dict[str, str], "Labels that the ElasticQuota gets."] = {}
    resource_ratio: Annotated[
        str | None, "Share of the nodes' allocatable that the tree gets, such as 0.9; all when absent."
    ] = None


class ElasticQuotaProfileStatus(ViewPart, frozen=True, kw_only=True):
    """Nothing is reported yet."""


class ElasticQuotaProfile(Object, frozen=True, kw_only=True):
    """Makes the root ElasticQuota of a quota tree out of the nodes that it selects."""

    resource: ClassVar[Resource] = Resource(
        group="quota.koordinator.sh",
        version="v1alpha1",
        kind="ElasticQuotaProfile",
        plural="elasticquotaprofiles",
        short_names=("eqp",),
    )

    spec: ElasticQuotaProfileSpec = ElasticQuotaProfileSpec()
    status: ElasticQuotaProfileStatus = ElasticQuotaProfileStatus()
