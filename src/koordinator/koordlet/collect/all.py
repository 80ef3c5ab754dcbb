"""All collectors of this node, by flags and feature gates. Source: behaviour/koordlet-observe 2.2, 2.3 and 5."""

import logging

from koordinator.koordlet.collect import cold_pages
from koordinator.koordlet.collect.best_effort_usage import BestEffortUsage
from koordinator.koordlet.collect.cold_pages import ColdPages
from koordinator.koordlet.collect.cpi import CPI
from koordinator.koordlet.collect.gpu_usage import GPUUsageCollector
from koordinator.koordlet.collect.group_usage import GroupScan
from koordinator.koordlet.collect.host_application_usage import HostApplicationUsages
from koordinator.koordlet.collect.known import LatestSamples
from koordinator.koordlet.collect.node_info import NodeInfo
from koordinator.koordlet.collect.node_usage import NodeUsageCollector
from koordinator.koordlet.collect.pod_usage import PodUsage
from koordinator.koordlet.collect.pressure import PressureCollector
from koordinator.koordlet.collect.resctrl_monitors import ResctrlMonitors
from koordinator.koordlet.collect.retention import SeriesRetention
from koordinator.koordlet.collect.storage_info import StorageInfo
from koordinator.koordlet.collect.system_usage import SystemUsage
from koordinator.koordlet.parts import Collector, Shared

log = logging.getLogger(__name__)

INTERVAL_S_MIN = 1.0
"""Below that nothing is collected, as in the reference."""


def collectors(shared: Shared) -> list[Collector]:
    """Return the collectors that are on, in the order in which one round of usage needs them."""
    config, gates = shared.config.collect, shared.gates
    if not gates.is_on(cold_pages.OWNER):
        shared.executor.restore(cold_pages.OWNER)  # a former run may have switched the kernel's scanner on
    if config.used_interval_s < INTERVAL_S_MIN:
        log.warning("nothing is collected", extra={"used_interval_s": config.used_interval_s})
        return []
    known = LatestSamples()
    scan = GroupScan(shared.host.cgroups, lambda: _cpu_count(shared))
    found: list[Collector] = [
        NodeInfo(shared),
        NodeUsageCollector(shared, known),
        PodUsage(shared, known, scan),
        HostApplicationUsages(shared, known, scan),
        BestEffortUsage(shared),
        SystemUsage(shared, known),
        SeriesRetention(shared),
    ]
    if gates.is_on("Accelerators") and shared.gpus is not None:
        found.append(GPUUsageCollector(shared, shared.gpus))
    if gates.is_on("CPICollector"):
        found.append(CPI(shared))
    if gates.is_on("Libpfm4"):
        log.info("gate Libpfm4 has no effect: cycles and instructions are always counted as a group")
    if gates.is_on("PSICollector"):
        found.append(PressureCollector(shared))
    if gates.is_on("ColdPageCollector"):
        found.append(ColdPages(shared))
    if gates.is_on("ResctrlCollector") and config.resctrl:
        found.append(ResctrlMonitors(shared))
    if gates.is_on("BlkIOReconcile"):
        found.append(StorageInfo(shared))
    off = [each for each in found if each.interval_s <= 0]
    if off:
        log.warning("collectors without interval are off", extra={"collectors": [each.name for each in off]})
    return [each for each in found if each.interval_s > 0]


def _cpu_count(shared: Shared) -> float:
    """Return how much one group can use; without limit while the machine is not known."""
    cpu = shared.view.cpu
    return float("inf") if cpu is None else len(cpu.processors)
