"""Whole-pod amounts: effective requests and limits, CPU limit, batch amounts. Source: behaviour/api 5.5.

`api.pod_resize` decides what a pod counts for while it is resized.

`violations` decides which QoS classes, priority classes and resources go together in a pod (behaviour/api 4.5).
"""

import msgspec

from koordinator.api import quantity, resource_list, resources
from koordinator.api.core import Container, Pod, PodSpec, ResourceRequirements
from koordinator.api.pod_resize import counted_spec, is_sidecar
from koordinator.api.priority import PriorityClass
from koordinator.api.qos import QoSClass
from koordinator.api.quantity import ResourceList
from koordinator.api.resource_list import Amounts

UNLIMITED = -1
"""Value of a limit that is not set."""


def requests(pod: Pod, *, with_overhead: bool = True) -> Amounts:
    """Return what the pod needs of each resource, at once, on its node; while it is resized, what it counts for.

    The sum of containers and sidecars, or what any init step needs with the sidecars started before it,
    if that is more; pod-level cpu, memory and huge pages replace theirs; overhead comes on top.
    """
    return spec_requests(counted_spec(pod), with_overhead=with_overhead)


def spec_requests(spec: PodSpec, *, with_overhead: bool = True) -> Amounts:
    """Return the same of a spec as it stands, whatever the kubelet says of its containers."""
    total = resource_list.sum_of(resource_list.of(c.resources.requests) for c in spec.containers)
    if spec.init_containers:
        total = _with_init_containers(total, spec.init_containers)
    if spec.resources is not None:
        for name, raw in spec.resources.requests.items():
            if is_pod_level(name):
                total[name] = quantity.of(raw)
    has_more = bool(spec.overhead) and with_overhead
    return resource_list.add(total, resource_list.of(spec.overhead)) if has_more else total


def wire_requests(pod: Pod) -> ResourceList:
    """Return the same as wire texts; without any copying for the plain pod of one container."""
    return wire_sum(counted_spec(pod))


def wire_sum(spec: PodSpec) -> ResourceList:
    """`spec_requests` as wire texts, without copying for the plain pod."""
    if _is_plain(spec):
        return spec.containers[0].resources.requests
    return resource_list.to_wire(spec_requests(spec))


def is_plain(pod: Pod) -> bool:
    """Return whether the pod needs what its only container requests. Raises: QuantityError."""
    return _is_plain(pod.spec) and counted_spec(pod) is pod.spec


def _is_plain(spec: PodSpec) -> bool:
    is_one = len(spec.containers) == 1 and not spec.init_containers
    return is_one and spec.resources is None and not spec.overhead


def wire_limits(pod: Pod) -> ResourceList:
    """Return the pod's limits per resource, summed as requests are; resources without a limit are left out.

    Overhead is added only where there is a limit above 0.
    """
    spec = counted_spec(pod)
    if len(spec.containers) == 1 and not spec.init_containers and spec.resources is None:
        limits = spec.containers[0].resources.limits
        if not (spec.overhead and limits):
            return limits
    by_limits = msgspec.structs.replace(
        spec,
        containers=[_limits_as_requests(c) for c in spec.containers],
        init_containers=[_limits_as_requests(c) for c in spec.init_containers],
        resources=None
        if spec.resources is None
        else msgspec.structs.replace(spec.resources, requests=spec.resources.limits),
        overhead={},
    )
    limits = wire_sum(by_limits)
    overhead = {
        name: amount for name, amount in spec.overhead.items() if name in limits and quantity.of(limits[name])
    }
    return wire_sum(msgspec.structs.replace(by_limits, overhead=overhead)) if overhead else limits


def have_same_amounts(a: Pod, b: Pod) -> bool:
    """Return whether two states of a pod agree in all that amounts are made of (ports of containers included)."""
    old, new = counted_spec(a), counted_spec(b)
    return (
        old.containers == new.containers
        and old.init_containers == new.init_containers
        and old.overhead == new.overhead
        and old.resources == new.resources
    )


def cpu_limit_milli(pod: Pod) -> int:
    """Milli-cores that the pod may use, `UNLIMITED` if any container has no limit.

    Init containers count in their order: a sidecar adds, an ordinary one is compared with the total so far.
    """
    whole = pod.spec.resources
    if whole is not None and resources.CPU in whole.limits:
        return quantity.milli(whole.limits[resources.CPU]) or UNLIMITED
    total_milli = 0
    for container in pod.spec.containers:
        if (limit_milli := _cpu_limit_milli(container)) <= 0:
            return UNLIMITED
        total_milli += limit_milli
    for container in pod.spec.init_containers:
        if (limit_milli := _cpu_limit_milli(container)) <= 0:
            return UNLIMITED
        if is_sidecar(container):
            total_milli += limit_milli
        else:
            total_milli = max(total_milli, limit_milli)
    return total_milli or UNLIMITED


class BatchAmounts(msgspec.Struct, frozen=True):
    """Batch resources of a whole pod; a limit may be `UNLIMITED`."""

    request_cpu_milli: int
    request_memory_bytes: int
    limit_cpu_milli: int
    limit_memory_bytes: int


def batch(pod: Pod) -> BatchAmounts:
    """Batch requests and limits summed over containers and sidecars."""
    running = [c.resources for c in running_together(pod.spec)]
    return BatchAmounts(
        request_cpu_milli=_sum_requests(running, resources.BATCH_CPU),
        request_memory_bytes=_sum_requests(running, resources.BATCH_MEMORY),
        limit_cpu_milli=_sum_limits(running, resources.BATCH_CPU),
        limit_memory_bytes=_sum_limits(running, resources.BATCH_MEMORY),
    )


def running_together(spec: PodSpec) -> list[Container]:
    """Return the containers and sidecars of a pod: what runs beside each other."""
    return [*spec.containers, *filter(is_sidecar, spec.init_containers)]


def is_pod_level(name: str) -> bool:
    """Return whether the resource can be requested for the pod as a whole."""
    return name in (resources.CPU, resources.MEMORY) or name.startswith(resources.HUGEPAGES_PREFIX)


def _limits_as_requests(container: Container) -> Container:
    requirements = msgspec.structs.replace(container.resources, requests=container.resources.limits)
    return msgspec.structs.replace(container, resources=requirements)


def _with_init_containers(total: Amounts, init_containers: list[Container]) -> Amounts:
    """Return the larger of the running sum (sidecars included) and each init step's need."""
    sidecars: Amounts = {}
    steps: Amounts = {}
    for container in init_containers:
        own = resource_list.of(container.resources.requests)
        if is_sidecar(container):
            need = sidecars = resource_list.add(sidecars, own)
        else:
            need = resource_list.add(own, sidecars)
        steps = resource_list.maximum(steps, need)
    return resource_list.maximum(resource_list.add(total, sidecars), steps)


def _cpu_limit_milli(container: Container) -> int:
    return quantity.milli(container.resources.limits.get(resources.CPU, 0))


def _sum_requests(parts: list[ResourceRequirements], name: str) -> int:
    return sum(quantity.value(part.requests.get(name, 0)) for part in parts)


def _sum_limits(parts: list[ResourceRequirements], name: str) -> int:
    limits = [quantity.value(part.limits.get(name, 0)) for part in parts]
    return (sum(limits) or UNLIMITED) if all(limit > 0 for limit in limits) else UNLIMITED


FORBIDDEN_PRIORITIES: dict[QoSClass, frozenset[PriorityClass]] = {
    QoSClass.BE: frozenset((PriorityClass.NONE, PriorityClass.PROD)),
    QoSClass.LSR: frozenset((PriorityClass.NONE, PriorityClass.MID, PriorityClass.BATCH, PriorityClass.FREE)),
}
"""Raw priority classes that a raw QoS class cannot have."""
