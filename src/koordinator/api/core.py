"""Typed views of the core group: pods, nodes, namespaces, configuration, services, accounts, events.

Free-form parts are `dict[str, Any]`. How pods select nodes and each other is in `api.affinity`, their
volumes in `api.volumes`.
"""

from typing import Any, ClassVar

import msgspec

from koordinator.api.affinity import (
    Affinity,
    Taint,
    Toleration,
    TopologySpreadConstraint,
)
from koordinator.api.meta import (
    Condition,
    LocalObjectReference,
    Object,
    ObjectMeta,
    ObjectReference,
    Resource,
    ViewPart,
)
from koordinator.api.quantity import ResourceList
from koordinator.api.schema import IntOrString
from koordinator.api.volumes import Volume, VolumeDevice, VolumeMount


class ResourceRequirements(ViewPart, frozen=True, kw_only=True):
    requests: ResourceList = {}
    limits: ResourceList = {}
    claims: list[dict[str, Any]] = []


class ContainerPort(ViewPart, frozen=True, kw_only=True):
    """A port of a container; empty `protocol` means TCP."""

    name: str = ""
    container_port: int = 0
    host_port: int = 0
    host_ip: str = ""
    protocol: str = ""


class EnvVar(ViewPart, frozen=True, kw_only=True):
    name: str = ""
    value: str = ""
    value_from: dict[str, Any] | None = None


class Probe(ViewPart, frozen=True, kw_only=True):
    """The times at which a container is probed; the handler itself is the kubelet's business."""

    initial_delay_seconds: int = 0
    period_seconds: int = 0
    timeout_seconds: int = 0
    success_threshold: int = 0
    failure_threshold: int = 0


class Container(ViewPart, frozen=True, kw_only=True):
    """A container; `restart_policy` "Always" on an init container makes it a sidecar."""

    name: str = ""
    image: str = ""
    image_pull_policy: str = ""
    command: list[str] = []
    args: list[str] = []
    working_dir: str = ""
    env: list[EnvVar] = []
    resources: ResourceRequirements = ResourceRequirements()
    ports: list[ContainerPort] = []
    volume_mounts: list[VolumeMount] = []
    volume_devices: list[VolumeDevice] = []
    restart_policy: str | None = None
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None
    startup_probe: Probe | None = None


class PodSchedulingGate(ViewPart, frozen=True, kw_only=True):
    name: str = ""


class PodReadinessGate(ViewPart, frozen=True, kw_only=True):
    condition_type: str = ""


class PodResourceClaim(ViewPart, frozen=True, kw_only=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodOS(ViewPart, frozen=True, kw_only=True):
    name: str = ""


class PodSpec(ViewPart, frozen=True, kw_only=True):
    """`spec` of a pod, and of pod templates converted to it."""

    containers: list[Container] = []
    init_containers: list[Container] = []
    volumes: list[Volume] = []
    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: list[Toleration] = []
    topology_spread_constraints: list[TopologySpreadConstraint] = []
    scheduling_gates: list[PodSchedulingGate] = []
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    overhead: ResourceList = {}
    resources: ResourceRequirements | None = None
    resource_claims: list[PodResourceClaim] = []
    runtime_class_name: str | None = None
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    readiness_gates: list[PodReadinessGate] = []
    host_network: bool = False
    host_pid: bool = False
    host_ipc: bool = False
    hostname: str = ""
    subdomain: str = ""
    service_account_name: str = ""
    os: PodOS | None = None


class ContainerStateWaiting(ViewPart, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class ContainerStateRunning(ViewPart, frozen=True, kw_only=True):
    started_at: str | None = None


class ContainerStateTerminated(ViewPart, frozen=True, kw_only=True):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    container_id: str = ""


class ContainerState(ViewPart, frozen=True, kw_only=True):
    """One member is set; none means waiting."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(ViewPart, frozen=True, kw_only=True):
    """`container_id` is `<runtime>://<id>`."""

    name: str = ""
    container_id: str = ""
    image: str = ""
    image_id: str = ""
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    allocated_resources: ResourceList = {}
    resources: ResourceRequirements | None = None


class PodIP(ViewPart, frozen=True, kw_only=True):
    ip: str = ""


class PodResourceClaimStatus(ViewPart, frozen=True, kw_only=True):
    """The claim made for an entry of `spec.resourceClaims`; None: none is needed."""

    name: str = ""
    resource_claim_name: str | None = None


class PodStatus(ViewPart, frozen=True, kw_only=True):
    """`phase` is Pending, Running, Succeeded, Failed or Unknown."""

    phase: str = ""
    conditions: list[Condition] = []
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    qos_class: str = ""
    start_time: str | None = None
    host_ip: str = ""
    pod_ip: str = ""
    pod_ips: list[PodIP] = msgspec.field(default_factory=list)
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    ephemeral_container_statuses: list[ContainerStatus] = []
    resource_claim_statuses: list[PodResourceClaimStatus] = []
    resources: ResourceRequirements | None = None
    allocated_resources: ResourceList = {}
    resize: str = ""
    observed_generation: int = 0


class Pod(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="",
        version="v1",
        kind="Pod",
        plural="pods",
        short_names=("po",),
        categories=("all",),
        subresources=("status", "binding", "eviction", "ephemeralcontainers", "resize"),
    )

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class PodTemplateSpec(ViewPart, frozen=True, kw_only=True):
    """The typed view of a pod template, for those who look into one; controllers copy the whole dict."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class NodeSpec(ViewPart, frozen=True, kw_only=True):
    unschedulable: bool = False
    taints: list[Taint] = []
    provider_id: str = ""
    pod_cidr: str = ""


class NodeAddress(ViewPart, frozen=True, kw_only=True):
    type: str = ""
    address: str = ""


class NodeSystemInfo(ViewPart, frozen=True, kw_only=True):
    machine_id: str = ""
    system_uuid: str = ""
    boot_id: str = ""
    kernel_version: str = ""
    os_image: str = ""
    container_runtime_version: str = ""
    kubelet_version: str = ""
    operating_system: str = ""
    architecture: str = ""


class ContainerImage(ViewPart, frozen=True, kw_only=True):
    names: list[str] = []
    size_bytes: int = 0


class DaemonEndpoint(ViewPart, frozen=True, kw_only=True):
    port: int = msgspec.field(name="Port", default=0)


class NodeDaemonEndpoints(ViewPart, frozen=True, kw_only=True):
    kubelet_endpoint: DaemonEndpoint = DaemonEndpoint()


class AttachedVolume(ViewPart, frozen=True, kw_only=True):
    name: str = ""
    device_path: str = ""


class NodeStatus(ViewPart, frozen=True, kw_only=True):
    """`capacity` is what the node has, `allocatable` what pods may request of it."""

    capacity: ResourceList = {}
    allocatable: ResourceList = {}
    conditions: list[Condition] = []
    addresses: list[NodeAddress] = []
    node_info: NodeSystemInfo = NodeSystemInfo()
    images: list[ContainerImage] = []
    daemon_endpoints: NodeDaemonEndpoints = NodeDaemonEndpoints()
    volumes_in_use: list[str] = []
    volumes_attached: list[AttachedVolume] = []
    phase: str = ""


class Node(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="",
        version="v1",
        kind="Node",
        plural="nodes",
        namespaced=False,
        short_names=("no",),
        subresources=("status",),
    )

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NamespaceSpec(ViewPart, frozen=True, kw_only=True):
    finalizers: list[str] = []


class NamespaceStatus(ViewPart, frozen=True, kw_only=True):
    """`phase` is Active or Terminating."""

    phase: str = ""
    conditions: list[Condition] = []


class Namespace(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="",
        version="v1",
        kind="Namespace",
        plural="namespaces",
        namespaced=False,
        short_names=("ns",),
        subresources=("status", "finalize"),
    )

    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


class ConfigMap(Object, frozen=True, kw_only=True):
    """`binary_data` values are base64 text."""

    resource: ClassVar[Resource] = Resource(
        group="", version="v1", kind="ConfigMap", plural="configmaps", short_names=("cm",)
    )

    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}
    immutable: bool | None = None


class Secret(Object, frozen=True, kw_only=True):
    """`data` values are base64 text."""

    resource: ClassVar[Resource] = Resource(group="", version="v1", kind="Secret", plural="secrets")

    type: str = ""
    data: dict[str, str] = {}
    immutable: bool | None = None


class ServiceAccount(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="",
        version="v1",
        kind="ServiceAccount",
        plural="serviceaccounts",
        short_names=("sa",),
        subresources=("token",),
    )

    secrets: list[ObjectReference] = []
    image_pull_secrets: list[LocalObjectReference] = []
    automount_service_account_token: bool | None = None


class ServicePort(ViewPart, frozen=True, kw_only=True):
    name: str = ""
    protocol: str = ""
    port: int = 0
    target_port: IntOrString = 0
    node_port: int = 0
    app_protocol: str | None = None


class ServiceSpec(ViewPart, frozen=True, kw_only=True):
    type: str = ""
    selector: dict[str, str] = {}
    ports: list[ServicePort] = []
    cluster_ip: str = ""
    external_name: str = ""
    publish_not_ready_addresses: bool = False
    ip_families: list[str] = []
    load_balancer_ip: str = ""
    load_balancer_class: str | None = None
    traffic_distribution: str = ""


class LoadBalancerIngress(ViewPart, frozen=True, kw_only=True):
    """An address from which a load balancer takes traffic."""

    ip: str = ""
    hostname: str = ""
    ip_mode: str | None = None


class LoadBalancerStatus(ViewPart, frozen=True, kw_only=True):
    ingress: list[LoadBalancerIngress] = []


class ServiceStatus(ViewPart, frozen=True, kw_only=True):
    load_balancer: LoadBalancerStatus = LoadBalancerStatus()


class Service(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="",
        version="v1",
        kind="Service",
        plural="services",
        short_names=("svc",),
        categories=("all",),
        subresources=("status",),
    )

    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()


class EventSource(ViewPart, frozen=True, kw_only=True):
    component: str = ""
    host: str = ""


class EventSeries(ViewPart, frozen=True, kw_only=True):
    count: int = 0
    last_observed_time: str | None = None


class Event(Object, frozen=True, kw_only=True):
    """An event in the form of the core group; `events.k8s.io` is another form of the same objects."""

    resource: ClassVar[Resource] = Resource(
        group="", version="v1", kind="Event", plural="events", short_names=("ev",)
    )

    involved_object: ObjectReference = ObjectReference()
    related: ObjectReference | None = None
    type: str = ""
    reason: str = ""
    message: str = ""
    action: str = ""
    count: int = 0
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: EventSeries | None = None
    source: EventSource = EventSource()
    reporting_component: str = ""
    reporting_instance: str = ""
