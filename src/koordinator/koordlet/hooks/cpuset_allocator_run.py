"""Carries the choice of CPUs out: containers, sandboxes and host applications. Source: behaviour/koordlet-act 15."""

from collections.abc import Sequence
from typing import Any

from koordinator.api import cpuset
from koordinator.api.annotations import topology
from koordinator.api.annotations.node import SYSTEM_QOS_RESOURCE
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.api.qos import QoSClass
from koordinator.host.cgroup_knobs import Knob
from koordinator.koordlet.hooks import cpuset_allocator
from koordinator.koordlet.hooks.contexts import (
    ContainerContext,
    HostApplicationContext,
    PodContext,
    Response,
)
from koordinator.koordlet.hooks.cpuset_allocator import SharedPools
from koordinator.koordlet.hooks.hook import Hook, Rule
from koordinator.koordlet.hooks.registry import Level, Registry, by_pod_qos
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.view import Topic

_BOUND = (QoSClass.LSE, QoSClass.LSR)
_OTHERS = (QoSClass.LS, QoSClass.BE, QoSClass.SYSTEM, QoSClass.NONE)


class CPUSetAllocator(Hook):
    """Containers run on the CPUs that the scheduler chose, or on the pools that the others share."""

    name = "CPUSetAllocator"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._rule: Rule[SharedPools | None] = Rule(
            self.name, (Topic.TOPOLOGY,), self._parsed, None, self._count_pools
        )
        self._has_be_manager = shared.gates.is_on("BECPUManager")
        self._counts_cpus = shared.gates.is_on("PerCPUMetric")

    def rules(self) -> Sequence[Rule[Any]]:
        return (self._rule,)

    def register(self, registry: Registry) -> None:
        registry.at_resource_stages(self.name, self.of_pod, self.of_container)
        registry.reconcile(
            Level.POD, (Knob.CPU_QUOTA,), self.name, self.of_pod, select=by_pod_qos, conditions=_BOUND
        )
        for level in (Level.CONTAINER, Level.SANDBOX):
            for conditions, function in ((_BOUND, self.of_container), (_OTHERS, self.cpus_of)):
                registry.reconcile(
                    level, (Knob.CPUSET,), self.name, function, select=by_pod_qos, conditions=conditions
                )
        registry.reconcile(Level.HOST_APPLICATION, (Knob.CPUSET,), self.name, self.of_host_application)

    def of_pod(self, pod: PodContext) -> Response:
        """No quota for a pod with CPUs of its own. Raises: ProtocolError."""
        quota_us = cpuset_allocator.quota_us(
            pod.annotations, keeps_quota=self.shared.config.hooks.keep_cpu_quota, obj=pod.obj
        )
        return Response(quota_us=quota_us)

    def of_container(self, container: ContainerContext) -> Response:
        """The CPUs of a container, and no quota where they are its own. Raises: ProtocolError."""
        return Response(cpuset=self.cpus_of(container).cpuset, quota_us=self.of_pod(container.pod).quota_us)

    def cpus_of(self, container: ContainerContext) -> Response:
        """The CPUs of a container. Raises: ProtocolError."""
        pod = container.pod
        decision = cpuset_allocator.decide(
            pod.labels,
            pod.annotations,
            container.group,
            self._rule.value,
            has_be_manager=self._has_be_manager,
            obj=pod.obj,
        )
        return Response(cpuset=decision.cpus)

    def of_host_application(self, context: HostApplicationContext) -> Response:
        """The pools that services share, for LS. Raises: ProtocolError for other classes."""
        if self._rule.value is None:
            return Response()
        cpus = cpuset_allocator.host_application_cpus(context.qos, self._rule.value.shared, context.obj)
        return Response(cpuset=cpus)

    def _parsed(self) -> SharedPools | None:
        found = self.shared.view.topology
        if found is None:
            return None
        annotations, obj = found.metadata.annotations, f"NodeResourceTopology {found.metadata.name}"
        policy = topology.KUBELET_CPU_MANAGER_POLICY.read(annotations, obj)
        system = SYSTEM_QOS_RESOURCE.read(annotations, obj)
        return SharedPools(
            shared=tuple(topology.CPU_SHARED_POOLS.read(annotations, obj) or ()),
            best_effort=tuple(topology.BE_CPU_SHARED_POOLS.read(annotations, obj) or ()),
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
