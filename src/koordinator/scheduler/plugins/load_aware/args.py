"""Arguments of LoadAwareScheduling, and the policy that follows from them. Source: behaviour/scheduler I2."""

from typing import Annotated

import msgspec
import numpy as np

from koordinator.api import duration, node_metric, resources
from koordinator.api.resource_vector import I64

Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
FactorPercent = Annotated[int, msgspec.Meta(ge=1)]
Weight = Annotated[int, msgspec.Meta(ge=1, le=100)]
NonNegative = Annotated[int, msgspec.Meta(ge=0)]

DEFAULT_FACTORS = {resources.CPU: 85, resources.MEMORY: 70}
DEFAULT_THRESHOLDS = {resources.CPU: 65, resources.MEMORY: 95}
DEFAULT_WEIGHTS = {resources.CPU: 1, resources.MEMORY: 1}


class AggregatedArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Percentiles in place of averages. Types are avg, p50, p90, p95, p99; durations are texts such as `5m`,
    0 (unset) means the longest reported window."""

    usage_thresholds: dict[str, Percent] = {}
    usage_aggregation_type: str = ""
    usage_aggregated_duration: str = "0s"
    score_aggregation_type: str = ""
    score_aggregated_duration: str = "0s"

    def __post_init__(self) -> None:
        for field in ("usage_aggregation_type", "score_aggregation_type"):
            found = getattr(self, field)
            if found and found not in node_metric.AGGREGATIONS:
                raise ValueError(f"aggregated: {found!r} is none of {', '.join(node_metric.AGGREGATIONS)}")
        for text in (self.usage_aggregated_duration, self.score_aggregated_duration):
            if duration.parse(text) < 0:
                raise ValueError(f"aggregated: duration {text!r} is negative")


class LoadAwareArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The arguments as users write them; `LoadAwarePolicy` has the defaults filled in.

    `estimated_scaling_factors` are percent of a pod's request or limit. They may exceed 100 (an estimate
    never exceeds the limit). An unknown `estimator` means the default one.
    """

    filter_expired_node_metrics: bool = True
    node_metric_expiration_seconds: Annotated[int, msgspec.Meta(gt=0)] = 180
    enable_schedule_when_node_metrics_expired: bool = False
    resource_weights: dict[str, Weight] = {}
    dominant_resource_weight: Percent = 0
    usage_thresholds: dict[str, Percent] = {}
    prod_usage_thresholds: dict[str, Percent] = {}
    prod_usage_include_sys: bool = False
    score_according_prod_usage: bool = False
    estimator: str = ""
    estimated_scaling_factors: dict[str, FactorPercent] = {}
    estimated_seconds_after_pod_scheduled: NonNegative | None = None
    estimated_seconds_after_initialized: NonNegative | None = None
    allow_customize_estimation: bool = False
    aggregated: AggregatedArgs | None = None
    supported_resources: list[str] = []

    def __post_init__(self) -> None:
        factors = DEFAULT_FACTORS | self.estimated_scaling_factors
        if missing := sorted(self.resource_weights.keys() - factors.keys()):
            raise ValueError(f"resourceWeights: {missing[0]} needs an entry in estimatedScalingFactors")


class UsageAggregation(msgspec.Struct, frozen=True):
    """The percentile and the window; 0 s means the longest reported one."""

    type: str
    duration_s: float


class LoadAwarePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments with defaults, as vectors over `names` (the tracked resources, alphabetical)."""

    names: tuple[str, ...]
    args: LoadAwareArgs
    factors: dict[str, int]
    weights: I64
    usage_thresholds: tuple[int, ...]
    prod_thresholds: tuple[int, ...]
    aggregated_thresholds: tuple[int, ...] | None
    filter_aggregation: UsageAggregation | None
    score_aggregation: UsageAggregation | None

    @classmethod
    def of(cls, args: LoadAwareArgs) -> "LoadAwarePolicy":
        """Return the policy that the arguments describe."""
        aggregated = args.aggregated or AggregatedArgs()
        factors = DEFAULT_FACTORS | args.estimated_scaling_factors
        weights = args.resource_weights
        if not weights and args.dominant_resource_weight == 0:
            weights = DEFAULT_WEIGHTS
        thresholds = args.usage_thresholds or DEFAULT_THRESHOLDS
        maps = (weights, thresholds, args.prod_usage_thresholds, factors, aggregated.usage_thresholds)
        names = tuple(sorted({*args.supported_resources, *(name for each in maps for name in each)}))
        has_filter = bool(aggregated.usage_thresholds and aggregated.usage_aggregation_type)
        return cls(
            names=names,
            args=args,
            factors=factors,
            weights=np.array(vector(names, weights), np.int64),
            usage_thresholds=vector(names, thresholds),
            prod_thresholds=vector(names, args.prod_usage_thresholds),
            aggregated_thresholds=vector(names, aggregated.usage_thresholds) if has_filter else None,
            filter_aggregation=_aggregation(
                aggregated.usage_aggregation_type if has_filter else "", aggregated.usage_aggregated_duration
            ),
            score_aggregation=_aggregation(
                aggregated.score_aggregation_type, aggregated.score_aggregated_duration
            ),
        )


def _aggregation(kind: str, window: str) -> UsageAggregation | None:
    return UsageAggregation(kind, duration.parse(window)) if kind else None


def vector(names: tuple[str, ...], amounts: dict[str, int]) -> tuple[int, ...]:
    """`amounts` in the order of `names`, 0 where there is none."""
    return tuple(amounts.get(name, 0) for name in names)
