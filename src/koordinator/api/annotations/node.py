"""Payloads on nodes: reservation, system QoS, amplification, thresholds, third parties."""

import json
from collections.abc import Mapping

import msgspec

from koordinator.api import labels, resource_list
from koordinator.api.annotations.codec import Annotation, Empty, Payload, Seconds
from koordinator.api.quantity import ResourceList
from koordinator.api.resource_list import Amounts


class NodeReservation(Payload, frozen=True, kw_only=True):
    """The resources that a node keeps for processes outside Kubernetes; see `api.node_reservation` for their
    meaning.
    """

    resources: ResourceList = {}
    reserved_cpus: str = msgspec.field(name="reservedCPUs", default="")
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


NODE_RESERVATION = Annotation(labels.NODE_RESERVATION, NodeReservation, empty=Empty.ABSENT)
SYSTEM_QOS_RESOURCE = Annotation(labels.NODE_SYSTEM_QOS_RESOURCE, SystemQOSResource)
AMPLIFICATION_RATIO = Annotation(labels.NODE_RESOURCE_AMPLIFICATION_RATIO, dict[str, float])
RAW_ALLOCATABLE = Annotation[ResourceList](labels.NODE_RAW_ALLOCATABLE, ResourceList)
USAGE_THRESHOLDS = Annotation(labels.USAGE_THRESHOLDS, UsageThresholds)
ORIGIN_EXTENDED_ALLOCATABLE = Annotation(labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE, OriginExtendedAllocatable)
THIRD_PARTY_ALLOCATIONS = Annotation(labels.NODE_THIRD_PARTY_ALLOCATIONS, ThirdPartyAllocations)


def encode_amplification_ratios(ratios: Mapping[str, float]) -> str:
    """Return the annotation's text: sorted, two decimals each."""
    members = (f"{json.dumps(name, ensure_ascii=False)}:{ratios[name]:.2f}" for name in sorted(ratios))
    return f"{{{','.join(members)}}}"


def with_third_party_allocation(annotations: Mapping[str, str], allocation: ThirdPartyAllocation) -> str:
    """Return the annotation's new text with the allocation in place of that of the same name, else appended.

    Raises: ProtocolError when the present annotation is malformed.
    """
    old = THIRD_PARTY_ALLOCATIONS.read(annotations) or ThirdPartyAllocations()
    allocations = [allocation if each.name == allocation.name else each for each in old.allocations]
    if allocation not in allocations:
        allocations.append(allocation)
    return THIRD_PARTY_ALLOCATIONS.encode(ThirdPartyAllocations(allocations=allocations))


def third_party_by_priority(annotations: Mapping[str, str], priority: str, obj: str = "") -> Amounts:
    """Return what third parties of one priority class use, summed.

    Raises: ProtocolError when the annotation is malformed.
    """
    found = THIRD_PARTY_ALLOCATIONS.read(annotations, obj) or ThirdPartyAllocations()
    return resource_list.sum_of(
        resource_list.of(each.resources) for each in found.allocations if each.priority == priority
    )
