"""CPU and memory of applications that run outside of pods, as the NodeSLO names them.

Source: behaviour/koordlet-observe 5.4.
"""

import asyncio

from koordinator.api import node_metric
from koordinator.api.slo import HostApplicationSpec
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.errors import ContentError, LayoutError
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.collect import rates
from koordinator.koordlet.collect.group_usage import GroupRings, GroupScan, MeasuredGroup
from koordinator.koordlet.collect.known import LatestSamples, Total
from koordinator.koordlet.collect.rates import HostApplicationUsage
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.series import Ring


class _Application:
    """One application, its group, and the series of the memory that its usage file tells."""

    def __init__(self, spec: HostApplicationSpec, measured: MeasuredGroup, whole: Ring) -> None:
        self.spec = spec
        self.measured = measured
        self.whole = whole


class HostApplicationUsages:
    """Applications whose group is not there are left out; their sums are there even when there are none."""

    name = "HostApplicationCollector"

    def __init__(self, shared: Shared, known: LatestSamples, scan: GroupScan) -> None:
        self._shared = shared
        self._known = known
        self._scan = scan
        self.interval_s = shared.config.collect.used_interval_s
        self._listed: list[HostApplicationSpec] | None = None
        self._driver = shared.view.driver
        self._applications: list[_Application] = []

    def collect(self) -> bool:
        slo = self._shared.view.slo
        if slo is None:
            return False
        driver = self._shared.view.driver
        if slo.host_applications is not self._listed or driver is not self._driver:
            self._listed, self._driver = slo.host_applications, driver
            self._follow(slo.host_applications)
        now_s = asyncio.get_running_loop().time()
        at_ms = int(self._shared.clock.now() * 1000)
        if self._applications:
            self._scan.measure([each.measured for each in self._applications], at_ms)
        used = [usage for each in self._applications if (usage := self._used(each, at_ms)) is not None]
        # Without page cache whatever the policy: the sum is taken off the node's usage, which has none either.
        total = rates.host_applications_total(used, node_metric.MEMORY_COLLECT_POLICY)
        self._known.host_applications = Total(total.cores, total.memory_bytes, now_s)
        self._show()
        return True

    def _follow(self, specs: list[HostApplicationSpec]) -> None:
        former = {each.measured.group: each.measured for each in self._applications}
        store, view = self._shared.store, self._shared.view
        self._applications = []
        for spec in specs:
            try:
                group = cgroup_layout.host_application_dir(view.driver, spec)
            except LayoutError:
                continue  # reported where its group is written to
            names = {kinds.HOST_APP_NAME: spec.name}
            rings = GroupRings(
                store.ring(kinds.HOST_APP_CPU, names), store.ring(kinds.HOST_APP_MEMORY, names), None, None
            )
            measured = former.get(group)
            if measured is None:
                measured = MeasuredGroup(self._shared.host.cgroups, group, rings)
            measured.rings = rings
            whole = store.ring(kinds.HOST_APP_MEMORY_PAGE_CACHE, names)
            self._applications.append(_Application(spec, measured, whole))

    def _used(self, each: _Application, at_ms: int) -> HostApplicationUsage | None:
        if not each.measured.is_measured:
            return None
        try:
            whole_bytes = self._shared.host.cgroups.number(Knob.MEMORY_USAGE, each.measured.group)
        except ContentError:
            return None
        if whole_bytes is None:
            return None
        each.whole.append(at_ms, whole_bytes)
        return HostApplicationUsage(each.measured.cores, each.measured.memory_bytes, whole_bytes)

    def _show(self) -> None:
        gauge = self._shared.metrics.host_application_usage
        gauge.reset()
        for each in self._applications:
            if each.measured.is_measured:
                spec = each.spec
                gauge.set(each.measured.cores, spec.name, "cpu", spec.priority, spec.qos)
                gauge.set(each.measured.memory_bytes, spec.name, "memory", spec.priority, spec.qos)
