"""Aggregated ClusterRoles follow the roles that their selectors match."""

import asyncio
from typing import Any

from koordinator.api import decode
from koordinator.api.groups import ClusterRole
from koordinator.local.authorization import default_roles
from koordinator.local.controllers.role_aggregation import RoleAggregationController, aggregated
from tests.local.controllers.world import World, run

READ_PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
READ_NODES = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}


def role(name: str, labels: dict[str, str] | None = None, *rules: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}}, "rules": list(rules)}


def test_an_aggregated_role_follows_the_roles_that_it_selects() -> None:
    async def scenario(world: World) -> None:
        rule = {"clusterRoleSelectors": [{"matchLabels": {"to": "all"}}, {"matchLabels": {"also": "x"}}]}
        await world.cluster.create(ClusterRole, {**role("all"), "aggregationRule": rule})
        await world.cluster.create(ClusterRole, role("a", {"to": "all"}, READ_PODS))
        await world.cluster.create(ClusterRole, role("b", {"also": "x"}, READ_NODES, READ_PODS))
        await world.cluster.create(ClusterRole, role("c", {"to": "nobody"}, READ_NODES))

        await asyncio.sleep(1)
        assert (await world.cluster.get(ClusterRole, "all")).rules == [READ_PODS, READ_NODES]

        await world.cluster.delete(ClusterRole, "b")
        await asyncio.sleep(1)
        assert (await world.cluster.get(ClusterRole, "all")).rules == [READ_PODS]

    run(lambda world: [RoleAggregationController(world.cluster, world.factory)], scenario)


def test_the_default_roles_hold_from_the_first_second() -> None:
    bodies = [body for plural, _, body in default_roles.seeds() if plural == "clusterroles"]
    roles = {body["metadata"]["name"]: decode.from_builtins(body, ClusterRole) for body in bodies}

    for name in ("view", "edit", "admin"):
        assert aggregated(roles[name], roles.values()) == roles[name].rules
