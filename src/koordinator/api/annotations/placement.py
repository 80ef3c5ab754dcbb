"""Annotations by which pods request CPUs and NUMA nodes, their allocations, and other hints to the scheduler."""

import enum
from collections.abc import Mapping
from typing import Any

from koordinator.api import labels
from koordinator.api.annotations.codec import Annotation, Empty, Int32, Payload
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import ResourceList


class CPUBindPolicy(enum.StrEnum):
    """The layout of a pod's CPUs on physical cores."""

    DEFAULT = "Default"
    FULL_PCPUS = "FullPCPUs"
    SPREAD_BY_PCPUS = "SpreadByPCPUs"
    CONSTRAINED_BURST = "ConstrainedBurst"


class CPUExclusivePolicy(enum.StrEnum):
    """The level at which bound pods keep away from each other."""

    NONE = "None"
    PCPU_LEVEL = "PCPULevel"
    NUMA_NODE_LEVEL = "NUMANodeLevel"


class NUMATopologyPolicy(enum.StrEnum):
    """The rule for how strictly a pod's resources must come from few NUMA nodes."""

    NONE = ""
    BEST_EFFORT = "BestEffort"
    RESTRICTED = "Restricted"
    SINGLE_NUMA_NODE = "SingleNUMANode"


class NUMANodeExclusive(enum.StrEnum):
    """The choice whether a NUMA node holds pods of one node or of several, not both."""

    PREFERRED = "Preferred"
    REQUIRED = "Required"


class ResourceSpec(Payload, frozen=True, kw_only=True):
    """The CPUs that a pod wants (`CPUBindPolicy`, `CPUExclusivePolicy`)."""

    required_cpu_bind_policy: str = ""
    preferred_cpu_bind_policy: str = ""
    preferred_cpu_exclusive_policy: str = ""


class NUMATopologySpec(Payload, frozen=True, kw_only=True):
    """The NUMA policy that a pod asks for (`NUMATopologyPolicy`, `NUMANodeExclusive`)."""

    numa_topology_policy: str = ""
    single_numa_node_exclusive: str = ""


class NUMANodeResource(Payload, frozen=True, kw_only=True):
    """The resources that a pod got of one NUMA node."""

    node: Int32
    resources: ResourceList = {}


class ResourceStatus(Payload, frozen=True, kw_only=True):
    """The CPUs (a CPU list) and NUMA amounts that the scheduler gave a pod."""

    cpuset: str = ""
    numa_node_resources: list[NUMANodeResource] = []


class SchedulingHint(Payload, frozen=True, kw_only=True):
    """Nodes that a pod must or would best go to, in order, as another scheduler advised."""

    node_names: list[str] = []
    preferred_node_names: list[str] = []
    extensions: dict[str, Any] = {}


class GatherStrategy(Payload, frozen=True, kw_only=True):
    """`strategy` is MustGather or PreferGather within one `layer` of the network."""

    layer: str
    strategy: str
    pod_count_multiple: int = 0


class NetworkTopologySpec(Payload, frozen=True, kw_only=True):
    """The rule for how close the members of a gang must be in the network."""

    gather_strategy: list[GatherStrategy] = []


RESOURCE_SPEC = Annotation(labels.RESOURCE_SPEC, ResourceSpec)
NUMA_TOPOLOGY_SPEC = Annotation(labels.NUMA_TOPOLOGY_SPEC, NUMATopologySpec)
RESOURCE_STATUS = Annotation(labels.RESOURCE_STATUS, ResourceStatus)
NETWORK_TOPOLOGY_SPEC = Annotation(labels.GANG_NETWORK_TOPOLOGY_SPEC, NetworkTopologySpec, empty=Empty.ABSENT)
_SCHEDULING_HINT = Annotation(labels.SCHEDULING_HINT, SchedulingHint, empty=Empty.ABSENT)
_OLD_SCHEDULING_HINT = Annotation(labels.DEPRECATED_SCHEDULING_HINT, SchedulingHint, empty=Empty.ABSENT)
_SCALING_FACTORS = Annotation(labels.LOAD_ESTIMATED_SCALING_FACTORS, dict[str, int])


def has_cpuset(annotations: Mapping[str, str]) -> bool:
    """Return whether the pod's CPUs are bound, so that its CFS quota must be unset; False when malformed."""
    try:
        status = RESOURCE_STATUS.read(annotations)
    except ProtocolError:
        return False
    return status is not None and status.cpuset != ""


def scheduling_hint(annotations: Mapping[str, str], obj: str = "") -> SchedulingHint | None:
    """Return the hint under the current key, else under the old one.

    Raises: ProtocolError when the one that counts is malformed.
    """
    hint = _SCHEDULING_HINT.read(annotations, obj)
    return hint if hint is not None else _OLD_SCHEDULING_HINT.read(annotations, obj)


def load_scaling_factors(annotations: Mapping[str, str]) -> dict[str, int] | None:
    """Percent of the request that a pod is expected to use, per resource; None when absent or malformed."""
    try:
        return _SCALING_FACTORS.read(annotations)
    except ProtocolError:
        return None
