"""The machine behind a hollow node: CPUs by core and NUMA node, memory, cards. Pure.

The node agent's own functions work out what is reported of it.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from koordinator.api.annotations.node import CPUBasicInfo
from koordinator.api.core import Node, Pod
from koordinator.api.device import Device
from koordinator.api.meta import ObjectMeta, OwnerReference
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.host import sysfs
from koordinator.host.sysfs import HostCPUTopology, Processor
from koordinator.koordlet.report import device, topology_object
from koordinator.koordlet.report.device import GPU, RDMACard
from koordinator.koordlet.report.reserved_cpus import KubeletConfig
from koordinator.koordlet.report.topology import NUMANode
from koordinator.koordlet.report.topology_object import Inputs, KubeletFacts
from koordinator.local.nodes.fleet import NodeShape

GPU_MODEL = "A100-SXM4-80GB"
GPU_DRIVER = "550.54.15"
_GIB = 2**30
_GPU_MEMORY = {"T4": 16, "V100": 32, "A10": 24, "L40": 48, "A100": 80, "H100": 80, "H20": 96, "H200": 141}
"""GiB of memory by a word of the model; the longest that fits counts."""
_GPU_MEMORY_GIB = 80
_CARDS_PER_SWITCH = 2
_CPU_INFO = CPUBasicInfo(cpu_model="Hollow CPU", hyper_thread_enabled=True, vendor_id="Hollow")


def numa_nodes(shape: NodeShape) -> int:
    """Two where whole cores can be shared out evenly, else one."""
    return 2 if shape.cpu_milli % 4_000 == 0 else 1


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
        cpu=cpus(shape),
        cpu_info=_CPU_INFO,
        numa={number: NUMANode(0, memory_kib) for number in range(count)},
        reports_huge_pages=False,
        kubelet=KubeletFacts(KubeletConfig()),
    )
    return topology_object.compute(inputs).object


def owner(node: Node) -> OwnerReference:
    """Return the reference by which a report goes with its node."""
    resource = Node.resource
    return OwnerReference(
        api_version=resource.api_version,
        kind=resource.kind,
        name=node.metadata.name,
        uid=node.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def devices(shape: NodeShape, node: Node) -> Device | None:
    """Return the Device object of a node with cards, None for one without."""
    if not (shape.gpus or shape.rdma_cards):
        return None
    found = device.report(
        [_gpu(shape, number) for number in range(shape.gpus)],
        [],
        [_rdma(shape, number) for number in range(shape.rdma_cards)],
        gpu_model=device.common_model([shape.gpu_model or GPU_MODEL]) if shape.gpus else "",
        driver_version=GPU_DRIVER,
    )
    meta = ObjectMeta(name=shape.name, labels=found.labels, owner_references=[owner(node)])
    empty = Device(metadata=meta)
    return msgspec.structs.replace(empty, spec=msgspec.structs.replace(empty.spec, devices=found.devices))


def gpu_memory_bytes(model: str) -> int:
    """Memory of a GPU of this model; of one that is not known, that of the usual one."""
    words = [word for word in _GPU_MEMORY if word in model.upper().replace("-", " ").split()]
    return (_GPU_MEMORY[max(words, key=len)] if words else _GPU_MEMORY_GIB) * _GIB


def _gpu(shape: NodeShape, number: int) -> GPU:
    place = _place(shape, number, shape.gpus, 0x10)
    return GPU(
        uuid=f"GPU-{number:08x}-0000-4000-8000-{zlib.crc32(shape.name.encode()):012x}",
        minor=number,
        memory_bytes=gpu_memory_bytes(shape.gpu_model or GPU_MODEL),
        **place,
    )


def _rdma(shape: NodeShape, number: int) -> RDMACard:
    place = _place(shape, number, shape.rdma_cards, 0x80)
    return RDMACard(id=place["bus_id"], minor=number, is_healthy=True, **place)


def _place(shape: NodeShape, number: int, count: int, first_bus: int) -> dict[str, Any]:
    """Cards are spread over the NUMA nodes in order; two share a switch."""
    numa_node = number * numa_nodes(shape) // count
    on_node = number - -(-numa_node * count // numa_nodes(shape))
    return {
        "numa_node": numa_node,
        "root_complex": f"pci0000:{numa_node * 0x40 + on_node // _CARDS_PER_SWITCH:02x}",
        "bus_id": f"0000:{first_bus + number:02x}:00.0",
    }
