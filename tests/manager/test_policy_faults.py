"""Policies and profiles under a misbehaving API: never wrong twice, and right once it behaves again.

A failing seed fails again.
"""

import asyncio
import json
import random
from typing import Any

import pytest

from koordinator import clock as clocks
from koordinator.api import crd, defaults, labels
from koordinator.api.core import ConfigMap, Namespace, Node, Pod
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.groups import ClusterColocationProfile, CustomResourceDefinition
from koordinator.api.node_metric import NodeMetric
from koordinator.api.slo import NodeSLO
from koordinator.cluster import supervise
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.manager import Manager
from koordinator.manager.options import ManagerOptions
from koordinator.simulate import virtual_time
from tests.cluster.faulty_cluster import Faults, FaultyCluster

NODES = [f"n{number}" for number in range(12)]
PODS = [f"p{number}" for number in range(12)]
UNREST_S, SETTLE_S = 600, 400
GATES = "ColocationProfileController=true,WebhookFramework=false"


class World:
    def __init__(self, api: MemoryCluster, rng: random.Random) -> None:
        self.api = api
        self.rng = rng
        self.percent = 65
        self.pools = dict.fromkeys(NODES, "a")

    async def build(self) -> None:
        for manifest in crd.manifests():
            await self.api.create(CustomResourceDefinition, manifest)
        known = {ns.metadata.name for ns in (await self.api.list(Namespace)).items}
        for name in {"default", defaults.NAMESPACE} - known:
            await self.api.create(Namespace, {"metadata": {"name": name}})
        await self.api.create(ConfigMap, defaults.slo_config(), defaults.NAMESPACE)
        for name in NODES:
            await self.api.create(Node, {"metadata": {"name": name, "labels": {"pool": "a"}}})
        for name in PODS:
            body = {"metadata": {"name": name, "labels": {"app": "web"}}, "status": {"phase": "Pending"}}
            await self.api.create(Pod, body | {"spec": {"containers": [{"name": "c"}]}}, "default")
        for name, suffix in (("one", "-1"), ("two", "-2")):
            metadata = {"name": name, "labels": {labels.CONTROLLER_MANAGED: "true"}}
            spec: dict[str, Any] = {"selector": {}, "labelSuffixes": {"app": suffix}, "labels": {name: "x"}}
            await self.api.create(ClusterColocationProfile, {"metadata": metadata, "spec": spec})

    async def act(self) -> None:
        rng = self.rng
        match rng.randrange(4):
            case 0:
                self.percent = rng.randrange(10, 90)
                entries = [
                    {
                        "nodeSelector": {"matchLabels": {"pool": "b"}},
                        "cpuSuppressThresholdPercent": self.percent,
                    }
                ]
                await self._configure("resource-threshold-config", json.dumps({"nodeStrategies": entries}))
            case 1:
                await self._configure("cpu-burst-config", rng.choice(["{", "", '{"clusterStrategy": {}}']))
            case 2:
                name = rng.choice(NODES)
                self.pools[name] = rng.choice("ab")
                await self.api.patch(Node, name, {"metadata": {"labels": {"pool": self.pools[name]}}})
            case 3:
                name = rng.choice(PODS)
                await self.api.patch(Pod, name, {"metadata": {"labels": {"one": "changed"}}}, "default")

    async def _configure(self, key: str, text: str) -> None:
        name = defaults.SLO_CONFIG_NAME
        await self.api.patch(ConfigMap, name, {"data": {key: text}}, defaults.NAMESPACE)

    async def no_suffix_is_there_twice(self) -> None:
        for pod in (await self.api.list(Pod, "default")).items:
            value = pod.metadata.labels["app"]
            assert value.count("-1") <= 1 and value.count("-2") <= 1, value

    async def all_is_right(self) -> None:
        slos = {slo.metadata.name: slo.spec for slo in (await self.api.list(NodeSLO)).items}
        assert (
            set(slos) == {obj.metadata.name for obj in (await self.api.list(NodeMetric)).items} == set(NODES)
        )
        for name, spec in slos.items():
            assert spec.resource_used_threshold_with_be is not None
            wanted = self.percent if self.pools[name] == "b" else 65
            assert spec.resource_used_threshold_with_be.cpu_suppress_threshold_percent == wanted
        for pod in (await self.api.list(Pod, "default")).items:
            own = pod.metadata.labels
            assert sorted(own["app"].split("-")) == ["1", "2", "web"] and own["one"] == own["two"] == "x"


@pytest.mark.parametrize("seed", range(4))
def test_policies_and_profiles_come_through(seed: int) -> None:
    async def main(clock: clocks.LoopClock) -> None:
        rng = random.Random(seed)
        api = MemoryCluster(registry.in_memory(clock, checks=False))
        world = World(api, rng)
        await world.build()
        faulty = FaultyCluster(api, Faults.drawn(rng), rng)
        options = ManagerOptions(controllers=("nodemetric", "nodeslo", "colocationprofile"))
        manager = Manager(faulty, options, FeatureGates.of(Component.MANAGER, GATES))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(manager.run())
            ends_s = clock.now() + UNREST_S
            while clock.now() < ends_s:
                await asyncio.sleep(rng.expovariate(1 / 10))
                await world.act()
                await world.no_suffix_is_there_twice()
                if rng.random() < 0.1:
                    faulty.misbehave(Faults.drawn(rng))
            faulty.heal()
            await asyncio.sleep(SETTLE_S)
            await world.all_is_right()
            await world.no_suffix_is_there_twice()
            task.cancel()

    with supervise.strictly():
        virtual_time.run_virtual(main)
