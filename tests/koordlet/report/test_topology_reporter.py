"""The topology: written when it changed and only then, whatever part of it cannot be read."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koordinator.api import labels
from koordinator.api.annotations.node import CPUBasicInfo
from koordinator.api.core import Pod
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.host import sysfs
from koordinator.host.kubelet import KubeletError
from koordinator.host.sysfs import HostCPUTopology, Processor
from koordinator.koordlet.agent import DryRunCluster
from koordinator.koordlet.config import KubeletClientConfig
from koordinator.koordlet.report import topology_object
from koordinator.koordlet.report.topology_reporter import TopologyReporter
from koordinator.koordlet.view import Topic
from tests.koordlet.report.agent_node import (
    NAME,
    NOW_S,
    AgentNode,
    Reporting,
    api,
    node_object,
    pod_object,
    running,
    settle,
)
from tests.koordlet.report.faulty_cluster import FaultyCluster

STATIC = {
    "cpuManagerPolicy": "static",
    "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
    "topologyManagerPolicy": "single-numa-node",
    "topologyManagerScope": "pod",
    "kubeReserved": {"cpu": "1"},
    "systemReserved": None,
    "somethingNew": {"x": [1]},
}
SHARED, BE_SHARED = labels.NODE_CPU_SHARED_POOLS, labels.NODE_BE_CPU_SHARED_POOLS


def machine() -> HostCPUTopology:
    """Two NUMA nodes of two cores with two threads each."""
    return sysfs.topology_of(
        Processor(node=core // 2, socket=core // 2, core=core, cpu=core + 4 * thread)
        for core in range(4)
        for thread in range(2)
    )


class FakeKubelet:
    def __init__(self, config: dict[str, Any] | Exception | None = None) -> None:
        self.answer = config or {"cpuManagerPolicy": "none"}
        self.asked = 0

    async def pods(self) -> list[Pod]:
        return []

    async def config(self) -> dict[str, Any]:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class TopologyReporting(Reporting):
    """A node with a topology reporter that counts what it says."""

    def __init__(self, node: AgentNode, cluster: FaultyCluster, kubelet: FakeKubelet) -> None:
        super().__init__(node, cluster, TopologyReporter(node.shared))
        self.kubelet = kubelet
        self.changes = 0
        node.view.listen(Topic.TOPOLOGY, "test", self._changed)

    def _changed(self) -> None:
        self.changes += 1

    async def stored(self) -> NodeResourceTopology:
        return await self.cluster.get(NodeResourceTopology, NAME)

    async def annotation(self, key: str) -> Any:
        return json.loads((await self.stored()).metadata.annotations[key])

    def state(self, text: str) -> None:
        """The kubelet's state file."""
        directory = self.node.root / "var/lib/kubelet"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cpu_manager_state").write_text(text)


@asynccontextmanager
async def reporting(
    root: Path,
    *,
    gates: str = "",
    config: dict[str, Any] | Exception | None = None,
    no_config: bool = False,
    cluster: FaultyCluster | None = None,
) -> AsyncIterator[TopologyReporting]:
    cluster = cluster or await api(FixedClock(NOW_S))
    kubelet = FakeKubelet(config)
    node = AgentNode(
        root, cluster, gates=gates, kubelet=kubelet, kubelet_config=KubeletClientConfig(no_config=no_config)
    )
    node.view.node = node_object()
    node.view.cpu, node.view.cpu_info = machine(), CPUBasicInfo(cpu_model="X", vendor_id="Y")
    node.view.numa_meminfo_kib = {each: {"MemTotal": 8 * 2**20, "MemFree": 5} for each in (0, 1)}
    node.pods()
    async with running(TopologyReporting(node, cluster, kubelet)) as found:
        yield found


def state(entries: dict[str, dict[str, str]]) -> str:
    return json.dumps({"policyName": "static", "defaultCpuSet": "0-7", "entries": entries, "checksum": 1})


async def test_the_first_round_creates_the_whole_object(tmp_path: Path) -> None:
    async with reporting(tmp_path, config=STATIC) as found:
        await found.round()

        made = await found.stored()
        assert found.cluster.writes == ["create NodeResourceTopology"]
        assert made.topology_policies == ["SingleNUMANodePodLevel"]
        assert made.metadata.labels["app.kubernetes.io/managed-by"] == "Koordinator"
        (owner,) = made.metadata.owner_references
        assert (owner.kind, owner.name, owner.uid, owner.controller) == ("Node", NAME, "node-uid", True)
        assert [(zone.name, [each.name for each in zone.resources]) for zone in made.zones] == [
            (name, ["cpu", "hugepages-1Gi", "hugepages-2Mi", "memory"]) for name in ("node-0", "node-1")
        ]
        assert len((await found.annotation(labels.NODE_CPU_TOPOLOGY))["detail"]) == 8
        assert await found.annotation(labels.KUBELET_CPU_MANAGER_POLICY) == {
            "policy": "static",
            "options": {"full-pcpus-only": "true"},
            "reservedCPUs": "0",
        }
        assert (await found.annotation(SHARED))[0] == {"socket": 0, "node": 0, "cpuset": "0-1,4-5"}
        assert made.metadata.annotations[labels.NODE_POD_CPU_ALLOCS] == "null"
        assert made.metadata.annotations[labels.NODE_SYSTEM_QOS_RESOURCE] == "null"


async def test_rounds_without_a_change_write_nothing_and_compute_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reporting(tmp_path) as found:
        await found.round()
        monkeypatch.setattr(topology_object, "compute", None)

        for _ in range(30):
            found.node.pods()  # the same list again, as after each poll
            found.node.view.numa_meminfo_kib = {
                each: {"MemTotal": 8 * 2**20, "MemFree": 7} for each in (0, 1)
            }
            await found.round()

        assert len(found.cluster.writes) == 1
        assert found.changes == 1
        assert found.kubelet.asked == 2  # once a minute


async def test_bound_pods_leave_the_pools_and_come_back_when_they_are_over(tmp_path: Path) -> None:
    bound = {labels.RESOURCE_STATUS: '{"cpuset":"0,4"}'}
    async with reporting(tmp_path) as found:
        found.node.pods(pod_object("lse", qos="LSE", annotations=bound))
        await found.round()
        assert (await found.annotation(SHARED))[0]["cpuset"] == "1,5"
        assert (await found.annotation(BE_SHARED))[0]["cpuset"] == "1,5"

        found.node.pods(pod_object("lse", qos="LSE", annotations=bound, phase="Succeeded"))
        await found.round()

        assert (await found.annotation(SHARED))[0]["cpuset"] == "0-1,4-5"
        assert found.changes == 2


async def test_pods_that_the_kubelet_pinned_are_reported_and_leave_both_pools(tmp_path: Path) -> None:
    async with reporting(tmp_path, config=STATIC) as found:
        found.node.pods(pod_object("old", qos=""))
        found.state(state({"old": {"main": "2,6"}}))

        await found.round()

        assert await found.annotation(labels.NODE_POD_CPU_ALLOCS) == [
            {"namespace": "default", "name": "old", "uid": "old", "cpuset": "2,6", "managedByKubelet": True}
        ]
        assert (
            (await found.annotation(SHARED))[1]["cpuset"]
            == (await found.annotation(BE_SHARED))[1]["cpuset"]
            == "3,7"
        )


async def test_finished_pods_are_not_pinned_while_the_kubelet_has_not_tidied_its_state_yet(
    tmp_path: Path,
) -> None:
    ours = {labels.RESOURCE_STATUS: '{"cpuset":"0,4"}'}
    async with reporting(tmp_path, config=STATIC) as found:
        found.node.pods(
            pod_object("own", qos="LSR", annotations=ours, phase="Succeeded"),
            pod_object("shared", phase="Failed"),
            pod_object("old", qos="", phase="Succeeded"),
        )
        found.state(state({"own": {"main": "1"}, "shared": {"main": "2"}, "old": {"main": "6"}}))

        await found.round()

        assert await found.annotation(labels.NODE_POD_CPU_ALLOCS) is None
        assert [pool["cpuset"] for pool in await found.annotation(SHARED)] == ["0-1,4-5", "2-3,6-7"]


@pytest.mark.parametrize(
    "amounts",
    [
        pytest.param({"kubeReserved": {"cpu": "a lot"}}, id="no quantity"),
        pytest.param({"systemReserved": {"cpu": "-1", "memory": "1Gi"}}, id="negative"),
    ],
)
async def test_a_list_of_reserved_cpus_takes_the_place_of_amounts_whatever_these_are(
    tmp_path: Path, amounts: dict[str, Any]
) -> None:
    config = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "1,5", **amounts}
    async with reporting(tmp_path, config=config) as found:
        await found.round()

        policy = await found.annotation(labels.KUBELET_CPU_MANAGER_POLICY)
        assert policy["reservedCPUs"] == "1,5"


@pytest.mark.parametrize("bad", ["{", '{"entries":{"uid":"0-1"}}', "[]", "\x00"])
async def test_a_state_file_that_cannot_be_read_costs_nothing_but_news(
    tmp_path: Path, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with reporting(tmp_path, config=STATIC) as found:
        found.node.pods(pod_object("old", qos=""))
        found.state(state({"old": {"main": "2,6"}}))
        await found.round()

        found.state(bad)
        for _ in range(3):
            await found.round()
        found.node.view.node = node_object(**{labels.NODE_RESERVATION: '{"reservedCPUs":"0"}'})
        await found.round()

        assert (await found.annotation(SHARED))[0]["cpuset"] == "1,4-5"  # reporting goes on
        assert (await found.annotation(SHARED))[1]["cpuset"] == "3,7"  # and what was pinned stays so
        assert caplog.text.count("without cpu_manager_state") == 1


async def test_a_kubelet_that_does_not_answer_keeps_what_was_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with reporting(tmp_path, config=STATIC) as found:
        await found.round()
        found.kubelet.answer = KubeletError("https://x/configz", "no answer")
        asked = found.kubelet.asked

        for _ in range(100):
            await found.round(seconds=6)

        assert (await found.stored()).topology_policies == ["SingleNUMANodePodLevel"]
        assert len(found.cluster.writes) == 1
        assert caplog.text.count("kubelet's configuration failed") == 1
        assert found.kubelet.asked - asked < 20


async def test_an_unknown_kubelet_leaves_alone_what_an_earlier_agent_reported(tmp_path: Path) -> None:
    async with reporting(tmp_path, config=STATIC) as before:
        await before.round()
    unknown = KubeletError("https://x/configz", "no answer")
    async with reporting(tmp_path, config=unknown, cluster=before.cluster) as after:
        after.node.view.cpu_info = CPUBasicInfo(cpu_model="Z")
        after.node.pods(pod_object("old", qos=""))
        after.state(state({"old": {"main": "2,6"}}))

        await after.round()

        assert (await after.stored()).topology_policies == ["SingleNUMANodePodLevel"]
        assert (await after.annotation(labels.KUBELET_CPU_MANAGER_POLICY))["policy"] == "static"
        assert (await after.annotation(labels.NODE_CPU_BASIC_INFO))["cpuModel"] == "Z"
        assert (await after.annotation(SHARED))[1]["cpuset"] == "3,7"  # the state file tells who is pinned


async def test_where_the_kubelet_is_not_asked_nothing_is_said_of_it(tmp_path: Path) -> None:
    async with reporting(tmp_path, no_config=True) as found:
        found.state(state({"old": {"main": "2,6"}}))

        await found.round()

        assert found.kubelet.asked == 0
        assert await found.annotation(labels.KUBELET_CPU_MANAGER_POLICY) == {}
        assert (await found.annotation(SHARED))[1]["cpuset"] == "2-3,6-7"
        assert (await found.stored()).topology_policies == ["None"]


async def test_with_the_gate_off_only_the_agent_itself_knows(tmp_path: Path) -> None:
    async with reporting(tmp_path, gates="NodeTopologyReport=false") as found:
        await found.round()

        assert found.cluster.writes == []
        assert found.reporter.informers == []
        assert found.changes == 1
        assert found.node.view.topology is not None
        assert found.node.view.topology.metadata.annotations[SHARED].startswith('[{"socket":0')


async def test_parts_of_others_stay_and_cause_no_writes(tmp_path: Path) -> None:
    async with reporting(tmp_path) as found:
        await found.round()
        stored = await found.stored()
        zones: list[dict[str, Any]] = [
            {
                "name": zone.name,
                "type": zone.type,
                "costs": [{"name": "node-0", "value": 10}],
                "resources": [
                    {
                        "name": each.name,
                        "capacity": each.capacity,
                        "allocatable": each.allocatable,
                        "available": "1",
                    }
                    for each in zone.resources
                ]
                + [{"name": "koordinator.sh/gpu", "capacity": "4", "allocatable": "4", "available": "4"}],
            }
            for zone in stored.zones
        ]
        foreign = {"zones": zones, "metadata": {"annotations": {"a/b": "c"}, "labels": {"d": "e"}}}
        await found.cluster.patch(NodeResourceTopology, NAME, foreign)
        found.cluster.writes.clear()

        for _ in range(5):
            await found.round()
        assert found.cluster.writes == []

        found.node.view.numa_meminfo_kib = {0: {"MemTotal": 4 * 2**20}, 1: {"MemTotal": 8 * 2**20}}
        await found.round()

        assert found.cluster.writes == ["patch NodeResourceTopology"]
        after = await found.stored()
        assert after.metadata.annotations["a/b"] == "c"
        assert after.metadata.labels["d"] == "e"
        assert {each.name: each.allocatable for each in after.zones[0].resources}["koordinator.sh/gpu"] == "4"
        assert {each.name: each.allocatable for each in after.zones[0].resources}["memory"] == "4Gi"
        assert after.zones[0].costs[0].value == 10


async def test_a_numa_reservation_comes_and_goes_with_the_label_of_the_node(tmp_path: Path) -> None:
    label = labels.NODE_ENABLE_NUMA_RESERVATION
    async with reporting(tmp_path) as found:
        node = node_object()
        reserved = {"capacity": {"cpu": "8", "memory": "16Gi"}, "allocatable": {"cpu": "7", "memory": "16Gi"}}
        found.node.view.node = msgspec.structs.replace(
            node,
            metadata=msgspec.structs.replace(node.metadata, labels={label: "true"}),
            status=msgspec.structs.replace(node.status, **reserved),
        )
        await found.round()
        (cpu,) = [each for each in (await found.stored()).zones[0].resources if each.name == "cpu"]
        assert (cpu.capacity, cpu.allocatable) == ("4", "3500m")
        assert (await found.stored()).metadata.labels[label] == "true"

        found.node.view.node = node
        for _ in range(5):
            await found.round()

        (cpu,) = [each for each in (await found.stored()).zones[0].resources if each.name == "cpu"]
        assert (cpu.capacity, cpu.allocatable) == ("4", "4")
        assert label not in (await found.stored()).metadata.labels
        assert found.cluster.writes == ["create NodeResourceTopology", "patch NodeResourceTopology"]


async def test_an_object_that_somebody_deleted_or_changed_is_mended(tmp_path: Path) -> None:
    async with reporting(tmp_path) as found:
        await found.round()
        await found.cluster.delete(NodeResourceTopology, NAME)
        await found.round()
        assert (await found.stored()).zones

        await found.cluster.patch(NodeResourceTopology, NAME, {"metadata": {"annotations": {SHARED: "[]"}}})
        await found.round()

        assert len(await found.annotation(SHARED)) == 2


async def test_an_api_that_is_away_is_tried_ever_more_seldom_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with reporting(tmp_path) as found:
        tries = [errors.ServiceUnavailable("away")] * 200
        found.cluster.faults = list(tries)
        for _ in range(200):
            await found.round()
        assert 8 < len(tries) - len(found.cluster.faults) < 25
        assert found.node.view.topology is not None
        assert caplog.text.count("report of NodeResourceTopology") == 1

        found.cluster.faults = []
        for _ in range(21):
            await found.round()

        assert found.cluster.writes == ["create NodeResourceTopology"]


async def test_a_lost_race_is_tried_again_in_the_next_round(tmp_path: Path) -> None:
    async with reporting(tmp_path) as found:
        await found.round()
        found.node.view.node = node_object(**{labels.NODE_RESERVATION: '{"reservedCPUs":"0"}'})
        found.cluster.faults = [errors.Conflict("changed")]
        await found.round()

        await found.round()

        assert (await found.annotation(SHARED))[0]["cpuset"] == "1,4-5"


@pytest.mark.parametrize("key", [labels.NODE_SYSTEM_QOS_RESOURCE, labels.NODE_RESERVATION])
async def test_a_malformed_annotation_counts_as_absent_and_is_told_to_the_node_once(
    tmp_path: Path, key: str
) -> None:
    async with reporting(tmp_path) as found:
        found.node.view.node = node_object(**{key: "{"})

        for _ in range(3):
            await found.round()

        assert await found.annotation(key) == {}
        assert (await found.annotation(SHARED))[0]["cpuset"] == "0-1,4-5"
        assert found.node.shared.events.pending_count == 1


async def test_numa_nodes_that_do_not_fit_cost_the_zones_only(tmp_path: Path) -> None:
    async with reporting(tmp_path) as found:
        found.node.view.numa_meminfo_kib = {0: {"MemTotal": 1}}

        await found.round()

        made = await found.stored()
        assert made.zones == []
        assert len(await found.annotation(SHARED)) == 2


async def test_nothing_is_told_before_the_pods_are_known(tmp_path: Path) -> None:
    async with reporting(tmp_path) as found:
        found.node.view.has_pods = False

        await found.round()

        assert found.node.view.topology is None
        assert found.cluster.writes == []


async def test_a_dry_run_tells_each_change_once(tmp_path: Path) -> None:
    reported: list[str] = []
    async with reporting(tmp_path) as real:
        await real.round()
        real.cluster.writes.clear()
        dry = AgentNode(tmp_path, DryRunCluster(real.cluster, reported.append), kubelet=FakeKubelet())
        dry.view = real.node.view
        dry.view.cpu_info = CPUBasicInfo(cpu_model="Z")
        reporter = TopologyReporter(msgspec.structs.replace(dry.shared, view=dry.view))
        cache = asyncio.create_task(reporter.informers[0].run())
        await settle()

        for _ in range(5):
            await reporter.run()
        cache.cancel()

        assert real.cluster.writes == []
        assert len(reported) == 1
        assert reported[0].startswith("patch noderesourcetopologies.topology.node.k8s.io n1 {")
