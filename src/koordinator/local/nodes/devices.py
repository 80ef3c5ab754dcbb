"""Cards of hollow nodes: the Device object, what is wrong with them, and what pods use of them."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.api.annotations.device import (
    GPU_PARTITIONS,
    DeviceType,
    GPUPartition,
    NodePartitionPolicy,
)
from koordinator.api.core import Node
from koordinator.api.device import Device, DeviceInfo
from koordinator.api.meta import ObjectMeta, controller_reference
from koordinator.host.gpu import GPUDevice
from koordinator.host.network import RDMADevice
from koordinator.koordlet.report import device
from koordinator.koordlet.report.node_metric import device_usage
from koordinator.local.nodes.behaviour import DOMAIN
from koordinator.local.nodes.fleet import HollowFleet, NodeShape
from koordinator.local.nodes.pod_shape import CardUse

GPU_MODEL = "A100-SXM4-80GB"
GPU_DRIVER = "550.54.15"
_GIB = 2**30
_GPU_MEMORY = {"T4": 16, "V100": 32, "A10": 24, "L40": 48, "A100": 80, "H100": 80, "H20": 96, "H200": 141}
"""GiB of memory by a word of the model; the longest that fits counts."""
_GPU_MEMORY_GIB = 80
_CARDS_PER_SWITCH = 2
_FUNCTIONS = 4
"""Virtual functions of each RDMA card."""
_WHOLE_PERCENT = 100.0
_PARTITION_SIZES = (1, 2, 4, 8)
_RING_BANDWIDTH = "400Gi"
_FALLEN_OFF_THE_BUS = 79
"""The critical error (Xid) that a card is given which the annotation calls unhealthy."""

UNHEALTHY = DOMAIN + "unhealthy-devices"
"""On a Node: its cards that are broken, such as `gpu/0,rdma/1`."""
REPORTS = DOMAIN + "device-reports"
"""On a Node: `off` ends the reports of its cards, as an agent does without its gate."""


class DeviceFaults(msgspec.Struct, frozen=True):
    """Faults of cards, as the annotations of a Node say."""

    unhealthy: frozenset[str] = frozenset()
    is_silent: bool = False

    def has(self, device_type: str, minor: int) -> bool:
        """Return whether a card is broken."""
        return f"{device_type}/{minor}" in self.unhealthy


NO_FAULTS = DeviceFaults()


def faults_of(node: Node) -> DeviceFaults:
    """Return what is wrong with the cards of a node."""
    annotations = node.metadata.annotations
    broken = (each.strip() for each in annotations.get(UNHEALTHY, "").split(","))
    return DeviceFaults(frozenset(filter(None, broken)), annotations.get(REPORTS) == "off")


def numa_nodes(shape: NodeShape) -> int:
    """Two where whole cores can be shared out evenly, else one."""
    return 2 if shape.cpu_milli % 4_000 == 0 else 1


def report(
    shape: NodeShape,
    node: Node,
    faults: DeviceFaults = NO_FAULTS,
    *,
    now: str = "",
    known: Sequence[DeviceInfo] = (),
) -> Device | None:
    """Return the Device object of a node with cards; None for one without, and where nobody reports.

    Conditions changed at `now` unless the last report, `known`, has them already.
    """
    if not shape.has_devices or faults.is_silent:
        return None
    gpus = known_gpus(shape)
    found = device.report(
        gpus,
        [],
        [_rdma(shape, number, faults) for number in range(shape.rdma_cards)],
        gpu_model=device.common_model([shape.gpu_model or GPU_MODEL]) if shape.gpus else "",
        driver_version=GPU_DRIVER,
        faults={
            gpu.uuid: fault
            for gpu in gpus
            if faults.has(DeviceType.GPU, gpu.minor) and (fault := device.xid_fault(_FALLEN_OFF_THE_BUS))
        },
        now=now,
    )
    cards = device.with_old_times(found.devices, known)
    own, annotations = dict(found.labels), {}
    if shape.has_partitions:
        own[labels.GPU_PARTITION_POLICY] = NodePartitionPolicy.HONOR
        annotations[GPU_PARTITIONS.key] = GPU_PARTITIONS.encode(partitions(shape.gpus))
    meta = ObjectMeta(
        name=shape.name, labels=own, annotations=annotations, owner_references=[controller_reference(node)]
    )
    empty = Device(metadata=meta)
    return msgspec.structs.replace(empty, spec=msgspec.structs.replace(empty.spec, devices=cards))


def partitions(gpus: int) -> dict[int, list[GPUPartition]]:
    """Return the groups of cards that NVSwitches of a machine can join: 1, 2, 4 or 8 neighbours."""
    return {
        size: [
            GPUPartition(
                minors=list(range(first, first + size)),
                gpu_link_type="NVLink",
                ring_bus_bandwidth=_RING_BANDWIDTH,
                allocation_score=1,
            )
            for first in range(0, gpus - size + 1, size)
        ]
        for size in _PARTITION_SIZES
        if size <= gpus
    }


def gpu_memory_bytes(model: str) -> int:
    """Memory of a GPU of this model; of one that is not known, that of the usual one."""
    words = [word for word in _GPU_MEMORY if word in model.upper().replace("-", " ").split()]
    return (_GPU_MEMORY[max(words, key=len)] if words else _GPU_MEMORY_GIB) * _GIB


def _gpu(shape: NodeShape, number: int) -> GPUDevice:
    place = _place(shape, number, shape.gpus, 0x10)
    return GPUDevice(
        uuid=f"GPU-{number:08x}-0000-4000-8000-{zlib.crc32(shape.name.encode()):012x}",
        minor=number,
        name=shape.gpu_model or GPU_MODEL,
        memory_bytes=gpu_memory_bytes(shape.gpu_model or GPU_MODEL),
        **place,
    )


def _rdma(shape: NodeShape, number: int, faults: DeviceFaults) -> RDMADevice:
    place = _place(shape, number, shape.rdma_cards, 0x80)
    return RDMADevice(
        id=place["bus_id"],
        minor=number,
        is_healthy=not faults.has(DeviceType.RDMA, number),
        virtual_functions=tuple(
            f"{place['bus_id'].removesuffix('0')}{function}" for function in range(1, _FUNCTIONS + 1)
        ),
        **place,
    )


def _place(shape: NodeShape, number: int, count: int, first_bus: int) -> dict[str, Any]:
    """Cards are spread over the NUMA nodes in order; two share a switch."""
    numa_node = number * numa_nodes(shape) // count
    on_node = number - -(-numa_node * count // numa_nodes(shape))
    return {
        "numa_node": numa_node,
        "root_complex": f"pci0000:{numa_node * 0x40 + on_node // _CARDS_PER_SWITCH:02x}",
        "bus_id": f"0000:{first_bus + number:02x}:00.0",
    }


class NodeCardUse(msgspec.Struct, frozen=True):
    """GPU use of a node as NodeMetric has it: of all pods, and of each pod by slot."""

    node: list[DeviceInfo]
    pods: Mapping[int, list[DeviceInfo]]


NO_CARD_USE = NodeCardUse([], {})


Uses = Mapping[int, Mapping[int, CardUse]]
"""Slot and minor → use of a GPU."""
NO_USE = CardUse(0.0, 0.0)


def known_gpus(shape: NodeShape) -> list[GPUDevice]:
    """Return the GPUs of a node, ascending by minor."""
    return [_gpu(shape, number) for number in range(shape.gpus)]


def running_uses(fleet: HollowFleet, row: int) -> Uses:
    """Return what the running pods of a node use of its GPUs."""
    shape_of = fleet.shape_of
    pods = {
        slot: shape_of[slot].cards
        for slot in fleet.pods_on[row]
        if fleet.running[slot] and shape_of[slot].cards
    }
    return taking_turns(fleet.shapes[row].gpus, pods)


def taking_turns(gpus: int, pods: Uses) -> Uses:
    """Return what pods use, who want so much: on a card whose time does not suffice they take turns."""
    wanted = [0.0] * gpus
    for cards in pods.values():
        for minor, use in cards.items():
            wanted[minor] += use.core_percent
    share = [min(1.0, _WHOLE_PERCENT / percent) if percent else 1.0 for percent in wanted]
    return {
        slot: {
            minor: CardUse(use.core_percent * share[minor], use.memory_bytes)
            for minor, use in sorted(cards.items())
        }
        for slot, cards in pods.items()
    }


def use_of(shape: NodeShape, uses: Uses) -> NodeCardUse:
    """Return the use of a node's GPUs as reports have it."""
    known = known_gpus(shape)
    of_pods = {
        slot: [device_usage(known[minor], use.core_percent, use.memory_bytes) for minor, use in cards.items()]
        for slot, cards in uses.items()
    }
    node = []
    for gpu in known:
        there = [cards[gpu.minor] for cards in uses.values() if gpu.minor in cards]
        core, memory = sum(use.core_percent for use in there), sum(use.memory_bytes for use in there)
        node.append(device_usage(gpu, core, memory))
    return NodeCardUse(node, of_pods)
