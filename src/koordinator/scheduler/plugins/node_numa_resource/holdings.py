"""Read from annotations what a pod holds of its node, and write it back. Source: behaviour/numa-cpu 2.1 and 13."""

from koordinator.api import cpuset, resource_vector
from koordinator.api.annotations import placement
from koordinator.api.annotations.placement import (
    CPUExclusivePolicy,
    NUMANodeResource,
    ResourceSpec,
    ResourceStatus,
)
from koordinator.api.core import Pod
from koordinator.api.cpuset import CPUSetError
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.scheduler.plugins.node_numa_resource import zones
from koordinator.scheduler.plugins.node_numa_resource.allocate import Allocation
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import CPU_ID_MAX, cpus_of
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import PodHolding
from koordinator.scheduler.plugins.node_numa_resource.topology_options import NUMA_ID_MAX
from koordinator.scheduler.plugins.node_numa_resource.zones import Amounts, Zones


def holding_of(pod: Pod, uid: str) -> PodHolding | None:
    """Return what the pod's `resource-status` says that it holds; None when that is nothing.

    CPUs and NUMA nodes with ids that no machine has are left out.
    Raises: ProtocolError when the annotation is malformed.
    """
    annotations, obj = pod.metadata.annotations, f"Pod {pod.key}"
    status = placement.RESOURCE_STATUS.read(annotations, obj)
    if status is None:
        return None
    try:
        cpus = frozenset(cpu for cpu in cpuset.parse(status.cpuset) if 0 <= cpu <= CPU_ID_MAX)
        numa = _zones(status)
    except (CPUSetError, QuantityError) as error:
        raise ProtocolError(obj, placement.RESOURCE_STATUS.key, str(error)) from error
    if not cpus and not numa:
        return None
    return PodHolding(uid, cpus, _exclusive(pod, obj), numa)


def _zones(status: ResourceStatus) -> Zones:
    found: Zones = {}
    for part in status.numa_node_resources:
        amounts = {name: amount for name, amount in zones.amounts_of(part.resources).items() if amount > 0}
        if amounts and 0 <= part.node <= NUMA_ID_MAX:
            found[part.node] = zones.total((found.get(part.node, {}), amounts))
    return found


def _exclusive(pod: Pod, obj: str) -> str:
    try:
        spec = placement.RESOURCE_SPEC.read(pod.metadata.annotations, obj) or ResourceSpec()
    except ProtocolError:
        return ""  # it says nothing about CPUs that are held already
    return exclusive_of(spec)


def exclusive_of(spec: ResourceSpec) -> str:
    """Return the exclusive policy that counts; "" is none."""
    policy = spec.preferred_cpu_exclusive_policy
    return "" if policy == CPUExclusivePolicy.NONE else policy


def held(uid: str, allocation: Allocation, exclusive: str) -> PodHolding | None:
    """Return what a pod holds once it has the allocation; None when that is nothing."""
    if not allocation.cpus and not allocation.numa:
        return None
    return PodHolding(uid, frozenset(cpus_of(allocation.cpus)), exclusive, allocation.numa)


def status_of(allocation: Allocation) -> ResourceStatus:
    """Return the `resource-status` that tells node agent, and schedulers to come, what the pod got."""
    return ResourceStatus(
        cpuset=cpuset.text_of(cpus_of(allocation.cpus)),
        numa_node_resources=[
            NUMANodeResource(node=numa, resources=_wire(amounts)) for numa, amounts in allocation.numa.items()
        ],
    )


def _wire(amounts: Amounts) -> dict[str, str | int | float]:
    return {name: resource_vector.amount_text(name, amount) for name, amount in amounts.items()}
