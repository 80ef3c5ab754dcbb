"""Typed views of Kubernetes' API groups of one or two kinds, a few fields each: coordination, discovery, events,
policy, rbac, resource quotas, scheduling, autoscaling, and the workloads of `apps.kruise.io`, whose replicas the
descheduler looks up and which a cluster may not have; also Koordinator's own `config.koordinator.sh` (behaviour/crds 6)
and `quota.koordinator.sh` (7).

Lists of addresses (Endpoints, EndpointSlices) and rules of roles are plain JSON: they are made, compared and written as
a whole. HorizontalPodAutoscalers come in the version in which they are stored. Of an event, the API serves the same
objects in this form and that of the core group.
"""

from typing import Annotated, Any, ClassVar

import msgspec

from koordinator.api.affinity import LabelSelector, Toleration
from koordinator.api.core import EventSeries, EventSource
from koordinator.api.meta import Condition, Object, ObjectReference, Resource, ViewPart
from koordinator.api.quantity import RawQuantity, ResourceList
from koordinator.api.schema import ATOMIC, INT32, REQUIRED, IntOrString, always, one_of


class PodDisruptionBudgetSpec(ViewPart, frozen=True, kw_only=True):
    """One of `min_available` and `max_unavailable`, as a count or as a percentage."""

    min_available: IntOrString | None = None
    max_unavailable: IntOrString | None = None
    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str | None = None


class PodDisruptionBudgetStatus(ViewPart, frozen=True, kw_only=True):
    """`disrupted_pods` maps pods whose eviction was granted to when (they may not yet be gone)."""

    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    disrupted_pods: dict[str, str] = {}
    observed_generation: int = 0
    conditions: list[Condition] = []


class PodDisruptionBudget(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="policy",
        version="v1",
        kind="PodDisruptionBudget",
        plural="poddisruptionbudgets",
        short_names=("pdb",),
        subresources=("status",),
    )

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class LeaseSpec(ViewPart, frozen=True, kw_only=True):
    """Times are RFC 3339 texts with microseconds."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="coordination.k8s.io", version="v1", kind="Lease", plural="leases"
    )

    spec: LeaseSpec = LeaseSpec()


SERVICE_NAME = "kubernetes.io/service-name"
"""Label of a slice: the Service that it is about."""
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
HEADLESS = "service.kubernetes.io/headless"
SKIP_MIRROR = "endpointslice.kubernetes.io/skip-mirror"


class EndpointSlice(Object, frozen=True, kw_only=True):
    """Some of the addresses behind a Service that have the same ports; `address_type` is IPv4, IPv6 or FQDN."""

    resource: ClassVar[Resource] = Resource(
        group="discovery.k8s.io", version="v1", kind="EndpointSlice", plural="endpointslices"
    )

    address_type: str = ""
    endpoints: list[dict[str, Any]] = []
    ports: list[dict[str, Any]] = []


class Endpoints(Object, frozen=True, kw_only=True):
    """All addresses behind the Service of the same name, in the older form."""

    resource: ClassVar[Resource] = Resource(
        group="", version="v1", kind="Endpoints", plural="endpoints", short_names=("ep",)
    )

    subsets: list[dict[str, Any]] = []


class Event(Object, frozen=True, kw_only=True):
    """`regarding` and `note` are `involvedObject` and `message` of the core form."""

    resource: ClassVar[Resource] = Resource(
        group="events.k8s.io", version="v1", kind="Event", plural="events", short_names=("ev",)
    )

    regarding: ObjectReference = ObjectReference()
    related: ObjectReference | None = None
    type: str = ""
    reason: str = ""
    note: str = ""
    action: str = ""
    event_time: str | None = None
    series: EventSeries | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    source: EventSource = msgspec.field(name="deprecatedSource", default=EventSource())
    first_timestamp: str | None = msgspec.field(name="deprecatedFirstTimestamp", default=None)
    last_timestamp: str | None = msgspec.field(name="deprecatedLastTimestamp", default=None)
    count: int = msgspec.field(name="deprecatedCount", default=0)


class AggregationRule(ViewPart, frozen=True, kw_only=True):
    """The role has the rules of all roles that one of the selectors matches."""

    cluster_role_selectors: list[LabelSelector] = []


class ClusterRole(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="rbac.authorization.k8s.io",
        version="v1",
        kind="ClusterRole",
        plural="clusterroles",
        namespaced=False,
    )

    rules: list[dict[str, Any]] | None = None
    aggregation_rule: AggregationRule | None = None


class ResourceQuotaSpec(ViewPart, frozen=True, kw_only=True):
    """`hard`: at most this much of each name, in the quota's namespace."""

    hard: ResourceList = {}


class ResourceQuota(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="",
        version="v1",
        kind="ResourceQuota",
        plural="resourcequotas",
        short_names=("quota",),
        subresources=("status",),
    )

    spec: ResourceQuotaSpec = ResourceQuotaSpec()


class PriorityClass(Object, frozen=True, kw_only=True):
    """`preemption_policy` is PreemptLowerPriority or Never; None means the former."""

    resource: ClassVar[Resource] = Resource(
        group="scheduling.k8s.io",
        version="v1",
        kind="PriorityClass",
        plural="priorityclasses",
        namespaced=False,
        short_names=("pc",),
    )

    value: int = 0
    global_default: bool = False
    description: str = ""
    preemption_policy: str | None = None


class Overhead(ViewPart, frozen=True, kw_only=True):
    pod_fixed: ResourceList = {}


class RuntimeClassScheduling(ViewPart, frozen=True, kw_only=True):
    node_selector: dict[str, str] = {}
    tolerations: list[Toleration] = []


class RuntimeClass(Object, frozen=True, kw_only=True):
    """The resources that a container runtime costs per pod, and the nodes that have the runtime."""

    resource: ClassVar[Resource] = Resource(
        group="node.k8s.io", version="v1", kind="RuntimeClass", plural="runtimeclasses", namespaced=False
    )

    handler: str = ""
    overhead: Overhead | None = None
    scheduling: RuntimeClassScheduling | None = None


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


class Names(ViewPart, frozen=True, kw_only=True):
    """The names of a custom resource."""

    plural: str = ""
    singular: str = ""
    kind: str = ""
    list_kind: str = ""
    short_names: list[str] = []
    categories: list[str] = []


class CRDVersion(ViewPart, frozen=True, kw_only=True):
    """A version of a custom resource, without its schema."""

    name: str = ""
    served: bool = False
    storage: bool = False


class CustomResourceDefinitionSpec(ViewPart, frozen=True, kw_only=True):
    group: str = ""
    names: Names = Names()
    scope: str = ""
    versions: list[CRDVersion] = []


class CustomResourceDefinitionStatus(ViewPart, frozen=True, kw_only=True):
    """Conditions are Established, NamesAccepted, NonStructuralSchema, Terminating."""

    conditions: list[Condition] = []
    accepted_names: Names = Names()
    stored_versions: list[str] = []


class CustomResourceDefinition(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="apiextensions.k8s.io",
        version="v1",
        kind="CustomResourceDefinition",
        plural="customresourcedefinitions",
        namespaced=False,
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        subresources=("status",),
    )

    spec: CustomResourceDefinitionSpec = CustomResourceDefinitionSpec()
    status: CustomResourceDefinitionStatus = CustomResourceDefinitionStatus()


class ClusterColocationProfileSpec(ViewPart, frozen=True, kw_only=True):
    """The pods that are changed on creation, and the changes."""

    namespace_selector: Annotated[
        LabelSelector | None, ATOMIC, "Namespaces whose pods are changed; all when absent or empty."
    ] = None
    selector: Annotated[LabelSelector | None, ATOMIC, "Pods that are changed; all when absent or empty."] = (
        None
    )
    probability: Annotated[
        IntOrString | None, "Chance that a matching pod is changed, such as 50 or 50%; always when absent."
    ] = None
    qos_class: Annotated[str, one_of("LSE", "LSR", "LS", "BE", "SYSTEM"), "QoS class that the pod gets."] = ""
    priority_class_name: Annotated[str, "Priority class that the pod gets, with its number."] = ""
    koordinator_priority: Annotated[int | None, INT32, "Order among pods of the same priority class."] = None
    labels: Annotated[dict[str, str], "Labels that the pod gets."] = {}
    annotations: Annotated[dict[str, str], "Annotations that the pod gets."] = {}
    label_keys_mapping: Annotated[
        dict[str, str], "Labels whose value is copied to another key, from old key to new key."
    ] = {}
    annotation_keys_mapping: Annotated[
        dict[str, str], "Annotations whose value is copied to another key, from old key to new key."
    ] = {}
    label_suffixes: Annotated[dict[str, str], "Texts appended to the values of labels."] = {}
    scheduler_name: Annotated[str, "Scheduler that places the pod."] = ""
    patch: Annotated[Any, "Strategic merge patch on the pod, applied last."] = None


class ClusterColocationProfileStatus(ViewPart, frozen=True, kw_only=True):
    """Nothing is reported yet."""


class ClusterColocationProfile(Object, frozen=True, kw_only=True):
    """Turns matching pods into co-located ones when they are created."""

    resource: ClassVar[Resource] = Resource(
        group="config.koordinator.sh",
        version="v1alpha1",
        kind="ClusterColocationProfile",
        plural="clustercolocationprofiles",
        namespaced=False,
        subresources=("status",),
    )

    spec: ClusterColocationProfileSpec = ClusterColocationProfileSpec()
    status: ClusterColocationProfileStatus = ClusterColocationProfileStatus()


class ElasticQuotaProfileSpec(ViewPart, frozen=True, kw_only=True):
    """The nodes that make up a quota tree."""

    quota_name: Annotated[str, REQUIRED, "Name of the ElasticQuota to keep up to date."] = always("")
    node_selector: Annotated[LabelSelector, REQUIRED, ATOMIC, "Nodes of the tree."] = always(LabelSelector())
    quota_labels: Annotated[dict[str, str], "Labels that the ElasticQuota gets."] = {}
    resource_ratio: Annotated[
        str | None, "Share of the nodes' allocatable that the tree gets, such as 0.9; all when absent."
    ] = None


class ElasticQuotaProfileStatus(ViewPart, frozen=True, kw_only=True):
    """Nothing is reported yet."""


class ElasticQuotaProfile(Object, frozen=True, kw_only=True):
    """Makes the root ElasticQuota of a quota tree out of the nodes that it selects."""

    resource: ClassVar[Resource] = Resource(
        group="quota.koordinator.sh",
        version="v1alpha1",
        kind="ElasticQuotaProfile",
        plural="elasticquotaprofiles",
        short_names=("eqp",),
    )

    spec: ElasticQuotaProfileSpec = ElasticQuotaProfileSpec()
    status: ElasticQuotaProfileStatus = ElasticQuotaProfileStatus()
