"""Devices: what pods hint at, what the scheduler allocated, and how GPUs are partitioned."""

import enum
from collections.abc import Mapping
from typing import Annotated

from koordinator.api import labels
from koordinator.api.affinity import LabelSelector
from koordinator.api.annotations.codec import Annotation, Empty, Int32, NotNull, Payload
from koordinator.api.quantity import RawQuantity, ResourceList


class DeviceType(enum.StrEnum):
    """Types of devices that are shared out."""

    GPU = "gpu"
    RDMA = "rdma"
    FPGA = "fpga"


class AllocateStrategy(enum.StrEnum):
    """The number of devices that a request with a hint takes."""

    APPLY_FOR_ALL = "ApplyForAll"
    REQUESTS_AS_COUNT = "RequestsAsCount"


class TopologyScope(enum.StrEnum):
    """Within what the devices of a pod must lie; see `TOPOLOGY_SCOPE_LEVELS`."""

    DEVICE = "Device"
    PCIE = "PCIe"
    NUMA_NODE = "NUMANode"
    NODE = "Node"


TOPOLOGY_SCOPE_LEVELS: dict[str, int] = {
    TopologyScope.DEVICE: 4,
    TopologyScope.PCIE: 3,
    TopologyScope.NUMA_NODE: 2,
    TopologyScope.NODE: 1,
}
"""Higher is narrower."""


class ExclusivePolicy(enum.StrEnum):
    """The level at which pods with the same policy share nothing."""

    DEVICE_LEVEL = "DeviceLevel"
    PCIE_LEVEL = "PCIeLevel"


class PartitionPolicy(enum.StrEnum):
    """The choice whether a pod insists on the best GPU partition."""

    BEST_EFFORT = "BestEffort"
    RESTRICTED = "Restricted"


class NodePartitionPolicy(enum.StrEnum):
    """The choice whether a node gives its GPUs out only as partitions."""

    HONOR = "Honor"
    PREFER = "Prefer"


HAMI_CORE = "HAMi-core"
"""Component that isolates shares of GPUs: the value of the label `gpu-isolation-provider`."""

SAME_PCIE = "SamePCIe"
"""The one `required_scope` of a joint allocation."""


class VirtualFunction(Payload, frozen=True, kw_only=True):
    """A virtual function of a NIC."""

    minor: int = 0
    bus_id: str = ""


class AllocationExtension(Payload, frozen=True, kw_only=True):
    """Whatever else belongs to an allocated device."""

    vfs: list[VirtualFunction] = []
    gpu_shared_resource_template: str = ""


class DeviceAllocation(Payload, frozen=True, kw_only=True):
    """One device that a pod got, and how much of it; `id` as the node agent reported it."""

    minor: Int32
    resources: ResourceList
    id: str = ""
    extension: AllocationExtension | None = None


DeviceAllocations = dict[str, list[Annotated[DeviceAllocation, NotNull]]]
"""Device type → allocations."""


class DeviceHint(Payload, frozen=True, kw_only=True):
    """The devices of one type that a pod wants, and how it wants them."""

    selector: LabelSelector | None = None
    vf_selector: LabelSelector | None = None
    allocate_strategy: str = ""
    required_topology_scope: str = ""
    exclusive_policy: str = ""


class JointAllocate(Payload, frozen=True, kw_only=True):
    """Devices of several types that belong together; the first type leads."""

    device_types: list[str] = []
    required_scope: str = ""


class GPUPartitionSpec(Payload, frozen=True, kw_only=True):
    """A pod's demands on the links between its GPUs."""

    allocate_policy: str = PartitionPolicy.BEST_EFFORT
    ring_bus_bandwidth: RawQuantity | None = None


class GPUPartition(Payload, frozen=True, kw_only=True):
    """GPUs that are given out together."""

    minors: list[int]
    gpu_link_type: str = ""
    ring_bus_bandwidth: RawQuantity | None = None
    allocation_score: int = 0


class MetaxDevice(Payload, frozen=True, kw_only=True):
    """A share of a MetaX GPU, as its device plugin expects it; `v_ram` in MiB."""

    uuid: str
    compute: int
    v_ram: int


DEVICE_ALLOCATED = Annotation[DeviceAllocations](labels.DEVICE_ALLOCATED, DeviceAllocations)
NODE_BATCH_GPUS = Annotation[DeviceAllocations](labels.NODE_BATCH_GPUS, DeviceAllocations)
"""On a node: what batch pods may have of each GPU, by the names `batch-gpu-…`."""
DEVICE_ALLOCATE_HINT = Annotation(labels.DEVICE_ALLOCATE_HINT, dict[str, DeviceHint])
DEVICE_JOINT_ALLOCATE = Annotation(labels.DEVICE_JOINT_ALLOCATE, JointAllocate)
GPU_PARTITION_SPEC = Annotation(labels.GPU_PARTITION_SPEC, GPUPartitionSpec)
GPU_PARTITIONS = Annotation(
    labels.GPU_PARTITIONS, dict[int, list[GPUPartition]], empty=Empty.ABSENT, null_is_error=True
)
"""Number of GPUs → the partitions of that size."""
METAX_GPU_DEVICES = Annotation(labels.METAX_GPU_DEVICES_ALLOCATED, list[list[MetaxDevice]])
"""Devices per container."""


def node_partition_policy(device_labels: Mapping[str, str]) -> NodePartitionPolicy:
    """Return the policy by label of the Device or node; any other text means prefer."""
    is_honor = device_labels.get(labels.GPU_PARTITION_POLICY) == NodePartitionPolicy.HONOR
    return NodePartitionPolicy.HONOR if is_honor else NodePartitionPolicy.PREFER
