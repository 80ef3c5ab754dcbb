"""Collect what best-effort pods may use, ask for and use, together. Source: behaviour/koordlet-observe 5.6."""

import asyncio
import functools
from collections.abc import Mapping

from koordinator.api import cpuset
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_counters, cgroup_layout, cgroup_values
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.errors import ContentError
from koordinator.host.files import Identity
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.collect import rates
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Shared

WALK_ROUNDS = 10
"""How often groups that no pod of the list has (sandboxes) are looked for."""
_CONTAINER_DEPTH = 2


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
        self._request_milli = 0
        self._cpus_paths: list[str] = []
        self._rounds_left = 0

    def collect(self) -> bool:
        shared = self._shared
        if not shared.view.has_pods:
            return False
        self._name_files()
        used_milli = self._used_milli()
        limit_milli = self._limit_milli()
        if used_milli is None or limit_milli is None:
            return False
        if shared.view.pods is not self._listed:
            self._listed = shared.view.pods
            self._request_milli = rates.be_request_milli(each.pod for each in shared.view.pods.values())
        at_ms = int(shared.clock.now() * 1000)
        self._limit.append(at_ms, limit_milli)
        self._request.append(at_ms, self._request_milli)
        self._usage.append(at_ms, used_milli)
        shared.metrics.be_suppress_be_used.set(used_milli / 1000)
        return True

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
        if self._rounds_left == 0 or view.pods is not self._listed:
            self._rounds_left = WALK_ROUNDS
            self._cpus_paths = self._paths_of_cpus()
        self._rounds_left -= 1
        sets = [_cpus(data) for data in files.hot_many(self._cpus_paths) if data is not None]
        known = [each for each in sets if each is not None]
        if not known and view.cpu is not None:
            known = [view.cpu.cpus]  # nobody confines them: the controller is not even on
        return rates.be_limit_milli(min(known, key=len), quota_us, period_us) if known else None

    def _paths_of_cpus(self) -> list[str]:
        cgroups = self._shared.host.cgroups
        knob = Knob.CPUSET if cgroups.version == V1 else Knob.CPUSET_EFFECTIVE
        depth = self._class.count("/")
        groups = cgroups.walk(self._class, _CONTAINER_DEPTH, "cpuset")
        wanted = [each for each in groups if each.count("/") - depth in (0, _CONTAINER_DEPTH)]
        return [cgroups.path(knob, each) for each in wanted]


@functools.lru_cache(maxsize=64)
def _cpus(data: bytes) -> CPUSet | None:
    """Return CPUs that a group may run on; None when it does not say, or has none (yet)."""
    try:
        return cpuset.parse(data.decode().strip()) or None
    except (CPUSetError, UnicodeDecodeError):
        return None
