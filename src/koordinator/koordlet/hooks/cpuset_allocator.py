"""The CPUs of a container: those that the scheduler chose, or the pools that unbound pods share.

Source: behaviour/koordlet-act 15.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from koordinator.api import cpuset, qos, quantity, resources
from koordinator.api.annotations.node import (
    BE_CPU_SHARED_POOLS,
    CPU_SHARED_POOLS,
    KUBELET_CPU_MANAGER_POLICY,
    STATIC_CPU_POLICY,
    SYSTEM_QOS_RESOURCE,
    CPUSharedPool,
)
from koordinator.api.annotations.placement import RESOURCE_STATUS, NUMANodeResource, ResourceStatus
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.api.errors import ProtocolError
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import UNLIMITED, Knob
from koordinator.koordlet.hooks.contexts import (
    ContainerContext,
    HookResponse,
    HostApplicationContext,
    PodContext,
)
from koordinator.koordlet.hooks.hook import (
    Hook,
    HookRegistry,
    HookTools,
    ReconcileLevel,
    by_pod_qos,
)
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.view import Topic


class NodeCPUPools(msgspec.Struct, frozen=True):
    """The CPU pools of a node by its NodeResourceTopology."""

    shared: tuple[CPUSharedPool, ...] = ()
    best_effort: tuple[CPUSharedPool, ...] = ()
    kubelet_policy: str = ""
    system_cpus: str = ""


def decide(
    pod_labels: Mapping[str, str],
    annotations: Mapping[str, str],
    directory: str,
    pools: NodeCPUPools | None,
    *,
    has_be_manager: bool,
    obj: str = "",
) -> str | None:
    """Return the CPU list of a container (or sandbox) in this directory: None leaves it alone, empty text clears it;
    `pools` is None before topology is known.

    Raises: ProtocolError when the annotation is malformed.
    """
    status = RESOURCE_STATUS.read(annotations, obj) or ResourceStatus()
    if status.cpuset:
        return status.cpuset
    if pools is None:
        return None
    qos_class = qos.of_labels(pod_labels)
    nodes = _bound_nodes(status.numa_node_resources)
    is_best_effort = qos_class is QoSClass.BE
    if nodes and (has_be_manager or not is_best_effort):
        from_pools = pools.best_effort if is_best_effort else pools.shared
        return _joined(from_pools, nodes)
    if qos_class is QoSClass.SYSTEM and pools.system_cpus:
        return pools.system_cpus
    if qos_class is QoSClass.LS:
        return _joined(pools.shared)
    if cgroup_layout.kube_qos_of_dir(directory) is KubeQoS.BEST_EFFORT:
        return ""  # those of all best-effort pods
    if pools.kubelet_policy == STATIC_CPU_POLICY:
        return None  # the kubelet's static policy chooses them
    return _joined(pools.shared)


def quota_us(annotations: Mapping[str, str], *, keeps_quota: bool = False, obj: str = "") -> int | None:
    """Quota of a pod and of its containers: none when their CPUs are bound; None leaves it alone.

    Raises: ProtocolError when the annotation is malformed.
    """
    status = RESOURCE_STATUS.read(annotations, obj)
    is_bound = status is not None and status.cpuset != ""
    return UNLIMITED if is_bound and not keeps_quota else None


def host_application_cpus(qos_class: QoSClass, shared: Sequence[CPUSharedPool], obj: str = "") -> str:
    """CPU list of a host application. Raises: ProtocolError unless it is LS; no other class has CPUs of its own."""
    if qos_class is not QoSClass.LS:
        raise ProtocolError(obj, "qos", f"CPUs of host applications are for LS, not {qos_class or 'none'}")
    return _joined(shared)


def _bound_nodes(entries: Sequence[NUMANodeResource]) -> list[int]:
    """The pod's NUMA nodes in the order of the annotation; none unless one of them gave it CPU."""
    return [entry.node for entry in entries] if any(map(_has_cpu, entries)) else []


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


_BOUND = (QoSClass.LSE, QoSClass.LSR)
_OTHERS = (QoSClass.LS, QoSClass.BE, QoSClass.SYSTEM, QoSClass.NONE)


class CPUSetAllocator(Hook):
    """Containers run on the CPUs that the scheduler chose, or on the pools that the others share."""

    name = "CPUSetAllocator"

    def __init__(self, shared: Shared, tools: HookTools) -> None:
        super().__init__(shared, tools)
        self._rule = self.rule((Topic.TOPOLOGY,), self._parsed, None, self._count_pools)
        self._has_be_manager = shared.gates.is_on("BECPUManager")
        self._counts_cpus = shared.gates.is_on("PerCPUMetric")

    def register(self, registry: HookRegistry) -> None:
        registry.at_resource_stages(self.name, self.of_pod, self.of_container)
        registry.reconcile(
            ReconcileLevel.POD,
            (Knob.CPU_QUOTA,),
            self.name,
            self.of_pod,
            select=by_pod_qos,
            conditions=_BOUND,
        )
        for level in (ReconcileLevel.CONTAINER, ReconcileLevel.SANDBOX):
            for conditions, function in ((_BOUND, self.of_container), (_OTHERS, self.cpus_of)):
                registry.reconcile(
                    level, (Knob.CPUSET,), self.name, function, select=by_pod_qos, conditions=conditions
                )
        registry.reconcile(
            ReconcileLevel.HOST_APPLICATION, (Knob.CPUSET,), self.name, self.of_host_application
        )

    def of_pod(self, pod: PodContext) -> HookResponse:
        """No quota for a pod with CPUs of its own. Raises: ProtocolError."""
        own_us = quota_us(pod.annotations, keeps_quota=self.shared.config.hooks.keep_cpu_quota, obj=pod.obj)
        if by_pod_qos(pod) not in _BOUND:
            return HookResponse()  # others decide about its quota (behaviour/koordlet-act 24)
        return HookResponse(quota_us=own_us)

    def of_container(self, container: ContainerContext) -> HookResponse:
        """Return the CPUs of a container, and no quota where they are its own. Raises: ProtocolError."""
        return HookResponse(
            cpuset=self.cpus_of(container).cpuset, quota_us=self.of_pod(container.pod).quota_us
        )

    def cpus_of(self, container: ContainerContext) -> HookResponse:
        """Return the CPUs of a container. Raises: ProtocolError."""
        pod = container.pod
        cpus = decide(
            pod.labels,
            pod.annotations,
            container.group,
            self._rule.value,
            has_be_manager=self._has_be_manager,
            obj=pod.obj,
        )
        return HookResponse(cpuset=cpus)

    def of_host_application(self, context: HostApplicationContext) -> HookResponse:
        """Return the pools that services share, for LS. Raises: ProtocolError for other classes."""
        if self._rule.value is None:
            return HookResponse()
        cpus = host_application_cpus(context.qos, self._rule.value.shared, context.obj)
        return HookResponse(cpuset=cpus)

    def _parsed(self) -> NodeCPUPools | None:
        found = self.shared.view.topology
        if found is None:
            return None
        annotations, obj = found.metadata.annotations, f"NodeResourceTopology {found.metadata.name}"
        policy = KUBELET_CPU_MANAGER_POLICY.read(annotations, obj)
        system = SYSTEM_QOS_RESOURCE.read(annotations, obj)
        if system is not None:
            cpuset.parse(system.cpuset)  # no group would take a malformed list
        return NodeCPUPools(
            shared=tuple(CPU_SHARED_POOLS.read(annotations, obj) or ()),
            best_effort=tuple(BE_CPU_SHARED_POOLS.read(annotations, obj) or ()),
            kubelet_policy=policy.policy if policy is not None else "",
            system_cpus=system.cpuset if system is not None else "",
        )

    def _count_pools(self) -> None:
        """Tell people how many CPUs are shared."""
        pools, metrics = self._rule.value, self.shared.metrics
        assert pools is not None
        for found, count, info in (
            (pools.shared, metrics.share_pool, metrics.share_pool_info),
            (pools.best_effort, metrics.be_share_pool, metrics.be_share_pool_info),
        ):
            cpus: CPUSet = frozenset().union(*(_cpus(pool.cpuset) for pool in found))
            count.set(len(cpus))
            info.reset()
            for cpu in sorted(cpus) if self._counts_cpus else ():
                info.set(1, str(cpu))


def _cpus(text: str) -> CPUSet:
    try:
        return cpuset.parse(text)
    except CPUSetError:
        return frozenset()
