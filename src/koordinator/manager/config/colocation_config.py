"""The `colocation-config` of the cluster: parsing, merging, and the strategy of one node (behaviour/manager 3).

A strategy is translated for the formulas of Batch and Mid resources (behaviour/manager 6, 7) by pure functions.
"""

import enum
import logging
from collections.abc import Mapping, Sequence

import msgspec

from koordinator.api import labels, node_labels, slo_config
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.slo_config import ColocationConfig, ColocationStrategy, NodeColocation
from koordinator.manager.config.addons import ColocationAddon
from koordinator.manager.config.node_entries import (
    REMEMBERED_MAX,
    EntryTable,
    Signature,
    first_match,
    overlay,
)

log = logging.getLogger(__name__)


class CalculatePolicy(enum.IntEnum):
    """The figure that stands for the high-priority pods in the formula."""

    USAGE = 0
    REQUEST = 1  # memory only; for CPU it means USAGE, as in the reference
    MAX_USAGE_REQUEST = 2

    @classmethod
    def parse(cls, text: str) -> "CalculatePolicy":
        """Unknown text means usage."""
        return {"request": cls.REQUEST, "maxUsageRequest": cls.MAX_USAGE_REQUEST}.get(text, cls.USAGE)


class ReclaimPolicy(msgspec.Struct, frozen=True):
    """The part of a colocation strategy that the formula needs. Percent values may exceed 100.

    The caps are percent of capacity; None means no cap.
    """

    cpu_percent: int = 60
    memory_percent: int = 65
    cpu_policy: CalculatePolicy = CalculatePolicy.USAGE
    memory_policy: CalculatePolicy = CalculatePolicy.USAGE
    cpu_cap_percent: int | None = None
    memory_cap_percent: int | None = None


class MidPolicy(msgspec.Struct, frozen=True):
    """The part of a colocation strategy that the formula needs; percent of capacity unless said otherwise."""

    is_static: bool = False
    cpu_cap_percent: int = 100
    memory_cap_percent: int = 100
    unallocated_percent: int = 0
    """Part of what no service has requested that is lent on top."""
    static_cpu_percent: int = 0
    static_memory_percent: int = 0


def mid_policy(strategy: ColocationStrategy) -> MidPolicy:
    """Return the policy of a strategy; what it does not set is taken from the defaults."""
    full = overlay(slo_config.DEFAULT_COLOCATION_STRATEGY, strategy)
    assert full.mid_cpu_threshold_percent is not None and full.mid_memory_threshold_percent is not None
    assert full.mid_unallocated_percent is not None
    assert full.mid_static_cpu_reserved_percent is not None
    assert full.mid_static_memory_reserved_percent is not None
    return MidPolicy(
        is_static=full.mid_reclaim_mode == slo_config.MID_RECLAIM_STATIC,
        cpu_cap_percent=full.mid_cpu_threshold_percent,
        memory_cap_percent=full.mid_memory_threshold_percent,
        unallocated_percent=full.mid_unallocated_percent,
        static_cpu_percent=full.mid_static_cpu_reserved_percent,
        static_memory_percent=full.mid_static_memory_reserved_percent,
    )


REASON_UNREADABLE = "ColocationCfgUnmarshalFailed"
REASON_INVALID = "ColocationCfgInvalid"
"""Ours; the reference refuses invalid values without an event."""

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


class ColocationSync(msgspec.Struct, frozen=True):
    """The state after a ConfigMap was read; `problem` is for people, empty when all went well.

    `entry_problems`: entries of `nodeConfigs` that count as if they said nothing, each with what is wrong.
    """

    state: ColocationState
    changed: bool
    problem: str = ""
    unreadable: bool = False
    entry_problems: tuple[str, ...] = ()


def default_config(addons: Sequence[ColocationAddon] = ()) -> ColocationConfig:
    """Return the configuration that counts when there is none."""
    extensions = {addon.name: addon.default for addon in addons if addon.default is not None}
    default = overlay(ColocationConfig(), slo_config.DEFAULT_COLOCATION_STRATEGY)
    return msgspec.structs.replace(default, extensions=extensions) if extensions else default


def sync(
    old: ColocationState, data: Mapping[str, str] | None, addons: Sequence[ColocationAddon] = ()
) -> ColocationSync:
    """Return the next state from the ConfigMap's data (None: there is no ConfigMap)."""
    default = default_config(addons)
    if data is None:
        return _adopt(old, default, error=True)
    text = data.get(slo_config.COLOCATION.key, "")
    if text == "":
        return _adopt(old, default, error=False)
    try:
        parsed = slo_config.COLOCATION.decode(text, f"ConfigMap {slo_config.CONFIG_NAME}")
    except ProtocolError as error:
        return ColocationSync(msgspec.structs.replace(old, error=True), False, str(error), unreadable=True)
    merged = overlay(default, parsed, empty_text_counts=_EMPTY_COUNTS)
    problems = _problems(merged, addons)
    if problems:
        text = f"{slo_config.COLOCATION.key}: {'; '.join(problems)}"
        return ColocationSync(msgspec.structs.replace(old, error=True), False, text)
    nodes, refused = _merged_nodes(merged, parsed.node_configs, addons)
    outcome = _adopt(old, msgspec.structs.replace(merged, node_configs=nodes), error=False)
    return msgspec.structs.replace(outcome, entry_problems=tuple(refused))


def _problems(strategy: ColocationStrategy, addons: Sequence[ColocationAddon]) -> list[str]:
    problems = slo_config.colocation_problems(strategy)
    for addon in addons:
        if addon.name in strategy.extensions:
            found = addon.problems(strategy.extensions[addon.name])
            problems += [f"extensions.{addon.name}: {problem}" for problem in found]
    return problems


def _adopt(old: ColocationState, config: ColocationConfig, *, error: bool) -> ColocationSync:
    return ColocationSync(ColocationState(config, True, error), changed=config != old.config)


def _merged_nodes(
    cluster: ColocationConfig, entries: Sequence[NodeColocation], addons: Sequence[ColocationAddon]
) -> tuple[list[NodeColocation], list[str]]:
    """Node entries on top of the cluster's strategy; one with invalid values becomes the cluster's."""
    nodes: list[NodeColocation] = []
    refused: list[str] = []
    for index, entry in enumerate(entries):
        own = NodeColocation(name=entry.name, node_selector=entry.node_selector)
        base = overlay(own, cluster, empty_text_counts=_EMPTY_COUNTS)
        merged = overlay(base, entry, empty_text_counts=_EMPTY_COUNTS)
        if problems := _problems(merged, addons):
            where = f"{slo_config.COLOCATION.key}: nodeConfigs[{index}] {entry.name!r}"
            refused.append(f"{where}: {'; '.join(problems)}; the cluster's strategy counts on its nodes")
        nodes.append(base if problems else merged)
    return nodes, refused


def node_strategy(config: ColocationConfig, node: Node) -> ColocationStrategy:
    """Return the strategy of one node: cluster, first matching entry, annotation, labels, each over the last."""
    return _noted(_cluster_strategy(config), first_match(config.node_configs, node.metadata.labels), node)


def _cluster_strategy(config: ColocationConfig) -> ColocationStrategy:
    return overlay(ColocationStrategy(), config, empty_text_counts=_EMPTY_COUNTS)


def _noted(strategy: ColocationStrategy, entry: NodeColocation | None, node: Node) -> ColocationStrategy:
    if entry is not None:
        strategy = overlay(strategy, entry, empty_text_counts=_EMPTY_COUNTS)
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


def is_disabled(config: ColocationConfig, strategy: ColocationStrategy) -> bool:
    """Return whether the switch is valid: a cluster switched off cannot be switched on for single nodes."""
    return not (config.enable and strategy.enable)


class NodeStrategy(msgspec.Struct, frozen=True):
    """The part of a node's strategy that the node resource controller needs."""

    enabled: bool
    degrade_s: float
    update_threshold_s: float
    diff_threshold: float
    reclaim: ReclaimPolicy
    mid: MidPolicy
    gpu_percent: int = 0
    """Share of what is predicted free of GPUs that is lent."""
    ahead_s: float = 0.0
    """Time ahead for which Batch yields to what services are predicted to use; 0: not at all."""


def resource_strategy(config: ColocationConfig, strategy: ColocationStrategy) -> NodeStrategy:
    """Return a strategy with everything unset (possible only by annotation) taken from the defaults."""
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
        gpu_percent=full.gpu_reclaim_percent or 0,
        ahead_s=60.0 * (full.lend_ahead_minutes or 0),
    )


class StrategyTable:
    """The strategies of nodes under one configuration; nodes alike in what counts share theirs."""

    def __init__(self, config: ColocationConfig) -> None:
        self.config = config
        self._cluster = _cluster_strategy(config)
        self._entries = EntryTable(config.node_configs)
        self._keys = (*self._entries.keys, *_RATIO_LABELS.values())
        self._known: dict[Signature, ColocationStrategy] = {}

    def signature(self, node: Node) -> Signature:
        """Return all that a node's strategy depends on."""
        metadata = node.metadata
        get = metadata.labels.get
        annotation = metadata.annotations.get(slo_config.NODE_COLOCATION_STRATEGY.key)
        return (annotation, *[get(key) for key in self._keys])

    def of(self, node: Node) -> ColocationStrategy:
        """Return the strategy of a node, extensions of add-ons included."""
        signature = self.signature(node)
        found = self._known.get(signature)
        if found is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            found = _noted(self._cluster, self._entries.first(node.metadata.labels), node)
            self._known[signature] = found
        return found
