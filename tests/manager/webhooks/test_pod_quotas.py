"""What pods are told about their quotas: room is taken when it should be, nodes of a tree are found, by gates."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from koordinator import clock as clocks
from koordinator.api import crd, labels
from koordinator.api.core import Namespace, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.groups import CustomResourceDefinition, ElasticQuotaProfile
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster.informer import InformerFactory
from koordinator.local import registry
from koordinator.manager.options import QuotaUpdateOptions
from koordinator.manager.webhooks.pod_quotas import PodQuotas
from koordinator.manager.webhooks.quota_topology import QuotaTopology
from koordinator.simulate import virtual_time
from tests.manager.quota.builders import quota_body
from tests.manager.quota.distant import Cluster

ON = "EnableQuotaAdmission=true"


class Scene:
    """Pods' view of quotas on a cluster with quota `web` of 4 cores and namespace `shop` bound to it."""

    def __init__(self, cluster: Cluster, quotas: PodQuotas) -> None:
        self.cluster, self.quotas = cluster, quotas

    async def used(self, name: str = "web") -> str:
        quota = await self.cluster.get(ElasticQuota, name, "quotas")
        return quota.metadata.annotations.get(labels.QUOTA_CHILD_REQUEST, "")

    async def create(self, body: Pod, *, old: Pod | None = None, dry_run: bool = False) -> tuple[int, str]:
        verdict = await self.quotas.evaluate(body, old, dry_run)
        return verdict.code, verdict.message


def pod(cpu: str = "1", namespace: str = "shop", phase: str = "", **rest: Any) -> Pod:
    metadata = {"name": "p", "namespace": namespace, **rest}
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return from_builtins(
        {"metadata": metadata, "spec": {"containers": [container]}, "status": {"phase": phase}}, Pod
    )


def named(name: str, **rest: Any) -> Pod:
    return pod(labels={labels.QUOTA_NAME: name}, **rest)


def run(scenario: Callable[[Scene], Awaitable[None]], gates: str = ON) -> None:
    async def main(clock: clocks.LoopClock) -> None:
        cluster = Cluster(registry.in_memory(clock, checks=False), random.Random(0))
        for manifest in crd.manifests():
            await cluster.create(CustomResourceDefinition, manifest)
        await cluster.create(Namespace, {"metadata": {"name": "quotas"}})
        body = quota_body("web", high={"cpu": "4"}, namespaces=["shop"], tree="t1")
        await cluster.create(ElasticQuota, body, "quotas")
        factory = InformerFactory(cluster, random.Random(0))
        topology = QuotaTopology(factory, clock)
        found = FeatureGates.of(Component.MANAGER, gates)
        quotas = PodQuotas(cluster, factory, topology, found, QuotaUpdateOptions(), random.Random(0))
        async with asyncio.TaskGroup() as group:
            factory.start(group)
            await factory.wait_synced()
            await scenario(Scene(cluster, quotas))
            await factory.stop()

    virtual_time.run_virtual(main)


def test_room_is_taken_in_the_quota_of_the_namespace_until_there_is_none() -> None:
    async def scenario(scene: Scene) -> None:
        assert await scene.create(pod("3")) == (200, "")
        assert await scene.create(pod("2"), dry_run=True) == (
            400,
            "exceeded quota: quotas/web, requested: cpu=2, used: cpu=3, limited: cpu=4",
        )
        assert await scene.create(pod("1"), dry_run=True) == (200, "")
        assert await scene.create(pod("9", phase="Succeeded")) == (200, "")
        assert await scene.used() == '{"cpu":"3"}'

    run(scenario)


def test_nothing_is_taken_while_the_gate_is_off_or_for_built_in_quotas() -> None:
    async def without(scene: Scene) -> None:
        assert await scene.create(pod("9")) == (200, "")
        assert await scene.used() == ""

    run(without, "")

    async def built_in(scene: Scene) -> None:
        for name in (labels.DEFAULT_QUOTA_NAME, labels.SYSTEM_QUOTA_NAME, labels.ROOT_QUOTA_NAME):
            assert await scene.create(named(name, cpu="9")) == (200, "")
        assert await scene.create(pod("9", namespace="elsewhere")) == (200, "")

    run(built_in)


def test_a_quota_that_cannot_be_told_refuses_and_one_that_cannot_be_asked_is_an_error() -> None:
    async def scenario(scene: Scene) -> None:
        assert await scene.create(named("nobody")) == (400, "elastic quota nobody not found")
        twin = quota_body("web")
        twin["metadata"]["namespace"] = "default"
        await scene.cluster.create(ElasticQuota, twin, "default")
        await asyncio.sleep(1)
        assert await scene.create(pod()) == (400, "more than one elastic quota web found")
        await scene.cluster.delete(ElasticQuota, "web", "default")
        await asyncio.sleep(1)

        scene.cluster.fault_ratio = 1.0
        assert await scene.create(pod()) == (500, "quota quotas/web could not be updated: not now")
        scene.cluster.fault_ratio = 0.0
        annotations = {"metadata": {"annotations": {labels.QUOTA_CHILD_REQUEST: "{"}}}
        await scene.cluster.patch(ElasticQuota, "web", annotations, "quotas")
        await asyncio.sleep(1)
        code, message = await scene.create(pod())
        assert (code, "ElasticQuota quotas/web" in message) == (400, True)

    run(scenario)


def test_an_update_counts_only_with_its_gate_and_when_the_quota_changes() -> None:
    async def with_gate(scene: Scene) -> None:
        await scene.cluster.create(ElasticQuota, quota_body("db", high={"cpu": "4"}), "quotas")
        await asyncio.sleep(1)
        assert await scene.create(pod("9"), old=named("web")) == (200, "")
        assert await scene.used() == ""
        assert (await scene.create(named("db", cpu="9"), old=pod()))[0] == 400
        assert await scene.create(named("db", cpu="2"), old=pod()) == (200, "")
        assert await scene.used("db") == '{"cpu":"2"}'

    run(with_gate, f"{ON},EnableQuotaAdmissionOnUpdate=true")

    async def without(scene: Scene) -> None:
        assert await scene.create(named("nobody"), old=pod()) == (200, "")

    run(without)


def test_renamed_resources_count_under_their_new_name_with_both_gates() -> None:
    renamed = {labels.REPLACE_RESOURCES: "odd/cpu:cpu"}
    container = {"name": "c", "resources": {"requests": {"odd/cpu": "5"}}}
    body = {"metadata": {"namespace": "shop", "annotations": renamed}, "spec": {"containers": [container]}}
    transformed = from_builtins(body, Pod)
    both = f"{ON},ElasticQuotaEvaluationTransformPod=true,ReplaceResourcesTransformer=true"
    for gates, code in ((both, 400), (f"{ON},ElasticQuotaEvaluationTransformPod=true", 200), (ON, 200)):

        async def scenario(scene: Scene, code: int = code) -> None:
            assert (await scene.create(transformed))[0] == code

        run(scenario, gates)


def test_pods_of_a_tree_go_to_the_nodes_of_its_first_profile() -> None:
    async def scenario(scene: Scene) -> None:
        for name, pool in (("b", "two"), ("a", "one")):
            profile = {
                "metadata": {"name": name, "labels": {labels.QUOTA_TREE_ID: "t1"}},
                "spec": {"quotaName": "web", "nodeSelector": {"matchLabels": {"pool": pool}}},
            }
            await scene.cluster.create(ElasticQuotaProfile, profile, "quotas")
        await asyncio.sleep(1)

        for own, namespace in (({labels.QUOTA_NAME: "web"}, "x"), ({}, "shop"), ({}, "web")):
            found = scene.quotas.nodes_of(own, namespace)
            assert found is not None and found.match_labels == {"pool": "one"}
        assert scene.quotas.nodes_of({}, "elsewhere") is None
        await scene.cluster.delete(ElasticQuotaProfile, "a", "quotas")
        await scene.cluster.delete(ElasticQuotaProfile, "b", "quotas")
        await asyncio.sleep(1)
        assert scene.quotas.nodes_of({}, "shop") is None

    run(scenario, "MultiQuotaTree=true")
