"""The whole NodeResourceTopology of a node, from what is known of it. Source: behaviour/koordlet-observe 9.

A part that cannot be worked out is left out, with the reason; the others are reported all the same.
"""

from collections.abc import Mapping

import msgspec

from koordinator.api import cpuset, labels, resource_list
from koordinator.api.annotations.node import (
    BE_CPU_SHARED_POOLS,
    CPU_BASIC_INFO,
    CPU_SHARED_POOLS,
    CPU_TOPOLOGY,
    KUBELET_CPU_MANAGER_POLICY,
    NODE_RESERVATION,
    POD_CPU_ALLOCS,
    STATIC_CPU_POLICY,
    SYSTEM_QOS_RESOURCE,
    CPUBasicInfo,
    CPUInfo,
    KubeletCPUManagerPolicy,
    SystemQOSResource,
)
from koordinator.api.annotations.node import CPUTopology as ReportedCPUs
from koordinator.api.core import Node, Pod
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import ObjectMeta, controller_reference
from koordinator.api.node_topology import NodeResourceTopology, Zone
from koordinator.api.quantity import QuantityError
from koordinator.host.sysfs import HostCPUTopology
from koordinator.koordlet.errors import NodeConfigError
from koordinator.koordlet.report import reserved_cpus, topology
from koordinator.koordlet.report.reserved_cpus import (
    NO_POLICY,
    KubeletAllocations,
    KubeletConfig,
    allocations,
    topology_policy,
)
from koordinator.koordlet.report.topology import NUMANode

MANAGED_BY, KOORDINATOR = "app.kubernetes.io/managed-by", "Koordinator"

SYSTEM_QOS, RESERVATION = "system QoS", "node reservation"
"""Parts that annotations of the Node say, so that whoever wrote them should hear of problems."""

_NONE_PINNED = KubeletAllocations((), frozenset())
_ON = "true"


class KubeletFacts(msgspec.Struct, frozen=True):
    """The facts about the kubelet: its configuration (None: not yet) and the text of its CPU manager's state."""

    config: KubeletConfig | None = None
    state: str | None = None


class Inputs(msgspec.Struct, frozen=True):
    """Everything that the report depends on; equal inputs give equal reports."""

    node: Node
    """Slim: name, UID, labels and annotations that matter, capacity, allocatable."""
    pods: tuple[Pod, ...]
    """Slim ones of the pods that are not over."""
    finished: frozenset[str]
    """UIDs of the others, as long as the kubelet lists them."""
    cpu: HostCPUTopology
    cpu_info: CPUBasicInfo
    numa: Mapping[int, NUMANode]
    """By id; `cpu_count` is filled in here."""
    reports_huge_pages: bool
    kubelet: KubeletFacts | None
    """None where the kubelet is not asked at all."""


class Computed(msgspec.Struct, frozen=True):
    """The object, and what could not be worked out."""

    object: NodeResourceTopology
    problems: dict[str, str]
    """Part → why it is missing or what it is reported without."""


def compute(inputs: Inputs, pinned_before: KubeletAllocations | None = None) -> Computed:
    """Return the object as it should be. While the CPU manager's state cannot be read, `pinned_before` still holds."""
    return _Report(inputs, pinned_before).compute()


def pinned(inputs: Inputs) -> KubeletAllocations | None:
    """Return pods that the kubelet pinned; None when its state cannot be read."""
    try:
        return _pinned(inputs)
    except NodeConfigError:
        return None


def slim_node(node: Node) -> Node:
    """Return the parts of a Node that the report depends on."""
    meta = node.metadata
    annotations = {
        key: meta.annotations[key]
        for key in (labels.NODE_RESERVATION, labels.NODE_SYSTEM_QOS_RESOURCE)
        if key in meta.annotations
    }
    if not annotations and meta.annotations:
        annotations = {"": ""}  # there are others: that is reported otherwise than none at all
    label = labels.NODE_ENABLE_NUMA_RESERVATION
    return Node(
        metadata=ObjectMeta(
            name=meta.name,
            uid=meta.uid,
            annotations=annotations,
            labels={label: meta.labels[label]} if meta.labels.get(label) else {},
        ),
        status=msgspec.structs.replace(
            _NO_STATUS, capacity=node.status.capacity, allocatable=node.status.allocatable
        ),
    )


def slim_pod(pod: Pod) -> Pod:
    """Return the parts of a pod that the report depends on."""
    meta = pod.metadata
    return Pod(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            labels=_only(meta.labels, labels.QOS_CLASS),
            annotations=_only(meta.annotations, labels.RESOURCE_STATUS),
        )
    )


_NO_STATUS = Node().status


def _only(said: Mapping[str, str], key: str) -> dict[str, str]:
    return {key: said[key]} if key in said else {}


class _Report:
    """One computation."""

    def __init__(self, inputs: Inputs, pinned_before: KubeletAllocations | None) -> None:
        self._in = inputs
        self._pinned_before = pinned_before
        self._problems: dict[str, str] = {}

    def compute(self) -> Computed:
        node = self._in.node.metadata
        made = NodeResourceTopology(
            metadata=ObjectMeta(
                name=node.name,
                labels={MANAGED_BY: KOORDINATOR, **node.labels},
                annotations=self._annotations(),
                owner_references=[controller_reference(self._in.node)],
            ),
            topology_policies=self._policies(),
            zones=self._zones(),
        )
        return Computed(made, self._problems)

    def _annotations(self) -> dict[str, str]:
        given = self._pinned()
        reservation = reserved_cpus.resolved_reservation(self._in.cpu, self._in.node.metadata.annotations)
        system = self._system()
        try:
            NODE_RESERVATION.read(self._in.node.metadata.annotations)
        except ProtocolError as error:
            self._problems[RESERVATION] = str(error)
        try:
            reserved = cpuset.parse(reservation.reserved_cpus)
        except CPUSetError:
            reserved = frozenset()
        pools = reserved_cpus.shared_pools(self._in.cpu, self._in.pods, given.cpus, reserved, system)
        made = {
            CPU_BASIC_INFO.key: CPU_BASIC_INFO.encode(self._in.cpu_info),
            CPU_TOPOLOGY.key: CPU_TOPOLOGY.encode(_reported(self._in.cpu)),
            CPU_SHARED_POOLS.key: CPU_SHARED_POOLS.encode(list(pools.shared)),
            BE_CPU_SHARED_POOLS.key: BE_CPU_SHARED_POOLS.encode(list(pools.best_effort)),
            POD_CPU_ALLOCS.key: POD_CPU_ALLOCS.encode(list(given.pods)) if given.pods else "null",
            NODE_RESERVATION.key: NODE_RESERVATION.encode(reservation),
            SYSTEM_QOS_RESOURCE.key: self._system_text(system),
        }
        policy = self._policy()
        if policy is not None:
            made[KUBELET_CPU_MANAGER_POLICY.key] = policy
        return made

    def _pinned(self) -> KubeletAllocations:
        try:
            return _pinned(self._in)
        except NodeConfigError as error:
            self._problems[error.subject] = error.reason
            return self._pinned_before or _NONE_PINNED

    def _policy(self) -> str | None:
        """Return text of the kubelet's policy; None while it is not known."""
        if self._in.kubelet is None:
            return "{}"
        config = self._in.kubelet.config
        if config is None:
            self._problems["kubelet"] = "its configuration is not known yet"
            return None
        cpus: CPUSet = frozenset()
        try:
            cpus = reserved_cpus.kubelet_reserved(self._in.cpu, config)
        except NodeConfigError as error:
            self._problems["reserved CPUs"] = str(error)
        return KUBELET_CPU_MANAGER_POLICY.encode(
            KubeletCPUManagerPolicy(
                policy=config.cpu_manager_policy,
                options=config.cpu_manager_policy_options,
                reserved_cpus=cpuset.text_of(cpus),
            )
        )

    def _policies(self) -> list[str]:
        """Empty while the kubelet's policy is not known."""
        if self._in.kubelet is None:
            return [NO_POLICY]
        config = self._in.kubelet.config
        if config is None:
            return []
        return [topology_policy(config.topology_manager_policy, config.topology_manager_scope)]

    def _system(self) -> SystemQOSResource | None:
        try:
            return SYSTEM_QOS_RESOURCE.read(self._in.node.metadata.annotations)
        except ProtocolError as error:
            self._problems[SYSTEM_QOS] = str(error)
            return None

    def _system_text(self, system: SystemQOSResource | None) -> str:
        """Return a copy of the node's annotation; one that is malformed counts as absent."""
        if not self._in.node.metadata.annotations:
            return "null"
        return "{}" if system is None else SYSTEM_QOS_RESOURCE.encode(system)

    def _zones(self) -> list[Zone]:
        """Empty when CPUs and memory disagree about the NUMA nodes."""
        by_node = self._in.cpu.by("node")
        if sorted(by_node) != sorted(self._in.numa):
            self._problems["zones"] = (
                f"CPUs are on NUMA nodes {sorted(by_node)}, memory on {sorted(self._in.numa)}"
            )
            return []
        nodes = [
            msgspec.structs.replace(self._in.numa[each], cpu_count=len(by_node[each]))
            for each in sorted(by_node)
        ]
        capacity = topology.zone_amounts(nodes, reports_huge_pages=self._in.reports_huge_pages)
        allocatable = capacity
        node = self._in.node
        if node.metadata.labels.get(labels.NODE_ENABLE_NUMA_RESERVATION) == _ON:
            try:
                kept = topology.reserved_of(
                    resource_list.of(node.status.capacity), resource_list.of(node.status.allocatable)
                )
                allocatable = topology.less_reserved(capacity, kept)
            except QuantityError as error:
                self._problems["NUMA reservation"] = str(error)
        return topology.zones_of(capacity, allocatable)


def _pinned(inputs: Inputs) -> KubeletAllocations:
    """Raises: NodeConfigError."""
    if inputs.kubelet is None:
        return _NONE_PINNED
    config = inputs.kubelet.config
    if config is not None and config.cpu_manager_policy != STATIC_CPU_POLICY:
        return _NONE_PINNED  # a state file may have been left by an older policy
    return allocations(inputs.kubelet.state, inputs.pods, inputs.finished)


def _reported(cpus: HostCPUTopology) -> ReportedCPUs:
    return ReportedCPUs(
        detail=[
            CPUInfo(id=each.cpu, core=each.core, socket=each.socket, node=each.node)
            for each in sorted(cpus.processors, key=lambda each: each.cpu)
        ]
    )
