"""Kubernetes beside a YARN: an in-process API with the real koord-manager and the operator, and what users do there."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

from koordinator import clock as clocks
from koordinator.api import crd, defaults, labels, quantity, resources
from koordinator.api.core import ConfigMap, Event, Namespace, Node, Pod
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.node_metric import NodeMetric
from koordinator.clock import Clock
from koordinator.cluster.errors import ServiceUnavailable
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.supervise import strictly
from koordinator.local import registry
from koordinator.manager.manager import Manager
from koordinator.manager.options import ManagerOptions
from koordinator.yarn import amounts, node_sync
from koordinator.yarn.amounts import BatchAmount
from koordinator.yarn.cluster_loop import SyncRules
from koordinator.yarn.operator import Connect, OperatorConfig, YarnOperator

Json = dict[str, Any]
NOTHING = BatchAmount()
SITE = "<configuration><property><name>yarn.resourcemanager.hostname</name><value>rm</value></property></configuration>"


class View(NamedTuple):
    """What a node says: the whole pool, what pods may have of it, what YARN has."""

    origin: BatchAmount
    kube_total: BatchAmount
    recorded: BatchAmount | None


class OperatorsCluster(MemoryCluster):
    """The operator's way to the API: while it `is_away` nothing is listed, and watches end with the next event."""

    is_away = False

    async def list(self, *args: Any, **more: Any) -> Any:
        if self.is_away:
            raise ServiceUnavailable("away")
        return await super().list(*args, **more)

    async def watch(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        async for batch in super().watch(*args, **more):
            if self.is_away:
                break
            yield batch
        raise ServiceUnavailable("away")


class World:
    """`api` is everybody's way to the objects, `operator` the one that was started last, with its own way."""

    operator: YarnOperator
    operators_api: OperatorsCluster

    def __init__(self, backend: Any, folder: Path, connect: Connect, rules: SyncRules, seed: int = 0) -> None:
        self.api = MemoryCluster(backend)
        self.folder = folder
        self._connect = connect
        self._rules = rules
        self._rng = random.Random(seed)

    @contextlib.asynccontextmanager
    async def operating(self) -> AsyncIterator[YarnOperator]:
        """A running operator, until the end of the block."""
        config = OperatorConfig(folder=self.folder, rules=self._rules, has_keytab=True)
        rng = random.Random(self._rng.getrandbits(32))
        self.operators_api = OperatorsCluster(self.api._backend)
        operator = self.operator = YarnOperator(self.operators_api, config, self._connect, rng)
        task = asyncio.create_task(operator.run(), name="operator")
        try:
            yield operator
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def add_node(self, name: str = "n1", cpu: int = 20, memory: str = "40Gi") -> None:
        """A node whose services use one core."""
        has = {"cpu": str(cpu), "memory": memory, "pods": "110"}
        body = {"metadata": {"name": name}, "status": {"capacity": has, "allocatable": dict(has)}}
        await self.api.create(Node, body)
        await asyncio.sleep(1)  # the manager makes the NodeMetric
        await self.report(name)

    async def report(self, name: str = "n1", cpu: str = "1", memory: str = "1Gi") -> None:
        """What services and the system of a node use now: the rest, without the margin, is the batch pool."""
        usage = {"resources": {"cpu": cpu, "memory": memory}}
        status: Json = {
            "updateTime": clocks.rfc3339(self.api.clock.now()),
            "nodeMetric": {"nodeUsage": usage, "systemUsage": usage},
            "podsMetric": [],
            "hostApplicationMetric": [],
        }
        await self.api.patch(NodeMetric, name, {"status": status}, subresource="status")

    async def node_manager(
        self, node_id: str | None, node: str = "n1", requests: Json | None = None, **more: Any
    ) -> None:
        """The NodeManager's pod, which announces itself."""
        annotations = {} if node_id is None else {amounts.NODE_ID_ANNOTATION: node_id}
        marks = {amounts.COMPONENT_LABEL: amounts.NODE_MANAGER}
        meta = {"name": f"nm-{node}", "labels": marks, "annotations": annotations, **more}
        await self._create_pod(meta, node, requests)

    async def tidal_phase(self, phase: str, returns_in_s: float | None = None, name: str = "n1") -> None:
        """Bring a node of a tidal pool to a phase."""
        at_s = None if returns_in_s is None else self.api.clock.now() + returns_in_s
        notes = {labels.TIDAL_RETURN_AT: None if at_s is None else clocks.rfc3339(at_s)}
        metadata = {"labels": {labels.TIDAL_PHASE: phase}, "annotations": notes}
        await self.api.patch(Node, name, {"metadata": metadata})

    async def batch_pod(self, name: str, milli: int, memory: str = "256Mi", node: str = "n1") -> None:
        await self._create_pod(
            {"name": name}, node, {resources.BATCH_CPU: str(milli), resources.BATCH_MEMORY: memory}
        )

    async def _create_pod(self, meta: Json, node: str, requests: Json | None = None) -> None:
        asked = {"requests": requests, "limits": requests} if requests else {}
        containers = [{"name": "main", "image": "x", "resources": asked}]
        body = {
            "metadata": meta,
            "spec": {"nodeName": node, "containers": containers},
            "status": {"phase": "Running"},
        }
        await self.api.create(Pod, body, "default")

    async def delete_pod(self, name: str) -> None:
        await self.api.delete(Pod, name, "default", grace_period_s=0)

    async def batch_milli(self) -> int:
        """What batch pods request of batch-cpu."""
        return sum(node_sync.batch_requested(pod).cpu_milli for pod in (await self.api.list(Pod)).items)

    async def view(self, name: str = "n1") -> View:
        node = await self.api.get(Node, name)
        found = node.metadata.annotations
        recorded = amounts.recorded(found.get(labels.NODE_THIRD_PARTY_ALLOCATIONS))
        return View(_origin(node), _batch(node.status.allocatable), recorded)

    async def told_of(self, reason: str) -> set[str]:
        """Names of all that events with a reason are about."""
        listed = (await self.api.list(Event)).items
        return {event.involved_object.name for event in listed if event.reason == reason}

    async def events(self) -> dict[str, str]:
        """Message of the last event by reason."""
        return {event.reason: event.message for event in (await self.api.list(Event)).items}


def _origin(node: Node) -> BatchAmount:
    return (
        node_sync.origin(node)
        if labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE in node.metadata.annotations
        else NOTHING
    )


def _batch(listed: Any) -> BatchAmount:
    return BatchAmount(*(quantity.value(listed.get(name, 0)) for name in resources.BATCH_RESOURCES))


@contextlib.asynccontextmanager
async def kubernetes(
    clock: Clock, folder: Path, connect: Connect, rules: SyncRules | None = None
) -> AsyncIterator[World]:
    """The API with koord-manager at work; the block ends both. `folder` has the Hadoop configuration."""
    backend = registry.in_memory(clock, checks=False)
    world = World(backend, folder, connect, rules or SyncRules())
    for manifest in crd.manifests():
        await world.api.create(CustomResourceDefinition, manifest)
    names = {each.metadata.name for each in (await world.api.list(Namespace)).items}
    if defaults.NAMESPACE not in names:
        await world.api.create(Namespace, defaults.namespace())
    await world.api.create(ConfigMap, defaults.slo_config(), defaults.NAMESPACE)
    manager = Manager(MemoryCluster(backend), ManagerOptions(), FeatureGates.of(Component.MANAGER, ""))
    with strictly():
        task = asyncio.create_task(manager.run(), name="manager")
        try:
            yield world
        finally:
            task.cancel()
            await asyncio.wait([task])
