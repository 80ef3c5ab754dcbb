"""Response times of all services of a fleet after a step: as they are, and as they would be without batch."""

import msgspec
import numpy as np

from koordinator.local.nodes import contention
from koordinator.local.nodes.contention import Protection
from koordinator.local.nodes.fleet import Fleet
from koordinator.local.nodes.usage import F64, Index, per_node


class ServiceLatency(msgspec.Struct, frozen=True):
    """Per running service pod, (pods,): milliseconds, and requests per second as the weight.

    `p99_alone_ms` is what the same load would meet on the same nodes if there were no batch on them.
    """

    p50_ms: F64
    p99_ms: F64
    p99_alone_ms: F64
    requests: F64


def service_latency(fleet: Fleet) -> ServiceLatency:
    """Latency of every service pod with the CPU that the last step gave out."""
    active = fleet.active()
    services = active[fleet.is_service[active]]
    node = fleet.node[services]
    demand = np.minimum(fleet.demand[services], fleet.limit[services])
    batch = active[fleet.is_batch[active]]
    reachable = _reachable(fleet, services, active)
    alone = _reachable(fleet, services, active[~fleet.is_batch[active]])
    factor = _slowdown(fleet, batch)[node]
    times = contention.latency(demand, reachable, factor)
    times_alone = contention.latency(demand, alone, np.ones_like(demand))
    scale = fleet.service_time_ms[services]
    return ServiceLatency(
        p50_ms=times.p50 * scale,
        p99_ms=times.p99 * scale,
        p99_alone_ms=times_alone.p99 * scale,
        requests=demand / scale,
    )


def _reachable(fleet: Fleet, services: Index, rivals: Index) -> F64:
    """CPU that each service could get if it asked for everything, with only `rivals` around.

    That is what it has and what its class leaves idle, or its share by weight if that is more.
    """
    policy, nodes = fleet.policy, fleet.capacity.size
    if policy.protection is not Protection.NONE:
        rivals = rivals[~fleet.is_best_effort[rivals]]  # the best-effort tier gives way
    node, rival_node = fleet.node[services], fleet.node[rivals]
    available = fleet.capacity - fleet.system
    idle = np.maximum(available - per_node(rival_node, fleet.granted[rivals], nodes), 0.0)
    weights = np.maximum(per_node(rival_node, fleet.weight[rivals], nodes), 1.0)
    by_weight = fleet.weight[services] / weights[node] * available[node]
    reachable: F64 = np.minimum(
        np.maximum(fleet.granted[services] + idle[node], by_weight), fleet.limit[services]
    )
    return reachable


def _slowdown(fleet: Fleet, batch: Index) -> F64:
    """Interference on each node: of the protected best-effort tier, and of ordinary batch pods."""
    nodes = fleet.capacity.size
    is_best_effort = fleet.is_best_effort[batch]
    node, granted = fleet.node[batch], fleet.granted[batch]
    tier = per_node(node, granted * is_best_effort, nodes)
    ordinary = per_node(node, granted * ~is_best_effort, nodes)
    own = fleet.services_used + fleet.system
    rest = np.maximum(fleet.capacity - own, 1.0)
    load = own / fleet.capacity
    return contention.slowdown(load, tier / rest, fleet.policy.protection) * contention.slowdown(
        load, ordinary / rest, Protection.NONE
    )
