"""The manager's loops on an in-process cluster: from a node agent's report to Batch resources."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from koordinator import clock as clocks
from koordinator.api import crd, defaults, labels
from koordinator.api.core import ConfigMap, Namespace, Node, Pod
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.node_metric import NodeMetric
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.manager import Manager
from koordinator.simulate import virtual_time

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
Scenario = Callable[[MemoryCluster], Awaitable[None]]


def run(scenario: Scenario) -> None:
    """The manager beside a scenario, on a cluster with one node of 100 cores and 120G."""

    async def main(clock: clocks.LoopClock) -> None:
        cluster = MemoryCluster(registry.in_memory(clock, checks=False))
        for manifest in crd.manifests():
            await cluster.create(CustomResourceDefinition, manifest)
        await _ensure_namespace(cluster)
        await cluster.create(ConfigMap, defaults.slo_config(), defaults.NAMESPACE)
        await cluster.create(Node, node())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(Manager(cluster).run())
            await asyncio.sleep(1)
            await scenario(cluster)
            task.cancel()

    virtual_time.run_virtual(main)


async def _ensure_namespace(cluster: MemoryCluster) -> None:
    names = {ns.metadata.name for ns in (await cluster.list(Namespace)).items}
    if defaults.NAMESPACE not in names:
        await cluster.create(Namespace, defaults.namespace())


def node() -> dict[str, Any]:
    amounts = {"cpu": "100", "memory": "120G", "pods": "110"}
    return {"metadata": {"name": "n1"}, "status": {"capacity": amounts, "allocatable": dict(amounts)}}


def service(name: str = "web", cpu: str = "20") -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": "20G"}
    return {
        "metadata": {"name": name, "labels": {"koordinator.sh/qosClass": "LS"}},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "image": "x", "resources": {"requests": requests}}],
        },
        "status": {"phase": "Running"},
    }


async def report(cluster: MemoryCluster, pod_cpu: str, system_cpu: str = "7") -> None:
    usage = {"name": "web", "namespace": "default", "priority": "koord-prod"}
    status = {
        "updateTime": clocks.rfc3339(cluster.clock.now()),
        "nodeMetric": {"systemUsage": {"resources": {"cpu": system_cpu, "memory": "12G"}}},
        "podsMetric": [{**usage, "podUsage": {"resources": {"cpu": pod_cpu, "memory": "11G"}}}],
    }
    await cluster.patch(NodeMetric, "n1", {"status": status}, subresource="status")
    await asyncio.sleep(1)


def test_a_report_becomes_batch_resources_and_a_silent_agent_takes_them_away() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await cluster.create(Pod, service(), "default")
        metric = await cluster.get(NodeMetric, "n1")
        assert metric.spec.metric_collect_policy is not None
        assert metric.spec.metric_collect_policy.report_interval_seconds == 60
        assert BATCH_CPU not in (await cluster.get(Node, "n1")).status.allocatable

        await report(cluster, pod_cpu="11")
        found = await cluster.get(Node, "n1")
        # 100 cores less the 40 % margin, 7 for the system and 11 in use: 42 cores.
        assert found.status.allocatable[BATCH_CPU] == "42k"
        assert found.status.capacity[BATCH_MEMORY] == "55G"
        assert labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE in found.metadata.annotations

        await asyncio.sleep(14 * 60)
        assert BATCH_CPU in (await cluster.get(Node, "n1")).status.allocatable
        await asyncio.sleep(2 * 60)
        assert BATCH_CPU not in (await cluster.get(Node, "n1")).status.allocatable

    run(scenario)


def test_small_changes_are_written_only_after_the_update_threshold() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await cluster.create(Pod, service(), "default")
        await report(cluster, pod_cpu="11")
        await report(cluster, pod_cpu="12")
        assert (await cluster.get(Node, "n1")).status.allocatable[BATCH_CPU] == "42k"

        await asyncio.sleep(301)
        await report(cluster, pod_cpu="12")
        assert (await cluster.get(Node, "n1")).status.allocatable[BATCH_CPU] == "41k"

    run(scenario)


def test_switching_colocation_off_removes_what_was_lent() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await report(cluster, pod_cpu="0")
        assert BATCH_CPU in (await cluster.get(Node, "n1")).status.allocatable

        patch = {"data": {"colocation-config": '{"enable": false}'}}
        await cluster.patch(ConfigMap, defaults.SLO_CONFIG_NAME, patch, defaults.NAMESPACE)
        await asyncio.sleep(1)
        found = (await cluster.get(Node, "n1")).status
        assert BATCH_CPU not in found.allocatable and BATCH_MEMORY not in found.capacity

    run(scenario)


def test_an_unreadable_configuration_keeps_the_last_one_and_tells_so() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        patch = {"data": {"colocation-config": '{"enable": "yes"}'}}
        await cluster.patch(ConfigMap, defaults.SLO_CONFIG_NAME, patch, defaults.NAMESPACE)
        await asyncio.sleep(1)
        await report(cluster, pod_cpu="11")

        assert BATCH_CPU in (await cluster.get(Node, "n1")).status.allocatable
        found = await cluster.request("GET", f"/api/v1/namespaces/{defaults.NAMESPACE}/events")
        assert [event["reason"] for event in found["items"]] == ["ColocationCfgUnmarshalFailed"]

    run(scenario)


def test_a_node_and_its_metric_live_and_die_together() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await cluster.delete(NodeMetric, "n1")
        await asyncio.sleep(1)
        assert (await cluster.get(NodeMetric, "n1")).metadata.name == "n1"

        await cluster.delete(Node, "n1")
        await asyncio.sleep(1)
        assert (await cluster.list(NodeMetric)).items == []

    run(scenario)
