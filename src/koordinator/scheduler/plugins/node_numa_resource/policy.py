"""Decide which pods bind CPUs, how, and where that is possible. Source: behaviour/numa-cpu 3.4, 5, 6.2 and 13."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from koordinator.api import labels, priority, qos, resources
from koordinator.api.annotations import placement
from koordinator.api.annotations.placement import (
    CPUBindPolicy,
    NUMANodeExclusive,
    NUMATopologyPolicy,
    ResourceSpec,
)
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.node_labels import NodeCPUBindPolicy, amplify
from koordinator.api.priority import PriorityClass
from koordinator.api.qos import QoSClass
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Status, error, unresolvable, unschedulable
from koordinator.scheduler.plugins.node_numa_resource.allocate import AllocationRequest
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import CPU_MILLI, Amounts, NodeCPUTopology
from koordinator.scheduler.plugins.node_numa_resource.score import NUMAScoringStrategy


class NodeNUMAResourceArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Defaults as upstream's."""

    default_cpu_bind_policy: Literal["", "FullPCPUs", "SpreadByPCPUs"] = msgspec.field(
        name="defaultCPUBindPolicy", default="FullPCPUs"
    )
    """Policy of LSE and LSR pods that name none; "" leaves them unbound."""
    scoring_strategy: NUMAScoringStrategy = NUMAScoringStrategy()
    numa_scoring_strategy: NUMAScoringStrategy = NUMAScoringStrategy()
    """Scores NUMA nodes within a node; its type is also the order in which they fill, if no label names another."""


POLICY_MISMATCH = unresolvable("node(s) NUMA Topology policy not match")
NOT_INTEGER = unresolvable("the requested CPUs must be integer")
AMPLIFIED_SHORT = unschedulable("Insufficient amplified cpu")
INVALID_TOPOLOGY = unresolvable("node(s) invalid CPU Topology")
POLICY_CONFLICT = unresolvable("node(s) cpu bind policy conflicts with pod's required cpu bind policy")
BROKEN_CORES = unresolvable("node(s) requested cpus not multiple cpus per core")

_NO_SPEC, _NO_NUMA_SPEC = ResourceSpec(), placement.NUMATopologySpec()
_BINDING_POLICIES = (CPUBindPolicy.FULL_PCPUS, CPUBindPolicy.SPREAD_BY_PCPUS)
_FORCED = {
    NodeCPUBindPolicy.FULL_PCPUS_ONLY: CPUBindPolicy.FULL_PCPUS,
    NodeCPUBindPolicy.SPREAD_BY_PCPUS: CPUBindPolicy.SPREAD_BY_PCPUS,
}


class PodPlan(msgspec.Struct, frozen=True):
    """The requests of a pod for CPUs and NUMA nodes, before any node is looked at."""

    requests: Amounts = {}
    binds_cpus: bool = False
    required_policy: str = ""
    policy: str = ""
    """The bind policy that counts: the required one, else the preferred one; "" unless CPUs are bound."""
    exclusive: str = ""
    numa_policy: NUMATopologyPolicy = NUMATopologyPolicy.NONE
    numa_exclusive: str = ""
    status: Status = SUCCESS

    @property
    def is_exclusive(self) -> bool:
        """Return whether NUMA nodes must not be shared with pods that reach beyond them: a pod with a policy of its own
        demands that unless it says otherwise."""
        if self.numa_policy and not self.numa_exclusive:
            return True
        return self.numa_exclusive == NUMANodeExclusive.REQUIRED

    @property
    def cpu_milli(self) -> int:
        return self.requests.get(resources.CPU, 0)

    @property
    def cpu_count(self) -> int:
        """Whole CPUs requested."""
        return self.cpu_milli // CPU_MILLI


class BindDecision(msgspec.Struct, frozen=True):
    """The way in which a pod binds CPUs on one node. `status` refuses what cannot be."""

    binds_cpus: bool
    policy: str = ""
    is_required: bool = False
    status: Status = SUCCESS


class NUMAPolicyDecision(msgspec.Struct, frozen=True):
    """The NUMA policy of a pod on a node."""

    policy: NUMATopologyPolicy
    status: Status = SUCCESS


class BoundCPUUsage(msgspec.Struct, frozen=True):
    """CPU of a node whose CPU is amplified: what it offers, what its pods request (not amplified)."""

    allocatable_milli: int
    requested_milli: int
    pinned_cpu_count: int


# The pod


def plan_pod(pod: Pod, default_bind_policy: str, requests: Amounts) -> PodPlan:
    """Return what the pod asks for; a refusal holds on every node, SKIP means that it requests nothing. `requests` are
    the pod's without zeros."""
    annotations, spec, numa = pod.metadata.annotations, _NO_SPEC, _NO_NUMA_SPEC
    if annotations:
        obj = f"Pod {pod.metadata.namespace}/{pod.metadata.name}"
        try:
            spec = placement.RESOURCE_SPEC.read(annotations, obj) or spec
            numa = placement.NUMA_TOPOLOGY_SPEC.read(annotations, obj) or numa
        except ProtocolError as bad:
            return PodPlan(status=error(str(bad)))
    if not requests:
        return PodPlan(status=SKIP)
    plan = PodPlan(
        requests=requests,
        numa_policy=numa_policy_of(numa.numa_topology_policy),
        numa_exclusive=numa.single_numa_node_exclusive,
    )
    return _with_binding(plan, pod, spec, default_bind_policy)


def _with_binding(plan: PodPlan, pod: Pod, spec: ResourceSpec, default: str) -> PodPlan:
    # Only the label counts: a Guaranteed pod without it is treated as LSR elsewhere, but is not bound.
    wants = qos.raw(pod) in (QoSClass.LSE, QoSClass.LSR) and priority.default(pod) is PriorityClass.PROD
    preferred, required = spec.preferred_cpu_bind_policy, spec.required_cpu_bind_policy
    if preferred in ("", CPUBindPolicy.DEFAULT):
        preferred = default
    if required == CPUBindPolicy.DEFAULT:
        required = default
    policy = required or preferred
    if not wants or policy not in _BINDING_POLICIES:
        return plan
    if plan.cpu_milli % CPU_MILLI:
        return msgspec.structs.replace(plan, status=NOT_INTEGER)
    if not plan.cpu_milli:
        return plan
    return msgspec.structs.replace(
        plan,
        binds_cpus=True,
        required_policy=required,
        policy=policy,
        exclusive=spec.preferred_cpu_exclusive_policy,
    )


def numa_policy_of(text: str) -> NUMATopologyPolicy:
    """Return the policy of that name; any other text is no policy."""
    return _NUMA_POLICIES.get(text, NUMATopologyPolicy.NONE)


_NUMA_POLICIES = {policy.value: policy for policy in NUMATopologyPolicy}


# The pod on a node


def node_numa_policy(
    node_labels: Mapping[str, str], kubelet: NUMATopologyPolicy = NUMATopologyPolicy.NONE
) -> NUMATopologyPolicy:
    """Return the label's policy if it names one, else the kubelet's."""
    return numa_policy_of(node_labels.get(labels.NODE_NUMA_TOPOLOGY_POLICY, "")) or kubelet


def merge_numa_policies(node: NUMATopologyPolicy, pod: NUMATopologyPolicy) -> NUMAPolicyDecision:
    """That of the one that has any; two that differ do not fit each other."""
    if node and pod and node is not pod:
        return NUMAPolicyDecision(NUMATopologyPolicy.NONE, POLICY_MISMATCH)
    return NUMAPolicyDecision(pod or node)


def decide_binding(plan: PodPlan, node_policy: NodeCPUBindPolicy) -> BindDecision:
    """Return whether and how the pod binds CPUs on a node; the node's policy binds whoever requests `cpu`."""
    forced = _FORCED.get(node_policy)
    if not plan.binds_cpus and (forced is None or plan.cpu_milli == 0):
        return BindDecision(False)
    if plan.cpu_milli % CPU_MILLI:
        return BindDecision(True, status=NOT_INTEGER)
    if plan.required_policy:
        conflicts = forced is not None and forced != plan.required_policy
        return BindDecision(True, plan.required_policy, True, POLICY_CONFLICT if conflicts else SUCCESS)
    if forced is not None:
        return BindDecision(True, forced, True)
    return BindDecision(True, plan.policy)


def request_of(plan: PodPlan, binding: BindDecision) -> AllocationRequest:
    """Return what to allocate for a pod on a node."""
    return AllocationRequest(
        amounts=plan.requests,
        cpu_count=plan.cpu_count if binding.binds_cpus else 0,
        bind_policy=binding.policy,
        is_policy_required=binding.is_required,
        exclusive=plan.exclusive,
    )


def check_amplified(cpu_milli: int, binds_cpus: bool, node: BoundCPUUsage, ratio: float) -> Status:
    """Return whether the CPU fits on a node whose CPU is amplified; bound CPUs count amplified, new and old."""
    if ratio <= 1 or cpu_milli <= 0:
        return SUCCESS
    need_milli = amplify(cpu_milli, ratio) if binds_cpus else cpu_milli
    pinned_milli, used_milli = CPU_MILLI * node.pinned_cpu_count, node.requested_milli
    if used_milli >= pinned_milli > 0:
        used_milli += amplify(pinned_milli, ratio) - pinned_milli
    return SUCCESS if need_milli <= node.allocatable_milli - used_milli else AMPLIFIED_SHORT


def check_binding(plan: PodPlan, binding: BindDecision, cpus: NodeCPUTopology) -> Status:
    """Return whether these CPUs can be bound as decided, however many are free."""
    if not binding.binds_cpus:
        return SUCCESS
    if not cpus.is_valid:
        return INVALID_TOPOLOGY
    if not binding.status.is_success:
        return binding.status
    is_full = binding.is_required and binding.policy == CPUBindPolicy.FULL_PCPUS
    return BROKEN_CORES if is_full and plan.cpu_count % cpus.cpus_per_core else SUCCESS


# What is written back


def completed_spec(spec: ResourceSpec, binding: BindDecision) -> ResourceSpec:
    """Return the pod's `resource-spec` with the bind policy that was used, for the node agent and for people."""
    required, preferred = spec.required_cpu_bind_policy, spec.preferred_cpu_bind_policy
    if binding.is_required and required in ("", CPUBindPolicy.DEFAULT):
        required = binding.policy
    if preferred == CPUBindPolicy.DEFAULT or not (required or preferred):
        preferred = binding.policy
    return msgspec.structs.replace(
        spec, required_cpu_bind_policy=required, preferred_cpu_bind_policy=preferred
    )
