"""List the events of a cluster that can make a refused pod schedulable."""

import enum
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class ClusterEvent(enum.Enum):
    """A kind of change; plugins name those that can lift their refusals (`Plugin.wakes_on`)."""

    NODE_ADDED = "NodeAdd"
    NODE_DELETED = "NodeDelete"
    NODE_ALLOCATABLE = "NodeUpdate/Allocatable"
    NODE_LABELS = "NodeUpdate/Label"
    NODE_TAINTS = "NodeUpdate/Taint"
    NODE_CONDITIONS = "NodeUpdate/Condition"
    NODE_ANNOTATIONS = "NodeUpdate/Annotation"
    ASSIGNED_POD_ADDED = "AssignedPodAdd"
    ASSIGNED_POD_UPDATED = "AssignedPodUpdate"
    ASSIGNED_POD_DELETED = "AssignedPodDelete"
    POD_UPDATED = "UnscheduledPodUpdate"
    NODE_METRIC_ADDED = "NodeMetricAdd"
    NODE_METRIC_UPDATED = "NodeMetricUpdate"
    NODE_METRIC_DELETED = "NodeMetricDelete"
    NODE_TOPOLOGY_ADDED = "NodeResourceTopologyAdd"
    NODE_TOPOLOGY_UPDATED = "NodeResourceTopologyUpdate"
    NODE_TOPOLOGY_DELETED = "NodeResourceTopologyDelete"
    NAMESPACE = "Namespace"
    """A namespace was added or got other labels."""
    STORAGE = "Storage"
    """A claim, volume, storage class, or what drivers say about nodes."""
    RESOURCE_CLAIM_ADDED = "ResourceClaimAdd"
    RESOURCE_CLAIM_UPDATED = "ResourceClaimUpdate"
    RESOURCE_CLAIM_DELETED = "ResourceClaimDelete"
    RESOURCE_SLICE_ADDED = "ResourceSliceAdd"
    RESOURCE_SLICE_UPDATED = "ResourceSliceUpdate"
    ELASTIC_QUOTA = "ElasticQuota"
    """Quotas changed, or may use more than before; `QueueingEvent.new` are the names of those quotas, None for any."""
    NETWORK_TOPOLOGY = "ClusterNetworkTopology"
    """The tree of the network is another one."""
    DEVICE_CLASS_ADDED = "DeviceClassAdd"
    DEVICE_CLASS_UPDATED = "DeviceClassUpdate"
    DEVICE_ADDED = "DeviceAdd"
    """Devices of a node were reported for the first time."""
    DEVICE_UPDATED = "DeviceUpdate"
    DEVICE_DELETED = "DeviceDelete"
    GPU_TEMPLATES = "GPUSharedResourceTemplates"
    """Slices that NPUs can be cut into changed."""
    WILDCARD = "Wildcard"
    """Wakes everything."""


NODE_EVENTS = frozenset(
    (
        ClusterEvent.NODE_ADDED,
        ClusterEvent.NODE_ALLOCATABLE,
        ClusterEvent.NODE_LABELS,
        ClusterEvent.NODE_TAINTS,
        ClusterEvent.NODE_CONDITIONS,
        ClusterEvent.NODE_ANNOTATIONS,
    )
)
"""News from one node that exists."""


class QueueingEvent(msgspec.Struct, frozen=True):
    """One event. `row` is the node it concerns, None when it is not about one node; `old` and `new` are the
    objects before and after (None when there is none)."""

    kind: ClusterEvent
    row: int | None = None
    old: Any = None
    new: Any = None


def newest(old: T | None, new: T | None) -> T:
    """Return an object that came, changed or went as it was last."""
    last = new if new is not None else old
    assert last is not None, "it is or was there"
    return last


SCHEDULING = "Scheduling"
BINDING = "Binding"
PREEMPTING = "Preempting"
