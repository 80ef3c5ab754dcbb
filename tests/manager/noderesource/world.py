"""A manager beside a scenario: an in-process cluster on virtual time, whose writes to nodes are recorded."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from koordinator import clock as clocks
from koordinator.api import crd, defaults
from koordinator.api.core import ConfigMap, Namespace, Node, Pod
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.meta import Object
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.supervise import strictly
from koordinator.local import registry
from koordinator.manager.manager import Manager
from koordinator.manager.noderesource.controller import NodeResourceController
from koordinator.manager.options import ManagerOptions
from koordinator.simulate import virtual_time

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
MID_CPU, MID_MEMORY = "kubernetes.io/mid-cpu", "kubernetes.io/mid-memory"

T = TypeVar("T", bound=Object)


class RecordingCluster(MemoryCluster):
    """Notes patches of nodes and topologies; `failures` are raised first, one per patch."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.writes: list[tuple[str, Mapping[str, Any]]] = []
        self.failures: list[errors.ApiError] = []
        self.write_s = 0.0
        self.under_way = self.under_way_max = 0

    async def patch(self, view: type[T], name: str, patch: Any, namespace: str = "", **options: Any) -> T:
        if view in (Node, NodeResourceTopology):
            if self.failures:
                raise self.failures.pop(0)
            assert isinstance(patch, Mapping)
            self.writes.append((name, patch))
            self.under_way += 1
            self.under_way_max = max(self.under_way_max, self.under_way)
            await asyncio.sleep(self.write_s)
            self.under_way -= 1
        return await super().patch(view, name, patch, namespace, **options)


class World:
    """What scenarios use. `cluster` is that of the manager, `user` is everybody else's way to the same objects."""

    def __init__(
        self, cluster: RecordingCluster, group: asyncio.TaskGroup, build: Callable[[], Manager]
    ) -> None:
        self.cluster = cluster
        self.user = MemoryCluster(cluster._backend)
        self._group = group
        self._build = build
        self.start()

    def start(self) -> None:
        """A manager that has everything to learn."""
        self.manager = self._build()
        self._task = self._group.create_task(self.manager.run())

    async def stop(self) -> None:
        """The manager ends."""
        self._task.cancel()
        await asyncio.wait([self._task])

    @property
    def controller(self) -> NodeResourceController:
        found = self.manager.controllers["noderesource"]
        assert isinstance(found, NodeResourceController)
        return found

    async def node(self, name: str = "n1") -> Node:
        return await self.user.get(Node, name)

    async def report(self, node: str = "n1", age_s: float = 0.0, **changes: Any) -> None:
        """A report of the node agent: 7 cores and 12G for the system unless `changes` say otherwise."""
        status: dict[str, Any] = {
            "updateTime": clocks.rfc3339(self.cluster.clock.now() - age_s),
            "nodeMetric": {
                "nodeUsage": {"resources": {"cpu": "20", "memory": "30G"}},
                "systemUsage": {"resources": {"cpu": "7", "memory": "12G"}},
            },
            "podsMetric": [],
            "hostApplicationMetric": [],
            **changes,
        }
        await self.user.patch(NodeMetric, node, {"status": status}, subresource="status")
        await asyncio.sleep(1)

    async def configure(self, **texts: str | None) -> None:
        """Keys of the configuration, `_` for `-`; None takes a key away."""
        data = {key.replace("_", "-"): text for key, text in texts.items()}
        await self.user.patch(ConfigMap, defaults.SLO_CONFIG_NAME, {"data": data}, defaults.NAMESPACE)
        await asyncio.sleep(1)

    async def events(self) -> list[tuple[str, str]]:
        """(reason, message) of all events about nodes."""
        found = await self.user.request("GET", "/api/v1/namespaces/default/events")
        items = sorted(found["items"], key=lambda event: event["firstTimestamp"])
        return [(event["reason"], event["message"]) for event in items]


Scenario = Callable[[World], Awaitable[None]]


def run(
    scenario: Scenario,
    *,
    nodes: Sequence[dict[str, Any]] | None = None,
    options: ManagerOptions = ManagerOptions(),  # noqa: B008
    gates: str = "",
) -> None:
    """The manager beside a scenario; one node of 100 cores and 120G unless `nodes` says otherwise."""

    async def main(clock: clocks.LoopClock) -> None:
        cluster = RecordingCluster(registry.in_memory(clock, checks=False))
        for manifest in crd.manifests():
            await cluster.create(CustomResourceDefinition, manifest)
        names = {ns.metadata.name for ns in (await cluster.list(Namespace)).items}
        if defaults.NAMESPACE not in names:
            await cluster.create(Namespace, defaults.namespace())
        await cluster.create(ConfigMap, defaults.slo_config(), defaults.NAMESPACE)
        for body in [node_body()] if nodes is None else nodes:
            await cluster.create(Node, body)
        with strictly():
            async with asyncio.TaskGroup() as group:
                world = World(
                    cluster,
                    group,
                    lambda: Manager(cluster, options, FeatureGates.of(Component.MANAGER, gates)),
                )
                await asyncio.sleep(1)
                await scenario(world)
                await world.stop()

    virtual_time.run_virtual(main)


def node_body(name: str = "n1", **metadata: Any) -> dict[str, Any]:
    amounts = {"cpu": "100", "memory": "120G", "pods": "110"}
    return {
        "metadata": {"name": name, **metadata},
        "status": {"capacity": amounts, "allocatable": dict(amounts)},
    }


def pod_body(
    name: str, cpu: str = "20", memory: str = "20G", qos: str = "LS", node: str = "n1"
) -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": memory}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {"koordinator.sh/qosClass": qos}},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": "x", "resources": {"requests": requests}}],
        },
        "status": {"phase": "Running"},
    }


async def create_pod(world: World, *args: Any, **kwargs: Any) -> None:
    await world.user.create(Pod, pod_body(*args, **kwargs), "default")


def pod_usage(name: str, cpu: str, memory: str, priority: str = "koord-prod") -> dict[str, Any]:
    usage = {"resources": {"cpu": cpu, "memory": memory}}
    return {"name": name, "namespace": "default", "priority": priority, "podUsage": usage}


def topology_body(name: str = "n1", model: str = "Xeon A", **metadata: Any) -> dict[str, Any]:
    """Two zones of 50 cores and 60G."""
    rows = [
        {"name": resource, "capacity": half, "allocatable": half, "available": half}
        for resource, half in (("cpu", "50"), ("memory", "60G"))
    ]
    info = f'{{"cpuModel": "{model}", "hyperThreadEnabled": true, "turboEnabled": true}}'
    return {
        "metadata": {"name": name, "annotations": {"node.koordinator.sh/cpu-basic-info": info}, **metadata},
        "topologyPolicies": [],
        "zones": [{"name": f"node-{zone}", "type": "Node", "resources": rows} for zone in range(2)],
    }
