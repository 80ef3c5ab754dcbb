"""The node, the system, best-effort pods and host applications: what each is told from, and when it is not told."""

from pathlib import Path

import pytest

from koordinator.api.cpuset import CPUSet
from koordinator.api.node_metric import MetricCollectPolicy, NodeMetricSpec
from koordinator.api.slo import CgroupPath, HostApplicationSpec, NodeSLOSpec
from koordinator.clock import Clock
from koordinator.host.cgroup_knobs import V1
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.collect.node_usage import NodeInfo, NodeUsageCollector, SystemUsage
from koordinator.koordlet.collect.pod_usage import CPUS_ROUNDS, BestEffortUsage, HostApplicationUsages
from koordinator.koordlet.collect.rates import LatestSamples, NumaValues, Total
from koordinator.koordlet.view import Topic
from tests.host import host_tree
from tests.koordlet.collect.collecting_node import (
    BEST_EFFORT,
    CPUS,
    NS,
    CollectingNode,
    life,
    make_pod,
    rounds,
)

versions = pytest.mark.parametrize("version", host_tree.VERSIONS)
APP = HostApplicationSpec(name="nginx", priority="koord-prod", qos="LS")
APP_GROUP = "host-latency-sensitive/nginx"


def test_the_node_shows_cpu_and_memory_from_the_second_round_on(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        NodeInfo(node.shared).collect()

        found = await rounds(
            NodeUsageCollector(node.shared, node.known),
            lambda: node.machine(400),
            lambda: node.machine(600, stolen_ticks=50, available_kib=500),
        )

        assert found == [False, True]
        assert node.values(kinds.NODE_CPU) == pytest.approx([2.0])
        assert node.values(kinds.NODE_CPU_STOLEN) == pytest.approx([0.5])
        assert node.values(kinds.NODE_MEMORY) == [500 * 1024]
        assert node.values(kinds.NODE_NUMA_CPU, numa_node_id="0") == pytest.approx([2.0])
        assert node.values(kinds.NODE_NUMA_MEMORY, numa_node_id="0") == [300 * 1024]
        assert node.values(kinds.NODE_MEMORY_PAGE_CACHE) == []
        assert node.shared.metrics.node_used_cpu.values == {("n1",): pytest.approx(2.0)}

    life(main)


@pytest.mark.parametrize(
    ("ticks", "values"),
    [
        pytest.param([400, 200, 300], [1.0], id="ticks that went backwards"),
        pytest.param([400, 40_000, 40_100], [1.0], id="more ticks than CPUs can have"),
    ],
)
def test_a_reset_of_the_ticks_gives_no_sample(tmp_path: Path, ticks: list[int], values: list[float]) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)

        await rounds(
            NodeUsageCollector(node.shared, node.known),
            *[lambda each=each: node.machine(each) for each in ticks],
        )

        assert node.values(kinds.NODE_CPU) == pytest.approx(values)

    life(main)


def system_of(collecting: CollectingNode, **ages_s: float) -> list[bool]:
    """One round with 3 cores of the node, 1 of pods and 0.5 of applications."""
    collecting.known.node = Total(3.0, 3000, -ages_s.get("node", 0))
    collecting.known.pods = Total(1.0, 1000, -ages_s.get("pods", 0))
    collecting.known.host_applications = Total(0.5, 500, -ages_s.get("host_applications", 0))
    collecting.known.node_numa_cores = NumaValues({0: 2.0, 1: 1.0}, -ages_s.get("numa", 0))
    collecting.known.node_numa_bytes = NumaValues({0: 2000, 1: 900}, -ages_s.get("numa", 0))
    collecting.known.pods_numa_bytes = NumaValues({0: 400, 1: 1000}, -ages_s.get("numa", 0))
    return [SystemUsage(collecting.shared, collecting.known).collect()]


def test_the_system_is_what_is_left(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)

        assert system_of(node) == [True]

        assert node.values(kinds.SYS_CPU) == [1.5]
        assert node.values(kinds.SYS_MEMORY) == [1500]
        assert node.values(kinds.SYS_NUMA_CPU, numa_node_id="1") == pytest.approx([0.5])
        assert node.values(kinds.SYS_NUMA_MEMORY, numa_node_id="0") == [1600]
        assert node.values(kinds.SYS_NUMA_MEMORY, numa_node_id="1") == [0]

    life(main)


@pytest.mark.parametrize("stale", ["node", "pods", "host_applications"])
def test_the_system_is_not_told_from_old_inputs(tmp_path: Path, stale: str) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)

        assert system_of(node, **{stale: 10.5}) == [False]

        assert node.values(kinds.SYS_CPU) == []

    life(main)


def test_a_round_of_usage_ends_with_its_topic_also_when_nothing_could_be_reported(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        reported: list[str] = []
        node.shared.view.listen(Topic.USAGE, "test", lambda: reported.append("usage"))

        assert SystemUsage(node.shared, LatestSamples()).collect() is False

        assert reported == ["usage"]

    life(main)


@versions
def test_best_effort_pods_show_limit_request_and_usage(tmp_path: Path, version: int) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, version)
        batch = make_pod("batch", qos_class="BestEffort", qos="BE", batch_cpu="1500")
        node.pods(batch, make_pod("web"))
        cpus = "cpuset.cpus" if version == V1 else "cpuset.cpus.effective"
        node.knob("cpuset", f"{BEST_EFFORT}/podbatch/batch-0", cpus, "0-2")

        def used(second: int) -> None:
            node.counters(BEST_EFFORT, usage_ns=second * NS // 2)

        def quota() -> None:
            used(3)
            node.knob(
                "cpu",
                BEST_EFFORT,
                *(("cpu.cfs_quota_us", "50000") if version == V1 else ("cpu.max", "50000 100000")),
            )

        found = await rounds(BestEffortUsage(node.shared), lambda: used(1), lambda: used(2), quota)

        assert found == [False, True, True]
        assert node.values(kinds.NODE_BE, be_allocation="real-limit") == [3000, 500]
        assert node.values(kinds.NODE_BE, be_allocation="request") == [1500, 1500]
        assert node.values(kinds.NODE_BE, be_allocation="usage") == [500, 500]
        assert node.shared.metrics.be_suppress_be_used.values == {("n1",): 0.5}

    life(main)


@versions
def test_a_container_that_ends_or_has_no_cpus_yet_does_not_cost_the_round(
    tmp_path: Path, version: int
) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, version)
        node.pods(make_pod("a", qos_class="BestEffort", qos="BE"), make_pod("b", qos_class="BestEffort"))
        cpus = "cpuset.cpus" if version == V1 else "cpuset.cpus.effective"
        node.knob("cpuset", f"{BEST_EFFORT}/poda/a-0", cpus, "0-1")
        node.knob("cpuset", f"{BEST_EFFORT}/podb/b-0", cpus, "")

        await rounds(
            BestEffortUsage(node.shared),
            lambda: None,
            lambda: None,
            lambda: node.end(f"{BEST_EFFORT}/poda/a-0"),
            *[lambda: None] * (CPUS_ROUNDS - 2),
        )

        limits = node.values(kinds.NODE_BE, be_allocation="real-limit")
        assert limits == [2000] * (CPUS_ROUNDS - 1) + [4000]

    life(main)


def test_a_best_effort_counter_that_went_backwards_gives_no_sample(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        node.pods()

        found = await rounds(
            BestEffortUsage(node.shared),
            *[lambda used=used: node.counters(BEST_EFFORT, usage_ns=used * NS) for used in (9, 10, 2, 3)],
        )

        assert found == [False, True, False, True]
        assert node.values(kinds.NODE_BE, be_allocation="usage") == [1000, 1000]

    life(main)


@versions
def test_host_applications_are_measured_and_summed(tmp_path: Path, version: int) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, version)
        host_tree.group(tmp_path, version, "host-latency-sensitive")
        host_tree.group(tmp_path, version, APP_GROUP)
        absent = HostApplicationSpec(name="absent", qos="BE")
        node.slo(NodeSLOSpec(host_applications=[APP, absent]))
        policy = MetricCollectPolicy(node_memory_collect_policy="usageWithPageCache")
        node.shared.view.metric_spec = NodeMetricSpec(
            metric_collect_policy=policy
        )  # must not matter to the sum

        def used(second: int) -> None:
            node.counters(APP_GROUP, usage_ns=second * NS, anon=100, cache=50, memory=170)

        found = await rounds(
            HostApplicationUsages(node.shared, node.known, node.scan), lambda: used(1), lambda: used(2)
        )

        assert found == [True, True]
        assert node.values(kinds.HOST_APP_CPU, host_app_name="nginx") == pytest.approx([1.0])
        assert node.values(kinds.HOST_APP_MEMORY) == [100]
        assert node.values(kinds.HOST_APP_MEMORY_PAGE_CACHE) == [170]
        assert node.known.host_applications is not None
        assert node.known.host_applications.memory_bytes == 100
        gauge = node.shared.metrics.host_application_usage.values
        assert gauge["n1", "nginx", "memory", "koord-prod", "LS"] == 100

    life(main)


@versions
def test_two_host_applications_of_one_group_stay_measured_when_policies_change(
    tmp_path: Path, version: int
) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, version)
        host_tree.group(tmp_path, version, "shared")
        both = [
            HostApplicationSpec(name=name, qos="LS", cgroup_path=CgroupPath(parent_dir="shared"))
            for name in ("one", "two")
        ]
        collector = HostApplicationUsages(node.shared, node.known, node.scan)
        node.slo(NodeSLOSpec(host_applications=both))

        def used(second: int) -> None:
            node.counters("shared", usage_ns=second * NS, anon=100, cache=50, memory=170)

        def changed() -> None:
            node.slo(NodeSLOSpec(host_applications=[*both, APP]))
            used(3)

        await rounds(collector, lambda: used(1), lambda: used(2), changed, lambda: used(4), lambda: used(5))

        for name in ("one", "two"):
            cores = node.values(kinds.HOST_APP_CPU, host_app_name=name)
            assert cores[-2:] == pytest.approx([1.0, 1.0])

    life(main)


def test_host_applications_wait_for_the_node_slo_and_are_zero_without_any(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        collector = HostApplicationUsages(node.shared, node.known, node.scan)

        assert not collector.collect()
        assert node.known.host_applications is None
        node.slo(NodeSLOSpec())
        assert collector.collect()

        assert node.known.host_applications == Total(0, 0, 0.0)

    life(main)


def test_node_info_fills_the_view_and_counts_what_failed(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, gates="HugePageReport=true")
        huge = tmp_path / "sys/bus/node/devices/node0/hugepages/hugepages-2048kB"
        host_tree.write(huge, {"nr_hugepages": "3"})
        collector = NodeInfo(node.shared)
        view, metrics = node.shared.view, node.shared.metrics

        assert collector.collect()
        known = view.cpu
        (tmp_path / "sys/devices/system/cpu/online").unlink()
        assert not collector.collect()

        assert known is not None
        assert known.cpus == CPUSet(range(CPUS))
        assert view.cpu is known
        assert view.numa_meminfo_kib[0]["MemTotal"] == 1000
        assert view.huge_pages[0][2048] == 3
        assert metrics.node_cpu_info.values == {("n1", "succeeded"): 1, ("n1", "failed"): 1}
        assert metrics.node_numa_info.values == {("n1", "succeeded"): 2}

    life(main)
