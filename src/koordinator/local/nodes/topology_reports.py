"""NodeResourceTopology and Device objects of hollow nodes, as the node agents would keep them.

The machine behind a node has CPUs by core and NUMA node, memory and cards; the node agent's own functions work out what
is reported of it.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from koordinator.api import labels
from koordinator.api.annotations.node import CPUBasicInfo
from koordinator.api.core import Node, Pod
from koordinator.api.device import Device
from koordinator.api.meta import controller_reference, to_wire
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.clock import rfc3339
from koordinator.cluster import errors
from koordinator.cluster.informer import Informer, InformerFactory
from koordinator.cluster.protocol import Cluster
from koordinator.host import sysfs
from koordinator.host.sysfs import HostCPUTopology, Processor
from koordinator.koordlet.report import topology as node_topology
from koordinator.koordlet.report import topology_object
from koordinator.koordlet.report.reserved_cpus import KubeletConfig
from koordinator.koordlet.report.topology import NUMANode
from koordinator.koordlet.report.topology_object import Inputs, KubeletFacts
from koordinator.local.nodes import devices
from koordinator.local.nodes.devices import NO_FAULTS, DeviceFaults, numa_nodes
from koordinator.local.nodes.fleet import HollowFleet, NodeShape

_CPU_INFO = CPUBasicInfo(cpu_model="Hollow CPU", hyper_thread_enabled=True, vendor_id="Hollow")


def cpus(shape: NodeShape) -> HostCPUTopology:
    """Two threads per core, cores in a row on each NUMA node, a socket for each."""
    count, nodes = max(shape.cpu_milli // 1_000, 1), numa_nodes(shape)
    per_node = count // nodes
    return sysfs.topology_of(
        Processor(node=cpu // per_node, socket=cpu // per_node, core=cpu // 2, cpu=cpu)
        for cpu in range(count)
    )


def topology(shape: NodeShape, node: Node, pods: Sequence[Pod]) -> NodeResourceTopology:
    """Return what the node agent reports; `node` and `pods` are the slim ones of `topology_object`."""
    count = numa_nodes(shape)
    memory_kib = shape.memory_bytes // 1024 // count
    inputs = Inputs(
        node=node,
        pods=tuple(pods),
        finished=frozenset(),
        cpu=cpus(shape),
        cpu_info=_CPU_INFO,
        numa={number: NUMANode(0, memory_kib) for number in range(count)},
        reports_huge_pages=False,
        kubelet=KubeletFacts(KubeletConfig()),
    )
    return topology_object.compute(inputs).object


ROWS_PER_TURN = 256
"""Nodes that are reported on between two chances for everything else that hollow nodes do."""

_NO_STATUS = Node().status
_Machine = tuple[int, int, tuple[tuple[str, str], ...]]
"""CPU, memory and annotations of nodes whose reports differ in nothing but the name."""


class TopologyReports:
    """Finds the reports that are due, and writes them. `pods_on` gives the pods of a row."""

    def __init__(
        self,
        cluster: Cluster,
        factory: InformerFactory,
        fleet: HollowFleet,
        pods_on: Callable[[int], Iterable[Pod]],
    ) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._pods_on = pods_on
        self._nodes: dict[int, Node] = {}
        self._due: dict[int, None] = {}
        self._faults: dict[int, DeviceFaults] = {}
        self._alike: dict[_Machine, NodeResourceTopology] = {}
        self._stored = factory.informer(NodeResourceTopology)
        self._stored.add_handler(on_delete=lambda obj: self._want(obj.metadata.name))
        self._cards: Informer[Device] | None = None
        if any(shape.has_devices for shape in fleet.shapes):
            self._cards = factory.informer(Device)
            self._cards.add_handler(on_delete=lambda obj: self._want(obj.metadata.name))
        factory.informer(Node).add_handler(
            self._node_changed, lambda _, new: self._node_changed(new), self._node_gone
        )

    def pod_changed(self, row: int, pod: Pod) -> None:
        """A pod came or went: with CPUs of its own, fewer (or more) are shared."""
        if labels.RESOURCE_STATUS in pod.metadata.annotations and row in self._nodes:
            self._due[row] = None

    def take_due(self) -> list[int]:
        """Some rows to be reported on now."""
        rows = list(self._due)[:ROWS_PER_TURN] if self._stored.synced.is_set() else []
        for row in rows:
            del self._due[row]
        return rows

    def failed(self, row: int) -> None:
        """The report could not be written: it is due again."""
        self._due[row] = None

    async def write(self, row: int) -> None:
        """Bring the API up to date about one node. Raises: ApiError."""
        node = self._nodes.get(row)
        if node is None:
            return
        wanted = self._topology(row, node)
        stored = self._stored.get(node.metadata.name)
        if stored is None:
            await self._create(wanted)
            await self._write_devices(row, node)
            return
        patch = node_topology.patch_of(stored, wanted)
        if patch is not None:
            # Zones are one list, and others write into it.
            patch.setdefault("metadata", {})["resourceVersion"] = stored.metadata.resource_version
            await self._cluster.patch(NodeResourceTopology, node.metadata.name, patch)
        await self._write_devices(row, node)

    def _topology(self, row: int, node: Node) -> NodeResourceTopology:
        shape = self._fleet.shapes[row]
        pods = [
            topology_object.slim_pod(pod)
            for pod in self._pods_on(row)
            if labels.RESOURCE_STATUS in pod.metadata.annotations
        ]
        meta = node.metadata
        if pods or meta.labels:
            return topology(shape, node, pods)
        alike = (shape.cpu_milli, shape.memory_bytes, tuple(sorted(meta.annotations.items())))
        model = self._alike.get(alike)
        if model is None:
            model = self._alike[alike] = topology(shape, node, [])
        # Thousands of nodes of one kind share their texts.
        own = msgspec.structs.replace(
            model.metadata, name=meta.name, owner_references=[controller_reference(node)]
        )
        return msgspec.structs.replace(model, metadata=own)

    async def _create(self, wanted: NodeResourceTopology) -> None:
        try:
            await self._cluster.create(NodeResourceTopology, to_wire(wanted))
        except errors.AlreadyExists:
            self._want(wanted.metadata.name)  # the cache is behind

    async def _write_devices(self, row: int, node: Node) -> None:
        if self._cards is None:
            return
        known = self._cards.get(node.metadata.name)
        device = devices.report(
            self._fleet.shapes[row],
            node,
            self._faults.get(row, NO_FAULTS),
            now=rfc3339(self._cluster.clock.now()),
            known=known.spec.devices if known is not None else (),
        )
        if device is None:
            return
        body = to_wire(device)
        try:
            await self._cluster.create(Device, body)
        except errors.AlreadyExists:
            meta = body["metadata"]
            own = {"labels": meta.get("labels", {}), "annotations": meta.get("annotations", {})}
            await self._cluster.patch(Device, device.metadata.name, {"metadata": own, "spec": body["spec"]})

    def _node_changed(self, node: Node) -> None:
        row = self._fleet.row_of.get(node.metadata.name)
        if row is None:
            return
        slim = topology_object.slim_node(node)
        if not slim.metadata.labels:  # what the kubelet keeps then does not matter
            slim = msgspec.structs.replace(slim, status=_NO_STATUS)
        has_other_faults = self._has_changed(row, devices.faults_of(node))
        if self._nodes.get(row) != slim or has_other_faults:
            self._nodes[row] = slim
            self._due[row] = None

    def _has_changed(self, row: int, faults: DeviceFaults) -> bool:
        """Keep what is wrong with the cards of a node; return whether it was otherwise before."""
        before = self._faults.pop(row, NO_FAULTS)
        if faults != NO_FAULTS:
            self._faults[row] = faults
        return faults != before

    def _node_gone(self, node: Node) -> None:
        row = self._fleet.row_of.get(node.metadata.name)
        if row is not None:
            self._nodes.pop(row, None)
            self._faults.pop(row, None)
            self._due.pop(row, None)

    def _want(self, name: str) -> None:
        row = self._fleet.row_of.get(name)
        if row is not None and row in self._nodes:
            self._due[row] = None
