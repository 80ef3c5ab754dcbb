"""Core scheduling: which pods may share a physical core at the same time. Source: behaviour/koordlet-act 18.

`Cookies` knows which container has which cookie, by group of pods, and how another one gets the same. Nothing there
waits: the kernel hands a cookie on through the calling thread, between two calls.
"""

import functools
from collections.abc import Iterable, Mapping

import msgspec

from koordinator.api import pod_labels as pod_label_values
from koordinator.api import qos
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.api.slo_qos import ResourceQOS, ResourceQOSStrategy
from koordinator.host.files import FileFailure, FileProblem
from koordinator.host.syscalls import NO_COOKIE, CoreSchedCookies
from koordinator.koordlet.hooks.contexts import ContainerContext, CoreGroup, HookResponse
from koordinator.koordlet.hooks.group_identity import CORE_SCHED_SYSCTL, IDENTITY_SYSCTL
from koordinator.koordlet.hooks.hook import (
    REASON,
    Hook,
    HookRegistry,
    HookTools,
    ReconcileLevel,
    by_pod_qos,
)
from koordinator.koordlet.metrics import status_of
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.view import Topic

KEPT_S = 300.0
"""A group or container that nobody refreshed for so long is forgotten."""


class _Group:
    """A cookie and the processes that were given it, by container."""

    __slots__ = ("cookie", "pids_by_container", "seen_s")

    def __init__(self, cookie: int, now_s: float) -> None:
        self.cookie = cookie
        self.seen_s = now_s
        self.pids_by_container: dict[str, list[int]] = {}


class Cookies:
    """The cookies that we know of. A cookie lives as long as a process has it, so each is asked for before it is
    used."""

    def __init__(self, kernel: CoreSchedCookies) -> None:
        self._kernel = kernel
        self._groups: dict[str, _Group] = {}
        self._containers: dict[str, tuple[str, float]] = {}
        """Container → its group, when last seen."""

    def group_of(self, container: str) -> str | None:
        """Return the group that a container has a cookie of."""
        found = self._containers.get(container)
        return None if found is None else found[0]

    def cookie_of(self, group: str) -> int:
        """Return the cookie of a group, `NO_COOKIE` without."""
        found = self._groups.get(group)
        return NO_COOKIE if found is None else found.cookie

    def adopt(self, container: str, group: str, pids: Iterable[int], now_s: float) -> bool:
        """Take over what the kernel says of a container; whether any of its processes could be asked.

        The first cookie found of a group counts for it.
        """
        is_readable = False
        for pid in pids:
            cookie = self._kernel.cookie(pid)
            if isinstance(cookie, FileProblem):
                continue
            is_readable = True
            if cookie == NO_COOKIE:
                continue
            known = self._groups.setdefault(group, _Group(cookie, now_s))
            self._containers[container] = (group, now_s)
            if known.cookie == cookie:
                known.pids_by_container.setdefault(container, []).append(pid)
        return is_readable

    def wants(self, container: str, group: str, pids: list[int], now_s: float) -> bool:
        """Look at the processes again and return whether one lacks the group's cookie."""
        known = self._groups.get(group)
        if self.group_of(container) == group:
            self._containers[container] = (group, now_s)
        if known is None:
            return bool(pids)
        known.seen_s = now_s
        return any(self._kernel.cookie(pid) != known.cookie for pid in pids)

    def give(self, container: str, group: str, pids: list[int], now_s: float) -> FileProblem | None:
        """Let all processes of a container have the group's cookie, a new one where nobody has it any more."""
        known = self._groups.get(group)
        source = self._holder(known) if known is not None else None
        if known is None or source is None:
            created = self._created(pids)
            if isinstance(created, FileProblem):
                return created
            source, cookie = created
            known = self._groups[group] = _Group(cookie, now_s)
        cookie = known.cookie
        lacking = [pid for pid in pids if pid != source and self._kernel.cookie(pid) != cookie]
        problems = self._kernel.assign(source, lacking) if lacking else {}
        self._leave(container, group)
        known.pids_by_container[container] = list(pids)
        known.seen_s = now_s
        self._containers[container] = (group, now_s)
        return next((each for each in problems.values() if each.failure is not FileFailure.GONE), None)

    def clear(self, container: str, pids: Iterable[int]) -> FileProblem | None:
        """Take the cookies of a container's processes away."""
        holders = [pid for pid in pids if self._kernel.cookie(pid) != NO_COOKIE]
        problems = self._kernel.clear(holders) if holders else {}
        self._leave(container, "")
        self._containers.pop(container, None)
        return next((each for each in problems.values() if each.failure is not FileFailure.GONE), None)

    def expire(self, now_s: float) -> None:
        """Forget what was not seen for a while; a clock that went back makes everything new."""
        for name in [name for name, each in self._groups.items() if not 0 <= now_s - each.seen_s <= KEPT_S]:
            del self._groups[name]
        gone = [name for name, (_, seen_s) in self._containers.items() if not 0 <= now_s - seen_s <= KEPT_S]
        for name in gone:
            self._leave(name, "")
            del self._containers[name]

    def _holder(self, group: _Group) -> int | None:
        """Return a process that still has the group's cookie."""
        for pids in group.pids_by_container.values():
            for pid in pids:
                if self._kernel.cookie(pid) == group.cookie:
                    return pid
        return None

    def _created(self, pids: list[int]) -> tuple[int, int] | FileProblem:
        """Return a process with a new cookie of its own, the first one that is still there."""
        problem = FileProblem("container", FileFailure.GONE)
        for pid in pids:
            made = self._kernel.create(pid)
            cookie = self._kernel.cookie(pid) if made is None else made
            if not isinstance(cookie, FileProblem):
                return pid, cookie
            problem = cookie
            if problem.failure is not FileFailure.GONE:
                break
        return problem

    def _leave(self, container: str, group: str) -> None:
        """Note that a container is no member of its old group any more."""
        old = self.group_of(container)
        if old is not None and old != group and old in self._groups:
            self._groups[old].pids_by_container.pop(container, None)


POLICY = "coreSched"
EXPELLER_SUFFIX = "-expeller"
_EXCLUSIVE, _NONE = "exclusive", "none"


class ClassRule(msgspec.Struct, frozen=True):
    """Core scheduling of a class; an expeller keeps idle-class threads off its sibling threads."""

    is_enabled: bool = False
    is_expeller: bool = False
    is_idle: bool = False


class CoreSchedRule(msgspec.Struct, frozen=True):
    """The demand of NodeSLO."""

    lsr: ClassRule
    ls: ClassRule
    be: ClassRule

    @property
    def is_enabled(self) -> bool:
        """Return whether the node needs core scheduling at all."""
        return self.lsr.is_enabled or self.ls.is_enabled or self.be.is_enabled


def rule_of(strategy: ResourceQOSStrategy) -> CoreSchedRule:
    """Return what NodeSLO asks for; nothing unless its CPU policy is core scheduling."""
    is_active = strategy.policies is not None and strategy.policies.cpu_policy == POLICY
    classes = (strategy.lsr_class, strategy.ls_class, strategy.be_class)
    return CoreSchedRule(*(_class_rule(each) if is_active else ClassRule() for each in classes))


def idle_by_class_dir(rule: CoreSchedRule) -> dict[KubeQoS, int]:
    """Value of `cpu.idle` by class directory, given to the groups of pods below it (`hook.IdleGroups`)."""
    return {kube_qos: int(_rule_for(rule, QoSClass.NONE, kube_qos).is_idle) for kube_qos in KubeQoS}


def group_of(rule: CoreSchedRule, pod_labels: Mapping[str, str], kube_qos: KubeQoS, uid: str) -> CoreGroup:
    """Return the group of a pod; SYSTEM pods have none, they are never touched."""
    qos_class = qos.of_labels(pod_labels)
    if qos_class is QoSClass.SYSTEM:
        return CoreGroup(False, "")
    of_class = _rule_for(rule, qos_class, kube_qos)
    asked = pod_label_values.core_sched(pod_labels)
    name = uid if asked.policy == _EXCLUSIVE else asked.group_id
    suffix = EXPELLER_SUFFIX if of_class.is_expeller and rule.is_enabled else ""
    return CoreGroup(of_class.is_enabled and asked.policy != _NONE, name + suffix)


def _class_rule(settings: ResourceQOS | None) -> ClassRule:
    cpu = settings.cpu_qos if settings is not None else None
    if cpu is None:
        return ClassRule()
    return ClassRule(bool(cpu.enable), bool(cpu.core_expeller), cpu.sched_idle == 1)


def _rule_for(rule: CoreSchedRule, qos_class: QoSClass, kube_qos: KubeQoS) -> ClassRule:
    match qos_class:
        case QoSClass.LSE | QoSClass.LSR:
            return rule.lsr
        case QoSClass.LS:
            return rule.ls
        case QoSClass.BE:
            return rule.be
    match kube_qos:
        case KubeQoS.BEST_EFFORT:
            return rule.be
        case KubeQoS.BURSTABLE:
            return rule.ls
        case KubeQoS.GUARANTEED:
            return rule.lsr if rule.lsr.is_enabled else rule.ls


COOKIE = "core_sched_cookie"
FEATURE, NO_FEATURE = "CORE_SCHED", "NO_CORE_SCHED"


class CoreSchedHook(Hook):
    """Only pods of one group share a physical core at the same time."""

    name = "CoreSched"
    wants_idle = True

    def __init__(self, shared: Shared, tools: HookTools) -> None:
        super().__init__(shared, tools)
        self._idle = tools.idle
        self._rule = self.rule((Topic.NODE_SLO,), self._parsed, None, self._changed)
        self._cookies = Cookies(shared.host.core_sched)
        self._due: list[tuple[ContainerContext, CoreGroup]] = []
        self._marks = {
            record.group: record.wrote for record in shared.executor.changed_by(self.name) if record.group
        }
        """Group of a container → group of pods whose cookie we gave it; written ahead, so known after a restart."""
        self._is_recovered = False

    def register(self, registry: HookRegistry) -> None:
        conditions = (QoSClass.BE, QoSClass.LS, QoSClass.LSR, QoSClass.LSE, QoSClass.NONE)
        for level in (ReconcileLevel.CONTAINER, ReconcileLevel.SANDBOX):
            registry.reconcile(
                level,
                (COOKIE,),
                self.name,
                self.of_container,
                select=by_pod_qos,
                conditions=conditions,
                deliver=self._collect,
            )

    def of_container(self, container: ContainerContext) -> HookResponse:
        """Return the group whose cookie a container shares."""
        pod = container.pod
        if self._rule.value is None:
            return HookResponse()
        return HookResponse(core_group=group_of(self._rule.value, pod.labels, pod.kube_qos, pod.uid))

    def on_pods(self) -> None:
        """Reconcile all containers at once, older pods first."""
        pods = self.shared.view.pods
        due, self._due = self._due, []
        due = [each for each in due if each[0].pod.uid in pods]
        due.sort(key=lambda each: pods[each[0].pod.uid].pod.metadata.creation_timestamp or "")
        now_s = self.shared.clock.now()
        self._cookies.expire(now_s)
        if not due:
            return
        is_ready = self._prepared()
        if not self._is_recovered:
            self._is_recovered = self._recover(due, now_s)
            if not self._is_recovered:
                return
        for container, group in due:
            if group.is_enabled and is_ready:
                self._give(container, group.name, now_s)
            elif not group.is_enabled and container.group in self._marks:
                self._clear(container.id, container.group)
        self._forget_ended()

    def disable(self) -> None:
        """No container has a cookie of ours any more, and the kernel's switches are as before."""
        self._idle.want(self.name, ())
        for group in list(self._marks):
            self._clear(group, group)
        super().disable()

    # Rule

    def _parsed(self) -> CoreSchedRule | None:
        strategy = self.shared.view.qos_strategy
        return None if strategy is None else rule_of(strategy)

    def _changed(self) -> None:
        assert self._rule.value is not None
        idle = idle_by_class_dir(self._rule.value)
        self._idle.want(self.name, {each for each, value in idle.items() if value})

    # The kernel's switches

    def _prepared(self) -> bool:
        """Return whether cookies may be given now."""
        if self._rule.value is None or not self._rule.value.is_enabled:
            return False
        machine, executor, kernel = (
            self.shared.host.machine,
            self.shared.executor,
            self.shared.host.core_sched,
        )
        identity = machine.sysctl_path(IDENTITY_SYSCTL)
        if self.shared.host.files.exists(identity):
            problem = executor.write_file(identity, "0", owner=self.name, reason=REASON)
            if problem is not None:
                return False
        if kernel.support().is_supported:
            return True
        switch = machine.sysctl_path(CORE_SCHED_SYSCTL)
        is_on = self.shared.host.files.exists(switch) and (
            executor.write_file(switch, "1", owner=self.name, reason=REASON) is None
        )
        features = machine.sched_features_path()
        if not is_on and features is not None:
            executor.write_file(
                features,
                FEATURE,
                owner=self.name,
                reason=REASON,
                part=FEATURE,
                is_held=lambda text: NO_FEATURE not in text.split(),
            )
        return kernel.support().is_supported

    # Cookies

    def _collect(self, container: ContainerContext, response: HookResponse) -> None:
        if response.core_group is not None:
            self._due.append((container, response.core_group))

    def _recover(self, due: list[tuple[ContainerContext, CoreGroup]], now_s: float) -> bool:
        """Learn from the kernel what a former run of the agent gave; not before one container could be asked."""
        is_readable = []
        for container, group in due:
            name = self._marks.get(container.group, group.name if group.is_enabled else None)
            if name is not None and (pids := self._pids(container.group)):
                is_readable.append(self._cookies.adopt(container.id, name, pids, now_s))
        return any(is_readable) or not is_readable

    def _give(self, container: ContainerContext, group: str, now_s: float) -> None:
        pids = self._pids(container.group)
        if not pids:
            return
        if self._cookies.wants(container.id, group, pids, now_s):
            self._mark(container.group, group)
            problem = self.shared.executor.perform(
                f"{COOKIE} of {container.group}",
                f"that of group {group!r}",
                functools.partial(self._cookies.give, container.id, group, pids, now_s),
                self.name,
                REASON,
                group=container.group,
            )
            self.shared.metrics.core_sched_status.inc(group, status_of(problem is None))
        pod, cookie = container.pod, str(self._cookies.cookie_of(group))
        self.shared.metrics.core_sched_cookie.set(
            1, pod.namespace, pod.name, container.id, container.name, pod.uid, group, cookie
        )

    def _clear(self, container: str, group: str) -> None:
        """Only called for what had a cookie of ours: processes may make cookies of their own."""
        problem = self.shared.executor.perform(
            f"{COOKIE} of {group}",
            "none",
            functools.partial(self._cookies.clear, container, self._pids(group)),
            self.name,
            REASON,
            group=group,
        )
        if problem is None:
            self._marks.pop(group, None)
            self.shared.executor.unnote(self.shared.host.cgroups.directory(group), owner=self.name)

    def _mark(self, group: str, of: str) -> None:
        if self._marks.get(group) != of:
            self._marks[group] = of
            path = self.shared.host.cgroups.directory(group)
            self.shared.executor.note(path, of, owner=self.name, group=group)

    def _forget_ended(self) -> None:
        for group in [group for group in self._marks if not self.shared.host.cgroups.exists(group)]:
            del self._marks[group]

    def _pids(self, group: str) -> list[int]:
        return [pid for pid in self.shared.host.cgroups.procs(group) or () if pid > 0]
