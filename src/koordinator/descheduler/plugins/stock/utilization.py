"""LowNodeUtilization and HighNodeUtilization: balance nodes by requests. Pure. Source: behaviour/descheduler 12.

Amounts are thousandths. Usage in percent is of allocatable, and of capacity for a node that tells no allocatable.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api import pod_resources, resource_list, resources
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import ViewPart
from koordinator.descheduler import node_fit, pod_filter
from koordinator.descheduler.config.checks import NonNegative
from koordinator.descheduler.node_fit import NodeFree
from koordinator.descheduler.plugin import Actions, EvictAction
from koordinator.descheduler.plugins.stock import common
from koordinator.descheduler.pod_filter import Namespaces, PodPredicate

Thresholds = dict[str, float]
ALWAYS = (resources.CPU, resources.MEMORY, resources.PODS)
ONLY_THRESHOLDING = "OnlyThresholdingResources"
_UNIT = 1000


class EvictionLimits(ViewPart, frozen=True, kw_only=True):
    """Evictions of one pass over one node; None is unlimited."""

    node: NonNegative | None = None


class LowNodeUtilizationArgs(ViewPart, frozen=True, kw_only=True):
    """The options that say when a node has few requests, and when many."""

    thresholds: Thresholds = {}
    target_thresholds: Thresholds = {}
    use_deviation_thresholds: bool = False
    number_of_nodes: int = 0
    evictable_namespaces: Namespaces | None = None
    eviction_limits: EvictionLimits | None = None
    metrics_utilization: dict[str, Any] | None = None


class HighNodeUtilizationArgs(ViewPart, frozen=True, kw_only=True):
    """The options that say when a node has so few requests that it is emptied."""

    thresholds: Thresholds = {}
    number_of_nodes: int = 0
    eviction_modes: list[str] = []
    evictable_namespaces: Namespaces | None = None


def check_low(args: LowNodeUtilizationArgs) -> None:
    """Raises: ProtocolError."""
    name = "LowNodeUtilization"
    if args.metrics_utilization is not None:
        raise ProtocolError(name, "metricsUtilization", "is not there: usage is that of requests")
    _check_thresholds(name, args.thresholds, "thresholds")
    _check_thresholds(name, args.target_thresholds, "targetThresholds")
    if args.thresholds.keys() != args.target_thresholds.keys():
        raise ProtocolError(name, "targetThresholds", "must name the resources of thresholds")
    for resource, low in args.thresholds.items():
        if not args.use_deviation_thresholds and low > args.target_thresholds[resource]:
            raise ProtocolError(name, f"thresholds.{resource}", f"{low} is above that in targetThresholds")
    _check_namespaces(name, args.evictable_namespaces)


def check_high(args: HighNodeUtilizationArgs) -> None:
    """Raises: ProtocolError."""
    name = "HighNodeUtilization"
    _check_thresholds(name, args.thresholds, "thresholds")
    if unknown := [mode for mode in args.eviction_modes if mode != ONLY_THRESHOLDING]:
        raise ProtocolError(name, "evictionModes", f"{unknown[0]!r} is unknown; there is {ONLY_THRESHOLDING}")
    _check_namespaces(name, args.evictable_namespaces)


def _check_thresholds(name: str, thresholds: Thresholds, field: str) -> None:
    if not thresholds:
        raise ProtocolError(name, field, "is empty")
    for resource, percent in thresholds.items():
        if not 0 <= percent <= 100:
            raise ProtocolError(name, f"{field}.{resource}", f"{percent} is not from 0 to 100")


def _check_namespaces(name: str, namespaces: Namespaces | None) -> None:
    if namespaces is not None and namespaces.include:
        raise ProtocolError(name, "evictableNamespaces.include", "is not there, only exclude")


class RequestedNode(msgspec.Struct, frozen=True):
    """A node with what it has and what is requested of it, by resource."""

    room: NodeFree
    capacity: dict[str, int]
    used: dict[str, int]
    known: frozenset[str]
    """The resources that the node tells, also those of which it has none."""

    def percent(self, name: str) -> float:
        """Return the part of a resource that is requested; 0 where the node has none."""
        most = self.capacity[name]
        # In upstream's order: 55 of 100 are a little more than 55 percent.
        return self.used[name] / most * 100 if most > 0 else 0.0

    def limit(self, name: str, percent: float) -> int:
        """Return so many percent of what there is, cut off to milli-cores and whole units: half a pod is no room."""
        unit = 1 if name == resources.CPU else _UNIT
        return int(percent * 0.01 * (self.capacity[name] // unit)) * unit


def requested(room: NodeFree, names: Sequence[str]) -> RequestedNode:
    """Return the node's requests of the resources `names`; each pod takes one of "pods"."""
    status, free = room.node.status, room.free_milli
    if not status.allocatable:
        status = msgspec.structs.replace(status, allocatable=status.capacity)
        free = node_fit.room_of(msgspec.structs.replace(room.node, status=status), room.pods).free_milli
    amounts = resource_list.of(status.allocatable)
    capacity = {name: amounts[name].milli if name in amounts else 0 for name in names}
    used = {
        name: capacity[name] - free[name] if name in free else _sum_of_requests(room.pods, name)
        for name in names
    }
    used[resources.PODS] = len(room.pods) * _UNIT
    return RequestedNode(room, capacity, used, frozenset(amounts))


def relieve(args: LowNodeUtilizationArgs, rooms: Sequence[NodeFree], may_evict: PodPredicate) -> Actions[int]:
    """Evict from nodes above the targets while those below the thresholds have room; how many were accepted."""
    names = _names(args.thresholds)
    nodes = [requested(room, names) for room in rooms]
    low_percent, high_percent = _limits(args, nodes)
    low = [
        one
        for one in nodes
        if not one.room.node.spec.unschedulable
        and all(one.percent(name) <= low_percent[name] for name in args.thresholds)
    ]
    is_low = {id(one) for one in low}
    high = [
        one
        for one in nodes
        if id(one) not in is_low and any(one.percent(name) > high_percent[name] for name in args.thresholds)
    ]
    if len(low) <= args.number_of_nodes:
        return 0
    budget = {
        name: sum(one.limit(name, high_percent.get(name, 100.0)) - one.used[name] for one in low)
        for name in names
    }
    targets = [one.room for one in low]
    most = args.eviction_limits.node if args.eviction_limits is not None else None
    movable = pod_filter.compose(args.evictable_namespaces, (), may_evict)
    count = 0
    for one in sorted(high, key=lambda node: (-_size(node), node.room.node.metadata.name)):
        used, gone = dict(one.used), 0
        limits = {name: one.limit(name, high_percent.get(name, 100.0)) for name in names}
        for pod in sorted(filter(movable, one.room.pods), key=common.priority_key):
            is_above = any(used[name] > limits[name] for name in names)
            if not is_above or min(budget.values()) <= 0 or (most is not None and gone >= most):
                break
            if not any(node_fit.tolerates_all(pod, target.node.spec.taints) for target in targets):
                continue
            if (yield EvictAction(pod)):
                gone += 1
                for name, amount in _need(pod, names).items():
                    used[name] -= amount
                    budget[name] -= amount
        count += gone
    return count


def empty_out(
    args: HighNodeUtilizationArgs, rooms: Sequence[NodeFree], may_evict: PodPredicate
) -> Actions[int]:
    """Evict from nodes below the thresholds while the others have room; how many were accepted."""
    names = _names(args.thresholds)
    nodes = [requested(room, names) for room in rooms]
    sources = [one for one in nodes if all(one.percent(n) <= args.thresholds[n] for n in args.thresholds)]
    chosen = {id(one) for one in sources}
    targets = [one for one in nodes if id(one) not in chosen and not one.room.node.spec.unschedulable]
    if len(sources) <= args.number_of_nodes:
        return 0
    budget = {name: sum(one.capacity[name] - one.used[name] for one in targets) for name in names}
    movable = pod_filter.compose(args.evictable_namespaces, (), may_evict)
    only = ONLY_THRESHOLDING in args.eviction_modes
    count = 0
    for one in sorted(sources, key=lambda node: (_size(node), node.room.node.metadata.name)):
        for pod in sorted(filter(movable, one.room.pods), key=common.priority_key):
            if min(budget.values()) <= 0:
                break
            if only and not _asks_for_any(pod, args.thresholds):
                continue
            if not any(node_fit.tolerates_all(pod, target.room.node.spec.taints) for target in targets):
                continue
            if (yield EvictAction(pod)):
                count += 1
                for name, amount in _need(pod, names).items():
                    budget[name] -= amount
    return count


def _names(thresholds: Thresholds) -> list[str]:
    return list(dict.fromkeys((*thresholds, *ALWAYS)))


def _limits(args: LowNodeUtilizationArgs, nodes: Sequence[RequestedNode]) -> tuple[Thresholds, Thresholds]:
    """Return low and high limits in percent; in deviation mode around the average of the nodes that know the
    resource."""
    if not args.use_deviation_thresholds:
        return args.thresholds, args.target_thresholds
    average = {name: _average(nodes, name) for name in args.thresholds}
    low = {name: min(max(average[name] - part, 0.0), 100.0) for name, part in args.thresholds.items()}
    return low, {name: min(average[name] + part, 100.0) for name, part in args.target_thresholds.items()}


def _average(nodes: Sequence[RequestedNode], name: str) -> float:
    having = [one for one in nodes if name in one.known]
    return sum(one.percent(name) for one in having) / max(len(having), 1)


def _size(node: RequestedNode) -> int:
    """Plain sum over resources: milli-cores and whole units, as upstream adds them up."""
    return sum(amount if name == resources.CPU else amount // _UNIT for name, amount in node.used.items())


def _sum_of_requests(pods: Sequence[Pod], name: str) -> int:
    requests = (pod_resources.requests(pod) for pod in pods)
    return sum(amounts[name].milli for amounts in requests if name in amounts)


def _asks_for_any(pod: Pod, names: Collection[str]) -> bool:
    """Return whether a container names one of the resources, even if it wants none of it."""
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return any(name in container.resources.requests for container in containers for name in names)


def _need(pod: Pod, names: Sequence[str]) -> Mapping[str, int]:
    amounts = pod_resources.requests(pod)
    need = {name: amounts[name].milli if name in amounts else 0 for name in names}
    need[resources.PODS] = _UNIT
    return need
