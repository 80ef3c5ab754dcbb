"""The `colocation-config` of the cluster: parsing, merging, and the strategy of one node (spec 02 §3)."""

import logging
from collections.abc import Mapping

import msgspec

from koordinator.api import label_selector, labels, node_labels, slo_config
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.slo_config import ColocationConfig, ColocationStrategy, NodeColocation
from koordinator.manager.noderesource.batch import CalculatePolicy, ReclaimPolicy
from koordinator.manager.noderesource.mid import MidPolicy, mid_policy
from koordinator.manager.overlay import overlay

log = logging.getLogger(__name__)

REASON_UNREADABLE = "ColocationCfgUnmarshalFailed"

_EMPTY_COUNTS = frozenset(
    {"cpu_calculate_policy", "memory_calculate_policy", "metric_memory_collect_policy", "mid_reclaim_mode"}
)

_RATIO_LABELS = {
    "cpu_reclaim_threshold_percent": labels.NODE_CPU_RECLAIM_RATIO,
    "memory_reclaim_threshold_percent": labels.NODE_MEMORY_RECLAIM_RATIO,
    "mid_static_cpu_reserved_percent": labels.NODE_MID_STATIC_CPU_RESERVED_RATIO,
    "mid_static_memory_reserved_percent": labels.NODE_MID_STATIC_MEMORY_RESERVED_RATIO,
}


class ColocationState(msgspec.Struct, frozen=True):
    """The merged configuration in force.

    `available` is False until one was understood; `error` tells that the last one was not.
    """

    config: ColocationConfig = ColocationConfig()
    available: bool = False
    error: bool = False


class SyncOutcome(msgspec.Struct, frozen=True):
    """The state after a ConfigMap was read; `problem` is for people, empty when all went well."""

    state: ColocationState
    changed: bool
    problem: str = ""
    unreadable: bool = False


def default_config() -> ColocationConfig:
    """What counts without a configuration."""
    return overlay(ColocationConfig(), slo_config.DEFAULT_COLOCATION_STRATEGY)


def sync(old: ColocationState, data: Mapping[str, str] | None) -> SyncOutcome:
    """The next state from the ConfigMap's data (None: there is no ConfigMap)."""
    if data is None:
        return _adopt(old, default_config(), error=True)
    text = data.get(slo_config.COLOCATION.key, "")
    if text == "":
        return _adopt(old, default_config(), error=False)
    try:
        parsed = slo_config.COLOCATION.decode(text, f"ConfigMap {slo_config.CONFIG_NAME}")
    except ProtocolError as error:
        return SyncOutcome(msgspec.structs.replace(old, error=True), False, str(error), unreadable=True)
    merged = overlay(default_config(), parsed, empty_text_counts=_EMPTY_COUNTS)
    problems = slo_config.colocation_problems(merged)
    if problems:
        return SyncOutcome(msgspec.structs.replace(old, error=True), False, "; ".join(problems))
    nodes = [_merged_node(merged, entry) for entry in parsed.node_configs]
    return _adopt(old, msgspec.structs.replace(merged, node_configs=nodes), error=False)


def _adopt(old: ColocationState, config: ColocationConfig, *, error: bool) -> SyncOutcome:
    return SyncOutcome(ColocationState(config, True, error), changed=config != old.config)


def _merged_node(cluster: ColocationConfig, entry: NodeColocation) -> NodeColocation:
    """A node entry on top of the cluster's strategy; one with invalid values becomes the cluster's."""
    base = overlay(NodeColocation(name=entry.name, node_selector=entry.node_selector), cluster)
    merged = overlay(base, entry, empty_text_counts=_EMPTY_COUNTS)
    problems = slo_config.colocation_problems(merged)
    if problems:
        log.warning("nodeConfigs entry ignored", extra={"entry": entry.name, "problems": problems})
        return base
    return merged


def node_strategy(config: ColocationConfig, node: Node) -> ColocationStrategy:
    """The strategy of one node: cluster, first matching entry, annotation, labels, each over the last."""
    strategy = overlay(ColocationStrategy(), config)
    for entry in config.node_configs:
        if _selects(entry, node):
            strategy = overlay(strategy, entry, empty_text_counts=_EMPTY_COUNTS)
            break
    try:
        noted = slo_config.NODE_COLOCATION_STRATEGY.read(node.metadata.annotations, node.key)
    except ProtocolError as error:
        log.warning("node annotation ignored", extra={"node": node.key, "error": str(error)})
        noted = None
    if noted is not None:
        strategy = overlay(strategy, noted, empty_text_counts=_EMPTY_COUNTS)
    percents = {
        field: percent
        for field, key in _RATIO_LABELS.items()
        if (percent := node_labels.ratio_percent(node.metadata.labels, key)) is not None
    }
    return msgspec.structs.replace(strategy, **percents) if percents else strategy


def _selects(entry: NodeColocation, node: Node) -> bool:
    if entry.node_selector is None:
        return False
    try:
        return label_selector.matches(entry.node_selector, node.metadata.labels)
    except ProtocolError as error:
        log.warning("nodeConfigs entry skipped", extra={"entry": entry.name, "error": str(error)})
        return False


def is_disabled(config: ColocationConfig, strategy: ColocationStrategy) -> bool:
    """A cluster switched off cannot be switched on for single nodes."""
    return not (config.enable and strategy.enable)


class NodeStrategy(msgspec.Struct, frozen=True):
    """What the node resource controller needs of a node's strategy."""

    enabled: bool
    degrade_s: float
    update_threshold_s: float
    diff_threshold: float
    reclaim: ReclaimPolicy
    mid: MidPolicy


def resource_strategy(config: ColocationConfig, strategy: ColocationStrategy) -> NodeStrategy:
    """A strategy with everything unset (possible only by annotation) taken from the defaults."""
    full = overlay(slo_config.DEFAULT_COLOCATION_STRATEGY, strategy)
    assert full.degrade_time_minutes is not None and full.update_time_threshold_seconds is not None
    assert full.resource_diff_threshold is not None
    assert full.cpu_reclaim_threshold_percent is not None
    assert full.memory_reclaim_threshold_percent is not None
    return NodeStrategy(
        enabled=not is_disabled(config, strategy),
        degrade_s=full.degrade_time_minutes * 60.0,
        update_threshold_s=float(full.update_time_threshold_seconds),
        diff_threshold=full.resource_diff_threshold,
        reclaim=ReclaimPolicy(
            cpu_percent=full.cpu_reclaim_threshold_percent,
            memory_percent=full.memory_reclaim_threshold_percent,
            cpu_policy=CalculatePolicy.parse(full.cpu_calculate_policy or ""),
            memory_policy=CalculatePolicy.parse(full.memory_calculate_policy or ""),
            cpu_cap_percent=full.batch_cpu_threshold_percent,
            memory_cap_percent=full.batch_memory_threshold_percent,
        ),
        mid=mid_policy(full),
    )
