"""Collectors on this kernel: real processes in the groups of pods are seen as what they are."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from koordinator.clock import SystemClock
from koordinator.host import perf_events
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.mounts import CgroupMounts
from koordinator.host.perf_events import CPU_TIME_AND_SWITCHES
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.collect.group_usage import MEMORY_ROUNDS, GroupScan
from koordinator.koordlet.collect.node_usage import NodeInfo, NodeUsageCollector
from koordinator.koordlet.collect.performance import CPI, PressureCollector
from koordinator.koordlet.collect.pod_usage import NUMA_ROUNDS, BestEffortUsage, PodUsage
from koordinator.koordlet.collect.rates import LatestSamples
from koordinator.koordlet.config import AgentConfig, CollectConfig
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.series import Readings
from tests.kernel.conftest import Spawn, has, remove
from tests.kernel.strategy_node import StrategyNode, pod_object

HOG = "while True: pass"
MIB = 1 << 20
ROUND_S = 0.25
PATIENCE_ROUNDS = 80
HOLDS = f"held = bytearray({64 * MIB}); held[::4096] = bytes([1]) * len(held[::4096]); import time; time.sleep(20)"


class CollectingKernel:
    """Pods `web` (Burstable) and `batch` (best effort) with a container each, and a collector of pods."""

    def __init__(self, group: str, journal: Path) -> None:
        self.node = StrategyNode(group, journal)
        clock = SystemClock()
        config = AgentConfig(node_name="kernel", collect=CollectConfig(cpi_window_s=0.3))
        self.shared: Shared = msgspec.structs.replace(
            self.node.shared,
            clock=clock,
            config=config,
            readings=Readings(self.node.store, clock, 1.0),
        )
        self.node.make_classes()
        pods = [pod_object("web", qos="LS"), pod_object("batch", qos="BE", kube="BestEffort")]
        self.containers = {pod.metadata.name: self.node.make_pod(pod) for pod in pods}
        self.node.know(*pods)
        self.known = LatestSamples()
        cpus = self.node.cpu_count
        self.pods = PodUsage(self.shared, self.known, GroupScan(self.node.host.cgroups, lambda: cpus))

    @property
    def cgroups(self) -> Cgroups:
        return self.node.host.cgroups

    def place(self, pod: str) -> str:
        """The container of a pod, as this machine names it."""
        return f"{self.node.group}/{self.containers[pod]}"

    def newest(self, kind: str, **properties: str) -> float:
        return self.shared.store.ring(kind, properties).newest


@pytest.fixture
def kernel(group: str, tmp_path: Path) -> Iterator[CollectingKernel]:
    made = CollectingKernel(group, tmp_path / "journal")
    yield made
    made.node.host.close()


async def test_a_hog_shows_the_cores_that_the_kernel_gave_it(kernel: CollectingKernel, spawn: Spawn) -> None:
    spawn(kernel.place("web"), HOG)
    loop = asyncio.get_running_loop()

    await kernel.pods.collect()
    before_ns, before_s = kernel.cgroups.cpu_usage_ns(kernel.containers["web"]), loop.time()
    await asyncio.sleep(1.0)
    await kernel.pods.collect()
    after_ns, after_s = kernel.cgroups.cpu_usage_ns(kernel.containers["web"]), loop.time()

    assert before_ns is not None and after_ns is not None
    given = (after_ns - before_ns) / 1e9 / (after_s - before_s)
    assert kernel.newest(kinds.POD_CPU, pod_uid="web") == pytest.approx(given, rel=0.2)
    assert kernel.shared.readings.pods()["batch"] == 0
    (container,) = [
        value for value in kernel.shared.readings.containers(kinds.CONTAINER_CPU).values() if value
    ]
    assert container == pytest.approx(given, rel=0.2)
    assert kernel.known.pods is not None
    assert kernel.known.pods.cores == pytest.approx(given, rel=0.2)


async def test_memory_that_is_held_shows_and_page_cache_does_not(
    kernel: CollectingKernel, spawn: Spawn, tmp_path: Path
) -> None:
    spawn(kernel.place("web"), HOLDS)
    for _ in range(PATIENCE_ROUNDS):
        await kernel.pods.collect()
        if kernel.newest(kinds.POD_MEMORY, pod_uid="web") > 64 * MIB:
            break
        await asyncio.sleep(ROUND_S)

    held = kernel.newest(kinds.POD_MEMORY, pod_uid="web")
    stat = kernel.cgroups.memory_stat(kernel.containers["web"])

    assert stat is not None
    assert 64 * MIB < held < 128 * MIB
    assert held == pytest.approx(stat.usage_bytes, rel=0.05)
    assert kernel.newest(kinds.POD_MEMORY, pod_uid="batch") < MIB


async def test_a_quota_shows_as_throttling(kernel: CollectingKernel, spawn: Spawn) -> None:
    kernel.cgroups.write(Knob.CPU_QUOTA, kernel.containers["web"], "5000")
    spawn(kernel.place("web"), HOG)
    for _ in range(PATIENCE_ROUNDS):
        await kernel.pods.collect()
        ratios = kernel.shared.readings.containers(kinds.CONTAINER_THROTTLED)
        if max(ratios.values(), default=0) > 0.5:
            break
        await asyncio.sleep(ROUND_S)

    assert max(ratios.values()) > 0.5
    assert kernel.newest(kinds.POD_CPU, pod_uid="web") < 0.3
    assert kernel.newest(kinds.POD_THROTTLED, pod_uid="batch") == 0


async def test_a_pod_that_ends_between_rounds_leaves_no_sample_and_no_open_file(
    kernel: CollectingKernel, real: Cgroups, spawn: Spawn
) -> None:
    spawn(kernel.place("batch"), HOG)
    for _ in range(3):
        await kernel.pods.collect()
        await asyncio.sleep(ROUND_S)
    open_files = kernel.node.host.files.kept_count

    remove(real, kernel.place("web").rpartition("/")[0])
    for _ in range(2):
        await kernel.pods.collect()
        await asyncio.sleep(ROUND_S)

    assert kernel.node.host.files.kept_count < open_files
    assert kernel.known.pods is not None
    assert kernel.known.pods.cores > 0
    kernel.node.know()
    await kernel.pods.collect()
    assert kernel.node.host.files.kept_count == 0


async def test_a_container_made_anew_below_the_same_path_does_not_look_like_a_burst(
    kernel: CollectingKernel, real: Cgroups, spawn: Spawn
) -> None:
    group = kernel.containers["web"]
    spawn(kernel.place("web"), HOG)
    await kernel.pods.collect()
    await asyncio.sleep(0.5)
    await kernel.pods.collect()
    count = kernel.shared.store.query(kinds.CONTAINER_CPU, 0, 2**50).count

    remove(real, kernel.place("web"))
    kernel.node.make(group)
    spawn(kernel.place("web"), HOG)
    await kernel.pods.collect()
    assert (
        kernel.shared.store.query(kinds.CONTAINER_CPU, 0, 2**50).count <= count + 1
    )  # that of the other pod
    await asyncio.sleep(0.5)
    await kernel.pods.collect()

    (newest,) = [value for value in kernel.shared.readings.containers(kinds.CONTAINER_CPU).values() if value]
    assert 0 < newest <= 1.25


async def test_the_node_and_its_parts_add_up(kernel: CollectingKernel, spawn: Spawn) -> None:
    spawn(kernel.place("batch"), HOG)
    NodeInfo(kernel.shared).collect()
    node = NodeUsageCollector(kernel.shared, kernel.known)
    best_effort = BestEffortUsage(kernel.shared)
    for _ in range(2):
        node.collect()
        await kernel.pods.collect()
        await best_effort.collect()
        await asyncio.sleep(1.0)

    used = kernel.newest(kinds.NODE_CPU)
    batch = kernel.newest(kinds.POD_CPU, pod_uid="batch")
    tier = {
        each: kernel.newest(kinds.NODE_BE, be_resource="cpu", be_allocation=each)
        for each in ("usage", "real-limit", "request")
    }

    assert 0 < batch <= used * 1.25
    assert tier["usage"] == pytest.approx(batch * 1000, rel=0.25)
    assert tier["real-limit"] == kernel.node.cpu_count * 1000
    numa = [
        kernel.newest(kinds.NODE_NUMA_CPU, numa_node_id=str(each))
        for each in kernel.shared.view.numa_meminfo_kib
    ]
    assert sum(numa) == pytest.approx(used, rel=0.05)


async def test_memory_of_pods_is_reported_by_numa_node(kernel: CollectingKernel, spawn: Spawn) -> None:
    NodeInfo(kernel.shared).collect()
    if len(kernel.shared.view.numa_meminfo_kib) < 2:
        pytest.skip("this machine has one NUMA node")
    spawn(kernel.place("web"), HOLDS)
    for _ in range(PATIENCE_ROUNDS):
        for _ in range(max(NUMA_ROUNDS, MEMORY_ROUNDS)):
            await kernel.pods.collect()
            await asyncio.sleep(0.01)
        found = kernel.known.pods_numa_bytes
        if found is not None and sum(found.values.values()) > 64 * MIB:
            break

    assert found is not None
    assert set(found.values) == set(kernel.shared.view.numa_meminfo_kib)
    assert sum(found.values.values()) == pytest.approx(
        kernel.newest(kinds.POD_MEMORY, pod_uid="web"), rel=0.1
    )


async def test_counters_of_containers_are_read_by_perf(
    kernel: CollectingKernel, real: Cgroups, spawn: Spawn
) -> None:
    supported = perf_events.support(kernel.node.host.syscalls, CPU_TIME_AND_SWITCHES)
    if not supported.is_supported:
        pytest.skip(supported.reason)
    pid = spawn(kernel.place("web"), HOG)
    where = kernel.cgroups.where
    unified = (
        Cgroups(real.files, CgroupMounts(V2, where.unified, {}, where.unified)) if where.unified else None
    )
    directory = perf_events.directory(kernel.cgroups, kernel.containers["web"])
    if kernel.cgroups.version == V1 and unified is not None and directory.startswith(where.unified):
        Path(directory).mkdir(parents=True)
        (Path(directory) / "cgroup.procs").write_text(str(pid))
    try:
        assert await CPI(kernel.shared, CPU_TIME_AND_SWITCHES).collect()

        shown = kernel.shared.metrics.container_cpi.values
        (cycles,) = (value for labels, value in shown.items() if "web" in labels and labels[-1] == "cycles")
        assert 1e6 < cycles < 2e9  # nanoseconds on the CPU within 0.3 s
    finally:
        if unified is not None and kernel.cgroups.version == V1:
            whole = Cgroups(real.files, CgroupMounts(V2, real.where.unified, {}, real.where.unified))
            remove(whole, kernel.node.group)


async def test_pressure_is_told_where_the_kernel_tells_it(kernel: CollectingKernel) -> None:
    assert PressureCollector(kernel.shared).collect()

    is_reported = has(kernel.cgroups, Knob.CPU_PRESSURE, "kubepods")
    assert bool(kernel.shared.metrics.pod_psi.values) == is_reported
