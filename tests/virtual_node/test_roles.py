"""The roles in deploy/virtual-node allow all that the process asks for on both sides, and nothing that it does not."""

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from koordinator.api.core import ConfigMap, Namespace, Pod, Secret
from koordinator.api.groups import Lease
from koordinator.cluster import errors
from koordinator.cluster.leader import ElectionConfig, LeaderElector
from koordinator.virtual_node.pods import PodRules
from koordinator.virtual_node.translate import Sharing
from tests.install.roles import RoleCluster
from tests.virtual_node.world import LENT, World, run

DEPLOY = Path(__file__).parents[2] / "deploy" / "virtual-node"


class Permission(NamedTuple):
    namespace: str
    group: str
    resource: str
    verb: str
    names: tuple[str, ...]


class FileRoles:
    """The permissions of a file; notes which were needed, and what none of them allows."""

    def __init__(self, path: Path) -> None:
        bodies = [body for body in yaml.safe_load_all(path.read_text()) if body["kind"].endswith("Role")]
        self.permissions = [
            Permission(body["metadata"].get("namespace", ""), group, resource, verb, names)
            for body in bodies
            for rule in body["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            for names in [tuple(rule.get("resourceNames", ()))]
        ]
        self.used: set[Permission] = set()
        self.refused: list[str] = []

    def check(self, verb: str, group: str, resource: str, namespace: str = "", name: str = "") -> None:
        """Raises: Forbidden, as an API server does."""
        for one in self.permissions:
            if (
                (one.group, one.resource, one.verb) == (group, resource, verb)
                and one.namespace in ("", namespace)
                and (not one.names or name in one.names)
            ):
                self.used.add(one)
                return
        self.refused.append(f"{verb} {resource}.{group} {namespace}/{name}")
        raise errors.Forbidden(self.refused[-1])

    def unused(self) -> list[Permission]:
        return [one for one in self.permissions if one not in self.used]


def test_the_roles_of_both_sides_are_what_the_process_asks_for() -> None:
    lender, borrower = FileRoles(DEPLOY / "lender.yaml"), FileRoles(DEPLOY / "borrower.yaml")

    async def scenario(world: World) -> None:
        await world.lender.cluster.create(Namespace, {"metadata": {"name": LENT}})
        for view, name in ((Secret, "shared"), (ConfigMap, "settings")):
            await world.borrower.cluster.create(view, {"metadata": {"name": name}, "data": {}}, "default")
        there: Any = RoleCluster(world.lender.backend, lender)  # type: ignore[arg-type]
        here: Any = RoleCluster(world.borrower.backend, borrower)  # type: ignore[arg-type]
        await here.get(Namespace, "kube-system")  # identity_of
        sharing = Sharing(config_maps=("default/*",), secrets=("default/shared",))
        config = ElectionConfig(
            name="koordinator-virtual-node-tidal-web", namespace="koordinator-system", identity="one"
        )
        # Another instance has just died.
        held = {
            "holderIdentity": "two",
            "leaseDurationSeconds": 15,
            "renewTime": "2026-01-01T00:00:00.000000Z",
        }
        body = {"metadata": {"name": config.name}, "spec": held}
        await world.lender.cluster.create(Lease, body, config.namespace)
        election = LeaderElector(there, config, rng=random.Random(0))
        refers = [{"secretRef": {"name": "shared"}}, {"configMapRef": {"name": "settings"}}]
        async with world.lending(there, here, election=election, rules=PodRules(sharing=sharing)):
            await world.offers("57600m")
            await world.borrow("job", "20", container={"envFrom": refers})
            await world.borrow("other", "20")
            await world.phase("job", "Running")
            await world.phase("other", "Running")
            await world.borrower.cluster.patch(Secret, "shared", {"data": {"a": "eA=="}}, "default")
            await world.borrower.cluster.patch(ConfigMap, "settings", {"data": {"a": "x"}}, "default")
            await world.pass_time(120)
            await world.borrow("brief", "2")
            await world.phase("brief", "Running")
            await world.borrower.cluster.delete(Pod, "brief", "default", grace_period_s=20)
            await world.gone("brief")
            await world.online("web", "20")
            await world.pass_time(30)
            [name] = await world.lender.pods(LENT)
            await world.borrower.cluster.delete(Pod, "job", "default")
            await world.borrower.cluster.delete(Pod, "other", "default", grace_period_s=0)
            await world.nothing_lent()
            await world.borrow("large", "30")
            await world.phase("large", "Pending", "OutOfHole")

    run(scenario)

    assert lender.refused == borrower.refused == []
    unused = [f"{one.verb} {one.resource} {one.namespace}" for one in (*lender.unused(), *borrower.unused())]
    streams = [
        f"{verb} pods/{kind} {LENT}"
        for kind in ("exec", "attach", "portforward")
        for verb in ("get", "create")
    ]
    reviews = ["create tokenreviews ", "create subjectaccessreviews "]
    # The first start, an event that comes again; logs and commands, and who may have them (`test_streams.py`).
    others = ["create leases koordinator-system", "patch events ", f"get pods/log {LENT}"]
    assert sorted(unused) == sorted([*others, *streams, *reviews])


@pytest.mark.parametrize("name", ["lender.yaml", "borrower.yaml"])
def test_each_role_is_bound(name: str) -> None:
    bodies = list(yaml.safe_load_all((DEPLOY / name).read_text()))

    def places(kind: str) -> list[tuple[str, str]]:
        return [
            (one["metadata"]["name"], one["metadata"].get("namespace", ""))
            for one in bodies
            if one["kind"] in (kind, f"Cluster{kind}")
        ]

    lookup = ("koordinator-virtual-node", "kube-system")  # of a role that every cluster has
    assert places("Role") == [place for place in places("RoleBinding") if place != lookup]
