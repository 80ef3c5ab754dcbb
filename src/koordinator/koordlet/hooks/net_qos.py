"""Network bandwidth by class: amounts, and the ids of tc classes. Source: behaviour/koordlet-act 21."""

import enum

import msgspec

from koordinator.api import quantity
from koordinator.api.qos import QoSClass
from koordinator.api.quantity import QuantityError
from koordinator.api.schema import IntOrString
from koordinator.api.slo_qos import NetworkQOS, ResourceQOS
from koordinator.koordlet.view import NodeView

MAJOR = 1
_BITS_PER_BYTE = 8
_FULL_PERCENT = 100


class TrafficClass(enum.IntEnum):
    """Minor numbers of the classes below the root class."""

    SYSTEM = 2
    SERVICE = 3
    BEST_EFFORT = 4


_CLASS_OF_QOS = {
    QoSClass.SYSTEM: TrafficClass.SYSTEM,
    QoSClass.LSE: TrafficClass.SERVICE,
    QoSClass.LSR: TrafficClass.SERVICE,
    QoSClass.LS: TrafficClass.SERVICE,
    QoSClass.BE: TrafficClass.BEST_EFFORT,
}


class ClassRate(msgspec.Struct, frozen=True):
    """The bandwidth that a class is assured, and its maximum, in bytes per second."""

    rate_bytes_per_s: int
    ceil_bytes_per_s: int


def amount_bits(raw: IntOrString | None, total_bits: int) -> int:
    """Bits per second of a setting: a number is a percentage of the total, a text is a quantity; else 0."""
    if isinstance(raw, str):
        try:
            return max(quantity.parse(raw).value, 0)
        except QuantityError:
            return 0
    if raw is None or not 0 <= raw <= _FULL_PERCENT:
        return 0
    return total_bits * raw // _FULL_PERCENT


def class_rates(
    service: NetworkQOS | None, best_effort: NetworkQOS | None, total_bits: int
) -> dict[TrafficClass, ClassRate]:
    """Rates of the three classes; the system gets what is not assured to pods, and may use it all."""
    service_rate = _rate(service, total_bits)
    best_effort_rate = _rate(best_effort, total_bits)
    total = total_bits // _BITS_PER_BYTE
    assured = service_rate.rate_bytes_per_s + best_effort_rate.rate_bytes_per_s
    return {
        TrafficClass.SYSTEM: ClassRate(max(total - assured, 0), total),
        TrafficClass.SERVICE: service_rate,
        TrafficClass.BEST_EFFORT: best_effort_rate,
    }


def class_id(qos_class: QoSClass, own_minor: int | None = None) -> int | None:
    """Return number for `net_cls.classid` of a pod, its own class before that of its QoS; None without class."""
    if own_minor is not None:
        return class_number(MAJOR, own_minor)
    minor = _CLASS_OF_QOS.get(qos_class)
    return None if minor is None else class_number(MAJOR, minor)


def class_number(major: int, minor: int) -> int:
    """Return the number of the class that tc writes as `major:minor`, both hexadecimal there."""
    return major << 16 | minor


def _rate(settings: NetworkQOS | None, total_bits: int) -> ClassRate:
    """A class that is switched off is assured nothing; without a limit it may use what it is assured."""
    if settings is None or not settings.enable:
        return ClassRate(0, 0)
    rate = amount_bits(settings.egress_request, total_bits) // _BITS_PER_BYTE
    return ClassRate(rate, amount_bits(settings.egress_limit, total_bits) // _BITS_PER_BYTE or rate)


TC, TERWAY = "tc", "terway-qos"


class NetworkRule(msgspec.Struct, frozen=True):
    """The policy in force and its amounts; bandwidth in bits per second, 0 while nobody has said."""

    policy: str
    total_bits: int
    service: NetworkQOS | None
    best_effort: NetworkQOS | None


def rule_of(view: NodeView) -> NetworkRule | None:
    """Return what NodeSLO asks for, None while it is unknown. Raises: QuantityError."""
    slo = view.slo
    if slo is None:
        return None
    strategy, system = slo.resource_qos_strategy, slo.system_strategy
    bandwidth = system.total_network_bandwidth if system is not None else None
    policies = strategy.policies if strategy is not None else None
    return NetworkRule(
        policy=(policies.net_qos_policy if policies is not None else None) or TC,
        total_bits=max(quantity.value(bandwidth), 0) if bandwidth is not None else 0,
        service=_network(strategy.ls_class if strategy is not None else None),
        best_effort=_network(strategy.be_class if strategy is not None else None),
    )


def is_enabled(rule: NetworkRule) -> bool:
    """Return whether any class is limited or assured anything."""
    return any(each is not None and bool(each.enable) for each in (rule.service, rule.best_effort))


def _network(settings: ResourceQOS | None) -> NetworkQOS | None:
    return settings.network_qos if settings is not None else None
