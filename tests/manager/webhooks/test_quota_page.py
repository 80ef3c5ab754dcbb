"""`/elasticQuota`, where people look up what the quota webhooks know."""

import asyncio
from typing import Any

import msgspec

from koordinator import clock as clocks
from koordinator.api import crd
from koordinator.api.core import Namespace
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.manager import Manager
from koordinator.simulate import virtual_time
from tests.manager.quota.builders import quota_body


def test_the_page_shows_the_tree_of_the_webhooks() -> None:
    async def main(clock: clocks.LoopClock) -> None:
        cluster = MemoryCluster(registry.in_memory(clock, checks=False))
        for manifest in crd.manifests():
            await cluster.create(CustomResourceDefinition, manifest)
        await cluster.create(Namespace, {"metadata": {"name": "quotas"}})
        manager = Manager(cluster)
        async with manager.following():
            await cluster.create(ElasticQuota, quota_body("team", is_parent=True), "quotas")
            await cluster.create(ElasticQuota, quota_body("web", "team", low={"cpu": "1"}), "quotas")
            await asyncio.sleep(1)
            shown: dict[str, Any] = msgspec.json.decode(manager.admission.pages["/elasticQuota"]())

        assert shown["quotaHierarchyInfo"] == {"koordinator-root-quota": ["team"], "team": ["web"]}
        assert shown["quotaInfoMap"]["web"] == {
            "name": "web",
            "parentName": "team",
            "isParent": False,
            "allowLentResource": True,
            "max": {"cpu": "100"},
            "min": {"cpu": "1"},
        }

    virtual_time.run_virtual(main)


def test_without_webhooks_there_is_no_page() -> None:
    async def main(clock: clocks.LoopClock) -> None:
        cluster = MemoryCluster(registry.in_memory(clock, checks=False))
        gates = FeatureGates.of(Component.MANAGER, "WebhookFramework=false")
        assert Manager(cluster, gates=gates).admission.pages == {}

    virtual_time.run_virtual(main)
