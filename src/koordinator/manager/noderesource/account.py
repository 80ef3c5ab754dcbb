"""From API objects to the facts that the formulas work with: what nodes have, and what pods ask and use.

Source: behaviour/manager 6.2, 7. Amounts are (cpu, memory) in thousandths. Measured CPU is kept in billionths of a core
until it is summed: a sum that is rounded once loses less than a thousandth, however many pods there are.

Demand and use of a node's services are summed over its pods (behaviour/manager 6.2, 6.6, 7). Sums depend on pods
and the report only, never on a policy: they are worked out once per report, and a changed configuration costs no look
at any pod. Amounts are (cpu, memory) in thousandths, `Measured` where usage is summed.
"""

import logging
from collections.abc import Mapping, Sequence

import msgspec

from koordinator.api import labels, node_reservation, pod_resources, priority, qos, quantity, resources
from koordinator.api.annotations import placement
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.node_metric import NodeMetricStatus, PodMetricInfo
from koordinator.api.priority import PriorityClass
from koordinator.api.qos import QoSClass
from koordinator.api.quantity import RawQuantity
from koordinator.api.resource_list import Amounts
from koordinator.manager.config import amplification
from koordinator.manager.noderesource.batch import AMOUNT_MAX, MILLI
from koordinator.manager.noderesource.lent_gpus import NO_CARDS, CardAmounts, cards_of

log = logging.getLogger(__name__)

Amount = tuple[int, int]
ZERO: Amount = (0, 0)

Measured = tuple[int, int]
"""cpu in billionths, memory in thousandths."""

PodUsage = tuple[int, int, bool]
"""cpu and memory as `Measured`, and whether it counts when the pod is gone (that of batch and free pods does not)."""

NANO_PER_MILLI = 10**6
"""Billionths of a core per thousandth."""

CPU_MAX = 10**15
"""A million cores, in billionths; a report of more is no report."""

_COUNTED_PHASES = ("Running", "Pending", "")
_SERVICE_PHASES = ("Running", "Pending")
_LENT_TO = (PriorityClass.BATCH, PriorityClass.FREE)
_LENT_NAMES = frozenset(each.value for each in _LENT_TO)
_NO_ZONES: tuple[int, ...] = ()
_DIGITS_SAFE = 16
"""So many digits are below every bound of quantities."""


class AccountedPod(msgspec.Struct, frozen=True, gc=False):
    """The facts of a running or pending pod that the formulas need; computed once per version of the pod."""

    is_high_priority: bool  # neither batch nor free
    request: Amount
    is_exclusive: bool = False  # LSE: its idle CPU is not lent
    zones: tuple[int, ...] = _NO_ZONES
    """NUMA nodes that the scheduler gave it (repeats make parts smaller), empty when it is bound to none."""
    is_service: bool = True  # nor mid: what it requests is not unallocated


class AccountedNode(msgspec.Struct, frozen=True, gc=False):
    """The facts of a node that the formulas need."""

    capacity: Amount
    reserved: Amount


class MetricFigures(msgspec.Struct, frozen=True, gc=False):
    """The figures of a NodeMetric status that the formulas need.

    System usage comes twice, with the applications outside of pods that Batch, and that Mid must yield to. An
    amount that is subtracted as it stands here (by Mid) is rounded down: the difference is rounded up, as
    milli-cores are.
    """

    pods: dict[str, PodUsage]  # by namespace/name
    system_usage: Measured = ZERO
    prod_system_usage: Amount = ZERO
    node_usage: Amount | None = None  # None when cpu or memory is not reported
    reclaimable: Amount = ZERO  # a missing prediction counts as 0; may be negative
    has_node: bool = False  # anything was reported of the node
    reclaimable_gpus: CardAmounts = NO_CARDS
    yielded_by_hour: tuple[Amount, ...] = ()
    """Amount that batch yields to at the peak of each hour of the day in UTC; empty when that is not predicted."""


EMPTY_REPORT = MetricFigures({})
UNLISTED_POD = AccountedPod(False, ZERO, is_service=False)
"""A pod that batch need not yield to: the formulas need only to know that it exists."""


def amount_of(amounts: Mapping[str, RawQuantity]) -> Amount:
    """cpu and memory of a resource list; absent is 0."""
    cpu, memory = amounts.get(resources.CPU), amounts.get(resources.MEMORY)
    return (
        quantity.milli(cpu) if cpu is not None else 0,
        quantity.milli(memory) if memory is not None else 0,
    )


def _used(amounts: Mapping[str, RawQuantity]) -> Measured:
    """Return the same of what was measured."""
    cpu, memory = amounts.get(resources.CPU), amounts.get(resources.MEMORY)
    return (
        quantity.measured_nanos(cpu) if cpu is not None else 0,
        quantity.measured_milli(memory) if memory is not None else 0,
    )


def rounded_down(measured: Measured) -> Amount:
    """In thousandths, for what is subtracted from whole ones."""
    return measured[0] // NANO_PER_MILLI, measured[1]


def _of_amounts(amounts: Amounts) -> Amount:
    zero = quantity.ZERO
    return amounts.get(resources.CPU, zero).milli, amounts.get(resources.MEMORY, zero).milli


def pod_facts(pod: Pod) -> AccountedPod | None:
    """None for a pod that has ended: it holds nothing. Raises: QuantityError."""
    if pod.status.phase not in _COUNTED_PHASES:
        return None
    cls = priority.default(pod)
    if cls in _LENT_TO:
        return UNLISTED_POD
    return AccountedPod(
        is_high_priority=True,
        request=amount_of(pod_resources.wire_requests(pod)),
        is_exclusive=qos.default(pod) is QoSClass.LSE,
        zones=_zones(pod),
        is_service=cls is not PriorityClass.MID and pod.status.phase in _SERVICE_PHASES,
    )


def _zones(pod: Pod) -> tuple[int, ...]:
    annotations = pod.metadata.annotations
    if placement.RESOURCE_STATUS.key not in annotations:
        return _NO_ZONES
    try:
        status = placement.RESOURCE_STATUS.read(annotations, pod.key)
    except ProtocolError as error:
        log.warning("pod counted on all NUMA nodes", extra={"pod": pod.key, "error": str(error)})
        return _NO_ZONES
    return tuple(zone.node for zone in status.numa_node_resources) if status is not None else _NO_ZONES


def node_facts(node: Node) -> AccountedNode:
    """Capacity, and the larger of what kubelet and what the node annotation reserve.

    Where allocatable is amplified, what the kubelet reserves shows in the raw one only. Raises: QuantityError.
    """
    capacity = amount_of(node.status.capacity)
    annotations = node.metadata.annotations
    allocatable = amount_of(node.status.allocatable)
    if annotations.get(labels.NODE_RESOURCE_AMPLIFICATION_RATIO):
        allocatable = amount_of({**node.status.allocatable, **amplification.raw_allocatable(node)})
    annotated = ZERO
    if labels.NODE_RESERVATION in annotations:
        annotated = _of_amounts(node_reservation.amounts(node_reservation.of_annotations(annotations)))
    reserved = tuple(
        max(total - left, noted, 0)
        for total, left, noted in zip(capacity, allocatable, annotated, strict=True)
    )
    return AccountedNode(bounded(capacity), bounded((reserved[0], reserved[1])))


def report_of(status: NodeMetricStatus) -> MetricFigures:
    """Return what the node agent reports, believed as it is. Raises: QuantityError."""
    info = status.node_metric
    batch_system = mid_system = _used(info.system_usage.resources) if info is not None else ZERO
    for app in status.host_application_metric:
        cls = priority.of_name(app.priority)
        if cls is PriorityClass.PROD or cls is PriorityClass.MID:
            usage = _used(app.usage.resources)
            batch_system = (batch_system[0] + usage[0], batch_system[1] + usage[1])
            if cls is PriorityClass.PROD:
                mid_system = (mid_system[0] + usage[0], mid_system[1] + usage[1])
    used = info.node_usage.resources if info is not None else {}
    predicted = status.prod_reclaimable_metric
    return MetricFigures(
        pods=_pod_usages(status.pods_metric),
        system_usage=bounded(batch_system),
        prod_system_usage=bounded(rounded_down(mid_system)),
        node_usage=_node_usage(used),
        reclaimable=ZERO if predicted is None else _reclaimable(predicted.resource.resources),
        has_node=info is not None,
        reclaimable_gpus=NO_CARDS if predicted is None else cards_of(predicted.resource.devices),
        yielded_by_hour=tuple(bounded(amount_of(each.resources)) for each in status.yielded_by_hour),
    )


def _pod_usages(metrics: Sequence[PodMetricInfo]) -> dict[str, PodUsage]:
    """Return what each pod used by namespace/name: written out, as a report has many."""
    found: dict[str, PodUsage] = {}
    cpu_of, memory_of, lent_names = quantity.measured_nanos, quantity.measured_milli, _LENT_NAMES
    for metric in metrics:
        amounts = metric.pod_usage.resources
        cpu, memory = amounts.get(resources.CPU), amounts.get(resources.MEMORY)
        if memory.__class__ is str and memory.isdigit() and memory.isascii() and len(memory) < _DIGITS_SAFE:
            milli_bytes = (
                int(memory) * MILLI
            )  # bytes hardly ever come twice: remembering them costs more than reading
        else:
            milli_bytes = memory_of(memory) if memory is not None else 0
        found[f"{metric.namespace}/{metric.name}"] = (
            cpu_of(cpu) if cpu is not None else 0,
            milli_bytes,
            metric.priority not in lent_names,
        )
    return found


def _node_usage(amounts: Mapping[str, RawQuantity]) -> Amount | None:
    if resources.CPU not in amounts or resources.MEMORY not in amounts:
        return None
    return bounded(rounded_down(_used(amounts)))


def _reclaimable(amounts: Mapping[str, RawQuantity]) -> Amount:
    """Counted as it stands, not subtracted: rounded up as every amount."""
    cpu, memory = _used(amounts)
    return bounded((-(-cpu // NANO_PER_MILLI), memory))


def report_problem(status: NodeMetricStatus, report: MetricFigures) -> str:
    """Return the first member with a figure that cannot be true, and why; empty for a report to be believed.

    Usage is never negative, and no node has a million cores or half a pebibyte of memory. Predictions may be
    negative, and are bounded by what is unused anyway.
    """
    info = status.node_metric
    for name, amount in (
        ("status.nodeMetric.systemUsage", report.system_usage),
        *((("status.nodeMetric.nodeUsage", _used(info.node_usage.resources)),) if info is not None else ()),
        *(
            (f"usage of host application {app.name}", _used(app.usage.resources))
            for app in status.host_application_metric
        ),
    ):
        if problem := _amount_problem(*amount):
            return f"{name}: {problem}"
    for key, (cpu, memory, _) in report.pods.items():
        # One comparison each on the way that every report takes.
        if not (0 <= cpu <= CPU_MAX and 0 <= memory < AMOUNT_MAX):
            return f"status.podsMetric of {key}: {_amount_problem(cpu, memory)}"
    return ""


def _amount_problem(cpu: int, memory: int) -> str:
    if cpu < 0 or memory < 0:
        name, amount = ("cpu", cpu / quantity.NANO) if cpu < 0 else ("memory", memory / MILLI)
        return f"{name} {amount:g} is negative"
    if cpu > CPU_MAX:
        return f"cpu {cpu / quantity.NANO:g} is above {CPU_MAX // quantity.NANO} cores"
    if memory >= AMOUNT_MAX:
        return f"memory is {AMOUNT_MAX // MILLI} bytes or more"
    return ""


def bounded(amount: Amount) -> Amount:
    """No object, however absurd, may spoil the calculation of the others (int64)."""
    return max(-AMOUNT_MAX, min(amount[0], AMOUNT_MAX)), max(-AMOUNT_MAX, min(amount[1], AMOUNT_MAX))


def whole(thousandths: int) -> int:
    """Units from thousandths, rounded up: extended resources are integers."""
    return -(-thousandths // MILLI)


Pods = Mapping[str, AccountedPod]
"""Running and pending pods of a node by namespace/name."""


class HighPriorityDemand(msgspec.Struct, frozen=True, gc=False):
    """Sums over high-priority pods, those gone whose usage is still reported included."""

    request: Amount = ZERO
    used: Measured = ZERO
    maximum: Measured = ZERO  # per pod the larger of request and usage
    service_request: Amount = ZERO  # of pods that are not mid either
    idle_cpu: int = 0  # billionths of a core that LSE pods do not use, which is not lent


def node_demand(pods: Pods, report: MetricFigures) -> HighPriorityDemand:
    """Sums of a node. Other than in the reference, a pod that is not reported yet counts in `maximum`, too."""
    usages = report.pods
    request_cpu = request_memory = used_cpu = used_memory = max_cpu = max_memory = 0
    service_cpu = service_memory = idle_cpu = 0
    for key, pod in pods.items():
        if not pod.is_high_priority:
            continue
        cpu, memory = pod.request
        request_cpu += cpu
        request_memory += memory
        if pod.is_service:
            service_cpu += cpu
            service_memory += memory
        usage = usages.get(key)
        cpu *= NANO_PER_MILLI
        if usage is None:
            used_cpu += cpu
            used_memory += memory
            max_cpu += cpu
            max_memory += memory
            continue
        if pod.is_exclusive:
            used_cpu += cpu
            idle_cpu += max(cpu - usage[0], 0)
        else:
            used_cpu += usage[0]
        used_memory += usage[1]
        max_cpu += cpu if cpu > usage[0] else usage[0]
        max_memory += memory if memory > usage[1] else usage[1]
    for key, (cpu, memory, counts) in usages.items():
        if counts and key not in pods:
            used_cpu += cpu
            used_memory += memory
            max_cpu += cpu
            max_memory += memory
    return HighPriorityDemand(
        bounded((request_cpu, request_memory)),
        bounded((used_cpu, used_memory)),
        bounded((max_cpu, max_memory)),
        bounded((service_cpu, service_memory)),
        idle_cpu,
    )


ZoneDemand = tuple[int, int, int, int, int, int]
"""Request, usage and the larger of both per pod in one NUMA zone, each cpu and memory."""


def zone_demands(pods: Pods, report: MetricFigures, zones: int) -> list[ZoneDemand]:
    """Sums of each zone: bound pods count where they are, all else is spread evenly, rounded up per pod.

    An LSE pod lends none of its CPU, so its request stands for its use; the larger of both is that of any pod.
    """
    usages = report.pods
    request_cpu = request_memory = used_cpu = used_memory = max_cpu = max_memory = 0
    bound: list[list[int]] = [[0] * 6 for _ in range(zones)]
    in_zone = zones * NANO_PER_MILLI
    for key, pod in pods.items():
        if not pod.is_high_priority:
            continue
        cpu, memory = pod.request
        usage = usages.get(key)
        own_cpu, own_memory = (cpu * NANO_PER_MILLI, memory) if usage is None else (usage[0], usage[1])
        if pod.zones and (entries := [zone for zone in pod.zones if 0 <= zone < zones]):
            _bind([bound[zone] for zone in set(entries)], len(entries), pod, (own_cpu, own_memory))
            continue
        # What nearly all pods go through: no calls, no lists.
        cpu, memory = -(-cpu // zones), -(-memory // zones)
        own_cpu, own_memory = -(-own_cpu // in_zone), -(-own_memory // zones)
        request_cpu += cpu
        request_memory += memory
        used_cpu += cpu if pod.is_exclusive else own_cpu
        used_memory += own_memory
        max_cpu += cpu if cpu > own_cpu else own_cpu
        max_memory += memory if memory > own_memory else own_memory
    for key, (cpu, memory, counts) in usages.items():
        if counts and key not in pods:
            cpu, memory = -(-cpu // in_zone), -(-memory // zones)
            used_cpu += cpu
            used_memory += memory
            max_cpu += cpu
            max_memory += memory
    spread = (request_cpu, request_memory, used_cpu, used_memory, max_cpu, max_memory)
    return [_zone(spread, own) for own in bound]


def _bind(targets: list[list[int]], parts: int, pod: AccountedPod, own: Measured) -> None:
    """Add one of so many parts of a pod's request and usage to each zone that it is bound to."""
    cpu, memory = (-(-amount // parts) for amount in pod.request)
    own_cpu, own_memory = -(-own[0] // (parts * NANO_PER_MILLI)), -(-own[1] // parts)
    used_cpu = cpu if pod.is_exclusive else own_cpu
    shares = (cpu, memory, used_cpu, own_memory, max(cpu, own_cpu), max(memory, own_memory))
    for sums in targets:
        for at, share in enumerate(shares):
            sums[at] += share


def _zone(spread: Sequence[int], own: Sequence[int]) -> ZoneDemand:
    sums = [even + mine for even, mine in zip(spread, own, strict=True)]
    return (*bounded((sums[0], sums[1])), *bounded((sums[2], sums[3])), *bounded((sums[4], sums[5])))
