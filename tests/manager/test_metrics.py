"""Metrics of a whole manager: every name of the reference is there, and what happens is counted."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from koordinator import clock as clocks
from koordinator.api import crd, defaults
from koordinator.api.core import ConfigMap, Node
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.node_metric import NodeMetric
from koordinator.clock import FixedClock, LoopClock
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.manager import Manager
from koordinator.manager.metrics import EXPIRE_PERIOD_S, EXPIRES_S, FAILED, SUCCEEDED, ManagerMetrics
from koordinator.simulate import virtual_time

FAMILIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "slo_controller_node_resource_reconcile_count": ("counter", ("status", "reason")),
    "slo_controller_nodemetric_reconcile_count": ("counter", ("status", "reason")),
    "slo_controller_nodemetric_spec_parse_count": ("counter", ("status", "reason")),
    "slo_controller_nodeslo_reconcile_count": ("counter", ("status", "reason")),
    "slo_controller_nodeslo_spec_parse_count": ("counter", ("status", "reason")),
    "slo_controller_node_resource_run_plugin_status": ("counter", ("plugin", "status", "reason")),
    "slo_controller_node_extended_resource_allocatable_internal": ("gauge", ("node", "resource", "unit")),
    "koord_manager_webhook_webhook_duration_milliseconds": (
        "histogram",
        ("webhook_type", "object_type", "operation", "plugin_name", "status"),
    ),
    "koord_manager_webhook_quota_shared_weight": ("gauge", ("elasticquota_name", "resource_name")),
    "koord_manager_webhook_binding_admission_decisions_total": ("counter", ("decision",)),
    "koordinator_manager_is_leader": ("gauge", ()),
}
"""Name -> type and labels. Source: behaviour/manager 2.4."""


class RefusingCluster(MemoryCluster):
    """Refuses the writes in `refused`: (verb, kind)."""

    refused: frozenset[tuple[str, str]] = frozenset()

    def _check(self, verb: str, view: Any) -> None:
        if (verb, view.resource.kind) in self.refused:
            raise errors.InternalError("no luck today")

    async def create(self, view: Any, obj: Any, namespace: str = "") -> Any:
        self._check("create", view)
        return await super().create(view, obj, namespace)

    async def patch(self, view: Any, name: str, *rest: Any, **options: Any) -> Any:
        self._check("patch", view)
        return await super().patch(view, name, *rest, **options)

    async def delete(self, view: Any, name: str, *rest: Any, **options: Any) -> None:
        self._check("delete", view)
        await super().delete(view, name, *rest, **options)


Scenario = Callable[[MemoryCluster, RefusingCluster, ManagerMetrics], Awaitable[None]]


def run(scenario: Scenario, refused: frozenset[tuple[str, str]] = frozenset()) -> None:
    """A manager beside a scenario, on a cluster with one node, whose API refuses some of the manager's writes."""

    async def main(clock: LoopClock) -> None:
        backend = registry.in_memory(clock, checks=False)
        api, cluster = MemoryCluster(backend), RefusingCluster(backend)
        cluster.refused = refused
        for manifest in crd.manifests():
            await api.create(CustomResourceDefinition, manifest)
        await api.create(ConfigMap, defaults.slo_config(), defaults.NAMESPACE)
        amounts = {"cpu": "100", "memory": "120G", "pods": "110"}
        status = {"capacity": amounts, "allocatable": dict(amounts)}
        await api.create(Node, {"metadata": {"name": "n1"}, "status": status})
        manager = Manager(cluster)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(manager.run())
            await asyncio.sleep(1)
            await scenario(api, cluster, manager.shared.metrics)
            task.cancel()

    virtual_time.run_virtual(main)


async def report(api: MemoryCluster) -> None:
    usage = {"resources": {"cpu": "7", "memory": "12G"}}
    status = {"updateTime": clocks.rfc3339(api.clock.now()), "nodeMetric": {"systemUsage": usage}}
    await api.patch(NodeMetric, "n1", {"status": status}, subresource="status")
    await asyncio.sleep(1)


def test_every_family_of_the_reference_has_its_name_type_and_labels() -> None:
    metrics = ManagerMetrics(FixedClock())
    text = metrics.internal.text()
    for name, (kind, _) in FAMILIES.items():
        assert f"# TYPE {name} {kind}\n" in text
    families = {family.name: family for family in vars(metrics).values() if hasattr(family, "labels")}
    assert {name: families[name].labels for name in FAMILIES} == {
        name: labels for name, (_, labels) in FAMILIES.items()
    }


def test_what_a_manager_does_for_a_node_is_counted() -> None:
    async def scenario(api: MemoryCluster, _: RefusingCluster, metrics: ManagerMetrics) -> None:
        await report(api)

        assert metrics.nodemetric_reconciles.values[SUCCEEDED, "createNodeMetric"] == 1
        assert metrics.nodeslo_reconciles.values[SUCCEEDED, "createNodeSLO"] == 1
        assert metrics.nodemetric_parses.values[SUCCEEDED, "getNodeMetricCollectPolicy"] >= 1
        for reason in ("getResourceThresholdSpec", "getResourceQOSSpec", "getCPUBurstConfigSpec"):
            assert metrics.nodeslo_parses.values[SUCCEEDED, reason] >= 1
        for reason in ("getSystemConfigSpec", "getHostApplicationConfig"):
            assert metrics.nodeslo_parses.values[SUCCEEDED, reason] >= 1
        assert metrics.noderesource_reconciles.values[SUCCEEDED, ""] >= 1
        assert metrics.plugin_runs.values["BatchResource", SUCCEEDED, "ResourceCalculate"] >= 1
        gauge = metrics.node_allocatable.values
        assert gauge["n1", "kubernetes.io/batch-cpu", "integer"] == 53  # cores: 100 less 40 % less 7
        assert gauge["n1", "kubernetes.io/batch-memory", "byte"] == 66 * 10**9
        assert metrics.is_leader.values[()] == 1

    run(scenario)


@pytest.mark.parametrize(
    ("verb", "kind", "counter", "reason"),
    [
        ("create", "NodeMetric", "nodemetric_reconciles", "createNodeMetric"),
        ("patch", "NodeMetric", "nodemetric_reconciles", "updateNodeMetric"),
        ("delete", "NodeMetric", "nodemetric_reconciles", "deleteNodeMetric"),
        ("create", "NodeSLO", "nodeslo_reconciles", "createNodeSLO"),
        ("patch", "NodeSLO", "nodeslo_reconciles", "updateNodeSLO"),
        ("delete", "NodeSLO", "nodeslo_reconciles", "deleteNodeSLO"),
        ("patch", "Node", "noderesource_reconciles", "updateNodeStatus"),
    ],
)
def test_a_write_that_the_api_refuses_is_counted_by_its_reason(
    verb: str, kind: str, counter: str, reason: str
) -> None:
    async def scenario(api: MemoryCluster, cluster: RefusingCluster, metrics: ManagerMetrics) -> None:
        if (verb, kind) != ("create", "NodeMetric"):
            await report(api)
        config = {
            "colocation-config": '{"enable": true, "metricReportIntervalSeconds": 30}',
            "resource-threshold-config": '{"clusterStrategy": {"cpuSuppressThresholdPercent": 60}}',
        }
        await api.patch(ConfigMap, defaults.SLO_CONFIG_NAME, {"data": config}, defaults.NAMESPACE)
        await asyncio.sleep(5)
        if verb == "delete":
            await api.delete(Node, "n1")
            await asyncio.sleep(5)
        assert getattr(metrics, counter).values[FAILED, reason] >= 1

        cluster.refused = frozenset()
        await asyncio.sleep(120)
        before = dict(getattr(metrics, counter).values)
        await asyncio.sleep(60)
        assert getattr(metrics, counter).values[FAILED, reason] == before[FAILED, reason]

    run(scenario, frozenset({(verb, kind)}))


def test_a_configuration_that_cannot_be_read_is_counted() -> None:
    async def scenario(api: MemoryCluster, _: RefusingCluster, metrics: ManagerMetrics) -> None:
        data = {"cpu-burst-config": "{nonsense", "colocation-config": "{nonsense"}
        await api.patch(ConfigMap, defaults.SLO_CONFIG_NAME, {"data": data}, defaults.NAMESPACE)
        await api.patch(Node, "n1", {"metadata": {"labels": {"pool": "a"}}})
        await asyncio.sleep(5)
        assert metrics.nodeslo_parses.values[FAILED, "getCPUBurstConfigSpec"] >= 1
        assert metrics.nodemetric_parses.values[FAILED, "getNodeMetricCollectPolicy"] >= 1

    run(scenario)


def test_what_is_no_longer_calculated_is_shown_no_longer() -> None:
    async def scenario(api: MemoryCluster, _: RefusingCluster, metrics: ManagerMetrics) -> None:
        await report(api)
        assert 'node="n1",resource="kubernetes.io/batch-cpu"' in metrics.internal.text()
        await api.delete(Node, "n1")
        await asyncio.sleep(EXPIRES_S + EXPIRE_PERIOD_S + 1)
        assert 'node="n1"' not in metrics.internal.text()

    run(scenario)
