"""Check the values of the keys of `slo-controller-config` (behaviour/manager 13.1, its tables are in 3.3 and 11.2).

Pure: each function gives the problems of one section in words, empty when it is valid. A member that is not set is
fine, except the other half of a pair. Rules hold for each layer as written, not for the merged result, since a layer
must make sense where it stands.

Bandwidths in `resource-qos-config` must fit the node: a number is percent of the node's total bandwidth, a text is a
quantity in bits per second. The reference mixes both up when it adds requests (any quantity above 100 bits/s is
refused, and percents are compared with bandwidths as plain numbers); here the two are added and compared apart.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import msgspec

from koordinator.api import quantity, slo, slo_config
from koordinator.api.affinity import LabelSelector
from koordinator.api.decode import from_builtins
from koordinator.api.interference import InterferenceSettings, relation_problems
from koordinator.api.priority import PriorityClass
from koordinator.api.qos import QoSClass
from koordinator.api.quantity import NANO, RawQuantity
from koordinator.api.slo import (
    CPUBurstStrategy,
    HostApplicationSpec,
    ResourceThresholdStrategy,
    SystemStrategy,
)
from koordinator.api.slo_config import (
    ColocationStrategy,
    CPUNormalizationStrategy,
    HostApplicationConfig,
    NodeHostApplications,
    RatioModel,
    ResourceAmplificationStrategy,
    ResourceQOSConfig,
    SystemConfig,
)
from koordinator.api.slo_qos import NetworkQOS, ResourceQOS, ResourceQOSStrategy
from koordinator.manager.config.addons import LayeredEntry

INT_MAX = 2**63 - 1
PRIORITY_MAX = 7999
"""No prod pod may be evicted for allocatable."""


class ValueBounds(msgspec.Struct, frozen=True):
    """The values that a member may have, both ends included unless `is_above`."""

    low: float = 0
    high: float = INT_MAX
    is_above: bool = False  # `low` itself is not allowed

    def problem(self, name: str, value: float) -> str:
        """Return what is wrong with the value, empty when nothing is."""
        if self.low <= value <= self.high and not (self.is_above and value == self.low):
            return ""
        least = f"above {self.low:g}" if self.is_above else f"at least {self.low:g}"
        most = f" and at most {self.high:g}" if self.high < INT_MAX else ""
        return f"{name} must be {least}{most}, not {value:g}"


class Pair(msgspec.Struct, frozen=True):
    """Two members of which the first must be above the second; one without the other is refused."""

    upper: str
    lower: str
    bounds: ValueBounds


PERCENT = ValueBounds(0, 100)
NOT_NEGATIVE = ValueBounds(0)
AT_LEAST_1 = ValueBounds(1)
FLAG = ValueBounds(0, 1)

_COLOCATION = {
    "metric_aggregate_duration_seconds": AT_LEAST_1,
    "metric_report_interval_seconds": AT_LEAST_1,
    "cpu_reclaim_threshold_percent": NOT_NEGATIVE,
    "memory_reclaim_threshold_percent": NOT_NEGATIVE,
    "degrade_time_minutes": AT_LEAST_1,
    "update_time_threshold_seconds": AT_LEAST_1,
    "resource_diff_threshold": ValueBounds(0, 1, is_above=True),
    "mid_cpu_threshold_percent": PERCENT,
    "mid_memory_threshold_percent": PERCENT,
    "mid_unallocated_percent": PERCENT,
    "mid_static_cpu_reserved_percent": PERCENT,
    "mid_static_memory_reserved_percent": PERCENT,
    "batch_cpu_threshold_percent": NOT_NEGATIVE,
    "batch_memory_threshold_percent": NOT_NEGATIVE,
    "gpu_reclaim_percent": PERCENT,
    "lend_ahead_minutes": ValueBounds(0, 24 * 60),
}
_THRESHOLD = {
    "cpu_suppress_threshold_percent": PERCENT,
    "cpu_suppress_min_percent": PERCENT,
    "cpu_evict_be_usage_threshold_percent": PERCENT,
    "cpu_evict_time_window_seconds": ValueBounds(0, is_above=True),
    "allocatable_evict_priority_threshold": ValueBounds(0, PRIORITY_MAX),
}
_THRESHOLD_PAIRS = (
    Pair("memory_evict_threshold_percent", "memory_evict_lower_percent", PERCENT),
    Pair("cpu_evict_be_satisfaction_upper_percent", "cpu_evict_be_satisfaction_lower_percent", PERCENT),
    Pair("cpu_evict_threshold_percent", "cpu_evict_lower_percent", PERCENT),
    Pair(
        "memory_allocatable_evict_threshold_percent", "memory_allocatable_evict_lower_percent", NOT_NEGATIVE
    ),
    Pair("cpu_allocatable_evict_threshold_percent", "cpu_allocatable_evict_lower_percent", NOT_NEGATIVE),
)
_BURST = {
    "cpu_burst_percent": ValueBounds(1, 10_000),
    "cfs_quota_burst_percent": ValueBounds(100),
    "cfs_quota_burst_period_seconds": ValueBounds(-1),
    "share_pool_threshold_percent": PERCENT,
}
_SYSTEM = {
    "min_free_kbytes_factor": ValueBounds(0, is_above=True),
    "watermark_scale_factor": ValueBounds(1, 400),
    "memcg_reap_back_ground": FLAG,
    "page_cache_limit_enabled": FLAG,
}
_CPU_QOS = {"group_identity": ValueBounds(-1, 2), "sched_idle": FLAG}
_MEMORY_QOS = {
    "min_limit_percent": PERCENT,
    "low_limit_percent": PERCENT,
    "throttling_percent": PERCENT,
    "wmark_ratio": PERCENT,
    "wmark_scale_permill": ValueBounds(1, 1000),
    "wmark_min_adj": ValueBounds(-25, 50),
    "priority_enable": FLAG,
    "priority": ValueBounds(0, 12),
    "oom_kill_group": FLAG,
    "page_cache_limit_percent": PERCENT,
}
_RESCTRL_QOS = {"mba_percent": PERCENT}
_RESCTRL_PAIRS = (Pair("cat_range_end_percent", "cat_range_start_percent", PERCENT),)
_IO = {
    "read_iops": NOT_NEGATIVE,
    "write_iops": NOT_NEGATIVE,
    "read_bps": NOT_NEGATIVE,
    "write_bps": NOT_NEGATIVE,
    "io_weight_percent": ValueBounds(1, 100),
    "read_latency_percent": PERCENT,
    "write_latency_percent": PERCENT,
    "model_read_bps": AT_LEAST_1,
    "model_write_bps": AT_LEAST_1,
    "model_read_seq_iops": AT_LEAST_1,
    "model_write_seq_iops": AT_LEAST_1,
    "model_read_rand_iops": AT_LEAST_1,
    "model_write_rand_iops": AT_LEAST_1,
}
_NORMALIZATION_RATIO = ValueBounds(1, 5)
_AMPLIFICATION_RATIO = ValueBounds(1)
_RATIO_MODEL = dict.fromkeys(RatioModel.__struct_fields__, _NORMALIZATION_RATIO)
_GROUP_BASES = ("", "CgroupRoot", "Kubepods", "KubepodsBurstable", "KubepodsBesteffort")
_QOS_CLASSES = ("lsr_class", "ls_class", "be_class", "system_class", "cgroup_root")


def colocation(strategy: ColocationStrategy) -> list[str]:
    """Problems of the cluster's or a node entry's co-location strategy."""
    return [*_out_of_bounds(strategy, _COLOCATION), *slo_config.memory_policy_problems(strategy)]


def threshold(strategy: ResourceThresholdStrategy) -> list[str]:
    """Problems of a threshold strategy."""
    return [*_out_of_bounds(strategy, _THRESHOLD), *_bad_pairs(strategy, _THRESHOLD_PAIRS)]


def burst(strategy: CPUBurstStrategy) -> list[str]:
    """Problems of a CPU burst strategy."""
    return list(_out_of_bounds(strategy, _BURST))


def system(strategy: SystemStrategy) -> list[str]:
    """Problems of a system strategy."""
    return list(_out_of_bounds(strategy, _SYSTEM))


def qos(strategy: ResourceQOSStrategy) -> list[str]:
    """Problems of a QoS strategy; its network part has rules of its own (`bandwidth_problems`)."""
    problems = []
    for field in _QOS_CLASSES:
        settings: ResourceQOS | None = getattr(strategy, field)
        if settings is not None:
            name = _wire_name(strategy, field)
            problems += [f"{name}.{problem}" for problem in _qos_class(settings)]
    return problems


def normalization(strategy: CPUNormalizationStrategy) -> list[str]:
    """Problems of a CPU normalization strategy: ratios that the controller would not use."""
    problems = list(_out_of_bounds(strategy, {"default_ratio": _NORMALIZATION_RATIO}))
    for model, ratios in sorted(strategy.ratio_model.items()):
        problems += _prefixed(f"ratioModel[{model!r}]", _out_of_bounds(ratios, _RATIO_MODEL))
    return problems


def amplification(strategy: ResourceAmplificationStrategy) -> list[str]:
    """Problems of an amplification strategy: one ratio below 1 would switch all of them off on its nodes."""
    found = (
        _AMPLIFICATION_RATIO.problem(f"resourceAmplificationRatio[{name!r}]", ratio)
        for name, ratio in sorted(strategy.resource_amplification_ratio.items())
    )
    return [problem for problem in found if problem]


def host_applications(layer: HostApplicationConfig | NodeHostApplications) -> list[str]:
    """Problems of a list of host applications."""
    problems: list[str] = []
    seen: set[str] = set()
    for index, application in enumerate(layer.applications):
        path = f"applications[{index}]"
        if not application.name:
            problems.append(f"{path}.name is missing")
        elif application.name in seen:
            problems.append(f"{path}.name {application.name!r} is used twice")
        seen.add(application.name)
        problems += _prefixed(path, _unknown_words(application))
    return problems


def _unknown_words(application: HostApplicationSpec) -> Iterator[str]:
    base = application.cgroup_path.base if application.cgroup_path is not None else ""
    for name, value, words in (
        ("qos", application.qos, tuple(QoSClass)),
        ("priority", application.priority, tuple(PriorityClass)),
        ("cgroupPath.base", base, _GROUP_BASES),
    ):
        if value not in words:
            yield f"{name} must be one of {', '.join(filter(None, words))}, not {value!r}"


def _qos_class(settings: ResourceQOS) -> Iterator[str]:
    if settings.cpu_qos is not None:
        yield from _prefixed("cpuQOS", _out_of_bounds(settings.cpu_qos, _CPU_QOS))
    if settings.memory_qos is not None:
        yield from _prefixed("memoryQOS", _out_of_bounds(settings.memory_qos, _MEMORY_QOS))
    if settings.resctrl_qos is not None:
        yield from _prefixed("resctrlQOS", _out_of_bounds(settings.resctrl_qos, _RESCTRL_QOS))
        yield from _prefixed("resctrlQOS", _bad_pairs(settings.resctrl_qos, _RESCTRL_PAIRS))
    if settings.blkio_qos is not None:
        for index, block in enumerate(settings.blkio_qos.blocks):
            yield from _prefixed(f"blkioQOS.blocks[{index}].ioCfg", _out_of_bounds(block.io_cfg, _IO))


def eviction(layer: Mapping[str, Any] | LayeredEntry) -> list[str]:
    """Return what the node agent could not use of settings of eviction strategies; unknown ones may be of packages."""
    strategy = layer if isinstance(layer, Mapping) else layer.strategy
    problems = []
    for name, view in slo.EVICTION_SETTINGS.items():
        try:
            if (raw := strategy.get(name)) is not None:
                from_builtins(raw, view)
        except msgspec.ValidationError as error:
            problems.append(_decode_problem(name, error))
    return problems


def interference(layer: Mapping[str, Any] | LayeredEntry) -> list[str]:
    """Return what the node agent could not use of settings of its closed loop; how values relate is known of the
    cluster's only, since an entry need not name all."""
    try:
        if isinstance(layer, Mapping):
            return relation_problems(from_builtins(layer, InterferenceSettings))
        from_builtins(layer.strategy, InterferenceSettings)
    except msgspec.ValidationError as error:
        return [_decode_problem("", error)]
    return []


def _decode_problem(name: str, error: msgspec.ValidationError) -> str:
    reason, _, field = str(error).rpartition(" - at ")
    where = f"{name}{field.strip('`').removeprefix('$')}".lstrip(".")
    return f"{where}: {reason or error}" if where else str(error)


def shadow(layer: Mapping[str, Any] | LayeredEntry) -> list[str]:
    """Return what is wrong with a list of strategies that only decide."""
    strategy = layer if isinstance(layer, Mapping) else layer.strategy
    problems = [
        f"unknown member {name!r}: there is only strategies" for name in strategy if name != "strategies"
    ]
    try:
        settings = from_builtins(dict(strategy), slo.ShadowSettings)
    except msgspec.ValidationError as error:
        return [*problems, str(error)]
    known = ", ".join(slo.SHADOW_STRATEGIES)
    problems += [
        f"strategies: {name!r} has no shadow mode: expected some of {known}"
        for name in settings.strategies
        if name not in slo.SHADOW_STRATEGIES
    ]
    return problems


def _prefixed(path: str, problems: Iterator[str]) -> Iterator[str]:
    return (f"{path}.{problem}" for problem in problems)


def _out_of_bounds(section: msgspec.Struct, rules: dict[str, ValueBounds]) -> Iterator[str]:
    for field, bounds in rules.items():
        value = getattr(section, field)
        if value is not None and (problem := bounds.problem(_wire_name(section, field), value)):
            yield problem


def _bad_pairs(section: msgspec.Struct, pairs: Sequence[Pair]) -> Iterator[str]:
    for pair in pairs:
        yield from _out_of_bounds(section, dict.fromkeys((pair.upper, pair.lower), pair.bounds))
        yield from _bad_pair(section, pair)


def _bad_pair(section: msgspec.Struct, pair: Pair) -> Iterator[str]:
    upper, lower = getattr(section, pair.upper), getattr(section, pair.lower)
    upper_name, lower_name = _wire_name(section, pair.upper), _wire_name(section, pair.lower)
    if (upper is None) != (lower is None):
        given, missing = (upper_name, lower_name) if lower is None else (lower_name, upper_name)
        yield f"{given} needs {missing} next to it"
    elif upper is not None and upper <= lower:
        yield f"{upper_name} must be above {lower_name}, but {upper} is not above {lower}"


def _wire_name(section: Any, field: str) -> str:
    return next(info.encode_name for info in msgspec.structs.fields(section) if info.name == field)


_CLASSES = ("lsr_class", "ls_class", "be_class")
_REQUESTS = ("ingress_request", "egress_request")
_FIELDS = ("ingress_request", "ingress_limit", "egress_request", "egress_limit")
_PERCENT_MAX = 100


class _Requests(msgspec.Struct):
    """Sums of one direction over the classes."""

    percent: int = 0
    amount: Fraction = Fraction(0)


def bandwidth_problems(config: ResourceQOSConfig, system: SystemConfig) -> list[str]:
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
        (f"{where}.{_wire_name(strategy, field)}.networkQOS", settings.network_qos)
        for field in _CLASSES
        if (settings := getattr(strategy, field)) is not None and settings.network_qos is not None
    ]
    malformed = [problem for path, network in networks for problem in _malformed(path, network)]
    yield from malformed
    if malformed:
        return
    kinds = {
        type(value) for _, network in networks for field in _REQUESTS
        if (value := getattr(network, field)) is not None
    }  # fmt: skip
    if len(kinds) > 1:
        yield f"{where}: bandwidth requests must be all percentages or all quantities"
        return
    for field in _REQUESTS:
        sums = _sum([network for _, network in networks], field)
        yield from _too_much(f"{where}: sum of networkQOS.{_wire_name(NetworkQOS, field)}", sums, total)


def _malformed(path: str, network: NetworkQOS) -> Iterator[str]:
    for field in _FIELDS:
        name, value = _wire_name(network, field), getattr(network, field)
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
