"""From API objects to the rows of the Batch formula: what a node has, and what its services ask and use.

Source: spec 02 §6.2. Amounts are (cpu, memory) in thousandths.
"""

import logging
from collections.abc import Iterable, Mapping

import msgspec

from koordinator.api import node_reservation, pod_resources, priority, qos, quantity, resources
from koordinator.api.annotations import placement
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.node_metric import NodeMetricStatus
from koordinator.api.priority import PriorityClass
from koordinator.api.qos import QoSClass
from koordinator.api.quantity import RawQuantity
from koordinator.api.resource_list import Amounts
from koordinator.manager.noderesource.batch import MILLI, PodDemand

log = logging.getLogger(__name__)

Amount = tuple[int, int]
ZERO: Amount = (0, 0)

_COUNTED_PHASES = ("Running", "Pending", "")
_LENT_TO = (PriorityClass.BATCH, PriorityClass.FREE)


class PodFacts(msgspec.Struct, frozen=True):
    """What the formula needs of a running or pending pod; computed once per version of the pod."""

    key: str
    is_high_priority: bool
    request: Amount
    is_exclusive: bool
    zones: tuple[int, ...]


class NodeFacts(msgspec.Struct, frozen=True):
    """What the formula needs of a node."""

    capacity: Amount
    reserved: Amount


class MetricFacts(msgspec.Struct, frozen=True):
    """What the formula needs of a NodeMetric status."""

    system_usage: Amount
    pods: dict[str, Amount]  # namespace/name -> usage
    services: frozenset[str]  # keys in `pods` that count even when their pod is gone


def amount_of(amounts: Mapping[str, RawQuantity]) -> Amount:
    """cpu and memory of a resource list; absent is 0."""
    cpu, memory = amounts.get(resources.CPU), amounts.get(resources.MEMORY)
    return (
        quantity.milli(cpu) if cpu is not None else 0,
        quantity.milli(memory) if memory is not None else 0,
    )


def _of_amounts(amounts: Amounts) -> Amount:
    zero = quantity.ZERO
    return amounts.get(resources.CPU, zero).milli, amounts.get(resources.MEMORY, zero).milli


def pod_facts(pod: Pod) -> PodFacts | None:
    """None for a pod that has ended: it holds nothing."""
    if pod.status.phase not in _COUNTED_PHASES:
        return None
    is_high_priority = priority.default(pod) not in _LENT_TO
    if not is_high_priority:  # the formula needs only to know that it exists
        return PodFacts(pod.key, False, ZERO, False, ())
    return PodFacts(
        key=pod.key,
        is_high_priority=True,
        request=amount_of(pod_resources.wire_requests(pod)),
        is_exclusive=qos.default(pod) is QoSClass.LSE,
        zones=_zones(pod),
    )


def _zones(pod: Pod) -> tuple[int, ...]:
    try:
        status = placement.RESOURCE_STATUS.read(pod.metadata.annotations, pod.key)
    except ProtocolError as error:
        log.warning("pod counted on all NUMA nodes", extra={"pod": pod.key, "error": str(error)})
        return ()
    return tuple(zone.node for zone in status.numa_node_resources) if status is not None else ()


def node_facts(node: Node) -> NodeFacts:
    """Capacity, and the larger of what kubelet and what the node annotation reserve."""
    capacity = amount_of(node.status.capacity)
    allocatable = amount_of(node.status.allocatable)
    annotated = _of_amounts(
        node_reservation.amounts(node_reservation.of_annotations(node.metadata.annotations))
    )
    reserved = tuple(
        max(total - left, noted, 0)
        for total, left, noted in zip(capacity, allocatable, annotated, strict=True)
    )
    return NodeFacts(capacity, (reserved[0], reserved[1]))


def metric_facts(status: NodeMetricStatus) -> MetricFacts:
    """Usage of the system (with host applications that batch must yield to) and of each pod."""
    system = amount_of(status.node_metric.system_usage.resources) if status.node_metric else ZERO
    for app in status.host_application_metric:
        if priority.of_name(app.priority) in (PriorityClass.PROD, PriorityClass.MID):
            usage = amount_of(app.usage.resources)
            system = (system[0] + usage[0], system[1] + usage[1])
    pods: dict[str, Amount] = {}
    services = []
    for metric in status.pods_metric:
        key = f"{metric.namespace}/{metric.name}"
        pods[key] = amount_of(metric.pod_usage.resources)
        if metric.priority not in _LENT_TO:
            services.append(key)
    return MetricFacts(system, pods, frozenset(services))


def demands(pods: Iterable[PodFacts], metrics: MetricFacts) -> tuple[list[PodDemand], list[Amount]]:
    """The high-priority pods with their usage, and the usages of services whose pods are gone."""
    high = []
    dangling = set(metrics.services)
    for pod in pods:
        dangling.discard(pod.key)
        if pod.is_high_priority:
            high.append(PodDemand(pod.request, metrics.pods.get(pod.key), pod.is_exclusive, pod.zones))
    return high, [metrics.pods[key] for key in sorted(dangling)]


def whole(thousandths: int) -> int:
    """Units from thousandths, rounded up: extended resources are integers."""
    return -(-thousandths // MILLI)
