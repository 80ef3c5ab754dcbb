"""CPU, memory and throttling of all pods and containers, in one pass over their groups.

Source: behaviour/koordlet-observe 5.3, 5.8 and 5.10.
"""

import asyncio
import os
from collections.abc import Mapping

from koordinator.host import cgroup_counters
from koordinator.host.cgroup_knobs import Knob
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.collect.group_usage import (
    CONTAINER_MEMORY_ROUNDS,
    GroupRings,
    GroupScan,
    MeasuredGroup,
)
from koordinator.koordlet.collect.known import LatestSamples, NumaValues, Total
from koordinator.koordlet.collect.node_usage import wants_page_cache
from koordinator.koordlet.node_pods import NodeContainer, PodRecord
from koordinator.koordlet.parts import Shared

NUMA_ROUNDS = 5
"""Memory by NUMA node costs as much as all else together and is wanted no older than 10 s."""

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
        self._round = 0
        self._made_count = 0

    def collect(self) -> bool:
        view = self._shared.view
        if not view.has_pods:
            return False
        has_page_cache = wants_page_cache(self._shared)
        if view.pods is not self._listed or has_page_cache != self._has_page_cache:
            self._listed, self._has_page_cache = view.pods, has_page_cache
            self._follow(view.pods)
        now_s = asyncio.get_running_loop().time()
        self._scan.measure(self._groups, int(self._shared.clock.now() * 1000))
        measured = [each for each in self._pods.values() if each.is_measured]
        self._known.pods = Total(
            sum(each.cores for each in measured), sum(each.memory_bytes for each in measured), now_s
        )
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
        return self._made(pod.group, rings, 1)

    def _of_container(self, container: NodeContainer) -> MeasuredGroup:
        known = self._containers.get(container.id)
        if known is not None and known.group == container.group and self._is_complete(known):
            return known
        names = {kinds.CONTAINER_ID: container.id}
        store = self._shared.store
        rings = GroupRings(
            store.ring(kinds.CONTAINER_CPU, names),
            store.ring(kinds.CONTAINER_MEMORY, names),
            store.ring(kinds.CONTAINER_THROTTLED, names),
            store.ring(kinds.CONTAINER_MEMORY_PAGE_CACHE, names) if self._has_page_cache else None,
        )
        return self._made(container.group, rings, CONTAINER_MEMORY_ROUNDS)

    def _made(self, group: str, rings: GroupRings, memory_every: int) -> MeasuredGroup:
        self._made_count += 1
        cgroups = self._shared.host.cgroups
        return MeasuredGroup(cgroups, group, rings, memory_every=memory_every, index=self._made_count)

    def _is_complete(self, group: MeasuredGroup) -> bool:
        return (group.rings.page_cache is not None) == self._has_page_cache

    def _measure_numa(self, pods: list[MeasuredGroup], now_s: float) -> None:
        """Memory of all pods by NUMA node. On a single one it is that of the pods, without reading anything."""
        nodes = self._shared.view.numa_meminfo_kib
        if len(nodes) == 1:
            (only,) = nodes
            self._known.pods_numa_bytes = NumaValues({only: sum(each.memory_bytes for each in pods)}, now_s)
            return
        self._round += 1
        if not nodes or self._round % NUMA_ROUNDS != 1:
            return
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
