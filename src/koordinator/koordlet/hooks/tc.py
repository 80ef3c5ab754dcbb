"""Network bandwidth by class: amounts, the ids of tc classes, and how `tc`, `ipset` and `iptables` take
them and what they answer. Pure.

Below the root class 1:1 of the network card are one class for the system, for services and for best-effort pods, and
one for each pod with a limit of its own. Pods are told apart by their address, or by `net_cls.classid` where the kernel
has it. Source: behaviour/koordlet-act 21.
"""

import enum
import re
from collections.abc import Iterable, Mapping, Sequence

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
    strategy, system = view.qos_in_force, slo.system_strategy
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


ROOT_MINOR = 1
OWN_MINOR_MIN, OWN_MINOR_MAX = 5, 0xFFFF
"""Minor numbers of classes of single pods."""
SETS = {
    TrafficClass.SYSTEM: "system_class",
    TrafficClass.SERVICE: "ls_class",
    TrafficClass.BEST_EFFORT: "be_class",
}
PRIORITIES = {TrafficClass.SYSTEM: 1, TrafficClass.SERVICE: 2, TrafficClass.BEST_EFFORT: 3}
_OWN_PRIORITIES = {QoSClass.SYSTEM: 1, QoSClass.BE: 3}
_OWN_FILTERS_FROM = 4
"""Preferences of filters below this belong to the three classes."""
_QUANTUM_BYTES = 10_000
"""Bytes that a class may send before the next one of its priority; the kernel would warn of values that
it derives from small rates."""
_CLASS = re.compile(r"^class htb 1:([0-9a-f]+) ", re.MULTILINE)
_HTB = re.compile(r"^qdisc htb 1: (?:dev \S+ )?root", re.MULTILINE)
_FILTER = re.compile(r"^filter .*?pref ([0-9]+) (u32|cgroup)\b(.*)$")
_FLOW = re.compile(r"flowid 1:([0-9a-f]+)")
_MATCH = re.compile(r"^\s*match ([0-9a-f]{8})/ffffffff at 12")


class HTBClass(msgspec.Struct, frozen=True):
    """A class below the root class."""

    minor: int
    rate: ClassRate
    priority: int


class TcClass(msgspec.Struct, frozen=True):
    """A pod with a limit of its own; `address` is empty for pods in the host's network."""

    minor: int
    limit_bytes_per_s: int
    qos: QoSClass
    address: str


class TcPlan(msgspec.Struct, frozen=True):
    """The wanted state of a card; addresses sorted."""

    card: str
    total_bytes_per_s: int
    classes: tuple[HTBClass, ...]
    pods: tuple[TcClass, ...]
    addresses: dict[TrafficClass, tuple[str, ...]]


class Filter(msgspec.Struct, frozen=True):
    """A filter that the kernel has: by source address, or by cgroup (then without one)."""

    preference: int
    minor: int | None
    address: str


def classes(
    rates: Mapping[TrafficClass, ClassRate], pods: Iterable[TcClass], total_bytes_per_s: int
) -> tuple[HTBClass, ...]:
    """Return all classes below the root class.

    A class of which nothing is said may use all that others leave: nobody wants it cut off.
    """
    found = []
    for each, rate in sorted(rates.items()):
        ceil = rate.ceil_bytes_per_s or total_bytes_per_s
        found.append(HTBClass(each, ClassRate(rate.rate_bytes_per_s, ceil), PRIORITIES[each]))
    for pod in pods:
        limit = ClassRate(pod.limit_bytes_per_s, pod.limit_bytes_per_s)
        found.append(HTBClass(pod.minor, limit, _OWN_PRIORITIES.get(pod.qos, 2)))
    return tuple(found)


# Commands


def add_root(card: str) -> tuple[str, ...]:
    """Make the card's root discipline ours; what matches nothing counts as the system."""
    return ("tc", "qdisc", "replace", "dev", card, "root", "handle", "1:", "htb", "default", "2")


def delete_root(card: str) -> tuple[str, ...]:
    """Give the card its default discipline back; classes and filters go with ours."""
    return ("tc", "qdisc", "del", "dev", card, "root", "handle", "1:", "htb")


def set_root_class(card: str, total_bytes_per_s: int) -> tuple[str, ...]:
    """Return the class of all traffic."""
    return _set_class(card, "1:", ROOT_MINOR, ClassRate(total_bytes_per_s, total_bytes_per_s), None)


def set_class(card: str, wanted: HTBClass) -> tuple[str, ...]:
    """Return one class below it."""
    return _set_class(card, f"1:{ROOT_MINOR}", wanted.minor, wanted.rate, wanted.priority)


def delete_class(card: str, minor: int) -> tuple[str, ...]:
    """Remove a class; its filter must be gone before."""
    return ("tc", "class", "del", "dev", card, "classid", f"1:{minor:x}")


def add_class_filter(card: str, which: TrafficClass) -> tuple[str, ...]:
    """Let packets of processes go to the class that their group names."""
    number = PRIORITIES[which]
    return (*_filter(card, number), "handle", f"{which:x}:", "cgroup")


def add_pod_filter(card: str, pod: TcClass, preference: int) -> tuple[str, ...]:
    """Let packets of one pod go to its class."""
    if not pod.address:
        return (*_filter(card, preference), "handle", f"{pod.minor:x}:", "cgroup")
    match = ("u32", "match", "ip", "src", f"{pod.address}/32")
    return (*_filter(card, preference), *match, "flowid", f"1:{pod.minor:x}")


def delete_filter(card: str, preference: int) -> tuple[str, ...]:
    """Remove a filter."""
    return ("tc", "filter", "del", "dev", card, "parent", "1:", "pref", str(preference))


def set_text(
    old: Mapping[TrafficClass, Sequence[str]] | None, new: Mapping[TrafficClass, Sequence[str]]
) -> str:
    """Lines for `ipset -exist restore`; `old` None: whatever the sets hold is replaced."""
    lines: list[str] = []
    for which, name in SETS.items():
        wanted = new.get(which, ())
        if old is None:
            lines += [f"create {name} hash:ip", f"flush {name}"]
            had: Sequence[str] = ()
        else:
            had = old.get(which, ())
        lines += [f"del {name} {address}" for address in had if address not in wanted]
        lines += [f"add {name} {address}" for address in wanted if address not in had]
    return "".join(f"{line}\n" for line in lines)


def rule(action: str, which: TrafficClass) -> tuple[str, ...]:
    """Return the rule of a set; `action` is -C (is it there?), -A or -D."""
    match = ("-m", "set", "--match-set", SETS[which], "src", "-j", "CLASSIFY", "--set-class", f"1:{which:x}")
    return ("iptables", "-w", "5", "-t", "mangle", action, "POSTROUTING", *match)


def _set_class(card: str, parent: str, minor: int, rate: ClassRate, priority: int | None) -> tuple[str, ...]:
    words = ("tc", "class", "replace", "dev", card, "parent", parent, "classid", f"1:{minor:x}", "htb")
    # A class must be assured something; one byte per second is as good as nothing.
    rates = ("rate", f"{max(rate.rate_bytes_per_s, 1)}bps", "ceil", f"{max(rate.ceil_bytes_per_s, 1)}bps")
    order = () if priority is None else ("prio", str(priority))
    return (*words, *rates, *order, "quantum", str(_QUANTUM_BYTES))


def _filter(card: str, preference: int) -> tuple[str, ...]:
    return ("tc", "filter", "add", "dev", card, "parent", "1:", "protocol", "ip", "pref", str(preference))


# Answers


def has_root(text: str) -> bool:
    """Return whether `tc qdisc show dev CARD` tells of our root discipline."""
    return _HTB.search(text) is not None


def minors(text: str) -> set[int]:
    """Minor numbers that `tc class show dev CARD` tells of."""
    return {int(minor, 16) for minor in _CLASS.findall(text)}


def filters(text: str) -> list[Filter]:
    """Return what `tc filter show dev CARD parent 1:` tells of: filters by cgroup, and by source address with a
    class.
    """
    found: list[Filter] = []
    current: tuple[int, int] | None = None
    for line in text.splitlines():
        if head := _FILTER.match(line):
            flow = _FLOW.search(head[3])
            current = (int(head[1]), int(flow[1], 16)) if flow is not None else None
            if head[2] == "cgroup" and not any(each.preference == int(head[1]) for each in found):
                found.append(Filter(int(head[1]), _handle(head[3]), ""))
        elif current is not None and (match := _MATCH.match(line)):
            address = ".".join(str(byte) for byte in bytes.fromhex(match[1]))
            found.append(Filter(current[0], current[1], address))
            current = None
    return found


def next_preference(present: Iterable[Filter]) -> int:
    """Return the preference of a new filter of a pod: above all that are there."""
    return max([_OWN_FILTERS_FROM - 1, *(each.preference for each in present)]) + 1


def is_of_pod(found: Filter) -> bool:
    """Return whether a filter belongs to a single pod."""
    return found.preference >= _OWN_FILTERS_FROM


def _handle(text: str) -> int | None:
    handle = re.search(r"handle 0x([0-9a-f]+)", text)
    return int(handle[1], 16) >> 16 or int(handle[1], 16) if handle is not None else None
