"""The ConfigMap `slo-controller-config`: what each data key holds, defaults, validity.

Source: behaviour/api 10.

A member that is None is not set, so that layers can be laid over each other; how, is the manager's matter.
Texts follow the JSON rules of annotations (case-insensitive members, strict types).
"""

from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.api.affinity import LabelSelector
from koordinator.api.annotations.codec import Annotation, Empty, Payload, Seconds
from koordinator.api.node_metric import MEMORY_COLLECT_POLICIES
from koordinator.api.slo import (
    CPUBurstStrategy,
    HostApplicationSpec,
    ResourceThresholdStrategy,
    SystemStrategy,
)
from koordinator.api.slo_qos import ResourceQOSStrategy

CONFIG_NAMESPACE = "koordinator-system"
CONFIG_NAME = "slo-controller-config"

MID_RECLAIM_STATIC = "static"


class MetricAggregatePolicy(Payload, frozen=True, kw_only=True):
    """Windows over which usage is aggregated."""

    durations: list[Seconds] = []


class ColocationStrategy(Payload, frozen=True, kw_only=True):
    """The share of a node's unused resources that is lent out, and the rules for measuring its usage."""

    enable: bool | None = None
    metric_aggregate_duration_seconds: int | None = None
    metric_report_interval_seconds: int | None = None
    metric_aggregate_policy: MetricAggregatePolicy | None = None
    metric_memory_collect_policy: str | None = None
    cpu_reclaim_threshold_percent: int | None = None
    cpu_calculate_policy: str | None = None
    memory_reclaim_threshold_percent: int | None = None
    memory_calculate_policy: str | None = None
    degrade_time_minutes: int | None = None
    update_time_threshold_seconds: int | None = None
    resource_diff_threshold: float | None = None
    mid_reclaim_mode: str | None = None
    mid_cpu_threshold_percent: int | None = None
    mid_memory_threshold_percent: int | None = None
    mid_unallocated_percent: int | None = None
    mid_static_cpu_reserved_percent: int | None = None
    mid_static_memory_reserved_percent: int | None = None
    batch_cpu_threshold_percent: int | None = None
    batch_memory_threshold_percent: int | None = None
    gpu_reclaim_percent: int | None = None
    """Ours: the share of what is predicted free of GPUs that batch pods may have; none of it when absent."""
    lend_ahead_minutes: int | None = None
    """Ours: Batch yields to what services are predicted to use within so many minutes, too; not when absent or 0."""
    extensions: dict[str, Any] = {}


DEFAULT_COLOCATION_STRATEGY = ColocationStrategy(
    enable=False,
    metric_aggregate_duration_seconds=300,
    metric_report_interval_seconds=60,
    metric_aggregate_policy=MetricAggregatePolicy(durations=[300.0, 600.0, 1800.0]),
    metric_memory_collect_policy="usageWithoutPageCache",
    cpu_reclaim_threshold_percent=60,
    cpu_calculate_policy="usage",
    memory_reclaim_threshold_percent=65,
    memory_calculate_policy="usage",
    degrade_time_minutes=15,
    update_time_threshold_seconds=300,
    resource_diff_threshold=0.1,
    mid_cpu_threshold_percent=100,
    mid_memory_threshold_percent=100,
    mid_unallocated_percent=0,
    mid_static_cpu_reserved_percent=0,
    mid_static_memory_reserved_percent=0,
)
"""Strategy where nothing is configured."""

_POSITIVE_FIELDS = (
    "metric_aggregate_duration_seconds",
    "metric_report_interval_seconds",
    "degrade_time_minutes",
    "update_time_threshold_seconds",
    "resource_diff_threshold",
)
_NOT_NEGATIVE_FIELDS = (
    "cpu_reclaim_threshold_percent",
    "memory_reclaim_threshold_percent",
    "mid_static_cpu_reserved_percent",
    "mid_static_memory_reserved_percent",
    "batch_cpu_threshold_percent",
    "batch_memory_threshold_percent",
    "lend_ahead_minutes",
)
_PERCENT_FIELDS = (
    "mid_cpu_threshold_percent",
    "mid_memory_threshold_percent",
    "mid_unallocated_percent",
    "gpu_reclaim_percent",
)
_WIRE_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(ColocationStrategy)}


def colocation_problems(strategy: ColocationStrategy) -> list[str]:
    """Return members whose values the controller refuses, in words; empty when valid. Unset members are fine."""
    problems = []
    for field in _POSITIVE_FIELDS:
        if (number := getattr(strategy, field)) is not None and number <= 0:
            problems.append(f"{_WIRE_NAMES[field]} must be above 0, not {number}")
    for field in _NOT_NEGATIVE_FIELDS:
        if (number := getattr(strategy, field)) is not None and number < 0:
            problems.append(f"{_WIRE_NAMES[field]} must not be negative, not {number}")
    for field in _PERCENT_FIELDS:
        if (number := getattr(strategy, field)) is not None and not 0 <= number <= 100:
            problems.append(f"{_WIRE_NAMES[field]} must be within 0 to 100, not {number}")
    return problems + memory_policy_problems(strategy)


def memory_policy_problems(strategy: ColocationStrategy) -> list[str]:
    """Return what is wrong with the page cache that counts as used: a NodeMetric with another word is refused."""
    policy, known = strategy.metric_memory_collect_policy, MEMORY_COLLECT_POLICIES
    if policy is None or policy in known:
        return []
    return [f"metricMemoryCollectPolicy must be one of {', '.join(known)}, not {policy!r}"]


class NodeColocation(ColocationStrategy, frozen=True, kw_only=True):
    """Overrides for the nodes that the selector matches (none when it is absent, all when it is empty)."""

    name: str = ""
    node_selector: LabelSelector | None = None


class ColocationConfig(ColocationStrategy, frozen=True, kw_only=True):
    """`colocation-config`: the cluster's strategy and overrides."""

    node_configs: list[NodeColocation] = []


class NodeThreshold(ResourceThresholdStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class ThresholdConfig(Payload, frozen=True, kw_only=True):
    """`resource-threshold-config`."""

    cluster_strategy: ResourceThresholdStrategy | None = None
    node_strategies: list[NodeThreshold] = []


class NodeResourceQOS(ResourceQOSStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class ResourceQOSConfig(Payload, frozen=True, kw_only=True):
    """`resource-qos-config`."""

    cluster_strategy: ResourceQOSStrategy | None = None
    node_strategies: list[NodeResourceQOS] = []


class NodeCPUBurst(CPUBurstStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class CPUBurstConfig(Payload, frozen=True, kw_only=True):
    """`cpu-burst-config`."""

    cluster_strategy: CPUBurstStrategy | None = None
    node_strategies: list[NodeCPUBurst] = []


class NodeSystem(SystemStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class SystemConfig(Payload, frozen=True, kw_only=True):
    """`system-config`."""

    cluster_strategy: SystemStrategy | None = None
    node_strategies: list[NodeSystem] = []


class NodeHostApplications(Payload, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None
    applications: list[HostApplicationSpec] = []


class HostApplicationConfig(Payload, frozen=True, kw_only=True):
    """`host-application-config`."""

    applications: list[HostApplicationSpec] = []
    node_configs: list[NodeHostApplications] = []


class RatioModel(Payload, frozen=True, kw_only=True):
    """Speed of one CPU model relative to the cluster's measure, by which features are on."""

    base_ratio: float | None = None
    hyper_thread_enabled_ratio: float | None = None
    turbo_enabled_ratio: float | None = None
    hyper_thread_turbo_enabled_ratio: float | None = None


class CPUNormalizationStrategy(Payload, frozen=True, kw_only=True):
    """The rules that make nodes with CPUs of different speed comparable."""

    enable: bool | None = None
    default_ratio: float | None = None
    ratio_model: dict[str, RatioModel] = {}


class NodeCPUNormalization(CPUNormalizationStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class CPUNormalizationConfig(CPUNormalizationStrategy, frozen=True, kw_only=True):
    """`cpu-normalization-config`."""

    node_configs: list[NodeCPUNormalization] = []


class ResourceAmplificationStrategy(Payload, frozen=True, kw_only=True):
    """The ratios by which more of each resource is sold than nodes have."""

    enable: bool | None = None
    resource_amplification_ratio: dict[str, float] = {}


class NodeResourceAmplification(ResourceAmplificationStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class ResourceAmplificationConfig(ResourceAmplificationStrategy, frozen=True, kw_only=True):
    """`resource-amplification-config`."""

    node_configs: list[NodeResourceAmplification] = []


COLOCATION = Annotation("colocation-config", ColocationConfig, empty=Empty.ABSENT)
RESOURCE_THRESHOLD = Annotation("resource-threshold-config", ThresholdConfig)
RESOURCE_QOS = Annotation("resource-qos-config", ResourceQOSConfig)
CPU_BURST = Annotation("cpu-burst-config", CPUBurstConfig)
SYSTEM = Annotation("system-config", SystemConfig)
HOST_APPLICATION = Annotation("host-application-config", HostApplicationConfig)
CPU_NORMALIZATION = Annotation("cpu-normalization-config", CPUNormalizationConfig)
RESOURCE_AMPLIFICATION = Annotation("resource-amplification-config", ResourceAmplificationConfig)

NODE_COLOCATION_STRATEGY = Annotation(labels.NODE_COLOCATION_STRATEGY, ColocationStrategy)
"""Overrides for one node, in its annotation; callers ignore a malformed one."""
