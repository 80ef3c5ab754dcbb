"""CPU and memory of the whole node and of its NUMA nodes; what of it is neither pods nor host applications: the kernel,
the kubelet, ourselves; and what the machine is made of: CPUs, NUMA nodes, huge pages, and which disk a mount or volume
leads to (for block I/O control). Source: behaviour/koordlet-observe 5.2, 5.5, 5.7 and 5.11."""

import asyncio
import logging
from collections.abc import Callable

from koordinator.host.errors import ContentError
from koordinator.host.procfs import CPUTicks
from koordinator.host.storage import local_storage, signature
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.collect import rates
from koordinator.koordlet.collect.group_usage import CORES_TOLERANCE
from koordinator.koordlet.collect.rates import (
    MEMORY_WITH_PAGE_CACHE,
    LatestSamples,
    MeasuredUsage,
    NumaValues,
    Total,
)
from koordinator.koordlet.metrics import FAILED, SUCCEEDED, status_of
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.series import Ring
from koordinator.koordlet.view import Topic


class NodeUsageCollector:
    """Reads `/proc/stat` and meminfo; the first round only takes the counters."""

    name = "NodeResourceCollector"

    def __init__(self, shared: Shared, known: LatestSamples) -> None:
        self._shared = shared
        self._known = known
        self.interval_s = shared.config.collect.used_interval_s
        self._cpu = shared.store.ring(kinds.NODE_CPU)
        self._stolen = shared.store.ring(kinds.NODE_CPU_STOLEN)
        self._memory = shared.store.ring(kinds.NODE_MEMORY)
        self._page_cache = shared.store.ring(kinds.NODE_MEMORY_PAGE_CACHE)
        self._numa_cpu: dict[int, Ring] = {}
        self._numa_memory: dict[int, Ring] = {}
        self._last: tuple[CPUTicks, float] | None = None
        self._ticks_per_s = shared.host.machine.clock_ticks_per_s

    def collect(self) -> bool:
        machine = self._shared.host.machine
        now_s = asyncio.get_running_loop().time()
        at_ms = int(self._shared.clock.now() * 1000)
        ticks, memory = machine.cpu_ticks(), machine.memory()
        if ticks is None or memory is None:
            return False
        last, self._last = self._last, (ticks, now_s)
        if last is None:
            return False
        elapsed_ms = (now_s - last[1]) * 1000
        cores = rates.node_cores(last[0].total, ticks.total, elapsed_ms, self._ticks_per_s)
        if cores is None or cores > len(ticks.by_cpu) * CORES_TOLERANCE:
            return False  # a counter was reset: better no sample than a wild one
        self._cpu.append(at_ms, cores)
        stolen = rates.node_cores(last[0].stolen, ticks.stolen, elapsed_ms, self._ticks_per_s)
        if stolen is not None:
            self._stolen.append(at_ms, stolen)
        self._memory.append(at_ms, memory.usage_bytes)
        if wants_page_cache(self._shared):
            self._page_cache.append(at_ms, memory.usage_with_page_cache_bytes)
        self._collect_numa(last[0], ticks, elapsed_ms, now_s, at_ms)
        self._known.node = Total(cores, memory.usage_bytes, now_s)
        self._shared.metrics.node_used_cpu.set(cores)
        self._shared.metrics.node_used_memory.set(memory.usage_bytes)
        return True

    def _collect_numa(
        self, last: CPUTicks, ticks: CPUTicks, elapsed_ms: float, now_s: float, at_ms: int
    ) -> None:
        """Collect NUMA statistics apart: a failure here costs only this part."""
        view, store = self._shared.view, self._shared.store
        numa_of_cpu = {} if view.cpu is None else {each.cpu: each.node for each in view.cpu.processors}
        found = rates.numa_cores(last.by_cpu, ticks.by_cpu, numa_of_cpu, elapsed_ms, self._ticks_per_s)
        for numa, cores in found.items():
            ring = self._numa_cpu.get(numa)
            if ring is None:
                ring = self._numa_cpu[numa] = store.ring(kinds.NODE_NUMA_CPU, {kinds.NUMA_NODE: str(numa)})
            ring.append(at_ms, cores)
        used: dict[int, float] = {}
        for numa in view.numa_meminfo_kib:
            try:
                used_bytes = self._shared.host.machine.numa_usage_bytes(numa)
            except ContentError:
                continue
            if used_bytes is None:
                continue
            used[numa] = used_bytes
            ring = self._numa_memory.get(numa)
            if ring is None:
                ring = store.ring(kinds.NODE_NUMA_MEMORY, {kinds.NUMA_NODE: str(numa)})
                self._numa_memory[numa] = ring
            ring.append(at_ms, used_bytes)
        if found:
            self._known.node_numa_cores = NumaValues(found, now_s)
        if used:
            self._known.node_numa_bytes = NumaValues(used, now_s)


def wants_page_cache(shared: Shared) -> bool:
    """Return whether usage with page cache is kept: by the flag, or because the NodeMetric is to report it."""
    return shared.config.collect.page_cache or memory_policy(shared) == MEMORY_WITH_PAGE_CACHE


def memory_policy(shared: Shared) -> str:
    """Return how the NodeMetric counts memory, empty without one."""
    spec = shared.view.metric_spec
    policy = spec.metric_collect_policy if spec is not None else None
    return (policy.node_memory_collect_policy if policy is not None else None) or ""


class SystemUsage:
    """Computes; reads nothing. Nothing is stored unless all inputs are fresh.

    It is the last of the collectors that measure usage, so its rounds end with `Topic.USAGE`.
    """

    name = "SystemResourceCollector"

    def __init__(self, shared: Shared, known: LatestSamples) -> None:
        self._shared = shared
        self._known = known
        self.interval_s = shared.config.collect.used_interval_s
        self._outdated_ms = int(shared.config.collect.system_outdated_s * 1000)
        self._cpu = shared.store.ring(kinds.SYS_CPU)
        self._memory = shared.store.ring(kinds.SYS_MEMORY)
        self._numa: dict[tuple[str, int], Ring] = {}

    def collect(self) -> bool:
        try:
            return self._measure()
        finally:
            self._shared.view.changed(Topic.USAGE)

    def _measure(self) -> bool:
        known = self._known
        now_s = asyncio.get_running_loop().time()
        if known.node is None or known.pods is None or known.host_applications is None:
            return False
        found = rates.system_usage(
            known.node.aged(now_s),
            [known.pods.aged(now_s)],
            known.host_applications.aged(now_s),
            self._outdated_ms,
        )
        if found is None:
            return False
        at_ms = int(self._shared.clock.now() * 1000)
        self._cpu.append(at_ms, found.cores)
        self._memory.append(at_ms, found.memory_bytes)
        self._collect_numa(found, now_s, at_ms)
        return True

    def _collect_numa(self, system: MeasuredUsage, now_s: float, at_ms: int) -> None:
        known = self._known
        if known.node_numa_cores is None or known.node_numa_bytes is None:
            return
        pods = known.pods_numa_bytes
        found = rates.system_numa_usage(
            system.cores,
            known.node_numa_cores.aged(now_s),
            known.node_numa_bytes.aged(now_s),
            None if pods is None else pods.aged(now_s),
            self._outdated_ms,
        )
        for kind, values in ((kinds.SYS_NUMA_CPU, found.cores), (kinds.SYS_NUMA_MEMORY, found.memory_bytes)):
            for numa, value in values.items():
                ring = self._numa.get((kind, numa))
                if ring is None:
                    ring = self._shared.store.ring(kind, {kinds.NUMA_NODE: str(numa)})
                    self._numa[kind, numa] = ring
                ring.append(at_ms, value)


log = logging.getLogger(__name__)


class NodeInfo:
    """Fills the view; what cannot be read keeps its last value."""

    name = "NodeInfoCollector"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.interval_s = shared.config.collect.node_info_interval_s
        self._reported: dict[str, str] = {}

    def collect(self) -> bool:
        is_cpu = self._part("cpu", self._cpu)
        is_numa = self._part("numa", self._numa)
        metrics = self._shared.metrics
        metrics.node_cpu_info.inc(status_of(is_cpu))
        metrics.node_numa_info.inc(status_of(is_numa))
        return is_cpu and is_numa

    def _part(self, name: str, read: Callable[[], None]) -> bool:
        try:
            read()
        except ContentError as error:
            if self._reported.get(name) != str(error):
                log.warning("%s info not collected", name, extra={"problem": str(error)})
            self._reported[name] = str(error)
            return False
        self._reported.pop(name, None)
        return True

    def _cpu(self) -> None:
        machine, view = self._shared.host.machine, self._shared.view
        topology = machine.cpu_topology()
        if topology != view.cpu:
            view.cpu = topology
        view.cpu_info = machine.cpu_basic_info()

    def _numa(self) -> None:
        machine, view = self._shared.host.machine, self._shared.view
        meminfo = machine.numa_meminfo_kib()
        if self._shared.gates.is_on("HugePageReport"):
            view.huge_pages = {numa: machine.huge_pages(numa) for numa in meminfo}
        view.numa_meminfo_kib = meminfo


class StorageInfo:
    """Looks for changes of mounts and block devices, and works all out anew when there are any."""

    name = "NodeStorageInfoCollector"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.interval_s = shared.config.collect.storage_interval_s
        self._seen: object = None
        self._reported = ""

    def collect(self) -> bool:
        host, counter = self._shared.host, self._shared.metrics.node_storage_info
        seen = signature(host.files, host.roots)
        if seen == self._seen and self._shared.view.storage is not None:
            return True
        try:
            found = local_storage(host.files, host.roots)
        except ContentError as error:
            if str(error) != self._reported:
                log.warning("storage info not collected", extra={"problem": str(error)})
            self._reported = str(error)
            counter.inc(FAILED)
            return False
        self._reported = ""
        self._seen = seen
        self._shared.view.storage = found
        counter.inc(SUCCEEDED)
        return True
