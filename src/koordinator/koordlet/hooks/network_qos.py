"""What both network hooks take from NodeSLO and pods. Source: behaviour/koordlet-act 21."""

import msgspec

from koordinator.api import quantity
from koordinator.api.slo_qos import NetworkQOS, ResourceQOS
from koordinator.koordlet.view import NodeView

TC, TERWAY = "tc", "terway-qos"


class NetworkRule(msgspec.Struct, frozen=True):
    """The policy in force and its amounts; bandwidth in bits per second, 0 while nobody has said."""

    policy: str
    total_bits: int
    service: NetworkQOS | None
    best_effort: NetworkQOS | None


def rule_of(view: NodeView) -> NetworkRule | None:
    """What NodeSLO asks for, None while it is unknown. Raises: QuantityError."""
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
    """Whether any class is limited or assured anything."""
    return any(each is not None and bool(each.enable) for each in (rule.service, rule.best_effort))


def _network(settings: ResourceQOS | None) -> NetworkQOS | None:
    return settings.network_qos if settings is not None else None
