"""Typed views of dynamic resource allocation (`resource.k8s.io/v1`): devices, their classes, and claims to them.

Only what the scheduler and the claim controller read. Parameters of drivers are passed on as they came.
"""

from typing import Any, ClassVar

from koordinator.api.affinity import NodeSelector, Toleration
from koordinator.api.meta import Condition, Object, ObjectMeta, Resource, ViewPart
from koordinator.api.quantity import RawQuantity

GROUP = "resource.k8s.io"
FINALIZER = "resource.kubernetes.io/delete-protection"
"""Keeps an allocated claim from going before its devices are given back."""
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""Annotation of generated claims: which entry of `spec.resourceClaims` of the pod they were made for."""

RESERVATIONS_MAX = 256
"""Pods that may use one claim at a time."""
ALTERNATIVES_MAX = 8
"""Alternatives that a request may list."""
RESULTS_MAX = 32
"""Devices that one claim may get."""

EXACT_COUNT = "ExactCount"
ALL_DEVICES = "All"


class CELSelector(ViewPart, frozen=True, kw_only=True):
    expression: str = ""


class DeviceSelector(ViewPart, frozen=True, kw_only=True):
    """`cel` None is a selector of a kind that we do not know."""

    cel: CELSelector | None = None


class CapacityRequirements(ViewPart, frozen=True, kw_only=True):
    """Amounts of a device's capacities, by their names, that a request needs."""

    requests: dict[str, RawQuantity] = {}


class ExactDeviceRequest(ViewPart, frozen=True, kw_only=True):
    """`allocation_mode` is ExactCount (also when empty) or All."""

    device_class_name: str = ""
    selectors: list[DeviceSelector] = []
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: list[Toleration] = []
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(ViewPart, frozen=True, kw_only=True):
    """One of several alternatives; the first that can be met is used."""

    name: str = ""
    device_class_name: str = ""
    selectors: list[DeviceSelector] = []
    allocation_mode: str = ""
    count: int = 0
    tolerations: list[Toleration] = []
    capacity: CapacityRequirements | None = None


class DeviceRequest(ViewPart, frozen=True, kw_only=True):
    """One of `exactly` and `first_available` is set."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: list[DeviceSubRequest] = []


class DeviceConstraint(ViewPart, frozen=True, kw_only=True):
    """A rule for what the devices of `requests` (none: of all) must have in common, or must differ in."""

    requests: list[str] = []
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaimConfiguration(ViewPart, frozen=True, kw_only=True):
    """Parameters for a driver, for the named requests or for all."""

    requests: list[str] = []
    opaque: dict[str, Any] | None = None


class DeviceClaim(ViewPart, frozen=True, kw_only=True):
    requests: list[DeviceRequest] = []
    constraints: list[DeviceConstraint] = []
    config: list[DeviceClaimConfiguration] = []


class ResourceClaimSpec(ViewPart, frozen=True, kw_only=True):
    devices: DeviceClaim = DeviceClaim()


class DeviceRequestAllocationResult(ViewPart, frozen=True, kw_only=True):
    """A device given to a request (`request` or `request/subrequest`). `share_id` is set for one of several shares of
    a device, which takes `consumed_capacity` of it."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: list[Toleration] = []
    share_id: str | None = None
    consumed_capacity: dict[str, RawQuantity] = {}
    binding_conditions: list[str] = []
    binding_failure_conditions: list[str] = []


class DeviceAllocationConfiguration(ViewPart, frozen=True, kw_only=True):
    """`source` is FromClass or FromClaim."""

    source: str = ""
    requests: list[str] = []
    opaque: dict[str, Any] | None = None


class DeviceAllocationResult(ViewPart, frozen=True, kw_only=True):
    results: list[DeviceRequestAllocationResult] = []
    config: list[DeviceAllocationConfiguration] = []


class AllocationResult(ViewPart, frozen=True, kw_only=True):
    """`node_selector` None: the devices can be used on all nodes."""

    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class ConsumerReference(ViewPart, frozen=True, kw_only=True):
    """A consumer of a claim: `resource` is `pods` for pods."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class AllocatedDeviceStatus(ViewPart, frozen=True, kw_only=True):
    """The report of a driver on a device that a claim has."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    conditions: list[Condition] = []


class ResourceClaimStatus(ViewPart, frozen=True, kw_only=True):
    allocation: AllocationResult | None = None
    reserved_for: list[ConsumerReference] = []
    devices: list[AllocatedDeviceStatus] = []


class ResourceClaim(Object, frozen=True, kw_only=True):
    """A wish for devices, and the devices once it is granted."""

    resource: ClassVar[Resource] = Resource(
        group=GROUP,
        version="v1",
        kind="ResourceClaim",
        plural="resourceclaims",
        subresources=("status",),
    )

    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplateSpec(ViewPart, frozen=True, kw_only=True):
    """Labels, annotations and spec of claims to be made; `spec` is passed on as it is."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}


class ResourceClaimTemplate(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group=GROUP, version="v1", kind="ResourceClaimTemplate", plural="resourceclaimtemplates"
    )

    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class DeviceClassConfiguration(ViewPart, frozen=True, kw_only=True):
    opaque: dict[str, Any] | None = None


class DeviceClassSpec(ViewPart, frozen=True, kw_only=True):
    selectors: list[DeviceSelector] = []
    config: list[DeviceClassConfiguration] = []


class DeviceClass(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group=GROUP, version="v1", kind="DeviceClass", plural="deviceclasses", namespaced=False
    )

    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceAttribute(ViewPart, frozen=True, kw_only=True):
    """One member is set; `version` is a semantic version."""

    int_: int | None = None
    bool_: bool | None = None
    string: str | None = None
    version: str | None = None


class CapacityRequestPolicyRange(ViewPart, frozen=True, kw_only=True):
    """Amounts from `min` to `max`, `step` apart."""

    min: RawQuantity = "0"
    max: RawQuantity | None = None
    step: RawQuantity | None = None


class CapacityRequestPolicy(ViewPart, frozen=True, kw_only=True):
    """Amounts that a share may have: `default` for requests that name none; at most one of the others is set."""

    default: RawQuantity | None = None
    valid_values: list[RawQuantity] = []
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(ViewPart, frozen=True, kw_only=True):
    value: RawQuantity = "0"
    request_policy: CapacityRequestPolicy | None = None


class Counter(ViewPart, frozen=True, kw_only=True):
    value: RawQuantity = "0"


class CounterSet(ViewPart, frozen=True, kw_only=True):
    """Counters that devices of a pool share, by name."""

    name: str = ""
    counters: dict[str, Counter] = {}


class DeviceCounterConsumption(ViewPart, frozen=True, kw_only=True):
    """Amounts that a device takes of a counter set while it is given away."""

    counter_set: str = ""
    counters: dict[str, Counter] = {}


class DeviceTaint(ViewPart, frozen=True, kw_only=True):
    """`effect` is None, NoSchedule or NoExecute."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Device(ViewPart, frozen=True, kw_only=True):
    """A device; one of `node_name`, `node_selector` and `all_nodes` is set in slices with
    `per_device_node_selection`. Devices with `binding_conditions` have to be made ready once they are given away, for
    the chosen node only when `binds_to_node` is set."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    taints: list[DeviceTaint] = []
    consumes_counters: list[DeviceCounterConsumption] = []
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    binds_to_node: bool | None = None
    binding_conditions: list[str] = []
    binding_failure_conditions: list[str] = []
    allow_multiple_allocations: bool | None = None


class ResourcePool(ViewPart, frozen=True, kw_only=True):
    """Slices of a pool belong together: those with the highest generation count, once all of them are there."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(ViewPart, frozen=True, kw_only=True):
    """Devices of a driver, or the counters that a pool's devices share; one of `node_name`, `node_selector`,
    `all_nodes`, `per_device_node_selection` says where devices can be used."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    shared_counters: list[CounterSet] = []
    devices: list[Device] = []


class ResourceSlice(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group=GROUP, version="v1", kind="ResourceSlice", plural="resourceslices", namespaced=False
    )

    spec: ResourceSliceSpec = ResourceSliceSpec()


class DeviceTaintSelector(ViewPart, frozen=True, kw_only=True):
    """Devices that a rule is about; what is None may be anything."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(ViewPart, frozen=True, kw_only=True):
    """`device_selector` None: all devices."""

    device_selector: DeviceTaintSelector | None = None
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRule(Object, frozen=True, kw_only=True):
    """A taint that an administrator puts on devices, besides those that their drivers publish."""

    resource: ClassVar[Resource] = Resource(
        group=GROUP,
        version="v1alpha3",
        kind="DeviceTaintRule",
        plural="devicetaintrules",
        namespaced=False,
        subresources=("status",),
    )

    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()
