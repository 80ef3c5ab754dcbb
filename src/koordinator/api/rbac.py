"""Typed view of ClusterRole: what its aggregation needs. Rules stay as they are on the wire."""

from typing import Any, ClassVar

from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import Object, Resource, ViewPart


class AggregationRule(ViewPart, frozen=True, kw_only=True):
    """The role has the rules of all roles that one of the selectors matches."""

    cluster_role_selectors: list[LabelSelector] = []


class ClusterRole(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="rbac.authorization.k8s.io",
        version="v1",
        kind="ClusterRole",
        plural="clusterroles",
        namespaced=False,
    )

    rules: list[dict[str, Any]] | None = None
    aggregation_rule: AggregationRule | None = None
