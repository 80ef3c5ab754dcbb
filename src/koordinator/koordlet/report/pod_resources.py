"""Devices that our scheduler allocated, told to whoever asks the kubelet. Source: behaviour/koordlet-observe 10.5."""

import functools
import importlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from koordinator.api import resources
from koordinator.api.annotations.device import DEVICE_ALLOCATED, DeviceAllocation, DeviceType
from koordinator.api.errors import ProtocolError
from koordinator.host import protobuf
from koordinator.host.errors import ContentError
from koordinator.host.grpc_sockets import MESSAGE_BYTES_MAX, SocketError
from koordinator.koordlet import wakeups
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.report.outage import Outage

log = logging.getLogger(__name__)

NVIDIA_GPU = "nvidia.com/gpu"

GATE = "PodResourcesProxy"
SERVICE = "v1.PodResourcesLister"
AUGMENTED, FORWARDED = ("List", "Get"), ("GetAllocatableResources",)
SOCKET = "kubelet.sock"
CALL_S_MAX = 10.0
CHECK_S = 10.0
_NEED_HPACK = ("koordinator.host.grpc_client", "koordinator.host.grpc_server")


class ContainerDevices(msgspec.Struct, frozen=True):
    """Devices of one resource in a container."""

    resource: str
    ids: tuple[str, ...]


def allocated_devices(annotations: Mapping[str, str]) -> list[ContainerDevices]:
    """Return what to add to the first container of a pod, by resource name; nothing when absent or malformed."""
    try:
        allocated = DEVICE_ALLOCATED.read(annotations) or {}
    except ProtocolError:
        return []
    found = []
    gpus, cards = allocated.get(DeviceType.GPU, []), allocated.get(DeviceType.RDMA, [])
    if cards:
        bus_ids = tuple(bus_id for card in cards for bus_id in _bus_ids(card))
        found.append(ContainerDevices(resources.RDMA, bus_ids))
    if gpus:
        found.append(ContainerDevices(NVIDIA_GPU, tuple(gpu.id for gpu in gpus)))
    return found


def _bus_ids(card: DeviceAllocation) -> list[str]:
    """Virtual functions of the card, else the card itself."""
    if card.extension is None:
        return [card.id]
    return [function.bus_id for function in card.extension.vfs]


class _Message:
    """Numbers of fields in `v1.PodResourcesLister` (kubelet, podresources/v1/api.proto)."""

    POD_RESOURCES = 1  # of the answers to List (repeated) and Get
    NAME, NAMESPACE, CONTAINERS = 1, 2, 3  # of PodResources
    DEVICES = 2  # of ContainerResources
    RESOURCE_NAME, DEVICE_IDS = 1, 2  # of ContainerDevices


def with_allocated(answer: bytes, annotations: Mapping[tuple[str, str], Mapping[str, str]]) -> bytes:
    """Return the kubelet's answer to List or Get with the devices that pods were allocated, everything else as it
    came.

    `annotations` are those of pods by namespace and name.
    Raises: ContentError when the answer is no such message.
    """
    parts = []
    for each in protobuf.fields(answer):
        if each.number == _Message.POD_RESOURCES and each.wire_type == protobuf.BYTES:
            parts.append(protobuf.field(each.number, _pod_with_allocated(each.content, annotations)))
        else:
            parts.append(each.whole)
    return b"".join(parts)


def _pod_with_allocated(pod: bytes, annotations: Mapping[tuple[str, str], Mapping[str, str]]) -> bytes:
    found = list(protobuf.fields(pod))
    texts = {each.number: each.content for each in found if each.wire_type == protobuf.BYTES}
    namespace = protobuf.text(texts.get(_Message.NAMESPACE, b""))
    name = protobuf.text(texts.get(_Message.NAME, b""))
    devices = allocated_devices(annotations.get((namespace, name), {}))
    first = next((each for each in found if each.number == _Message.CONTAINERS), None)
    if not devices or first is None:
        return pod
    changed = protobuf.field(_Message.CONTAINERS, _container_with(first.content, devices))
    return b"".join(changed if each is first else each.whole for each in found)


def _container_with(container: bytes, devices: list[ContainerDevices]) -> bytes:
    """Return all devices by resource name, behind the other fields."""
    others, entries = [], []
    for each in protobuf.fields(container):
        if each.number == _Message.DEVICES and each.wire_type == protobuf.BYTES:
            names = [
                part.content
                for part in protobuf.fields(each.content)
                if part.number == _Message.RESOURCE_NAME
            ]
            entries.append((protobuf.text(names[-1]) if names else "", each.whole))
        else:
            others.append(each.whole)
    for device in devices:
        ids = b"".join(protobuf.field(_Message.DEVICE_IDS, each) for each in device.ids)
        entry = protobuf.field(_Message.RESOURCE_NAME, device.resource) + ids
        entries.append((device.resource, protobuf.field(_Message.DEVICES, entry)))
    entries.sort(key=lambda entry: entry[0])
    return b"".join([*others, *(whole for _, whole in entries)])


class PodResourcesProxy:
    """Serves until its `run` is cancelled; what fails is tried again after `interval_s`.

    Exporters of GPU metrics ask this socket in place of the kubelet's own, which knows nothing of such devices. gRPC is
    loaded when the proxy starts, as hpack is an extra.
    """

    name = "podresources"
    interval_s = CHECK_S
    informers = ()

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._outage = Outage("pod-resources proxy")
        self.path = os.path.join(shared.config.kubelet.pod_resources_proxy, SOCKET)
        self._kubelet = f"{shared.host.roots.kubelet}/pod-resources/{SOCKET}"

    async def run(self) -> None:
        """Serve as long as the socket is there: who removes it (a cleaned /run, say) gets a new one."""
        try:
            client, server = (importlib.import_module(name) for name in _NEED_HPACK)
        except ImportError:
            self._outage.failed("hpack is not installed (pip install '.[node]')")
            return
        kubelet = client.Channel(self._kubelet)
        serving = server.UnaryServer(self._handlers(kubelet), MESSAGE_BYTES_MAX)
        try:
            await serving.start(self.path)
            self._outage.ended()
            log.info("pod-resources proxy started", extra={"path": self.path})
            while os.path.exists(self.path):
                await wakeups.sleep(CHECK_S)
        except SocketError as error:
            self._outage.failed(error)
        finally:
            serving.close()
            await kubelet.close()

    def _handlers(self, kubelet: Any) -> Mapping[str, Callable[[bytes], Awaitable[bytes]]]:
        return {
            f"/{SERVICE}/{method}": functools.partial(self._answer, kubelet, method)
            for method in (*AUGMENTED, *FORWARDED)
        }

    async def _answer(self, kubelet: Any, method: str, request: bytes) -> bytes:
        """Return the kubelet's answer. Raises: CallError, as it was refused."""
        answer: bytes = await kubelet.call(f"/{SERVICE}/{method}", request, CALL_S_MAX)
        if method not in AUGMENTED:
            return answer
        annotations = {
            (record.pod.metadata.namespace, record.pod.metadata.name): record.pod.metadata.annotations
            for record in self._shared.view.pods.values()
        }
        try:
            return with_allocated(answer, annotations)
        except ContentError as error:
            self._outage.failed(f"the kubelet's answer is passed on as it is: {error}")
            return answer
