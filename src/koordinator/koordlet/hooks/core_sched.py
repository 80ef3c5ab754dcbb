"""Core scheduling: which pods may share a physical core at the same time. Source: behaviour/koordlet-act 18."""

from collections.abc import Mapping

import msgspec

from koordinator.api import pod_labels as pod_label_values
from koordinator.api import qos
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.api.slo_qos import ResourceQOS, ResourceQOSStrategy

POLICY = "coreSched"
EXPELLER_SUFFIX = "-expeller"
_EXCLUSIVE, _NONE = "exclusive", "none"


class ClassRule(msgspec.Struct, frozen=True):
    """Core scheduling of a class; an expeller keeps idle-class threads off its sibling threads."""

    is_enabled: bool = False
    is_expeller: bool = False
    is_idle: bool = False


class CoreSchedRule(msgspec.Struct, frozen=True):
    """What NodeSLO asks for."""

    lsr: ClassRule
    ls: ClassRule
    be: ClassRule

    @property
    def is_enabled(self) -> bool:
        """Whether the node needs core scheduling at all."""
        return self.lsr.is_enabled or self.ls.is_enabled or self.be.is_enabled


class CoreGroup(msgspec.Struct, frozen=True):
    """Pods of the same name share one cookie, when enabled."""

    is_enabled: bool
    name: str


def rule_of(strategy: ResourceQOSStrategy) -> CoreSchedRule:
    """What NodeSLO asks for; nothing unless its CPU policy is core scheduling."""
    is_active = strategy.policies is not None and strategy.policies.cpu_policy == POLICY
    classes = (strategy.lsr_class, strategy.ls_class, strategy.be_class)
    return CoreSchedRule(*(_class_rule(each) if is_active else ClassRule() for each in classes))


def idle_by_class_dir(rule: CoreSchedRule) -> dict[KubeQoS, int]:
    """Value of `cpu.idle` of the three class directories."""
    return {
        KubeQoS.GUARANTEED: int(rule.lsr.is_idle),
        KubeQoS.BURSTABLE: int(rule.ls.is_idle),
        KubeQoS.BEST_EFFORT: int(rule.be.is_idle),
    }


def group_of(rule: CoreSchedRule, pod_labels: Mapping[str, str], kube_qos: KubeQoS, uid: str) -> CoreGroup:
    """The group of a pod; SYSTEM pods have none, they are never touched."""
    qos_class = qos.of_labels(pod_labels)
    if qos_class is QoSClass.SYSTEM:
        return CoreGroup(False, "")
    of_class = _rule_for(rule, qos_class, kube_qos)
    asked = pod_label_values.core_sched(pod_labels)
    name = uid if asked.policy == _EXCLUSIVE else asked.group_id
    suffix = EXPELLER_SUFFIX if of_class.is_expeller else ""
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
