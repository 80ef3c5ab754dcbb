"""Group identity: which scheduler class of the kernel each cgroup has. Source: behaviour/koordlet-act 14.

`cpu.bvt_warp_ns` where the kernel has it. Mainline kernels do not; there the class value -1 of BE is realised by
`cpu.idle=1` on the groups of best-effort pods, which run only on CPU time that nobody else wants.
"""

from collections.abc import Iterator, Mapping

import msgspec

from koordinator.api import qos
from koordinator.api.annotations.koordlet import CPU_QOS
from koordinator.api.errors import KoordinatorError
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.api.slo_qos import ResourceQOS, ResourceQOSStrategy
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroups import KernelSupport
from koordinator.koordlet.hooks import contexts
from koordinator.koordlet.hooks.contexts import (
    KATA,
    ClassContext,
    HookResponse,
    HookStage,
    HostApplicationContext,
    PodContext,
)
from koordinator.koordlet.hooks.hook import REASON, Hook, HookRegistry, HookTools, ReconcileLevel
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.view import Topic
from koordinator.koordlet.writing.update_plan import Update

POLICY = "groupIdentity"


class GroupIdentityRule(msgspec.Struct, frozen=True):
    """The values of NodeSLO: by QoS class, by class directory, and for pods without a listed class."""

    is_enabled: bool
    by_qos: dict[QoSClass, int]
    by_class_dir: dict[KubeQoS, int]
    by_kube_qos: dict[KubeQoS, int]


class Kernel(msgspec.Struct, frozen=True):
    """The kernel's support: the file, and the switch (None where it has none)."""

    is_supported: bool
    switch: int | None


def rule_of(strategy: ResourceQOSStrategy) -> GroupIdentityRule:
    """Return what NodeSLO asks for; zeros for classes that are off or when another CPU policy is in force."""
    policy = strategy.policies.cpu_policy if strategy.policies is not None else None
    is_active = policy in (None, "", POLICY)
    classes = (strategy.lsr_class, strategy.ls_class, strategy.be_class)
    lsr_on, ls_on, be_on = (is_active and _is_on(each) for each in classes)
    lsr, ls, be = (
        _value(each) if is_on else 0 for each, is_on in zip(classes, (lsr_on, ls_on, be_on), strict=True)
    )
    guaranteed = lsr if lsr_on else ls
    return GroupIdentityRule(
        is_enabled=lsr_on or ls_on or be_on,
        by_qos={QoSClass.LSE: lsr, QoSClass.LSR: lsr, QoSClass.LS: ls, QoSClass.BE: be},
        by_class_dir={KubeQoS.GUARANTEED: 0, KubeQoS.BURSTABLE: ls, KubeQoS.BEST_EFFORT: be},
        by_kube_qos={KubeQoS.GUARANTEED: guaranteed, KubeQoS.BURSTABLE: ls, KubeQoS.BEST_EFFORT: be},
    )


def is_written(rule: GroupIdentityRule, kernel: Kernel) -> bool:
    """Return whether values are written at all: not once the kernel's own switch is off, too."""
    return kernel.is_supported and (rule.is_enabled or kernel.switch != 0)


def pod_value(
    rule: GroupIdentityRule,
    pod_labels: Mapping[str, str],
    annotations: Mapping[str, str],
    directory: str,
    obj: str = "",
) -> int:
    """Value of a pod's cgroup; an LS pod may choose its own.

    The same function serves the hook and a change of the rule, so an annotated pod keeps its value.
    Raises: ProtocolError when the annotation is malformed, whatever the class.
    """
    own = CPU_QOS.read(annotations, obj)
    qos_class = qos.of_labels(pod_labels)
    if qos_class not in rule.by_qos:
        return rule.by_kube_qos[cgroup_layout.kube_qos_of_dir(directory)]
    if own is not None and qos_class is QoSClass.LS:
        if not own.enable:
            return 0
        if own.group_identity is not None:
            return own.group_identity
    return rule.by_qos[qos_class]


def host_application_value(rule: GroupIdentityRule, qos_class: QoSClass) -> int:
    """Value of a host application's cgroup."""
    return rule.by_qos.get(qos_class, 0)


def _is_on(settings: ResourceQOS | None) -> bool:
    return settings is not None and settings.cpu_qos is not None and bool(settings.cpu_qos.enable)


def _value(settings: ResourceQOS | None) -> int:
    if settings is None or settings.cpu_qos is None:
        return 0
    return settings.cpu_qos.group_identity or 0


CORE_SCHED_SYSCTL = "kernel/sched_core"
IDENTITY_SYSCTL = "kernel/sched_group_identity_enabled"
OFF = rule_of(ResourceQOSStrategy())


class GroupIdentity(Hook):
    """Services wake up before best-effort pods, and are not disturbed by them."""

    name = "GroupIdentity"
    wants_idle = True

    def __init__(self, shared: Shared, tools: HookTools) -> None:
        super().__init__(shared, tools)
        self._idle = tools.idle
        self._rule = self.rule((Topic.NODE_SLO,), self._parsed, None, self._changed)
        self._is_ready = False
        """The kernel's switches are as the rule needs them."""

    def register(self, registry: HookRegistry) -> None:
        registry.at_stage(HookStage.PRE_RUN_POD_SANDBOX, self.name, self.of_pod)
        registry.reconcile(ReconcileLevel.CLASS, (Knob.CPU_BVT,), self.name, self.of_class)
        registry.reconcile(ReconcileLevel.POD, (Knob.CPU_BVT,), self.name, self.of_pod)
        registry.reconcile(
            ReconcileLevel.HOST_APPLICATION, (Knob.CPU_BVT,), self.name, self.of_host_application
        )

    # Answers

    def of_class(self, context: ClassContext) -> HookResponse:
        """Identity of the group of a Kubernetes QoS class."""
        rule = self._rule.value
        if rule is None or not self._prepared(rule):
            return HookResponse()
        return HookResponse(bvt=rule.by_class_dir[context.kube_qos])

    def of_pod(self, pod: PodContext) -> HookResponse:
        """Identity of a pod; containers inherit it. Raises: ProtocolError when its annotation is malformed."""
        value = pod_value(self._rule.value or OFF, pod.labels, pod.annotations, pod.group, pod.obj)
        return HookResponse(bvt=value) if self._is_ready else HookResponse()

    def of_host_application(self, context: HostApplicationContext) -> HookResponse:
        """Identity of an application outside of pods."""
        if self._rule.value is None:
            return HookResponse()
        value = host_application_value(self._rule.value, context.qos)
        if self._is_ready:
            return HookResponse(bvt=value)
        if not self._bvt().is_supported and self._idle.support().is_supported:
            return HookResponse(cpu_idle=int(value < 0 or self._idle.covers(context.group)))
        return HookResponse()

    # Changes

    def disable(self) -> None:
        """Give all groups the identity 0, if any was given one."""
        self._rule.value = OFF
        self._idle.want(self.name, ())
        if self.shared.executor.changed_by(self.name):
            updates = [each for each in self._everything() if self._bvt().is_supported]
            self.shared.executor.update(updates, owner=self.name)
        super().disable()

    def _parsed(self) -> GroupIdentityRule | None:
        strategy = self.shared.view.qos_strategy
        return None if strategy is None else rule_of(strategy)

    def _changed(self) -> None:
        rule = self._rule.value
        assert rule is not None
        is_by_idle = not self._bvt().is_supported
        self._idle.want(
            self.name, {each for each, value in rule.by_class_dir.items() if is_by_idle and value < 0}
        )
        if self._prepared(rule):
            self.shared.executor.update(list(self._containers_and_unknown(rule)), owner=self.name)

    def _prepared(self, rule: GroupIdentityRule) -> bool:
        """Return whether values may be written now: the kernel's own switches come first."""
        switch = self._switch()
        kernel = Kernel(self._bvt().is_supported, switch)
        is_ready = switch != _UNREADABLE and is_written(rule, kernel)
        if is_ready and rule.is_enabled:
            is_ready = self._set(CORE_SCHED_SYSCTL, "0") and self._set(IDENTITY_SYSCTL, "1")
        if is_ready != self._is_ready:
            self._is_ready = is_ready
            self.invalidate()
        return is_ready

    def _set(self, sysctl: str, text: str) -> bool:
        """Set a switch; return whether it says so now. One that the kernel does not have needs nothing."""
        path = self.shared.host.machine.sysctl_path(sysctl)
        if not self.shared.host.files.exists(path):
            return True
        return self.shared.executor.write_file(path, text, owner=self.name, reason=REASON) is None

    def _bvt(self) -> KernelSupport:
        cgroups = self.shared.host.cgroups
        root = cgroup_layout.class_dir(self.shared.view.driver, KubeQoS.GUARANTEED)
        return cgroups.support(Knob.CPU_BVT, root)

    def _switch(self) -> int | None:
        path = self.shared.host.machine.sysctl_path(IDENTITY_SYSCTL)
        if not self.shared.host.files.exists(path):
            return None
        text = (self.shared.host.files.read(path) or "").strip()
        return int(text) if text.isdigit() else _UNREADABLE

    def _containers_and_unknown(self, rule: GroupIdentityRule) -> Iterator[Update]:
        """Yield what only a change of the rule writes: containers, and pods that the kubelet did not tell of (yet)."""
        view, known = self.shared.view, set()
        for record in view.pods.values():
            known.add(record.group)
            pod = contexts.of_pod(record)
            if not record.is_active or pod.runtime_class == KATA:
                continue
            try:
                value = pod_value(rule, pod.labels, pod.annotations, pod.group, pod.obj)
            except KoordinatorError:
                continue  # told when the pod itself is reconciled
            for container in record.containers:
                yield Update(container.group, Knob.CPU_BVT, str(value), REASON)
        for kube_qos in KubeQoS:
            for group in self._pods_on_disk(kube_qos):
                if group not in known:
                    for each in (group, *(self.shared.host.cgroups.children(group) or ())):
                        yield Update(each, Knob.CPU_BVT, str(rule.by_class_dir[kube_qos]), REASON)

    def _everything(self) -> Iterator[Update]:
        """Yield all groups with the identity of a rule that is off."""
        view = self.shared.view
        groups = [cgroup_layout.class_dir(view.driver, each) for each in KubeQoS]
        groups += [record.group for record in view.pods.values()]
        for record in self.shared.executor.changed_by(self.name):
            if record.knob == Knob.CPU_BVT:
                groups.append(record.group)
        for group in groups:
            yield Update(group, Knob.CPU_BVT, "0", REASON)
        yield from self._containers_and_unknown(OFF)

    def _pods_on_disk(self, kube_qos: KubeQoS) -> list[str]:
        driver = self.shared.view.driver
        groups = self.shared.host.cgroups.children(cgroup_layout.class_dir(driver, kube_qos)) or ()
        return [group for group in groups if cgroup_layout.is_pod_dir(driver, group)]


_UNREADABLE = -1
"""A switch that says something else than a number: nothing is written."""
