"""Resctrl groups of single pods, as their annotation asks. Source: behaviour/koordlet-act 19."""

import functools
from collections.abc import Collection, Mapping

from koordinator.api import labels
from koordinator.api.annotations.koordlet import RESCTRL, ResctrlResource
from koordinator.host.files import FileFailure, FileProblem
from koordinator.host.resctrl import schemata_needs_write
from koordinator.koordlet.hooks.contexts import (
    ContainerContext,
    HookResponse,
    HookStage,
    PodContext,
    ResctrlGroup,
)
from koordinator.koordlet.hooks.hook import REASON, Hook, HookRegistry, HookTools, ReconcileLevel
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import resctrl
from koordinator.koordlet.qos.resctrl import ResctrlCPU

GROUP_PREFIX = "koordlet-"
_KNOWN_VENDORS = (resctrl.INTEL, resctrl.AMD)


def group_of(annotations: Mapping[str, str], uid: str, cpu: ResctrlCPU, obj: str = "") -> ResctrlGroup | None:
    """Return the pod's own group, None without annotation.

    Values for all caches come first, then those for single ones. A line is only written when every cache has a
    value. Raises: ProtocolError when the annotation is malformed.
    """
    asked = RESCTRL.read(annotations, obj)
    if asked is None:
        return None
    masks = _masks(asked.llc, cpu)
    values = _bandwidths(asked.mb, cpu)
    lines = []
    if _is_complete(masks, cpu.cache_ids):
        lines.append(resctrl.l3_line(masks))
    if _is_complete(values, cpu.bandwidth_ids):
        lines.append(resctrl.mb_line(values))
    return ResctrlGroup(GROUP_PREFIX + uid, "".join(lines))


def _is_complete(values: Mapping[int, int], ids: Collection[int]) -> bool:
    return bool(ids) and all(values.get(each, 0) > 0 for each in ids)


def _masks(asked: ResctrlResource | None, cpu: ResctrlCPU) -> dict[int, int]:
    """Masks by cache; a range that makes no sense ends the list."""
    masks: dict[int, int] = {}
    if asked is None:
        return masks
    if asked.schemata is not None and asked.schemata.range:
        mask = _mask(asked.schemata.range, cpu)
        if mask is None:
            return masks
        masks = dict.fromkeys(cpu.cache_ids, mask)
    for single in asked.schemata_per_cache:
        mask = _mask(single.range, cpu)
        if mask is None:
            break
        if single.cache_id in cpu.cache_ids:
            masks[single.cache_id] = mask
    return masks


def _mask(span: list[int], cpu: ResctrlCPU) -> int | None:
    return resctrl.l3_mask(cpu.full_mask, span[0], span[1], cpu.ways_min) if len(span) == 2 else None


def _bandwidths(asked: ResctrlResource | None, cpu: ResctrlCPU) -> dict[int, int]:
    values: dict[int, int] = {}
    if asked is None or cpu.vendor not in _KNOWN_VENDORS:
        return values
    if asked.schemata is not None:
        common = resctrl.bandwidth(cpu.vendor, asked.schemata.percent)
        if common is not None:
            values = dict.fromkeys(cpu.bandwidth_ids, common)
    for single in asked.schemata_per_cache:
        own = resctrl.bandwidth(cpu.vendor, single.percent)
        if own is not None and single.cache_id in cpu.bandwidth_ids:
            values[single.cache_id] = own
    return values


GROUP = "resctrl"
YOUNG_S = 10.0
"""A group is not removed sooner: the kubelet may not have told of its pod yet."""
CREATED, FAILED = "ResctrlGroupCreated", "ResctrlGroupFailed"


class ResctrlHook(Hook):
    """Pods say by annotation which part of cache and memory bandwidth is theirs."""

    name = "Resctrl"

    def __init__(self, shared: Shared, tools: HookTools) -> None:
        super().__init__(shared, tools)
        self._made_s: dict[str, float] = {}
        """Groups that are there, by name, and since when."""
        self._texts: dict[str, str] = {}
        """Annotation that a group was made by; written anew when it changes."""
        self._reported: dict[str, str] = {}
        self._has_adopted = False

    def register(self, registry: HookRegistry) -> None:
        registry.at_stage(HookStage.PRE_RUN_POD_SANDBOX, self.name, self.of_pod)
        registry.at_stage(HookStage.PRE_CREATE_CONTAINER, self.name, self.of_container)
        registry.reconcile(ReconcileLevel.POD, (GROUP,), self.name, self.of_pod, deliver=self.deliver)

    def of_pod(self, pod: PodContext) -> HookResponse:
        """Return the group of a pod. Raises: ProtocolError."""
        if labels.RESCTRL not in pod.annotations or "/" in pod.uid:
            return HookResponse()
        cpu = resctrl.cpu_of(self.shared.host)
        return HookResponse(resctrl=group_of(pod.annotations, pod.uid, cpu, pod.obj))

    def of_container(self, container: ContainerContext) -> HookResponse:
        """Return the group that a container starts in: that of its pod, once it is there.

        A runtime refuses containers for a group that does not exist: without resctrl, with an annotation that cannot
        be read, or while the kernel has no group left. They start in the root group then.
        """
        pod = container.pod
        if labels.RESCTRL not in pod.annotations or "/" in pod.uid:
            return HookResponse()
        name = GROUP_PREFIX + pod.uid
        is_there = self.shared.host.files.exists(self._path(name))
        return HookResponse(resctrl=ResctrlGroup(name, "")) if is_there else HookResponse()

    def deliver(self, pod: PodContext, response: HookResponse) -> None:
        """Make the group if it is new, write its schemata if its annotation is, move threads that are not in it."""
        group = response.resctrl
        if group is None or not self._mounted():
            return
        self._adopt()
        text = pod.annotations.get(labels.RESCTRL, "")
        if group.name not in self._made_s or self._texts.get(group.name) != text:
            problem = self._make(group)
            self._report_problem(pod.uid, group.name, problem)
            if problem is not None:
                return
            self._made_s.setdefault(group.name, self.shared.clock.now())
            self._texts[group.name] = text
        self._move(pod.uid, group.name)

    def on_pods(self) -> None:
        """Remove groups whose pods are gone."""
        if not self._made_s and self._has_adopted:
            return
        if not self.shared.host.resctrl.is_mounted():
            return
        self._adopt()
        pods, now_s = self.shared.view.pods, self.shared.clock.now()
        for name, made_s in list(self._made_s.items()):
            record = pods.get(name.removeprefix(GROUP_PREFIX))
            wants = (
                record is not None and record.is_active and labels.RESCTRL in record.pod.metadata.annotations
            )
            if not wants and self.shared.view.has_pods and not 0 <= now_s - made_s < YOUNG_S:
                self.remove(name)

    def remove(self, name: str) -> FileProblem | None:
        """Remove a group at once: its threads fall back to the root group."""
        path = self._path(name)
        problem = self.shared.executor.remove_directory(path, owner=self.name, reason=REASON)
        if problem is None or problem.failure is FileFailure.GONE:
            self._made_s.pop(name, None)
            self._texts.pop(name, None)
            self._reported.pop(name, None)
        return problem

    def disable(self) -> None:
        """Remove all groups of pods."""
        if self.shared.host.resctrl.is_mounted():
            self._adopt()
            for name in list(self._made_s):
                self.remove(name)
        super().disable()

    def _mounted(self) -> bool:
        host = self.shared.host.resctrl
        if host.is_mounted():
            return True
        if not self.shared.host.files.exists(host.root):
            return False
        problem = self.shared.executor.perform(host.root, "mounted", host.mount, self.name, REASON)
        return problem is None and host.is_mounted()

    def _adopt(self) -> None:
        """Groups of a former run are ours, too."""
        if self._has_adopted:
            return
        self._has_adopted = True
        now_s = self.shared.clock.now()
        for name in self.shared.host.resctrl.groups() or ():
            if name.startswith(GROUP_PREFIX):
                self._made_s.setdefault(name, now_s)

    def _make(self, group: ResctrlGroup) -> FileProblem | None:
        executor, path = self.shared.executor, self._path(group.name)
        if (problem := executor.make_directory(path, owner=self.name, reason=REASON)) is not None:
            return problem
        for line in group.schemata.splitlines(keepends=True):
            problem = executor.write_file(
                f"{path}/schemata",
                line,
                owner=self.name,
                reason=REASON,
                is_held=functools.partial(_holds, line),
                restorable=False,
            )
            if problem is not None:
                return problem
        return None

    def _move(self, uid: str, name: str) -> None:
        record = self.shared.view.pods.get(uid)
        if record is None:
            return
        wanted = {
            thread
            for container in record.containers
            for thread in self.shared.host.cgroups.tasks(container.group) or ()
        }
        missing = resctrl.new_tasks(wanted, self.shared.host.resctrl.tasks(name) or ())
        if missing:
            self.shared.executor.add_tasks(
                f"{self._path(name)}/tasks", missing, owner=self.name, reason=REASON, group=record.group
            )

    def _report_problem(self, uid: str, name: str, problem: FileProblem | None) -> None:
        """Record an event on the pod, once per outcome."""
        record = self.shared.view.pods.get(uid)
        text = "" if problem is None else f"{problem} {self.shared.host.resctrl.last_error()}".strip()
        if record is None or self._reported.get(name) == text:
            return
        self._reported[name] = text
        if problem is None:
            self.shared.events.normal(
                record.pod, CREATED, f"resctrl group {name} holds what the pod asks for"
            )
        else:
            self.shared.events.warning(record.pod, FAILED, f"resctrl group {name}: {text}")

    def _path(self, name: str) -> str:
        return f"{self.shared.host.resctrl.root}/{name}"


def _holds(line: str, content: str) -> bool:
    return not schemata_needs_write(content, line)
