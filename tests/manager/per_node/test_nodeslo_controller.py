"""NodeSLO objects follow their nodes and the configuration."""

import asyncio
import json

import pytest

from koordinator.api import defaults
from koordinator.api.core import ConfigMap, Node
from koordinator.api.slo import NodeSLO, NodeSLOSpec, ResourceThresholdStrategy
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.manager.per_node.node_objects import changed_sections
from tests.manager.test_manager_loops import run


async def configure(cluster: MemoryCluster, key: str, text: str) -> None:
    await cluster.patch(ConfigMap, defaults.SLO_CONFIG_NAME, {"data": {key: text}}, defaults.NAMESPACE)
    await asyncio.sleep(1)


def test_a_node_gets_the_policies_of_the_configuration() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        slo = await cluster.get(NodeSLO, "n1")
        threshold = slo.spec.resource_used_threshold_with_be
        assert threshold is not None and threshold.enable is True
        assert threshold.cpu_suppress_threshold_percent == 65

        await configure(
            cluster,
            "resource-qos-config",
            json.dumps({"clusterStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}}}),
        )

        qos = (await cluster.get(NodeSLO, "n1")).spec.resource_qos_strategy
        assert qos is not None and qos.be_class is not None and qos.be_class.cpu_qos is not None
        assert qos.be_class.cpu_qos.group_identity == -1

    run(scenario)


def test_what_is_configured_no_more_goes() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        strategy = {"enable": True, "cpuSuppressMinPercent": 10}
        await configure(cluster, "resource-threshold-config", json.dumps({"clusterStrategy": strategy}))
        await configure(
            cluster, "resource-threshold-config", json.dumps({"clusterStrategy": {"enable": True}})
        )

        threshold = (await cluster.get(NodeSLO, "n1")).spec.resource_used_threshold_with_be
        assert threshold is not None and threshold.cpu_suppress_min_percent is None

    run(scenario)


def test_a_malformed_section_keeps_its_last_policy_and_tells_so() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await configure(cluster, "resource-threshold-config", '{"clusterStrategy": {"enable": "yes"}}')

        threshold = (await cluster.get(NodeSLO, "n1")).spec.resource_used_threshold_with_be
        assert threshold is not None and threshold.enable is True
        found = await cluster.request("GET", f"/api/v1/namespaces/{defaults.NAMESPACE}/events")
        assert [event["reason"] for event in found["items"]] == ["SLOCfgUnmarshalFailed"]

    run(scenario)


def test_changes_by_others_are_undone_except_extensions() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        patch = {
            "spec": {
                "resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": 1},
                "extensions": {"addon": {"a": 1}},
            }
        }
        await cluster.patch(NodeSLO, "n1", patch)
        await asyncio.sleep(1)

        spec = (await cluster.get(NodeSLO, "n1")).spec
        assert spec.resource_used_threshold_with_be is not None
        assert spec.resource_used_threshold_with_be.cpu_suppress_threshold_percent == 65
        assert spec.extensions == {"addon": {"a": 1}}

    run(scenario)


def test_the_object_goes_with_its_node() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await cluster.delete(NodeSLO, "n1")
        await asyncio.sleep(1)
        await cluster.get(NodeSLO, "n1")

        await cluster.delete(Node, "n1")
        await asyncio.sleep(1)
        with pytest.raises(errors.NotFound):
            await cluster.get(NodeSLO, "n1")

    run(scenario)


def test_nothing_is_written_when_nothing_differs() -> None:
    spec = NodeSLOSpec(resource_used_threshold_with_be=ResourceThresholdStrategy(enable=True))

    assert changed_sections(spec, spec) == []
    assert changed_sections(NodeSLOSpec(), spec)[0]["path"] == "/spec"
    assert changed_sections(spec, NodeSLOSpec()) == [
        {"op": "remove", "path": "/spec/resourceUsedThresholdWithBE"}
    ]
