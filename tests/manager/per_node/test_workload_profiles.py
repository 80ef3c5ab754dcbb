"""Profiles of workloads: what all nodes learnt comes back to those on which a workload runs."""

import asyncio
from typing import Any

import msgspec
import pytest

from koordinator import clock as clocks
from koordinator.api import crd, defaults, workload_profile
from koordinator.api.core import ConfigMap, Node
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.node_metric import NodeMetric
from koordinator.api.slo import NodeSLO
from koordinator.api.workload_profile import ContainerProfile, Moments, PodInterference
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.manager import Manager
from koordinator.manager.per_node.workload_profiles import ProfileTable, has_moved
from koordinator.simulate import virtual_time

WEB = "shop/Deployment/web"


def told(mean: float, weight: float = 100.0, model: str = "EPYC") -> PodInterference:
    moments = Moments(weight=weight, mean=mean, variance=0.01)
    containers = {"main": ContainerProfile(cpi=moments)}
    return PodInterference(workload=WEB, cpu_model=model, containers=containers)


def mean_of(table: ProfileTable, node: str) -> float:
    found = table.of(node)
    assert found is not None
    cpi = found.workloads[WEB]["main"].cpi
    assert cpi is not None
    return cpi.mean


def test_nodes_count_by_their_samples_and_only_on_the_same_cpu() -> None:
    table = ProfileTable()
    table.say("a", [told(1.0, 100)])
    table.say("b", [told(2.0, 300)])
    table.say("c", [told(9.0, 900, model="Xeon")])

    assert mean_of(table, "a") == mean_of(table, "b") == pytest.approx(1.75)
    assert mean_of(table, "c") == 9.0
    assert table.take_changed() == {"a", "b", "c"}
    assert table.take_changed() == set()


def test_what_a_node_told_goes_with_it() -> None:
    table = ProfileTable()
    table.say("a", [told(1.0)])
    table.say("b", [told(2.0)])
    table.take_changed()

    table.say("b", [])

    assert mean_of(table, "a") == 1.0
    assert table.of("b") is None
    assert table.take_changed() == {"a"}


def test_a_node_is_told_only_what_has_moved() -> None:
    table = ProfileTable()
    table.say("a", [told(1.0)])
    before = table.of("a")
    assert before is not None
    assert has_moved(None, before)

    table.say("a", [told(1.01)])
    after = table.of("a")
    assert after is not None
    assert not has_moved(before, after)

    table.say("a", [told(1.2)])
    after = table.of("a")
    assert after is not None
    assert has_moved(before, after)


def test_profiles_travel_from_reports_to_policies() -> None:
    async def main(clock: clocks.LoopClock) -> None:
        cluster = MemoryCluster(registry.in_memory(clock, checks=False))
        for manifest in crd.manifests():
            await cluster.create(CustomResourceDefinition, manifest)
        await cluster.create(ConfigMap, defaults.slo_config(), defaults.NAMESPACE)
        for name in ("n1", "n2"):
            await cluster.create(Node, {"metadata": {"name": name}})
        gates = FeatureGates.of(Component.MANAGER, "WorkloadProfiles=true")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(Manager(cluster, gates=gates).run())
            await asyncio.sleep(1)
            for name, mean in (("n1", 1.0), ("n2", 3.0)):
                pod: dict[str, Any] = {
                    "name": "web-x",
                    "namespace": "shop",
                    "extensions": {workload_profile.EXTENSION: msgspec.to_builtins(told(mean))},
                }
                status = {"updateTime": clocks.rfc3339(clock.now()), "podsMetric": [pod]}
                await cluster.patch(NodeMetric, name, {"status": status}, subresource="status")
            await asyncio.sleep(90)

            for name in ("n1", "n2"):
                spec = (await cluster.get(NodeSLO, name)).spec
                found = workload_profile.of_node_slo(spec.extensions)
                assert found is not None
                cpi = found.workloads[WEB]["main"].cpi
                assert cpi is not None
                assert cpi.mean == 2.0
            task.cancel()

    virtual_time.run_virtual(main)
