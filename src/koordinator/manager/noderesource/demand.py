"""What the services of a node ask for and use, summed over its pods (spec 02 §6.2, §6.6, §7).

Sums depend on pods and the report only, never on a policy: they are worked out once per report, and a changed
configuration costs no look at any pod. Amounts are (cpu, memory) in thousandths.
"""

from collections.abc import Mapping

import msgspec

from koordinator.manager.noderesource.account import ZERO, Amount, PodFacts, Report, bounded

Pods = Mapping[str, PodFacts]
"""Running and pending pods of a node by namespace/name."""


class Demand(msgspec.Struct, frozen=True, gc=False):
    """Sums over high-priority pods, those gone whose usage is still reported included."""

    request: Amount = ZERO
    used: Amount = ZERO
    maximum: Amount = ZERO  # per pod the larger of request and usage
    service_request: Amount = ZERO  # of pods that are not mid either


def node_demand(pods: Pods, report: Report) -> Demand:
    """Sums of a node."""
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
        if usage is None:
            # As in the reference, an unreported pod counts in "request" and "used" but not in "maximum".
            used_cpu += cpu
            used_memory += memory
            continue
        used_cpu += cpu if pod.is_exclusive else usage[0]
        used_memory += usage[1]
        max_cpu += max(cpu, usage[0])
        max_memory += max(memory, usage[1])
    for key, (cpu, memory, counts) in usages.items():
        if counts and key not in pods:
            used_cpu += cpu
            used_memory += memory
            max_cpu += cpu
            max_memory += memory
    return Demand(
        bounded((request_cpu, request_memory)),
        bounded((used_cpu, used_memory)),
        bounded((max_cpu, max_memory)),
        bounded((service_cpu, service_memory)),
    )


class ZoneDemand(msgspec.Struct, frozen=True, gc=False):
    """The same for one NUMA zone."""

    request: Amount = ZERO
    used: Amount = ZERO
    maximum: Amount = ZERO


def zone_demands(pods: Pods, report: Report, zones: int) -> list[ZoneDemand]:
    """Sums of each zone: bound pods count where they are, all else is spread evenly, rounded up per pod."""
    spread = [0] * 6
    bound = [[0] * 6 for _ in range(zones)]
    usages = report.pods
    for key, pod in pods.items():
        if not pod.is_high_priority:
            continue
        usage = usages.get(key)
        used = pod.request if usage is None else (pod.request[0] if pod.is_exclusive else usage[0], usage[1])
        targets = [bound[zone] for zone in pod.zones if 0 <= zone < zones] if pod.zones else []
        shares = _shares(pod.request, used, len(targets) or zones)
        for sums in targets or (spread,):
            for at, share in enumerate(shares):
                sums[at] += share
    for key, (cpu, memory, counts) in usages.items():
        if counts and key not in pods:
            for at, share in enumerate(_shares(ZERO, (cpu, memory), zones)):
                spread[at] += share
    totals = [[own + even for own, even in zip(sums, spread, strict=True)] for sums in bound]
    return [
        ZoneDemand(bounded((sums[0], sums[1])), bounded((sums[2], sums[3])), bounded((sums[4], sums[5])))
        for sums in totals
    ]


def _shares(request: Amount, used: Amount, parts: int) -> tuple[int, ...]:
    """Equal parts of request, usage and the larger of both, rounded up in thousandths."""
    cpu, memory = -(-request[0] // parts), -(-request[1] // parts)
    used_cpu, used_memory = -(-used[0] // parts), -(-used[1] // parts)
    return cpu, memory, used_cpu, used_memory, max(cpu, used_cpu), max(memory, used_memory)
