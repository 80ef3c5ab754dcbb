"""CPU, memory and throttling of all pods and containers, in one pass over their groups; of the applications outside of
pods that the NodeSLO names; and what best-effort pods may use, ask for and use, together. Source:
behaviour/koordlet-observe 5.3, 5.4, 5.6, 5.8 and 5.10."""

import asyncio
import functools
import os
from collections.abc import Mapping

from koordinator.api import cpuset, node_metric
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.api.slo import HostApplicationSpec
from koordinator.host import cgroup_counters, cgroup_layout, cgroup_values
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.errors import ContentError, LayoutError
from koordinator.host.files import Identity
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet import node_pods
from koordinator.koordlet.collect import rates
from koordinator.koordlet.collect.group_usage import (
    BATCH_MEMORY_ROUNDS,
    GROUPS_AT_ONCE,
    SERVICE_MEMORY_ROUNDS,
    GroupRings,
    GroupScan,
    MeasuredGroup,
)
from koordinator.koordlet.collect.node_usage import wants_page_cache
from koordinator.koordlet.collect.rates import HostApplicationUsage, LatestSamples, NumaValues, Total
from koordinator.koordlet.node_pods import ForeignContainer, NodeContainer, PodRecord
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.series import Ring

NUMA_ROUNDS = 5
"""Memory by NUMA node costs as much as all else together and is looked at each fifth round; more often where rounds
are so far apart that it would be outdated by the next one."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class PodUsage:
    """Groups are worked out when the list of pods changes; what pods share with former lists keeps its readings."""

    name = "PodResourceCollector"

    def __init__(self, shared: Shared, known: LatestSamples, scan: GroupScan) -> None:
        self._shared = shared
        self._known = known
        self._scan = scan
        self.interval_s = shared.config.collect.used_interval_s
        self._listed: Mapping[str, PodRecord] | None = None
        self._has_page_cache = False
        self._pods: dict[str, MeasuredGroup] = {}
        self._containers: dict[str, MeasuredGroup] = {}
        self._groups: list[MeasuredGroup] = []
        collect = shared.config.collect
        self._numa_every = max(min(NUMA_ROUNDS, int(collect.system_outdated_s / 2 / self.interval_s)), 1)
        self._numa_rounds_left = 0
        self._made_count = 0

    async def collect(self) -> bool:
        """One round, in steps between which others have their turn: a container runtime may wait for an answer."""
        view = self._shared.view
        if not view.has_pods:
            return False
        has_page_cache = wants_page_cache(self._shared)
        if view.pods is not self._listed or has_page_cache != self._has_page_cache:
            self._listed, self._has_page_cache = view.pods, has_page_cache
            self._follow(view.pods)
        now_s = asyncio.get_running_loop().time()
        groups, at_ms = self._groups, int(self._shared.clock.now() * 1000)
        for start in range(0, len(groups), GROUPS_AT_ONCE):
            self._scan.measure(groups[start : start + GROUPS_AT_ONCE], at_ms)
            await asyncio.sleep(0)
        measured = [each for each in self._pods.values() if each.is_measured]
        cores, memory_bytes = (
            sum(each.cores for each in measured),
            sum(each.memory_bytes for each in measured),
        )
        if (unseen := self._known.unseen_pods) is not None:
            cores, memory_bytes = cores + unseen.cores, memory_bytes + int(unseen.memory_bytes)
        self._known.pods = Total(cores, memory_bytes, now_s)
        self._measure_numa(measured, now_s)
        return True

    def _follow(self, pods: Mapping[str, PodRecord]) -> None:
        """Take over a new list. Forget what ended, as other groups may take its names."""
        former = {each.group for each in (*self._pods.values(), *self._containers.values())}
        self._pods = {uid: self._of_pod(uid, pod) for uid, pod in pods.items()}
        self._containers = {
            container.id: self._of_container(container)
            for pod in pods.values()
            for container in pod.containers
        }
        for uid, pod in pods.items():
            self._pods[uid].below = [self._containers[container.id] for container in pod.containers]
        self._groups = list(self._pods.values())
        ended = former - {each.group for each in (*self._groups, *self._containers.values())}
        for group in sorted(ended):
            if group.rpartition("/")[0] not in ended:  # it goes with all that is below it
                self._shared.executor.forget(group)

    def _of_pod(self, uid: str, pod: PodRecord) -> MeasuredGroup:
        known = self._pods.get(uid)
        if known is not None and known.group == pod.group and self._is_complete(known):
            return known
        names = {kinds.POD_UID: uid}
        store = self._shared.store
        rings = GroupRings(
            store.ring(kinds.POD_CPU, names),
            store.ring(kinds.POD_MEMORY, names),
            store.ring(kinds.POD_THROTTLED, names),
            store.ring(kinds.POD_MEMORY_PAGE_CACHE, names) if self._has_page_cache else None,
        )
        self._made_count += 1
        return MeasuredGroup(
            self._shared.host.cgroups,
            pod.group,
            rings,
            memory_every=SERVICE_MEMORY_ROUNDS if node_pods.is_service(pod) else BATCH_MEMORY_ROUNDS,
            watches_quotas=pod.qos is not QoSClass.BE,
            index=self._made_count,
        )

    def _of_container(self, container: NodeContainer) -> MeasuredGroup:
        known = self._containers.get(container.id)
        if known is not None and known.group == container.group:
            return known
        names = {kinds.CONTAINER_ID: container.id}
        store = self._shared.store
        rings = GroupRings(
            store.ring(kinds.CONTAINER_CPU, names), None, store.ring(kinds.CONTAINER_THROTTLED, names), None
        )
        return MeasuredGroup(self._shared.host.cgroups, container.group, rings)

    def _is_complete(self, group: MeasuredGroup) -> bool:
        return (group.rings.page_cache is not None) == self._has_page_cache

    def _measure_numa(self, pods: list[MeasuredGroup], now_s: float) -> None:
        """Memory of all pods by NUMA node. On a single one it is that of the pods, without reading anything."""
        nodes = self._shared.view.numa_meminfo_kib
        if len(nodes) == 1:
            (only,) = nodes
            self._known.pods_numa_bytes = NumaValues({only: sum(each.memory_bytes for each in pods)}, now_s)
            return
        self._numa_rounds_left -= 1
        if not nodes or self._numa_rounds_left > 0:
            return
        self._numa_rounds_left = self._numa_every
        cgroups = self._shared.host.cgroups
        paths = [cgroups.path(Knob.MEMORY_NUMA_STAT, each.group) for each in pods]
        total: dict[int, float] = {}
        for data in cgroups.files.hot_many(paths):
            found = (
                None
                if data is None
                else cgroup_counters.numa_bytes(cgroups.version, b"\n" + data, _PAGE_BYTES)
            )
            for numa, used in (found or {}).items():
                total[numa] = total.get(numa, 0) + used
        self._known.pods_numa_bytes = NumaValues(total, now_s)


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
            measured = former.pop(group, None)  # two may name the same group: each has readings of its own
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


WALK_ROUNDS = 30
"""Rounds between two searches for groups that no pod of the list has (sandboxes)."""
CPUS_ROUNDS = 5


class BestEffortUsage:
    """All three figures of a round or none; the first round only takes the counter."""

    name = "BEResourceCollector"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.interval_s = shared.config.collect.used_interval_s
        self._class = self._usage_path = ""
        self._quota_paths: list[str] = []
        self._limit, self._request, self._usage = (
            shared.store.ring(kinds.NODE_BE, {kinds.BE_RESOURCE: "cpu", kinds.BE_ALLOCATION: allocation})
            for allocation in ("real-limit", "request", "usage")
        )
        self._last: tuple[int, float, Identity | None] | None = None
        self._listed: Mapping[str, PodRecord] | None = None
        self._requested: tuple[object, object] = (None, None)
        self._request_milli = 0
        self._cpus_paths: list[str] = []
        self._cpus: CPUSet = frozenset()
        self._of_class: bytes | None = None
        """CPUs of the class when `_cpus` were read."""
        self._cpus_rounds_left = 0
        self._rounds_left = 0

    async def collect(self) -> bool:
        shared = self._shared
        if not shared.view.has_pods:
            return False
        self._name_files()
        if self._rounds_left == 0 or shared.view.pods is not self._listed:
            self._cpus_paths = await self._paths_of_cpus()
            self._rounds_left, self._listed = WALK_ROUNDS, shared.view.pods
            self._cpus_rounds_left = 0
        self._rounds_left -= 1
        used_milli = self._used_milli()
        limit_milli = self._limit_milli()
        if used_milli is None or limit_milli is None:
            return False
        self._add_requests()
        at_ms = int(shared.clock.now() * 1000)
        self._limit.append(at_ms, limit_milli)
        self._request.append(at_ms, self._request_milli)
        self._usage.append(at_ms, used_milli)
        shared.metrics.be_suppress_be_used.set(used_milli / 1000)
        return True

    def _add_requests(self) -> None:
        """Add up what best-effort pods and containers of other runtimes ask for: both share the class's limit."""
        view = self._shared.view
        if self._requested[0] is view.pods and self._requested[1] is view.foreign:
            return
        self._requested = view.pods, view.foreign
        pods = [each.pod for each in view.pods.values()]
        pods += [each.record.pod for each in view.foreign.values()]
        self._request_milli = rates.be_request_milli(pods)

    def _name_files(self) -> None:
        """Set where the class is; the kubelet's driver may be found out after we were made."""
        group = cgroup_layout.class_dir(self._shared.view.driver, KubeQoS.BEST_EFFORT)
        if group != self._class:
            cgroups = self._shared.host.cgroups
            self._class, self._last, self._rounds_left = group, None, 0
            self._usage_path = cgroups.path(Knob.CPU_USAGE, group)
            self._quota_paths = [cgroups.path(knob, group) for knob in (Knob.CPU_QUOTA, Knob.CPU_PERIOD)]

    def _used_milli(self) -> int | None:
        """CPU in use since the last round; None in the first, and when it cannot be told."""
        files, version = self._shared.host.files, self._shared.host.cgroups.version
        data = files.hot(self._usage_path)
        now_s = asyncio.get_running_loop().time()
        now_ns = None if data is None else cgroup_counters.cpu_usage_ns(version, data)
        if now_ns is None:
            self._last = None
            return None
        identity = files.identity(self._usage_path)
        last, self._last = self._last, (now_ns, now_s, identity)
        if last is None or last[2] != identity or now_ns < last[0] or now_s - last[1] < 1e-3:
            return None
        return rates.be_usage_milli(last[0], now_ns, int((now_s - last[1]) * 1000))

    def _limit_milli(self) -> int | None:
        """By the quota of the class and the smallest cpuset in it; containers that end meanwhile do not count."""
        files, view = self._shared.host.files, self._shared.view
        version = self._shared.host.cgroups.version
        quota, period = files.hot_many(self._quota_paths)
        if quota is None or period is None:
            return None
        try:
            quota_us = cgroup_values.quota_us(version, quota.decode(errors="replace"))
            period_us = cgroup_values.period_us(version, period.decode(errors="replace"))
        except ContentError:
            return None
        known = self._smallest_cpus()
        if not known and view.cpu is not None:
            known = view.cpu.cpus  # nobody confines them: the controller is not even on
        return rates.be_limit_milli(known, quota_us, period_us) if known else None

    def _smallest_cpus(self) -> CPUSet:
        """Return the smallest set in the class, empty where none is known. Containers', which cost a file each, are
        read again when the class has others, and after `CPUS_ROUNDS` rounds."""
        files = self._shared.host.files
        of_class = files.hot(self._cpus_paths[0])
        self._cpus_rounds_left -= 1
        if self._cpus_rounds_left <= 0 or of_class != self._of_class:
            self._cpus_rounds_left, self._of_class = CPUS_ROUNDS, of_class
            texts = (of_class, *files.hot_many(self._cpus_paths[1:]))
            sets = [_cpus(text) for text in texts if text is not None]
            self._cpus = min((each for each in sets if each is not None), key=len, default=frozenset())
        return self._cpus

    async def _paths_of_cpus(self) -> list[str]:
        """Return the files of the class and of all containers in it; others have their turn between a few pods."""
        cgroups = self._shared.host.cgroups
        knob = Knob.CPUSET if cgroups.version == V1 else Knob.CPUSET_EFFECTIVE
        groups = [self._class]
        for number, pod in enumerate(cgroups.children(self._class, "cpuset") or ()):
            if number % GROUPS_AT_ONCE == GROUPS_AT_ONCE - 1:
                await asyncio.sleep(0)
            groups += cgroups.children(pod, "cpuset") or ()
        return [cgroups.path(knob, each) for each in groups]


@functools.lru_cache(maxsize=64)
def _cpus(data: bytes) -> CPUSet | None:
    """Return CPUs that a group may run on; None when it does not say, or has none (yet)."""
    try:
        return cpuset.parse(data.decode().strip()) or None
    except (CPUSetError, UnicodeDecodeError):
        return None


class ForeignUsage:
    """CPU and memory of containers of other runtimes (YARN), which eviction orders them by.

    Groups are worked out when the list of containers changes; those that stay keep their readings.
    """

    name = "ForeignContainerCollector"

    def __init__(self, shared: Shared, scan: GroupScan) -> None:
        self._shared = shared
        self._scan = scan
        self.interval_s = shared.config.collect.used_interval_s
        self._listed: Mapping[str, ForeignContainer] = {}
        self._groups: dict[str, MeasuredGroup] = {}

    def collect(self) -> bool:
        foreign = self._shared.view.foreign
        if foreign is not self._listed:
            self._listed = foreign
            self._groups = {uid: self._group(uid, each.record.group) for uid, each in foreign.items()}
        if self._groups:
            self._scan.measure(list(self._groups.values()), int(self._shared.clock.now() * 1000))
        return True

    def _group(self, uid: str, group: str) -> MeasuredGroup:
        known = self._groups.get(uid)
        if known is not None and known.group == group:
            return known
        names = {kinds.CONTAINER_ID: uid}
        store = self._shared.store
        rings = GroupRings(
            store.ring(kinds.FOREIGN_CPU, names), store.ring(kinds.FOREIGN_MEMORY, names), None, None
        )
        return MeasuredGroup(self._shared.host.cgroups, group, rings)
