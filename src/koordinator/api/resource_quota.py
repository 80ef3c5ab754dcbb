"""Typed view of ResourceQuota: what its controller needs."""

from typing import ClassVar

from koordinator.api.meta import Object, Resource, ViewPart
from koordinator.api.quantity import ResourceList


class ResourceQuotaSpec(ViewPart, frozen=True, kw_only=True):
    """`hard`: at most this much of each name, in the quota's namespace."""

    hard: ResourceList = {}


class ResourceQuota(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="",
        version="v1",
        kind="ResourceQuota",
        plural="resourcequotas",
        short_names=("quota",),
        subresources=("status",),
    )

    spec: ResourceQuotaSpec = ResourceQuotaSpec()
