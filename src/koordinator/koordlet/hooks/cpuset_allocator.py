"""The CPUs of a container: those that the scheduler chose, or the pools that unbound pods share.

Source: behaviour/koordlet-act 15.
"""

import enum
from collections.abc import Collection, Mapping, Sequence

import msgspec

from koordinator.api import qos, quantity, resources
from koordinator.api.annotations.placement import RESOURCE_STATUS, NUMANodeResource, ResourceStatus
from koordinator.api.annotations.topology import CPUSharedPool
from koordinator.api.errors import ProtocolError
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_units import UNLIMITED

KUBELET_STATIC = "static"


class SharedPools(msgspec.Struct, frozen=True):
    """What NodeResourceTopology says of the node's CPUs."""

    shared: tuple[CPUSharedPool, ...] = ()
    best_effort: tuple[CPUSharedPool, ...] = ()
    kubelet_policy: str = ""
    system_cpus: str = ""


class CPUSetReason(enum.Enum):
    """Where a container's CPUs come from."""

    BOUND = "the scheduler chose them"
    NUMA_POOL = "the shared pools of its NUMA nodes"
    SYSTEM = "the CPUs of SYSTEM pods"
    SHARED_POOL = "the shared pools"
    BEST_EFFORT = "those of all best-effort pods"
    UNKNOWN = "the node's topology is not known yet"
    KUBELET = "the kubelet's static policy chooses them"


class CPUSetDecision(msgspec.Struct, frozen=True):
    """CPU list of a container: None leaves it alone, empty text clears it."""

    cpus: str | None
    reason: CPUSetReason


def decide(
    pod_labels: Mapping[str, str],
    annotations: Mapping[str, str],
    directory: str,
    pools: SharedPools | None,
    *,
    has_be_manager: bool,
    obj: str = "",
) -> CPUSetDecision:
    """The CPUs of a container (or sandbox) in this directory; `pools` is None before topology is known.

    Raises: ProtocolError when the annotation is malformed.
    """
    status = RESOURCE_STATUS.read(annotations, obj) or ResourceStatus()
    if status.cpuset:
        return CPUSetDecision(status.cpuset, CPUSetReason.BOUND)
    if pools is None:
        return CPUSetDecision(None, CPUSetReason.UNKNOWN)
    qos_class = qos.of_labels(pod_labels)
    nodes = _bound_nodes(status.numa_node_resources)
    is_best_effort = qos_class is QoSClass.BE
    if nodes and (has_be_manager or not is_best_effort):
        from_pools = pools.best_effort if is_best_effort else pools.shared
        return CPUSetDecision(_joined(from_pools, nodes), CPUSetReason.NUMA_POOL)
    if qos_class is QoSClass.SYSTEM and pools.system_cpus:
        return CPUSetDecision(pools.system_cpus, CPUSetReason.SYSTEM)
    if qos_class is QoSClass.LS:
        return CPUSetDecision(_joined(pools.shared), CPUSetReason.SHARED_POOL)
    if cgroup_layout.kube_qos_of_dir(directory) is KubeQoS.BEST_EFFORT:
        return CPUSetDecision("", CPUSetReason.BEST_EFFORT)
    if pools.kubelet_policy == KUBELET_STATIC:
        return CPUSetDecision(None, CPUSetReason.KUBELET)
    return CPUSetDecision(_joined(pools.shared), CPUSetReason.SHARED_POOL)


def quota_us(annotations: Mapping[str, str], *, keeps_quota: bool = False, obj: str = "") -> int | None:
    """Quota of a pod and of its containers: none when their CPUs are bound; None leaves it alone.

    Raises: ProtocolError when the annotation is malformed.
    """
    status = RESOURCE_STATUS.read(annotations, obj)
    is_bound = status is not None and status.cpuset != ""
    return UNLIMITED if is_bound and not keeps_quota else None


def host_application_cpus(qos_class: QoSClass, shared: Sequence[CPUSharedPool], obj: str = "") -> str:
    """CPU list of a host application.

    Raises: ProtocolError unless it is LS; no other class has CPUs of its own.
    """
    if qos_class is not QoSClass.LS:
        raise ProtocolError(obj, "qos", f"CPUs of host applications are for LS, not {qos_class or 'none'}")
    return _joined(shared)


def _bound_nodes(entries: Sequence[NUMANodeResource]) -> list[int]:
    """NUMA nodes that gave the pod CPU, in the order of the annotation."""
    return [entry.node for entry in entries if _has_cpu(entry)]


def _has_cpu(entry: NUMANodeResource) -> bool:
    amounts = entry.resources
    return quantity.milli(amounts.get(resources.CPU, 0)) != 0 or (
        quantity.value(amounts.get(resources.BATCH_CPU, 0)) > 0
    )


def _joined(pools: Sequence[CPUSharedPool], nodes: Collection[int] | None = None) -> str:
    """CPU lists of pools with a comma between; in the order of `nodes` if these are given."""
    if nodes is None:
        chosen = list(pools)
    else:
        chosen = [pool for node in nodes for pool in pools if pool.node == node]
    return ",".join(pool.cpuset for pool in chosen if pool.cpuset)
