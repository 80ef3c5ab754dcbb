"""Response times of all services of a fleet after a step: as they are, and as they would be without batch."""

import msgspec
import numpy as np

from koordinator.local.nodes import contention
from koordinator.local.nodes.contention import Protection
from koordinator.local.nodes.fleet import HollowFleet
from koordinator.local.nodes.usage import F64, Index, Mask, per_node


class ServiceLatency(msgspec.Struct, frozen=True):
    """Per running service pod, (pods,): milliseconds, and requests per second as the weight.

    `…_alone_ms` is what the same load would meet on the same nodes if there were no batch on them.
    """

    p50_ms: F64
    p99_ms: F64
    p99_alone_ms: F64
    p999_ms: F64
    p999_alone_ms: F64
    requests: F64


def service_latency(fleet: HollowFleet) -> ServiceLatency:
    """Latency of every service pod with the CPU that the last step gave out."""
    active = fleet.active()
    services = active[fleet.is_service[active]]
    demand = fleet.demand[services]
    factor = _slowdown(fleet, active[fleet.is_best_effort[active]])[fleet.node[services]]
    times = contention.latency(demand, _reachable_now(fleet, services, active), factor)
    alone = _reachable_alone(fleet, services, active[~fleet.is_batch[active]])
    times_alone = contention.latency(demand, alone, np.ones_like(demand))
    scale = fleet.service_time_ms[services]
    return ServiceLatency(
        p50_ms=times.p50 * scale,
        p99_ms=times.p99 * scale,
        p99_alone_ms=times_alone.p99 * scale,
        p999_ms=times.p999 * scale,
        p999_alone_ms=times_alone.p999 * scale,
        requests=demand / scale,
    )


def _reachable_now(fleet: HollowFleet, services: Index, rivals: Index) -> F64:
    """CPU that each service could get now; a best-effort tier gives way, everybody else is a rival."""
    if fleet.policy.protection is not Protection.NONE:
        rivals = rivals[~fleet.is_best_effort[rivals]]
    return _reachable(fleet, services, rivals, fleet.granted, fleet.capacity - fleet.system)


def _reachable_alone(fleet: HollowFleet, services: Index, others: Index) -> F64:
    """Return the same if only `others`, who are no batch, were on the nodes: shared out anew."""
    policy, nodes = fleet.policy, fleet.capacity.size
    node, demand = fleet.node[others], fleet.demand[others]
    wanted = np.minimum(per_node(node, demand, nodes), fleet.capacity)
    available = fleet.capacity - policy.system_base_milli - policy.system_share_of_use * wanted
    granted = np.zeros_like(fleet.granted)
    granted[others] = contention.water_fill(demand, fleet.weight[others], node, available)
    return _reachable(fleet, services, others, granted, available)


def _reachable(fleet: HollowFleet, services: Index, rivals: Index, granted: F64, available: F64) -> F64:
    """CPU that each service could get if it asked for everything, beside these rivals."""
    rival_node = fleet.node[rivals]
    return contention.reachable(
        granted[services],
        fleet.weight[services],
        fleet.limit[services],
        fleet.node[services],
        per_node(rival_node, granted[rivals], available.size),
        per_node(rival_node, fleet.weight[rivals], available.size),
        available,
    )


class TimeAbove(msgspec.Struct, frozen=True):
    """Moments of a step in which services were slower than they may be: `slots` (services,), `is_above` (moments,
    services), and how long each moment lasted, (moments,)."""

    slots: Index
    is_above: Mask
    durations_s: F64

    @property
    def seconds(self) -> F64:
        """Return for how long each service was, (services,)."""
        seconds: F64 = self.durations_s @ self.is_above
        return seconds


def time_above(fleet: HollowFleet, latency: ServiceLatency, ratio: float, elapsed_s: float) -> TimeAbove:
    """Return when in the last step p99 was above `ratio` times that without batch.

    Within a step only interference changes, where a closed loop follows it.
    """
    active = fleet.active()
    services = active[fleet.is_service[active]]
    growth = latency.p99_ms / np.maximum(latency.p99_alone_ms, 1e-9)
    loop = fleet.closed_loop
    if loop is None or not loop.is_followed:
        return TimeAbove(services, (growth > ratio)[None], np.array([elapsed_s]))
    node = fleet.node[services]
    course = loop.course[:, node] * (growth / loop.slowdown[node])
    return TimeAbove(services, course > ratio, loop.durations_s)


def _slowdown(fleet: HollowFleet, best_effort: Index) -> F64:
    """Interference of the best-effort tier on each node, on average over the step."""
    if fleet.closed_loop is not None and fleet.closed_loop.is_followed:
        return fleet.closed_loop.slowdown
    tier = per_node(fleet.node[best_effort], fleet.granted[best_effort], fleet.capacity.size)
    own = fleet.services_used + fleet.system
    return contention.slowdown(own / fleet.capacity, tier / fleet.capacity, fleet.policy.protection)
