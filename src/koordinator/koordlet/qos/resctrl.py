"""Shares of the last-level cache and of memory bandwidth: schemata of resctrl groups.

Source: behaviour/koordlet-act 10.
"""

import asyncio
import logging
import math
from collections.abc import Collection, Iterable, Mapping

import msgspec

from koordinator.api import labels, pod_labels, qos
from koordinator.api.core import Pod
from koordinator.api.qos import QoSClass
from koordinator.api.slo_qos import ResctrlQOS, ResourceQOSStrategy
from koordinator.host.errors import ContentError
from koordinator.host.files import FileProblem
from koordinator.host.host import Host
from koordinator.host.resctrl import schemata_needs_write
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.writing import restore_log

log = logging.getLogger(__name__)

GROUPS = ("LSR", "LS", "BE")
INTEL, AMD = "GenuineIntel", "AuthenticAMD"
INTEL_STEP_PERCENT = 10
AMD_UNLIMITED = 2048
AMD_FULL_BANDWIDTH = 160
"""Units of 1/8 GB/s that one die is assumed to have: 25 GB/s, of which 80 % can be used."""

_PERCENT = 100
_GROUP_OF_QOS = {QoSClass.LSE: "LSR", QoSClass.LSR: "LSR", QoSClass.LS: "LS", QoSClass.BE: "BE"}

REASON = "UpdateResctrl"
CHECK_S = 30.0
"""Interval at which threads are looked for although nothing has changed: those that a process starts
itself are in its group already, those that enter a container from outside are not."""
SETTLING_ROUNDS = 2
"""Rounds after a change that look again: a process may start threads while it is being moved."""
ABSENT_S = 60.0
"""Interval at which the kernel is asked whether it has resctrl by now."""
IN_MBPS = "resctrl is mounted with mba_MBps: bandwidth is left alone, since a percentage would count as MB/s"
_DEPTH_MAX = 2  # a pod, its containers, and groups that a container makes for itself


class ResctrlCPU(msgspec.Struct, frozen=True):
    """The features of the CPU: vendor, full mask of the cache, ids of the caches as in the root schemata."""

    vendor: str
    full_mask: int
    cache_ids: tuple[int, ...]
    bandwidth_ids: tuple[int, ...]
    """The same for bandwidth; empty where it cannot be divided by percent."""
    ways_min: int = 1
    """The kernel refuses masks of fewer ways."""


class ResctrlSupport(msgspec.Struct, frozen=True):
    """The resources that the CPU can divide."""

    cache: bool
    bandwidth: bool


def support_of(flags: Collection[str]) -> ResctrlSupport:
    """Return what the flags of `/proc/cpuinfo` promise; both are needed."""
    return ResctrlSupport("cat_l3" in flags, "mba" in flags)


def full_mask_of(text: str) -> int:
    """Return the full mask that `cbm_mask` says in hexadecimal; 0 when it says none."""
    try:
        return int(text.strip(), 16)
    except ValueError:
        return 0


def l3_mask(full_mask: int, start_percent: int, end_percent: int, ways_min: int = 1) -> int | None:
    """Ways of the cache within a range of percent, at least `ways_min`; None when mask or range make no sense."""
    if full_mask <= 0 or full_mask & (full_mask + 1):
        return None
    if not 0 <= start_percent < end_percent <= _PERCENT:
        return None
    ways = full_mask.bit_length()
    first = -(-ways * start_percent // _PERCENT)
    end = -(-ways * end_percent // _PERCENT)
    if first >= end:  # within one way
        first = ways * start_percent // _PERCENT
    # The kernel refuses masks that are too narrow: they get the next ways, at the upper end those before.
    end = min(max(end, first + ways_min), ways)
    return (1 << end) - (1 << min(first, max(end - ways_min, 0)))


def bandwidth(vendor: str, percent: int | None) -> int | None:
    """Return number for an MB line; None leaves it alone. Vendors that we do not know are taken for Intel."""
    if percent is None or not 0 < percent <= _PERCENT:
        return None
    if vendor == AMD:
        return AMD_UNLIMITED if percent == _PERCENT else AMD_FULL_BANDWIDTH * percent // _PERCENT
    return math.ceil(percent / INTEL_STEP_PERCENT) * INTEL_STEP_PERCENT


def group_lines(strategy: ResourceQOSStrategy, cpu: ResctrlCPU) -> dict[str, list[str]]:
    """Lines to write to each group's schemata, in order; a setting that makes no sense leaves it alone."""
    return {group: _lines(settings, cpu) for group, settings in _settings(strategy).items()}


def l3_line(masks: Mapping[int, int]) -> str:
    """Return the line that gives each cache its mask."""
    return f"L3:{''.join(f'{cache}={masks[cache]:x};' for cache in sorted(masks))}\n"


def mb_line(values: Mapping[int, int]) -> str:
    """Return the line that gives each cache its bandwidth."""
    return f"MB:{''.join(f'{cache}={values[cache]};' for cache in sorted(values))}\n"


def pod_group(pod: Pod, strategy: ResourceQOSStrategy) -> str | None:
    """Return the group whose tasks get the pod's threads; None for pods with groups of their own and switched-off
    classes."""
    if labels.RESCTRL in pod.metadata.annotations or pod_labels.is_inactive(pod.status.phase):
        return None
    group = _GROUP_OF_QOS.get(qos.default(pod))
    if group is None:
        return None
    return group if _is_on(_settings(strategy)[group]) else None


def new_tasks(threads: Iterable[int], group_threads: Collection[int]) -> list[int]:
    """Threads to write to a group's tasks, one per write, in order."""
    return sorted(set(threads) - set(group_threads))


def _lines(settings: ResctrlQOS | None, cpu: ResctrlCPU) -> list[str]:
    if settings is None:
        return []
    lines = []
    start, end = settings.cat_range_start_percent, settings.cat_range_end_percent
    mask = l3_mask(cpu.full_mask, start, end, cpu.ways_min) if start is not None and end is not None else None
    if mask is not None:
        lines.append(l3_line(dict.fromkeys(cpu.cache_ids, mask)))
    value = bandwidth(cpu.vendor, settings.mba_percent)
    if value is not None and cpu.bandwidth_ids:
        lines.append(mb_line(dict.fromkeys(cpu.bandwidth_ids, value)))
    return lines


def cpu_of(host: Host) -> ResctrlCPU:
    """Return what the mounted file system can divide."""
    found = host.resctrl
    full_mask = full_mask_of(found.full_mask() or "")
    vendor = host.machine.cpu_model().vendor
    return ResctrlCPU(vendor, full_mask, found.cache_ids(), found.bandwidth_ids(), found.ways_min())


class ResctrlStrategy:
    """One round looks at pods and policies; without a change nothing is read for `CHECK_S`.

    A group is made when its class is first switched on. When the class is switched off its schemata are neutral and its
    threads go back to the root group; when the strategy is, the groups that it made go, too.
    """

    name = "RdtResctrl"
    gates: tuple[str, ...] = ("RdtResctrl",)

    def __init__(self, shared: Shared) -> None:
        self.interval_s = shared.config.qos.reconcile_interval_s
        self._shared = shared
        self._host = shared.host.resctrl
        self._seen: tuple[ResourceQOSStrategy, Mapping[str, PodRecord]] | None = None
        self._settling = 0
        self._check_at_s = float("-inf")
        self._reported: dict[str, str] = {}
        """Problems by what they are about, so that each is logged once."""

    async def run(self) -> None:
        """One round."""
        view = self._shared.view
        strategy = view.qos_in_force
        if strategy is None:
            return
        now_s = asyncio.get_running_loop().time()
        if self._seen is None or self._seen[0] is not strategy or self._seen[1] is not view.pods:
            self._settling = SETTLING_ROUNDS + 1
        if self._settling <= 0 and now_s < self._check_at_s:
            return
        self._settling -= 1
        self._seen = strategy, view.pods
        cpu = self._cpu(strategy)
        if cpu is None:
            self._settling, self._check_at_s = 0, now_s + ABSENT_S
            return
        self._check_at_s = now_s + CHECK_S
        self._reconcile(strategy, cpu)

    def disable(self) -> None:
        """Threads go back to the root group; groups that we made are removed, the schemata of others put back."""
        executor = self._shared.executor
        for record in executor.changed_by(self.name):
            group = restore_log.claimed(record)
            if record.path != self._host.root or group not in GROUPS:
                continue
            self._empty(group)
            if record.before == restore_log.ABSENT:
                problem = executor.remove_directory(
                    f"{self._host.root}/{group}", owner=self.name, reason=REASON
                )
                self._report_problem(group, problem)
        executor.restore(self.name)
        self._seen = None

    def _cpu(self, strategy: ResourceQOSStrategy) -> ResctrlCPU | None:
        """Return what can be divided, and mount the file system if a class wants it; None when nothing can."""
        machine = self._shared.host.machine
        is_wanted = any(map(_is_on, _settings(strategy).values()))
        if self._host.full_mask() is None:
            support = support_of(machine.cpu_model().flags)
            if not is_wanted or not (support.cache and support.bandwidth):
                return None
            executor = self._shared.executor
            self._report_problem(
                "mount", executor.perform(self._host.root, "mounted", self._host.mount, self.name, REASON)
            )
        if self._host.full_mask() is None or not self._host.cache_ids():
            return None
        self._report_problem("bandwidth", None, IN_MBPS if self._host.counts_bandwidth_in_mbps() else "")
        return cpu_of(self._shared.host)

    def _reconcile(self, strategy: ResourceQOSStrategy, cpu: ResctrlCPU) -> None:
        lines = group_lines(strategy, cpu)
        wanted = self._threads(strategy)
        for group, settings in _settings(strategy).items():
            if _is_on(settings):
                self._make(group)
            elif not self._shared.host.files.exists(self._host.schemata_path(group)):
                continue
            for line in lines[group]:
                self._divide(group, line)
            if _is_on(settings):
                self._fill(group, wanted.get(group, set()))
            else:
                self._empty(group)

    def _make(self, group: str) -> None:
        executor, path = self._shared.executor, f"{self._host.root}/{group}"
        executor.claim(self._host.root, group, owner=self.name)
        self._report_problem(group, executor.make_directory(path, owner=self.name, reason=REASON))

    def _divide(self, group: str, line: str) -> None:
        problem = self._shared.executor.write_file(
            self._host.schemata_path(group),
            line,
            owner=self.name,
            reason=REASON,
            part=line.partition(":")[0],
            is_held=lambda content: not schemata_needs_write(content, line),
        )
        self._report_problem(
            f"{group} {line[:2]}", problem, self._host.last_error() if problem is not None else ""
        )

    def _fill(self, group: str, threads: set[int]) -> None:
        have = self._tasks(group)
        if have is not None:
            # Threads that have ended meanwhile are refused: nothing to tell.
            new = new_tasks(threads, have)
            path = f"{self._host.root}/{group}/tasks"
            self._shared.executor.add_tasks(path, new, owner=self.name, reason=REASON)

    def _empty(self, group: str) -> None:
        have = self._tasks(group)
        if have:
            self._shared.executor.add_tasks(f"{self._host.root}/tasks", have, owner=self.name, reason=REASON)

    def _tasks(self, group: str) -> list[int] | None:
        try:
            return self._host.tasks(group)
        except ContentError as error:
            self._report_problem(f"{group} tasks", None, str(error))
            return None

    def _threads(self, strategy: ResourceQOSStrategy) -> dict[str, set[int]]:
        """Threads that each group should have: those of all containers and sandboxes of its pods."""
        cgroups = self._shared.host.cgroups
        wanted: dict[str, set[int]] = {}
        for record in self._shared.view.pods.values():
            group = pod_group(record.pod, strategy)
            if group is None:
                continue
            threads = wanted.setdefault(group, set())
            for each in cgroups.walk(record.group, _DEPTH_MAX):
                try:
                    threads.update(cgroups.tasks(each) or ())
                except ContentError as error:
                    self._report_problem(each, None, str(error))
        return wanted

    def _report_problem(self, what: str, problem: FileProblem | None, detail: str = "") -> None:
        text = " ".join(filter(None, (str(problem) if problem is not None else "", detail)))
        if text and self._reported.get(what) != text:
            log.warning("resctrl not applied", extra={"what": what, "problem": text})
        if text:
            self._reported[what] = text
        else:
            self._reported.pop(what, None)


def _settings(strategy: ResourceQOSStrategy) -> dict[str, ResctrlQOS | None]:
    sections = strategy.lsr_class, strategy.ls_class, strategy.be_class
    found = (section.resctrl_qos if section is not None else None for section in sections)
    return dict(zip(GROUPS, found, strict=True))


def _is_on(settings: ResctrlQOS | None) -> bool:
    return settings is not None and bool(settings.enable)
