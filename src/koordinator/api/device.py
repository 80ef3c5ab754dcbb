"""Typed view of Device: GPUs, NICs and FPGAs of the node of the same name. Source: behaviour/crds 4."""

from typing import Annotated, ClassVar

from koordinator.api.meta import Object, Resource, StandardCondition, ViewPart
from koordinator.api.quantity import ResourceList
from koordinator.api.schema import INT32, REQUIRED, always, default


class DeviceTopology(ViewPart, frozen=True, kw_only=True):
    """The place where a device is plugged in."""

    socket_id: Annotated[int, REQUIRED, INT32, "CPU socket of the device; -1 when unknown."] = always(
        -1, name="socketID"
    )
    node_id: Annotated[int, REQUIRED, INT32, "NUMA node of the device."] = always(-1, name="nodeID")
    pcie_id: Annotated[str, REQUIRED, "PCIe switch of the device, unique within the node."] = always(
        "", name="pcieID"
    )
    bus_id: Annotated[str, "PCI address, as domain:bus:device.function."] = ""


class VirtualFunction(ViewPart, frozen=True, kw_only=True):
    """A virtual function of a device."""

    minor: Annotated[int, REQUIRED, INT32, "Minor number; -1 when it has no meaning."] = always(-1)
    bus_id: Annotated[str, "PCI address, as domain:bus:device.function."] = ""


class VirtualFunctionGroup(ViewPart, frozen=True, kw_only=True):
    """Virtual functions that are alike."""

    labels: Annotated[dict[str, str], "Properties by which hints select the group."] = {}
    vfs: Annotated[list[VirtualFunction], "The virtual functions."] = []


class DeviceInfo(ViewPart, frozen=True, kw_only=True):
    """One device of a node."""

    type: Annotated[str, "Kind of device: gpu, rdma or fpga."] = ""
    id: Annotated[str, "UUID of a GPU, PCI address of a NIC."] = ""
    minor: Annotated[int | None, INT32, "Minor number on the node, from 0."] = None
    module_id: Annotated[int | None, INT32, "Physical position."] = None
    health: Annotated[bool, REQUIRED, default(False), "Whether pods may be given the device."] = always(False)
    labels: Annotated[dict[str, str], "Properties by which hints select the device."] = {}
    resources: Annotated[ResourceList, "What the device has to give."] = {}
    topology: Annotated[DeviceTopology | None, "Where the device is plugged in."] = None
    vf_groups: Annotated[list[VirtualFunctionGroup], "Virtual functions of the device."] = []
    conditions: Annotated[list[StandardCondition], "What is known of the device, such as Healthy."] = []


class DeviceSpec(ViewPart, frozen=True, kw_only=True):
    """The devices that the node agent found on the node."""

    devices: Annotated[list[DeviceInfo], "All devices of the node."] = []


class DeviceAllocationItem(ViewPart, frozen=True, kw_only=True):
    """Devices of one pod."""

    name: Annotated[str, "Name of the pod."] = ""
    namespace: Annotated[str, "Namespace of the pod."] = ""
    uuid: Annotated[str, "UID of the pod."] = ""
    minors: Annotated[list[Annotated[int, INT32]], "Minor numbers of its devices."] = []


class DeviceAllocation(ViewPart, frozen=True, kw_only=True):
    """Pods that hold devices of one type."""

    type: Annotated[str, "Kind of device: gpu, rdma or fpga."] = ""
    entries: Annotated[list[DeviceAllocationItem], "Pods with their devices."] = []


class DeviceStatus(ViewPart, frozen=True, kw_only=True):
    """The holders of each device."""

    allocations: Annotated[list[DeviceAllocation], "Allocations by type of device."] = []


class Device(Object, frozen=True, kw_only=True):
    """Devices of the node of the same name, reported by the node agent for the scheduler."""

    resource: ClassVar[Resource] = Resource(
        group="scheduling.koordinator.sh",
        version="v1alpha1",
        kind="Device",
        plural="devices",
        namespaced=False,
    )

    spec: DeviceSpec = DeviceSpec()
    status: DeviceStatus = DeviceStatus()
