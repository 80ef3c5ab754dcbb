"""Typed view of NodeMetric: what the node of the same name and its pods use. Source: behaviour/crds 1."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from koordinator.api.device import DeviceInfo
from koordinator.api.meta import Object, Resource, ViewPart
from koordinator.api.quantity import ResourceList
from koordinator.api.schema import DATE_TIME, INT32, REQUIRED, always, one_of

AGGREGATE_DURATION_S = 300
REPORT_INTERVAL_S = 60
AGGREGATE_DURATIONS = ("5m", "10m", "30m")
MEMORY_COLLECT_POLICY = "usageWithoutPageCache"
"""Policy where `spec.metricCollectPolicy` is not set."""
MEMORY_COLLECT_POLICIES = ("usageWithHotPageCache", MEMORY_COLLECT_POLICY, "usageWithPageCache")

AGGREGATIONS = ("avg", "p50", "p90", "p95", "p99")
"""Keys of `AggregatedUsage.usage`."""

HOOK_DELIVERY = "hookDelivery"
"""Key of `status.extensions`: hook → mode (`nri`, `proxy`, `reconciler`) that can deliver it → whether it does now."""


class AggregatePolicy(ViewPart, frozen=True, kw_only=True):
    """Over which windows percentiles of the node's usage are reported."""

    durations: Annotated[list[str], "Windows, such as 5m; 5m, 10m and 30m when absent."] = []


class MetricCollectPolicy(ViewPart, frozen=True, kw_only=True):
    """The rules for averaging usage and for reporting it."""

    aggregate_duration_seconds: Annotated[
        int | None, "Window over which the reported usage is averaged; 300 when absent."
    ] = None
    report_interval_seconds: Annotated[int | None, "Time between two reports; 60 when absent."] = None
    node_aggregate_policy: Annotated[
        AggregatePolicy | None, "Over which windows percentiles of the node's usage are reported."
    ] = None
    node_memory_collect_policy: Annotated[
        str | None,
        one_of(*MEMORY_COLLECT_POLICIES),
        "Which part of the page cache counts as used memory; usageWithoutPageCache when absent.",
    ] = None


class NodeMetricSpec(ViewPart, frozen=True, kw_only=True):
    """The figures that the manager asks the node agent to report."""

    metric_collect_policy: Annotated[
        MetricCollectPolicy | None, "How usage is averaged and how often it is reported."
    ] = None


class ResourceMap(ViewPart, frozen=True, kw_only=True):
    """Amounts of resources, and of devices where they are told apart."""

    resources: Annotated[ResourceList, "Amount per resource."] = {}
    devices: Annotated[list[DeviceInfo], "The same for each device."] = []


class AggregatedUsage(ViewPart, frozen=True, kw_only=True):
    """Usage over a window by avg, p50, p90, p95 and p99."""

    usage: Annotated[dict[str, ResourceMap], "Usage by avg, p50, p90, p95 and p99."] = {}
    duration: Annotated[str, "Length of the window, such as 5m0s."] = ""


class NUMAUsage(ViewPart, frozen=True, kw_only=True):
    """Usage of one NUMA node."""

    numa_node_id: Annotated[int, REQUIRED, INT32, "Number of the NUMA node."] = always(0, name="numaNodeID")
    node_usage: Annotated[ResourceMap, "Usage of all on the NUMA node."] = ResourceMap()
    system_usage: Annotated[ResourceMap, "Usage of what is no pod."] = ResourceMap()


class NodeMetricInfo(ViewPart, frozen=True, kw_only=True):
    """Usage of the node."""

    node_usage: Annotated[ResourceMap, "Usage of the whole node."] = ResourceMap()
    system_usage: Annotated[
        ResourceMap, "Usage of the node without pods and host applications, never below zero."
    ] = ResourceMap()
    aggregated_node_usages: Annotated[
        list[AggregatedUsage], "Percentiles of the node's usage; only windows with enough samples."
    ] = []
    aggregated_system_usages: Annotated[
        list[AggregatedUsage], "Percentiles of the system's usage; only windows with enough samples."
    ] = []
    numa_usages: Annotated[list[NUMAUsage], "Usage by NUMA node."] = []


class PodMetricInfo(ViewPart, frozen=True, kw_only=True):
    """Usage of one pod."""

    name: Annotated[str, "Name of the pod."] = ""
    namespace: Annotated[str, "Namespace of the pod."] = ""
    pod_usage: Annotated[ResourceMap, "What the pod uses."] = ResourceMap()
    priority: Annotated[str, "Priority class of the pod."] = ""
    qos: Annotated[str, "QoS class of the pod."] = ""
    extensions: Annotated[dict[str, Any], "What add-ons report of the pod."] = {}


class HostApplicationMetricInfo(ViewPart, frozen=True, kw_only=True):
    """Usage of one application that runs on the node outside of pods."""

    name: Annotated[str, "Name of the application."] = ""
    usage: Annotated[ResourceMap, "What the application uses."] = ResourceMap()
    priority: Annotated[str, "Priority class of the application."] = ""
    qos: Annotated[str, "QoS class of the application."] = ""


class ReclaimableMetric(ViewPart, frozen=True, kw_only=True):
    """The resources that prod pods requested and, as predicted, will not use."""

    resource: Annotated[ResourceMap, "Amounts that can be lent."] = ResourceMap()


class PeakMetric(ViewPart, frozen=True, kw_only=True):
    """Predicted peak of prod pods and the system, margins included."""

    resource: Annotated[ResourceMap, "Amounts at the peak."] = ResourceMap()


class NodeMetricStatus(ViewPart, frozen=True, kw_only=True):
    """The latest report of the node agent."""

    update_time: Annotated[str | None, DATE_TIME, "When the report was made."] = None
    node_metric: Annotated[NodeMetricInfo | None, "Usage of the node."] = None
    pods_metric: Annotated[list[PodMetricInfo], "Usage of each pod."] = []
    host_application_metric: Annotated[
        list[HostApplicationMetricInfo], "Usage of each application outside of pods."
    ] = []
    prod_reclaimable_metric: Annotated[
        ReclaimableMetric | None, "What prod pods requested and, as predicted, will not use."
    ] = None
    prod_peak_metric: Annotated[
        PeakMetric | None, "Predicted peak of prod pods and the system, margins included."
    ] = None
    yielded_by_hour: Annotated[
        list[ResourceMap],
        "Predicted peak of what all but batch and free pods use, margins included, by hour of the day in UTC.",
    ] = []
    extensions: Annotated[dict[str, Any], "What add-ons report of the node."] = {}


class NodeMetric(Object, frozen=True, kw_only=True):
    """Usage of the node of the same name: the manager says what to report, the node agent reports it."""

    resource: ClassVar[Resource] = Resource(
        group="slo.koordinator.sh",
        version="v1alpha1",
        kind="NodeMetric",
        plural="nodemetrics",
        namespaced=False,
        subresources=("status",),
    )

    spec: NodeMetricSpec = NodeMetricSpec()
    status: NodeMetricStatus = NodeMetricStatus()


def hook_delivery(metric: NodeMetric) -> dict[str, Mapping[str, bool]]:
    """Return what the agent said under `HOOK_DELIVERY`; what is no such thing is left out."""
    found = metric.status.extensions.get(HOOK_DELIVERY)
    hooks = found.items() if isinstance(found, Mapping) else ()
    return {hook: modes for hook, modes in hooks if isinstance(modes, Mapping)}
