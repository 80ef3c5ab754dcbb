"""Bandwidths in `resource-qos-config`: percentages and quantities that must fit the node (behaviour/manager 13.1).

A field that is a number is percent of the node's total bandwidth; one that is text is a quantity in bits
per second. The reference mixes both up when it adds requests (any quantity above 100 bits/s is refused, and
percents are compared with bandwidths as plain numbers); here the two are added and compared apart.
"""

from collections.abc import Iterator
from fractions import Fraction

import msgspec

from koordinator.api import quantity
from koordinator.api.affinity import LabelSelector
from koordinator.api.quantity import NANO, RawQuantity
from koordinator.api.slo_config import ResourceQOSConfig, SystemConfig
from koordinator.api.slo_qos import NetworkQOS, ResourceQOSStrategy

_CLASSES = (("lsrClass", "lsr_class"), ("lsClass", "ls_class"), ("beClass", "be_class"))
_FIELDS = (
    ("ingressRequest", "ingress_request"),
    ("ingressLimit", "ingress_limit"),
    ("egressRequest", "egress_request"),
    ("egressLimit", "egress_limit"),
)
_REQUESTS = (_FIELDS[0], _FIELDS[2])
_PERCENT_MAX = 100


class _Requests(msgspec.Struct):
    """Sums of one direction over the classes."""

    percent: int = 0
    amount: Fraction = Fraction(0)


def problems(config: ResourceQOSConfig, system: SystemConfig) -> list[str]:
    """Return what is wrong with the bandwidths of all layers, in words; empty when they are valid."""
    found: list[str] = []
    cluster = config.cluster_strategy
    if cluster is not None:
        total = None if system.cluster_strategy is None else _cluster_total(system)
        found += _strategy("clusterStrategy", cluster, total)
    for index, entry in enumerate(config.node_strategies):
        node_total = _node_total(system, entry.node_selector)
        found += _strategy(f"nodeStrategies[{index}]", entry, node_total)
    return found


def _cluster_total(system: SystemConfig) -> RawQuantity:
    cluster = system.cluster_strategy
    return (
        0 if cluster is None or cluster.total_network_bandwidth is None else cluster.total_network_bandwidth
    )


def _node_total(system: SystemConfig, selector: LabelSelector | None) -> RawQuantity:
    """Return the bandwidth of the system entry with the same selector, or of the cluster if there are no entries."""
    if not system.node_strategies:
        return _cluster_total(system)
    for entry in system.node_strategies:
        if entry.node_selector == selector:
            return entry.total_network_bandwidth or 0
    return 0


def _strategy(where: str, strategy: ResourceQOSStrategy, total: RawQuantity | None) -> Iterator[str]:
    """Problems of one layer; `total` None means that there is nothing to compare with."""
    networks = [
        (f"{where}.{name}.networkQOS", settings.network_qos)
        for name, field in _CLASSES
        if (settings := getattr(strategy, field)) is not None and settings.network_qos is not None
    ]
    malformed = [problem for path, network in networks for problem in _malformed(path, network)]
    yield from malformed
    if malformed:
        return
    kinds = {
        type(value) for _, network in networks for _, field in _REQUESTS
        if (value := getattr(network, field)) is not None
    }  # fmt: skip
    if len(kinds) > 1:
        yield f"{where}: bandwidth requests must be all percentages or all quantities"
        return
    for name, field in _REQUESTS:
        sums = _sum([network for _, network in networks], field)
        yield from _too_much(f"{where}: sum of networkQOS.{name}", sums, total)


def _malformed(path: str, network: NetworkQOS) -> Iterator[str]:
    for name, field in _FIELDS:
        value = getattr(network, field)
        if isinstance(value, str):
            try:
                if quantity.parse(value).nanos < 0:
                    yield f"{path}.{name} must not be negative, not {value}"
            except quantity.QuantityError as error:
                yield f"{path}.{name}: {error}"
        elif value is not None and not 0 <= value <= _PERCENT_MAX:
            yield f"{path}.{name} must be at least 0 and at most {_PERCENT_MAX} percent, not {value}"


def _sum(networks: list[NetworkQOS], field: str) -> _Requests:
    sums = _Requests()
    for network in networks:
        value = getattr(network, field)
        if isinstance(value, int):
            sums.percent += value
        elif value is not None:
            sums.amount += _units(value)
    return sums


def _too_much(what: str, sums: _Requests, total: RawQuantity | None) -> Iterator[str]:
    if sums.percent > _PERCENT_MAX:
        yield f"{what} is {sums.percent} percent, above {_PERCENT_MAX}"
    # A total of 0 is unknown: the node's own annotation or the node agent may still tell it.
    if total is not None and 0 < _units(total) < sums.amount:
        yield f"{what} is above the totalNetworkBandwidth {total} of system-config"


def _units(raw: RawQuantity) -> Fraction:
    return Fraction(quantity.of(raw).nanos, NANO)
