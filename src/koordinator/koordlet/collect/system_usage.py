"""Collect the usage that is neither pods nor host applications: the kernel, the kubelet, ourselves.

Source: behaviour/koordlet-observe 5.5.
"""

import asyncio

from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.collect import rates
from koordinator.koordlet.collect.known import LatestSamples
from koordinator.koordlet.collect.rates import MeasuredUsage
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.series import Ring
from koordinator.koordlet.view import Topic


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
