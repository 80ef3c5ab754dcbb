"""Group identity: which scheduler class of the kernel each cgroup has (bvt). Source: behaviour/koordlet-act 14."""

from collections.abc import Mapping

import msgspec

from koordinator.api import qos
from koordinator.api.annotations.koordlet import CPU_QOS
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.api.slo_qos import ResourceQOS, ResourceQOSStrategy
from koordinator.host import cgroup_layout

POLICY = "groupIdentity"


class GroupIdentityRule(msgspec.Struct, frozen=True):
    """The values of NodeSLO: by QoS class, by class directory, and for pods without a listed class."""

    is_enabled: bool
    by_qos: dict[QoSClass, int]
    by_class_dir: dict[KubeQoS, int]
    by_kube_qos: dict[KubeQoS, int]


class Kernel(msgspec.Struct, frozen=True):
    """What the kernel offers: the file, and the switch (None where it has none)."""

    is_supported: bool
    switch: int | None


def rule_of(strategy: ResourceQOSStrategy) -> GroupIdentityRule:
    """What NodeSLO asks for; zeros for classes that are off or when another CPU policy is in force."""
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
    """Whether values are written at all: not once the kernel's own switch is off, too."""
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
