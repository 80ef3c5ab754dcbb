"""Which objects a manager follows, and how often it looks at all of them again."""

import asyncio
from typing import Any

from koordinator.api import crd, defaults
from koordinator.api.core import ConfigMap, Namespace, Node, Pod
from koordinator.api.groups import CustomResourceDefinition
from koordinator.clock import LoopClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.manager import Manager
from koordinator.manager.options import ManagerOptions
from koordinator.simulate import virtual_time


def pod(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "x"}]}}


async def cluster_of(clock: LoopClock) -> MemoryCluster:
    cluster = MemoryCluster(registry.in_memory(clock, checks=False))
    for manifest in crd.manifests():
        await cluster.create(CustomResourceDefinition, manifest)
    await cluster.create(ConfigMap, defaults.slo_config(), defaults.NAMESPACE)
    await cluster.create(Node, {"metadata": {"name": "n1"}})
    return cluster


def test_a_manager_of_one_namespace_follows_its_pods_and_everything_without_a_namespace() -> None:
    async def main(clock: LoopClock) -> None:
        cluster = await cluster_of(clock)
        for namespace in ("shop", "elsewhere"):
            await cluster.create(Namespace, {"metadata": {"name": namespace}})
            await cluster.create(Pod, pod(f"of-{namespace}"), namespace)
        manager = Manager(cluster, ManagerOptions(namespace="shop"))
        factory = manager.shared.factory
        async with manager.following():
            assert [name for _, name in factory.informer(Pod).objects] == ["of-shop"]
            assert [name for _, name in factory.informer(Node).objects] == ["n1"]
            assert manager.shared.configs.data is not None, "the configuration is in its own namespace"

    virtual_time.run_virtual(main)


def test_everything_is_looked_at_again_every_so_often() -> None:
    async def looks(clock: LoopClock, resync_s: float) -> int:
        manager = Manager(await cluster_of(clock), ManagerOptions(resync_s=resync_s))
        seen: list[str] = []
        nodes = manager.shared.factory.informer(Node)
        nodes.add_handler(on_update=lambda old, new: seen.append(new.metadata.name))
        async with manager.following():
            await asyncio.sleep(100)
        return len(seen)

    async def main(clock: LoopClock) -> None:
        assert await looks(clock, 30.0) == 3
        assert await looks(clock, 0.0) == 0

    virtual_time.run_virtual(main)
