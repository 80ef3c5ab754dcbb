"""Payloads on nodes: reservation, system QoS, amplification, thresholds, third parties; and the node agent's report
about CPUs on a NodeResourceTopology."""

import json
from collections.abc import Mapping

from koordinator.api import labels, resource_list
from koordinator.api.annotations.codec import Annotation, Empty, Int32, Payload, Seconds
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import ResourceList
from koordinator.api.resource_list import Amounts

FACTOR_MAX = 1e6
"""The highest ratio by which a node's amounts are multiplied or divided: a larger one is a mistake, and amounts times a
much larger one are no numbers any more."""


class NodeReservation(Payload, frozen=True, kw_only=True):
    """The resources that a node keeps for processes outside Kubernetes; see `api.node_reservation` for their
    meaning."""

    resources: ResourceList = {}
    reserved_cpus: str = ""
    apply_policy: str = ""


class SystemQOSResource(Payload, frozen=True, kw_only=True):
    """CPUs for pods of QoS SYSTEM; `cpuset` is a CPU list."""

    cpuset: str = ""
    cpuset_exclusive: bool | None = None

    @property
    def is_exclusive(self) -> bool:
        """Return whether no other pods may use these CPUs; true by default."""
        return self.cpuset_exclusive is not False


class AggregatedUsage(Payload, frozen=True, kw_only=True):
    """Thresholds on a percentile (`avg`, `p50`, `p90`, `p95`, `p99`) of usage over a window."""

    usage_thresholds: dict[str, int] = {}
    usage_aggregation_type: str = ""
    usage_aggregated_duration: Seconds = 0.0


class UsageThresholds(Payload, frozen=True, kw_only=True):
    """Usage above which a node takes no more pods, in percent per resource."""

    usage_thresholds: dict[str, int] = {}
    prod_usage_thresholds: dict[str, int] = {}
    aggregated_usage: AggregatedUsage | None = None


class OriginExtendedAllocatable(Payload, frozen=True, kw_only=True):
    """Batch and mid resources before third parties take theirs."""

    resources: ResourceList = {}


class ThirdPartyAllocation(Payload, frozen=True, kw_only=True):
    """The extended resources of a node that another system uses, by priority class."""

    name: str
    priority: str
    resources: ResourceList = {}


class ThirdPartyAllocations(Payload, frozen=True, kw_only=True):
    allocations: list[ThirdPartyAllocation] = []


class BatchDurations(Payload, frozen=True, kw_only=True):
    """The predicted amounts that a node lends for at least so many hours: lists of one length, hours ascending."""

    hours: list[int] = []
    cpu_milli: list[int] = []
    memory_bytes: list[int] = []


class NodeImage(Payload, frozen=True, kw_only=True):
    """An image on a node, as `status.images` of Nodes tells it: digests and tags that name it, and its size."""

    names: list[str] = []
    size_bytes: int = 0


class NodeImages(Payload, frozen=True, kw_only=True):
    """Images of a node that the kubelet does not tell of: it names the 50 largest only."""

    images: list[NodeImage] = []


NODE_RESERVATION = Annotation(labels.NODE_RESERVATION, NodeReservation, empty=Empty.ABSENT)
SYSTEM_QOS_RESOURCE = Annotation(labels.NODE_SYSTEM_QOS_RESOURCE, SystemQOSResource)
AMPLIFICATION_RATIO = Annotation(labels.NODE_RESOURCE_AMPLIFICATION_RATIO, dict[str, float])
RAW_ALLOCATABLE = Annotation[ResourceList](labels.NODE_RAW_ALLOCATABLE, ResourceList, null_is_absent=True)
USAGE_THRESHOLDS = Annotation(labels.USAGE_THRESHOLDS, UsageThresholds)
ORIGIN_EXTENDED_ALLOCATABLE = Annotation(labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE, OriginExtendedAllocatable)
BATCH_DURATIONS = Annotation(labels.NODE_BATCH_DURATIONS, BatchDurations)
NODE_IMAGES = Annotation(labels.NODE_IMAGES, NodeImages)
THIRD_PARTY_ALLOCATIONS = Annotation(labels.NODE_THIRD_PARTY_ALLOCATIONS, ThirdPartyAllocations)


def amplification_ratios(annotations: Mapping[str, str], obj: str = "") -> dict[str, float] | None:
    """Return the ratio per resource, None when there is no annotation. Raises: ProtocolError when it is malformed or a
    ratio is above `FACTOR_MAX`."""
    found = AMPLIFICATION_RATIO.read(annotations, obj)
    for name, ratio in (found or {}).items():
        if ratio > FACTOR_MAX:
            reason = f"{name}: {ratio:g} is above {FACTOR_MAX:g}"
            raise ProtocolError(obj, labels.NODE_RESOURCE_AMPLIFICATION_RATIO, reason)
    return found


def encode_amplification_ratios(ratios: Mapping[str, float]) -> str:
    """Return the annotation's text: sorted, two decimals each."""
    members = (f"{json.dumps(name, ensure_ascii=False)}:{ratios[name]:.2f}" for name in sorted(ratios))
    return f"{{{','.join(members)}}}"


def third_party_by_priority(annotations: Mapping[str, str], priority: str, obj: str = "") -> Amounts | None:
    """Return what third parties of one priority class use, summed; None where nothing is said of any.

    Raises: ProtocolError or QuantityError when the annotation is malformed.
    """
    found = THIRD_PARTY_ALLOCATIONS.read(annotations, obj)
    if found is None:
        return None
    return resource_list.sum_of(
        resource_list.of(each.resources) for each in found.allocations if each.priority == priority
    )


class CPUInfo(Payload, frozen=True, kw_only=True):
    """The place of a logical CPU."""

    id: Int32
    core: Int32
    socket: Int32
    node: Int32


class CPUTopology(Payload, frozen=True, kw_only=True):
    """All CPUs of a node."""

    detail: list[CPUInfo] = []


class CPUBasicInfo(Payload, frozen=True, kw_only=True):
    """The model and the features of a node's CPUs."""

    cpu_model: str = ""
    hyper_thread_enabled: bool = False
    turbo_enabled: bool = False
    cat_l3_cbm_mask: str = ""
    vendor_id: str = ""


class CPUSharedPool(Payload, frozen=True, kw_only=True):
    """CPUs of one NUMA node that unbound pods share; `cpuset` is a CPU list."""

    socket: Int32
    node: Int32
    cpuset: str = ""


class PodCPUAlloc(Payload, frozen=True, kw_only=True):
    """CPUs that the kubelet bound for a pod."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    cpuset: str = ""
    managed_by_kubelet: bool = False


STATIC_CPU_POLICY = "static"


class KubeletCPUManagerPolicy(Payload, frozen=True, kw_only=True):
    """`policy` is static or none; `options` as in the kubelet's configuration."""

    policy: str = ""
    options: dict[str, str] = {}
    reserved_cpus: str = ""

    @property
    def is_full_pcpus_only(self) -> bool:
        """Return whether the kubelet binds whole physical cores only."""
        return self.policy == STATIC_CPU_POLICY and self.options.get("full-pcpus-only") == "true"


CPU_TOPOLOGY = Annotation(labels.NODE_CPU_TOPOLOGY, CPUTopology)
CPU_BASIC_INFO = Annotation(labels.NODE_CPU_BASIC_INFO, CPUBasicInfo)
CPU_SHARED_POOLS = Annotation(labels.NODE_CPU_SHARED_POOLS, list[CPUSharedPool])
BE_CPU_SHARED_POOLS = Annotation(labels.NODE_BE_CPU_SHARED_POOLS, list[CPUSharedPool])
POD_CPU_ALLOCS = Annotation(labels.NODE_POD_CPU_ALLOCS, list[PodCPUAlloc])
KUBELET_CPU_MANAGER_POLICY = Annotation(labels.KUBELET_CPU_MANAGER_POLICY, KubeletCPUManagerPolicy)
