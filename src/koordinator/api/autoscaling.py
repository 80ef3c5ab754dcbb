"""Typed view of HorizontalPodAutoscaler, in the version in which it is stored."""

from typing import Any, ClassVar

from koordinator.api.conditions import Condition
from koordinator.api.meta import Object, Resource, ViewPart
from koordinator.api.quantity import RawQuantity


class CrossVersionObjectReference(ViewPart, frozen=True, kw_only=True):
    """A reference to the object that is scaled."""

    api_version: str = ""
    kind: str = ""
    name: str = ""


class MetricTarget(ViewPart, frozen=True, kw_only=True):
    """`average_utilization` is in percent of the request."""

    type: str = ""
    value: RawQuantity | None = None
    average_value: RawQuantity | None = None
    average_utilization: int | None = None


class ResourceMetricSource(ViewPart, frozen=True, kw_only=True):
    """Usage of a resource by the pods."""

    name: str = ""
    target: MetricTarget = MetricTarget()


class ContainerResourceMetricSource(ViewPart, frozen=True, kw_only=True):
    """Usage of a resource by one of their containers."""

    name: str = ""
    container: str = ""
    target: MetricTarget = MetricTarget()


class MetricSpec(ViewPart, frozen=True, kw_only=True):
    """One thing to scale by; the members for metrics that nobody serves here are plain JSON."""

    type: str = ""
    resource: ResourceMetricSource | None = None
    container_resource: ContainerResourceMetricSource | None = None
    pods: dict[str, Any] | None = None
    object: dict[str, Any] | None = None
    external: dict[str, Any] | None = None


class ScalingPolicy(ViewPart, frozen=True, kw_only=True):
    """At most `value` Pods or Percent more (or less) within `period_seconds`."""

    type: str = ""
    value: int = 0
    period_seconds: int = 0


class ScalingRules(ViewPart, frozen=True, kw_only=True):
    """The limits for changes of replicas in one direction; `select_policy` is Max, Min or Disabled."""

    stabilization_window_seconds: int | None = None
    select_policy: str = "Max"
    policies: list[ScalingPolicy] = []
    tolerance: RawQuantity | None = None


class Behavior(ViewPart, frozen=True, kw_only=True):
    scale_up: ScalingRules | None = None
    scale_down: ScalingRules | None = None


class HorizontalPodAutoscalerSpec(ViewPart, frozen=True, kw_only=True):
    scale_target_ref: CrossVersionObjectReference = CrossVersionObjectReference()
    min_replicas: int | None = None
    max_replicas: int = 0
    metrics: list[MetricSpec] = []
    behavior: Behavior | None = None


class HorizontalPodAutoscalerStatus(ViewPart, frozen=True, kw_only=True):
    observed_generation: int | None = None
    last_scale_time: str | None = None
    current_replicas: int = 0
    desired_replicas: int = 0
    current_metrics: list[dict[str, Any]] | None = None
    conditions: list[Condition] = []


class HorizontalPodAutoscaler(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="autoscaling",
        version="v2",
        kind="HorizontalPodAutoscaler",
        plural="horizontalpodautoscalers",
        short_names=("hpa",),
        categories=("all",),
        subresources=("status",),
    )

    spec: HorizontalPodAutoscalerSpec = HorizontalPodAutoscalerSpec()
    status: HorizontalPodAutoscalerStatus = HorizontalPodAutoscalerStatus()
