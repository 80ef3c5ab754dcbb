"""Sum what the services of a node ask for and use over its pods (behaviour/manager 6.2, 6.6, 7).

Sums depend on pods and the report only, never on a policy: they are worked out once per report, and a changed
configuration costs no look at any pod. Amounts are (cpu, memory) in thousandths, `Measured` where usage is summed.
"""

from collections.abc import Mapping, Sequence

import msgspec

from koordinator.manager.noderesource.account import (
    NANO_PER_MILLI,
    ZERO,
    AccountedPod,
    Amount,
    Measured,
    MetricFigures,
    bounded,
)

Pods = Mapping[str, AccountedPod]
"""Running and pending pods of a node by namespace/name."""


class HighPriorityDemand(msgspec.Struct, frozen=True, gc=False):
    """Sums over high-priority pods, those gone whose usage is still reported included."""

    request: Amount = ZERO
    used: Measured = ZERO
    maximum: Measured = ZERO  # per pod the larger of request and usage
    service_request: Amount = ZERO  # of pods that are not mid either


def node_demand(pods: Pods, report: MetricFigures) -> HighPriorityDemand:
    """Sums of a node. Other than in the reference, a pod that is not reported yet counts in `maximum`, too."""
    usages = report.pods
    request_cpu = request_memory = used_cpu = used_memory = max_cpu = max_memory = 0
    service_cpu = service_memory = 0
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
        used_cpu += cpu if pod.is_exclusive else usage[0]
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
    )


ZoneDemand = tuple[int, int, int, int, int, int]
"""Of one NUMA zone: request, usage and the larger of both per pod, each cpu and memory."""


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
        if pod.zones and (targets := [bound[zone] for zone in pod.zones if 0 <= zone < zones]):
            _bind(targets, pod, (own_cpu, own_memory))
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


def _bind(targets: list[list[int]], pod: AccountedPod, own: Measured) -> None:
    """Spread a pod's request and usage over the zones that it is bound to."""
    parts = len(targets)
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
