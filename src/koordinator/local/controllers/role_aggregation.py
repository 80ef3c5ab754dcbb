"""Fills ClusterRoles that are made of others (`admin`, `edit`, `view`) with the rules of those.

Source: kube-controller-manager's ClusterRole aggregation controller.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from koordinator.api import label_selector
from koordinator.api.groups import ClusterRole
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.protocol import Cluster, patch_same


def aggregated(role: ClusterRole, all_roles: Iterable[ClusterRole]) -> list[dict[str, Any]]:
    """Return the rules of the roles that the role's selectors match, by name of the role, each rule once.

    Raises: ProtocolError for a selector that cannot be read.
    """
    wanted = role.aggregation_rule.cluster_role_selectors if role.aggregation_rule is not None else []
    selectors = [label_selector.compile_selector(selector) for selector in wanted]
    found: dict[bytes, dict[str, Any]] = {}
    for other in sorted(all_roles, key=lambda one: one.metadata.name):
        if other.metadata.name == role.metadata.name:
            continue
        if any(matches(other.metadata.labels) for matches in selectors):
            for rule in other.rules or ():
                found.setdefault(msgspec.json.encode(rule, order="deterministic"), rule)
    return list(found.values())


class RoleAggregationController(ControllerLoop):
    """The loop; its keys are names of ClusterRoles with an aggregation rule."""

    def __init__(self, cluster: Cluster, factory: InformerFactory) -> None:
        self._cluster = cluster
        self._roles = factory.informer(ClusterRole)
        self._controller: Controller[str] = Controller("role aggregation", self._reconcile)
        self._controller.watch(self._roles, lambda _: self._aggregating())
        self._informers = [self._roles]

    def _aggregating(self) -> list[str]:
        """Whoever changed, these may have to follow: there are few of them."""
        return [role.metadata.name for role in self._roles.list() if role.aggregation_rule is not None]

    async def _reconcile(self, name: str) -> None:
        role = self._roles.get(name)
        if role is None or role.aggregation_rule is None:
            return
        wanted = aggregated(role, self._roles.list())
        if wanted == (role.rules or []):
            return
        # The version guards: rules from an older list must not replace newer ones.
        try:
            await patch_same(self._cluster, role, {"rules": wanted})
        except (errors.NotFound, errors.Conflict):
            return  # the change that was faster wakes us again
