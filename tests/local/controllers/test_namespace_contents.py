"""Every namespace has a default account and the certificate of the API server, whatever happens to them."""

import asyncio

from koordinator.api.core import ConfigMap, Namespace, ServiceAccount
from koordinator.cluster import errors
from koordinator.local.controllers.namespace import NamespaceContentsController
from tests.local.controllers.world import Runs, World, run

CA = "-----BEGIN CERTIFICATE-----"


def build(world: World) -> list[Runs]:
    return [NamespaceContentsController(world.cluster, world.factory, CA)]


async def certificate(world: World, namespace: str) -> dict[str, str]:
    return (await world.cluster.get(ConfigMap, "kube-root-ca.crt", namespace)).data


def test_new_namespaces_and_those_from_the_start_have_both() -> None:
    async def scenario(world: World) -> None:
        await world.cluster.create(Namespace, {"metadata": {"name": "new"}})
        await asyncio.sleep(1)

        for namespace in ("new", "default", "kube-system"):
            assert await certificate(world, namespace) == {"ca.crt": CA}
            await world.cluster.get(ServiceAccount, "default", namespace)

    run(build, scenario)


def test_what_is_deleted_or_changed_comes_back() -> None:
    async def scenario(world: World) -> None:
        await asyncio.sleep(1)
        await world.cluster.delete(ServiceAccount, "default", "default")
        await world.cluster.delete(ConfigMap, "kube-root-ca.crt", "default")
        await world.cluster.patch(
            ConfigMap, "kube-root-ca.crt", {"data": {"ca.crt": "x", "more": "y"}}, "kube-system"
        )
        await asyncio.sleep(1)

        await world.cluster.get(ServiceAccount, "default", "default")
        assert (
            await certificate(world, "default") == await certificate(world, "kube-system") == {"ca.crt": CA}
        )

    run(build, scenario)


def test_a_namespace_that_goes_is_left_alone() -> None:
    async def scenario(world: World) -> None:
        await world.cluster.create(Namespace, {"metadata": {"name": "going"}})
        await asyncio.sleep(1)
        await world.cluster.delete(Namespace, "going")
        await world.cluster.delete(ConfigMap, "kube-root-ca.crt", "going")
        await asyncio.sleep(1)

        try:
            await certificate(world, "going")
        except errors.NotFound:
            return
        raise AssertionError("it was created again")

    run(build, scenario)
