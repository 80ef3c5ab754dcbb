"""Pressure, cold pages, counters, caches, disks, cards: told where the kernel tells, refused politely where not."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from koordinator.api.node_metric import AggregatePolicy, MetricCollectPolicy, NodeMetricSpec
from koordinator.api.slo import HostApplicationSpec, NodeSLOSpec
from koordinator.clock import Clock
from koordinator.host.gpu import GPUDevice, GPUs, ProcessUse
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.collect import performance
from koordinator.koordlet.collect.all import GROUP_WINDOW_S, INTERVAL_S, SeriesRetention, collectors
from koordinator.koordlet.collect.cold_pages import OWNER, ColdPages
from koordinator.koordlet.collect.gpu_usage import GPUUsageCollector
from koordinator.koordlet.collect.node_usage import StorageInfo
from koordinator.koordlet.collect.performance import CPI, CPU_FLAGS, PressureCollector, ResctrlMonitors
from koordinator.koordlet.config import CollectConfig, PredictConfig
from koordinator.koordlet.series import GROUP_WINDOW_S_MAX
from tests.host import host_tree
from tests.koordlet.collect.collecting_node import CollectingNode, life, make_pod, rounds

POD, CONTAINER = "kubepods/podweb", "kubepods/podweb/web-0"
PRESSURES = ("cpu.pressure", "memory.pressure", "io.pressure")
versions = pytest.mark.parametrize("version", host_tree.VERSIONS)


def pressures(node: CollectingNode, group: str, avg10: float, *, full: bool = True) -> None:
    lines = [f"some avg10={avg10:.2f} avg60=2.00 avg300=3.00 total=4"]
    lines += ["full avg10=0.50 avg60=0.00 avg300=0.00 total=1"] if full else []
    for name in PRESSURES:
        node.knob("cpuacct", group, name, "\n".join(lines))


@versions
def test_pressure_is_kept_by_resource_and_degree_and_shown_with_all_averages(
    tmp_path: Path, version: int
) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, version)
        node.pods(make_pod("web", containers=2), make_pod("gone"))
        pressures(node, "kubepods", 0)
        pressures(node, POD, 1.5)
        pressures(node, CONTAINER, 2.5, full=False)

        assert PressureCollector(node.shared).collect()

        shown = node.shared.metrics.pod_psi.values
        assert shown["n1", "web", "web", "d", "cpu", "avg10", "some", "true"] == 1.5
        assert shown["n1", "web", "web", "d", "io", "avg10", "full", "true"] == 0.5
        assert shown["n1", "web", "web", "d", "mem", "avg300", "some", "true"] == 3.0
        assert len(shown) == 3 * 2 * 3
        of_containers = node.shared.metrics.container_psi.values
        own = ("n1", "containerd://web-0", "c0", "web", "web", "d")
        assert of_containers[*own, "cpu", "avg10", "some", "false"] == 2.5
        assert len(of_containers) == 3 * 2 * 3, "the other container has no files"

    life(main)


def test_without_pressure_files_nothing_is_collected_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        node.pods(make_pod("web"))

        assert await rounds(PressureCollector(node.shared), *[lambda: None] * 3) == [True] * 3

    with caplog.at_level(logging.WARNING):
        life(main)
    assert [record.message for record in caplog.records] == ["pressure not collected"]


def test_an_empty_pressure_file_costs_only_its_group(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        node.pods(make_pod("web"), make_pod("other"))
        for group in ("kubepods", POD, "kubepods/podother"):
            pressures(node, group, 1.0)
        node.knob("cpuacct", POD, "io.pressure", "")

        assert PressureCollector(node.shared).collect()

        shown = node.shared.metrics.pod_psi.values
        assert {uid for _, uid, *_ in shown} == {"other"}
        assert len(shown) == 3 * 2 * 3

    life(main)


def test_cold_pages_start_the_scanner_and_split_memory(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        host_tree.kidled(tmp_path)
        application = HostApplicationSpec(name="nginx", qos="LS")
        node.slo(NodeSLOSpec(host_applications=[application]))
        node.pods(make_pod("web"), make_pod("fresh"))
        groups = {"": 1024, POD: 100, CONTAINER: 60, "host-latency-sensitive/nginx": 10}
        host_tree.group(tmp_path, 1, "host-latency-sensitive/nginx")
        for group, cold in groups.items():
            text = host_tree.idle_page_stats(cold)
            host_tree.write(node.cgroups / "memory" / group, {"memory.idle_page_stats": text})
        node.counters(POD, anon=300, cache=200)
        node.counters("host-latency-sensitive/nginx", anon=20, cache=10)
        kidled = tmp_path / "sys/kernel/mm/kidled"
        before = (kidled / "scan_period_in_seconds").read_text().strip()

        assert ColdPages(node.shared).collect()

        assert (kidled / "scan_period_in_seconds").read_text() == "5\n"
        assert (kidled / "use_hierarchy").read_text() == "1\n"
        assert node.shared.executor.owners() == [OWNER]
        assert node.shared.view.has_cold_pages
        assert node.values(kinds.NODE_MEMORY_HOT_PAGE) == [500 * 1024 - 1024]
        assert node.values(kinds.POD_MEMORY_HOT_PAGE) == [400]
        assert node.values(kinds.HOST_APP_MEMORY_HOT_PAGE, host_app_name="nginx") == [20]

        collectors(node.shared)  # as an agent does that starts without the gate
        assert (kidled / "scan_period_in_seconds").read_text().strip() == before
        assert node.shared.executor.owners() == []

    life(main)


@versions
def test_where_cold_pages_cannot_be_told_by_group_the_scanner_stays_off(tmp_path: Path, version: int) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, version)
        host_tree.kidled(tmp_path)
        node.pods(make_pod("web"))

        assert ColdPages(node.shared).collect()

        assert (tmp_path / "sys/kernel/mm/kidled/scan_period_in_seconds").read_text() == "0\n"
        assert not node.shared.view.has_cold_pages

    life(main)


def test_counters_that_the_cpu_lacks_are_refused_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        node.pods(make_pod("web"))

        assert await rounds(CPI(node.shared), *[lambda: None] * 3) == [True] * 3

        assert not node.shared.metrics.container_cpi.values

    with caplog.at_level(logging.WARNING):
        life(main)
    assert [record.message for record in caplog.records] == ["CPI not collected"]


def test_containers_take_turns_when_counters_do_not_suffice(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        node.pods(make_pod("web", containers=5))
        collector = CPI(node.shared)

        turns = [[each.container.name for each in collector._turn(2)] for _ in range(3)]

        assert turns == [["c0", "c1"], ["c2", "c3"], ["c4", "c0"]]
        assert len(collector._turn(performance.DESCRIPTORS_MAX)) == 5

    life(main)


def cpuinfo(flags: frozenset[str], vendor: str = "GenuineIntel") -> dict[str, str]:
    return {"proc/cpuinfo": f"vendor_id : {vendor}\nmodel name : x\nflags : {' '.join(sorted(flags))}\n"}


def test_caches_and_bandwidth_are_reported_by_class(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        host_tree.resctrl(tmp_path)
        host_tree.resctrl_group(tmp_path, "BE", caches=1)
        host_tree.write(tmp_path, cpuinfo(CPU_FLAGS))
        unavailable = {"mbm_local_bytes": "Unavailable"}
        host_tree.write(tmp_path / "sys/fs/resctrl/BE/mon_data/mon_L3_00", unavailable)

        assert ResctrlMonitors(node.shared).collect()

        assert node.shared.metrics.memory_bandwidth.values == {("n1", "0", "BE", "mbm_total_bytes"): 5}
        assert node.shared.metrics.llc_occupancy.values == {("n1", "0", "BE"): 5}

    life(main)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        pytest.param(cpuinfo(CPU_FLAGS - {"mba"}), "CPU without mba", id="a CPU without bandwidth control"),
        pytest.param(cpuinfo(CPU_FLAGS, "Other"), "CPU of vendor Other", id="another vendor"),
    ],
)
def test_a_cpu_that_does_not_count_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, files: dict[str, str], reason: str
) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        host_tree.resctrl(tmp_path)
        host_tree.write(tmp_path, files)

        assert await rounds(ResctrlMonitors(node.shared), *[lambda: None] * 2) == [True] * 2

    with caplog.at_level(logging.WARNING):
        life(main)
    assert [record.__dict__["reason"] for record in caplog.records] == [reason]


def test_storage_is_worked_out_again_when_disks_or_mounts_have_changed(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        collector = StorageInfo(node.shared)
        counter = node.shared.metrics.node_storage_info.values

        assert not collector.collect()
        host_tree.write(tmp_path, {"sys/block/sda/dev": "8:0", "proc/1/mountinfo": ""})
        assert await rounds(collector, *[lambda: None] * 3) == [True] * 3
        assert counter == {("n1", "failed"): 1, ("n1", "succeeded"): 1}
        mount = "40 22 8:0 / /data rw - ext4 /dev/sda rw\n"
        host_tree.write(tmp_path, {"proc/1/mountinfo": mount})
        assert collector.collect()

        storage = node.shared.view.storage
        assert storage is not None
        assert storage.numbers == {"/dev/sda": "8:0"}
        assert storage.mounts == {"/data": "/dev/sda"}

    life(main)


def test_cards_are_reported_for_node_and_pods(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        node.pods(make_pod("web", containers=2), make_pod("idle"))
        node.knob("cpu", CONTAINER, "cgroup.procs", "10\n11")
        node.knob("cpu", "kubepods/podweb/web-1", "cgroup.procs", "12")
        cards = [GPUDevice(f"u{minor}", minor, "x", 1000, "", 0, "") for minor in (0, 1)]
        use = {10: {0: ProcessUse(30, 100)}, 12: {0: ProcessUse(20, 50)}, 99: {1: ProcessUse(5, 7)}}
        gpus = SimpleNamespace(devices=cards, processes=lambda: use)

        assert GPUUsageCollector(node.shared, cast(GPUs, gpus)).collect()

        assert node.values(kinds.NODE_GPU_CORE, gpu_minor="0") == [50]
        assert node.values(kinds.NODE_GPU_MEMORY, gpu_minor="1") == [7]
        assert node.values(kinds.POD_GPU_CORE, pod_uid="web") == [50]
        assert node.values(kinds.POD_GPU_MEMORY, pod_uid="web") == [150]
        assert node.values(kinds.POD_GPU_CORE, pod_uid="idle") == []

    life(main)


def test_series_are_kept_as_long_as_somebody_asks_for_them_and_ended_pods_go(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        policy = MetricCollectPolicy(
            aggregate_duration_seconds=600,
            node_aggregate_policy=AggregatePolicy(durations=["1h", "nonsense"]),
        )
        node.shared.view.metric_spec = NodeMetricSpec(metric_collect_policy=policy)
        retention = SeriesRetention(node.shared)
        ended = node.shared.store.ring(kinds.POD_CPU, {kinds.POD_UID: "ended"})
        ended.append(int(clock.now() * 1000), 1.0)
        cpu = node.shared.store.ring(kinds.NODE_CPU)

        for _ in range(75):
            at_ms = int(node.clock.now() * 1000)
            for second in range(60):
                cpu.append(at_ms + 1000 * second, 1.0)
            await rounds(retention, lambda: None, every_s=INTERVAL_S)

        assert len(node.values(kinds.NODE_CPU)) == 3600 * 1.2
        assert node.values(kinds.POD_CPU) == []

    life(main)


def test_samples_are_kept_until_the_predictor_has_learnt_from_them(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        slow = PredictConfig(training_interval_s=900.0)
        config = msgspec.structs.replace(node.shared.config, predict=slow)
        pod = node.shared.store.ring(kinds.POD_CPU, {kinds.POD_UID: "web"})
        SeriesRetention(msgspec.structs.replace(node.shared, config=config)).collect()
        began_ms = int(clock.now() * 1000)

        for second in range(3600):
            pod.append(began_ms + 1000 * second, 1.0)

        assert len(node.values(kinds.POD_CPU)) >= 900

    life(main)


def test_no_policy_makes_the_many_series_of_pods_and_containers_fill_the_memory(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        policy = MetricCollectPolicy(aggregate_duration_seconds=12 * 3600)
        node.shared.view.metric_spec = NodeMetricSpec(metric_collect_policy=policy)
        pod = node.shared.store.ring(kinds.POD_CPU, {kinds.POD_UID: "web"})
        container = node.shared.store.ring(kinds.CONTAINER_CPU, {kinds.CONTAINER_ID: "containerd://web-1"})
        SeriesRetention(node.shared).collect()
        began_ms = int(clock.now() * 1000)

        for second in range(3 * 3600):
            pod.append(began_ms + 1000 * second, 1.0)
            container.append(began_ms + 1000 * second, 1.0)

        assert len(node.values(kinds.POD_CPU)) == GROUP_WINDOW_S_MAX * 1.2
        assert len(node.values(kinds.CONTAINER_CPU)) == GROUP_WINDOW_S * 1.2

    life(main)


def named(node: CollectingNode) -> list[str]:
    return [each.name for each in collectors(node.shared)]


def test_collectors_are_those_that_gates_and_flags_ask_for(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        usual = named(CollectingNode(tmp_path / "a", clock))
        gates = (
            "CPICollector=true,PSICollector=true,ColdPageCollector=true,ResctrlCollector=true,"
            "BlkIOReconcile=true,Accelerators=true,Libpfm4=true"
        )
        config = CollectConfig(resctrl=True, psi_interval_s=0)
        everything = named(CollectingNode(tmp_path / "b", clock, gates=gates, collect=config))

        assert usual == [
            "NodeInfoCollector",
            "NodeResourceCollector",
            "PodResourceCollector",
            "HostApplicationCollector",
            "ForeignContainerCollector",
            "BEResourceCollector",
            "SystemResourceCollector",
            "SeriesRetention",
        ]
        more = ["CPICollector", "ColdPageCollector", "resctrlCollector", "NodeStorageInfoCollector"]
        assert everything == usual + more  # no card was found, pressure has no interval

    life(main)


def test_below_a_second_nothing_is_collected(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        assert named(CollectingNode(tmp_path, clock, collect=CollectConfig(used_interval_s=0.5))) == []

    life(main)
