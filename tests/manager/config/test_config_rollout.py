"""A change of `slo-controller-config` reaches exactly the nodes that it is about, and users see what does not."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from koordinator import clock as clocks
from koordinator.api import crd, defaults, labels
from koordinator.api.core import ConfigMap, Namespace, Node
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.node_metric import NodeMetric
from koordinator.api.slo import NodeSLO
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.config.slo_configs import SLOConfigs
from koordinator.manager.manager import Manager
from koordinator.manager.options import ManagerOptions
from koordinator.simulate import virtual_time

NODES = 300
WRITTEN = ("succeeded", "updateNodeSLO")
Scenario = Callable[["Installation"], Awaitable[None]]


class Installation:
    """A manager without webhooks on nodes n0, n1, ...: every tenth of pool a, the others of pool b."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.manager: Manager
        self.configs: SLOConfigs
        self.running: asyncio.Task[None]
        self.start()

    @contextlib.asynccontextmanager
    async def restarted(self) -> AsyncIterator[None]:
        """What happens inside, happens while no manager runs."""
        self.running.cancel()
        await asyncio.wait([self.running])
        yield
        self.start()
        await asyncio.sleep(2)

    def start(self) -> None:
        self.manager = Manager(self.cluster, ManagerOptions(controllers=("nodemetric", "nodeslo")))
        self.configs = self.manager.shared.configs
        self.running = asyncio.create_task(self.manager.run())

    async def thresholds(self) -> set[tuple[bool | None, int | None]]:
        found = [
            each.spec.resource_used_threshold_with_be for each in (await self.cluster.list(NodeSLO)).items
        ]
        return {(each.enable, each.cpu_suppress_threshold_percent) for each in found if each is not None}

    def slo_writes(self) -> float:
        return self.manager.shared.metrics.nodeslo_reconciles.values.get(WRITTEN, 0)

    async def configure(self, **sections: Any) -> None:
        texts = {
            key.replace("_", "-"): value if isinstance(value, str) or value is None else json.dumps(value)
            for key, value in sections.items()
        }
        name = defaults.SLO_CONFIG_NAME
        await self.cluster.patch(ConfigMap, name, {"data": texts}, defaults.NAMESPACE)
        await asyncio.sleep(1)

    async def burst_policies(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for slo in (await self.cluster.list(NodeSLO)).items:
            burst = slo.spec.cpu_burst_strategy
            assert burst is not None and burst.policy is not None
            found[burst.policy] = found.get(burst.policy, 0) + 1
        return found

    async def events(self) -> list[tuple[str, str]]:
        path = f"/api/v1/namespaces/{defaults.NAMESPACE}/events"
        found = await self.cluster.request("GET", path)
        return [(event["reason"], event["message"]) for event in found["items"]]


def run(scenario: Scenario, nodes: int = NODES) -> None:
    async def main(clock: clocks.LoopClock) -> None:
        cluster = MemoryCluster(registry.in_memory(clock, checks=False))
        for manifest in crd.manifests():
            await cluster.create(CustomResourceDefinition, manifest)
        if defaults.NAMESPACE not in {ns.metadata.name for ns in (await cluster.list(Namespace)).items}:
            await cluster.create(Namespace, defaults.namespace())
        await cluster.create(ConfigMap, defaults.slo_config(), defaults.NAMESPACE)
        for number in range(nodes):
            await cluster.create(Node, node(number))
        installation = Installation(cluster)
        await asyncio.sleep(2)
        await scenario(installation)
        assert not installation.running.done()
        installation.running.cancel()

    virtual_time.run_virtual(main)


def node(number: int) -> dict[str, Any]:
    own = {"pool": "b" if number % 10 else "a", "kubernetes.io/hostname": f"n{number}"}
    return {"metadata": {"name": f"n{number}", "labels": own}}


def of_pool(pool: str, **strategy: Any) -> dict[str, Any]:
    return {"name": pool, "nodeSelector": {"matchLabels": {"pool": pool}}, **strategy}


def test_a_policy_for_one_pool_is_written_to_its_nodes_only() -> None:
    async def scenario(here: Installation) -> None:
        assert here.slo_writes() == 0 and len((await here.cluster.list(NodeSLO)).items) == NODES

        await here.configure(cpu_burst_config={"nodeStrategies": [of_pool("a", policy="auto")]})

        assert await here.burst_policies() == {"auto": NODES // 10, "none": NODES - NODES // 10}
        assert here.slo_writes() == NODES // 10

        # The same in other words is no change.
        same = {
            "nodeStrategies": [of_pool("a", policy="auto", cpuBurstPercent=1000), of_pool("c", policy="x")]
        }
        await here.configure(cpu_burst_config=same)
        assert here.slo_writes() == NODES // 10

    run(scenario)


def test_a_node_that_changes_its_pool_changes_its_policies_at_once() -> None:
    async def scenario(here: Installation) -> None:
        await here.configure(
            cpu_burst_config={"nodeStrategies": [of_pool("a", policy="auto")]},
            colocation_config={"enable": True, "nodeConfigs": [of_pool("a", metricReportIntervalSeconds=20)]},
        )
        await here.cluster.patch(Node, "n1", {"metadata": {"labels": {"pool": "a"}}})
        await asyncio.sleep(1)

        slo, metric = await here.cluster.get(NodeSLO, "n1"), await here.cluster.get(NodeMetric, "n1")
        assert slo.spec.cpu_burst_strategy is not None and slo.spec.cpu_burst_strategy.policy == "auto"
        assert metric.spec.metric_collect_policy is not None
        assert metric.spec.metric_collect_policy.report_interval_seconds == 20

    run(scenario, nodes=20)


def test_annotations_of_a_node_are_noticed_at_once() -> None:
    async def scenario(here: Installation) -> None:
        noted = {
            labels.NODE_NETWORK_BANDWIDTH: "10G",
            labels.NODE_COLOCATION_STRATEGY: '{"metricReportIntervalSeconds": 15}',
        }
        await here.cluster.patch(Node, "n1", {"metadata": {"annotations": noted}})
        await asyncio.sleep(1)

        slo, metric = await here.cluster.get(NodeSLO, "n1"), await here.cluster.get(NodeMetric, "n1")
        assert slo.spec.system_strategy is not None
        assert slo.spec.system_strategy.total_network_bandwidth == "10G"
        assert metric.spec.metric_collect_policy is not None
        assert metric.spec.metric_collect_policy.report_interval_seconds == 15

    run(scenario, nodes=3)


def test_each_broken_key_keeps_its_policy_and_tells_so_while_the_others_go_on() -> None:
    async def scenario(here: Installation) -> None:
        await here.configure(
            resource_threshold_config="{",
            colocation_config={"enable": True, "degradeTimeMinutes": -1},
            resource_amplification_config='{"enable": 1}',
            cpu_normalization_config="[]",
            cpu_burst_config={"clusterStrategy": {"policy": "auto"}},
        )

        assert await here.burst_policies() == {"auto": 3}
        threshold = (await here.cluster.get(NodeSLO, "n1")).spec.resource_used_threshold_with_be
        assert threshold is not None and threshold.enable is True
        assert here.configs.colocation.config.enable is True
        reported = dict(await here.events())
        assert set(reported) == {
            "SLOCfgUnmarshalFailed",
            "ColocationCfgInvalid",
            "ResourceAmplificationCfgUnmarshalFailed",
            "CPUNormalizationCfgUnmarshalFailed",
        }
        assert "degradeTimeMinutes must be above 0, not -1" in reported["ColocationCfgInvalid"]
        assert set(here.configs.problems) == {
            *("resource-threshold-config", "colocation-config", "resource-amplification-config"),
            "cpu-normalization-config",
        }

        metrics = here.manager.shared.metrics.internal
        assert 'slo_controller_config_problem{key="resource-threshold-config"} 1' in metrics.text()

        await here.configure(resource_threshold_config="", colocation_config={"enable": False})
        assert set(here.configs.problems) == {"resource-amplification-config", "cpu-normalization-config"}
        assert 'slo_controller_config_problem{key="resource-threshold-config"}' not in metrics.text()
        threshold = (await here.cluster.get(NodeSLO, "n1")).spec.resource_used_threshold_with_be
        assert threshold is not None and threshold.enable is False  # empty text is as if it were missing

    run(scenario, nodes=3)


def test_a_value_that_no_node_slo_may_have_keeps_its_key_and_no_other() -> None:
    async def scenario(here: Installation) -> None:
        await here.configure(
            resource_threshold_config={"clusterStrategy": {"cpuSuppressThresholdPercent": 150}},
            resource_qos_config={
                "nodeStrategies": [of_pool("a", lsClass={"resctrlQOS": {"mbaPercent": -1}})]
            },
            cpu_burst_config={"clusterStrategy": {"policy": "auto"}},
        )

        assert await here.burst_policies() == {"auto": 3}
        threshold = (await here.cluster.get(NodeSLO, "n1")).spec.resource_used_threshold_with_be
        assert threshold is not None and threshold.cpu_suppress_threshold_percent == 65
        name = "ConfigMap slo-controller-config: "
        assert sorted(await here.events()) == [
            (
                "SLOCfgInvalid",
                name
                + "resource-qos-config: nodeStrategies[0].lsClass.resctrlQOS.mbaPercent must be at least 0, not -1",
            ),
            (
                "SLOCfgInvalid",
                name
                + "resource-threshold-config: clusterStrategy.cpuSuppressThresholdPercent must be at most 100, not 150",
            ),
        ]

    run(scenario, nodes=3)


@pytest.mark.parametrize("broken", ["{", '{"clusterStrategy": {"cpuSuppressThresholdPercent": 150}}'])
def test_a_new_process_leaves_nodes_the_policy_of_a_key_that_it_cannot_read(broken: str) -> None:
    async def scenario(here: Installation) -> None:
        strategy = {"clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 40}}
        await here.configure(resource_threshold_config=strategy)
        async with here.restarted():
            await here.configure(
                resource_threshold_config=broken, cpu_burst_config={"clusterStrategy": {"policy": "auto"}}
            )

        assert await here.thresholds() == {(True, 40)}
        assert await here.burst_policies() == {"auto": 3}

        await here.configure(resource_threshold_config="")
        assert await here.thresholds() == {(False, 65)}

    run(scenario, nodes=3)


def test_an_invalid_entry_counts_as_the_cluster_strategy_and_tells_so() -> None:
    async def scenario(here: Installation) -> None:
        entries = [of_pool("a", metricReportIntervalSeconds=0, metricAggregateDurationSeconds=30)]
        await here.configure(colocation_config={"enable": True, "nodeConfigs": entries})

        policy = (await here.cluster.get(NodeMetric, "n0")).spec.metric_collect_policy
        assert policy is not None and policy.aggregate_duration_seconds == 300
        ((reason, message),) = await here.events()
        assert reason == "ColocationCfgInvalid" and message.startswith(
            "colocation-config: nodeConfigs[0] 'a':"
        )

    run(scenario, nodes=3)


def test_a_deleted_configuration_counts_as_none_and_a_new_one_counts_at_once() -> None:
    async def scenario(here: Installation) -> None:
        await here.configure(
            cpu_burst_config={"clusterStrategy": {"policy": "auto"}},
            colocation_config={"enable": True, "metricReportIntervalSeconds": 20},
        )
        await here.cluster.delete(ConfigMap, defaults.SLO_CONFIG_NAME, defaults.NAMESPACE)
        await asyncio.sleep(1)

        assert await here.burst_policies() == {"none": 3}
        policy = (await here.cluster.get(NodeMetric, "n1")).spec.metric_collect_policy
        assert policy is not None and policy.report_interval_seconds == 60
        assert here.configs.colocation.config.enable is False
        assert [reason for reason, _ in await here.events()] == ["SLOConfigDeleted"]

        config = defaults.slo_config()
        config["data"]["cpu-burst-config"] = '{"clusterStrategy": {"policy": "auto"}}'
        await here.cluster.create(ConfigMap, config, defaults.NAMESPACE)
        await asyncio.sleep(1)
        assert await here.burst_policies() == {"auto": 3}

    run(scenario, nodes=3)


def test_an_unreadable_policy_keeps_the_collect_policy_until_it_is_mended() -> None:
    async def scenario(here: Installation) -> None:
        await here.configure(colocation_config={"enable": True, "metricReportIntervalSeconds": 20})
        await here.configure(colocation_config="{")
        await here.cluster.patch(Node, "n1", {"metadata": {"labels": {"pool": "c"}}})
        await here.cluster.create(Node, node(7))
        await asyncio.sleep(1)

        async def interval(name: str) -> int | None:
            policy = (await here.cluster.get(NodeMetric, name)).spec.metric_collect_policy
            assert policy is not None
            return policy.report_interval_seconds

        assert [await interval("n1"), await interval("n7")] == [20, 20]
        parses = here.manager.shared.metrics.nodemetric_parses.values
        assert parses["failed", "getNodeMetricCollectPolicy"] >= 2

        await here.configure(colocation_config={"enable": True, "metricReportIntervalSeconds": 25})
        assert [await interval("n1"), await interval("n7")] == [25, 25]

    run(scenario, nodes=3)


def test_an_object_that_does_not_fit_its_view_gets_a_good_spec() -> None:
    async def scenario(here: Installation) -> None:
        with pytest.raises(errors.Unreadable):
            await here.cluster.create(NodeSLO, {"metadata": {"name": "n9"}, "spec": {"hostApplications": 7}})
        await here.cluster.create(Node, node(9))
        await asyncio.sleep(5)

        assert (await here.cluster.get(NodeSLO, "n9")).spec.host_applications == []

    run(scenario, nodes=2)


def test_of_two_instances_only_the_leader_tells_what_is_wrong_also_what_was_before() -> None:
    async def scenario(here: Installation) -> None:
        standby = Manager(here.cluster, ManagerOptions(controllers=()))
        async with standby.following():
            await here.configure(cpu_burst_config="{")
            assert standby.shared.configs.problems.keys() == {"cpu-burst-config"}
            assert len(await here.events()) == 1

            leading = asyncio.create_task(standby.lead())
            await asyncio.sleep(1)
            assert len(await here.events()) == 2
            leading.cancel()

    run(scenario, nodes=1)
