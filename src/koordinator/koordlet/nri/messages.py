"""The part of NRI's messages that is read or answered here: what a runtime tells, and what a plugin may change.

Nothing set means "leave alone"; numbers that can be absent are wrapped (`int | None`). Source:
github.com/containerd/nri, pkg/api/api.proto (package nri.pkg.api.v1alpha1); github.com/containerd/ttrpc, request.proto.
"""

import enum
from collections.abc import Mapping
from typing import Annotated

from koordinator.host.protobuf_messages import Message

RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"


class Event(enum.IntEnum):
    """The moments in a pod's life that a plugin may ask to be told of; the bit in its mask is one less."""

    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    START_CONTAINER = 6
    POST_START_CONTAINER = 7
    UPDATE_CONTAINER = 8
    POST_UPDATE_CONTAINER = 9
    STOP_CONTAINER = 10
    REMOVE_CONTAINER = 11


class Empty(Message, frozen=True):
    """No content."""


class RegisterPluginRequest(Message, frozen=True):
    """The plugin's name, and its place among plugins: two digits."""

    plugin_name: Annotated[str, 1] = ""
    plugin_idx: Annotated[str, 2] = ""


class ConfigureRequest(Message, frozen=True):
    """The plugin's configuration file and who calls."""

    config: Annotated[str, 1] = ""
    runtime_name: Annotated[str, 2] = ""
    runtime_version: Annotated[str, 3] = ""


class ConfigureResponse(Message, frozen=True):
    """The mask of events to be told of."""

    events: Annotated[int, 2] = 0


class LinuxMemory(Message, frozen=True):
    """Memory in bytes; −1 is no limit."""

    limit: Annotated[int | None, 1] = None


class LinuxCPU(Message, frozen=True):
    """CPU; quota and period in µs, a quota of −1 is no limit."""

    shares: Annotated[int | None, 1] = None
    quota: Annotated[int | None, 2] = None
    period: Annotated[int | None, 3] = None
    cpus: Annotated[str, 6] = ""
    mems: Annotated[str, 7] = ""


class LinuxResources(Message, frozen=True):
    """Resources of a container; `unified` are files of cgroup v2 by name."""

    memory: Annotated[LinuxMemory | None, 1] = None
    cpu: Annotated[LinuxCPU | None, 2] = None
    rdt_class: Annotated[str | None, 5] = None
    unified: Annotated[Mapping[str, str], 6] = {}


class LinuxPodSandbox(Message, frozen=True):
    """A pod on Linux."""

    pod_resources: Annotated[LinuxResources | None, 2] = None
    cgroup_parent: Annotated[str, 3] = ""


class PodSandbox(Message, frozen=True):
    """A pod."""

    id: Annotated[str, 1] = ""
    name: Annotated[str, 2] = ""
    uid: Annotated[str, 3] = ""
    namespace: Annotated[str, 4] = ""
    labels: Annotated[Mapping[str, str], 5] = {}
    annotations: Annotated[Mapping[str, str], 6] = {}
    runtime_handler: Annotated[str, 7] = ""
    linux: Annotated[LinuxPodSandbox | None, 8] = None


class Mount(Message, frozen=True):
    """A mount."""

    destination: Annotated[str, 1] = ""
    type: Annotated[str, 2] = ""
    source: Annotated[str, 3] = ""
    options: Annotated[tuple[str, ...], 4] = ()


class LinuxDevice(Message, frozen=True):
    """A device file; type `c` is a character device."""

    path: Annotated[str, 1] = ""
    type: Annotated[str, 2] = ""
    major: Annotated[int, 3] = 0
    minor: Annotated[int, 4] = 0
    file_mode: Annotated[int | None, 5] = None


class LinuxContainer(Message, frozen=True):
    """A container on Linux."""

    resources: Annotated[LinuxResources | None, 3] = None


class Container(Message, frozen=True):
    """A container that exists or is about to."""

    id: Annotated[str, 1] = ""
    pod_sandbox_id: Annotated[str, 2] = ""
    name: Annotated[str, 3] = ""
    linux: Annotated[LinuxContainer | None, 11] = None


class KeyValue(Message, frozen=True):
    """A variable of the environment."""

    key: Annotated[str, 1] = ""
    value: Annotated[str, 2] = ""


class LinuxContainerAdjustment(Message, frozen=True):
    """Changes of a container on Linux."""

    devices: Annotated[tuple[LinuxDevice, ...], 1] = ()
    resources: Annotated[LinuxResources | None, 2] = None
    oom_score_adj: Annotated[int | None, 4] = None


class ContainerAdjustment(Message, frozen=True):
    """Changes of a container before it is made."""

    mounts: Annotated[tuple[Mount, ...], 3] = ()
    env: Annotated[tuple[KeyValue, ...], 4] = ()
    linux: Annotated[LinuxContainerAdjustment | None, 6] = None


class LinuxContainerUpdate(Message, frozen=True):
    """Changes of a running container."""

    resources: Annotated[LinuxResources | None, 1] = None


class ContainerUpdate(Message, frozen=True):
    """Changes of a running container, by its id."""

    container_id: Annotated[str, 1] = ""
    linux: Annotated[LinuxContainerUpdate | None, 2] = None


class SynchronizeRequest(Message, frozen=True):
    """All that the runtime has; in parts while `more`."""

    pods: Annotated[tuple[PodSandbox, ...], 1] = ()
    containers: Annotated[tuple[Container, ...], 2] = ()
    more: Annotated[bool, 3] = False


class SynchronizeResponse(Message, frozen=True):
    """Changes of running containers; `more` as it came."""

    update: Annotated[tuple[ContainerUpdate, ...], 1] = ()
    more: Annotated[bool, 2] = False


class CreateContainerRequest(Message, frozen=True):
    """A container is about to be made."""

    pod: Annotated[PodSandbox | None, 1] = None
    container: Annotated[Container | None, 2] = None


class CreateContainerResponse(Message, frozen=True):
    """The container's changes."""

    adjust: Annotated[ContainerAdjustment | None, 1] = None


class UpdateContainerRequest(Message, frozen=True):
    """A container is about to get other resources."""

    pod: Annotated[PodSandbox | None, 1] = None
    container: Annotated[Container | None, 2] = None
    linux_resources: Annotated[LinuxResources | None, 3] = None


class UpdateContainerResponse(Message, frozen=True):
    """Changes of containers."""

    update: Annotated[tuple[ContainerUpdate, ...], 1] = ()


class StateChangeEvent(Message, frozen=True):
    """Something happened to a pod or container."""

    event: Annotated[int, 1] = 0
    pod: Annotated[PodSandbox | None, 2] = None
    container: Annotated[Container | None, 3] = None


class Request(Message, frozen=True):
    """A call of ttrpc."""

    service: Annotated[str, 1] = ""
    method: Annotated[str, 2] = ""
    payload: Annotated[bytes, 3] = b""


class Status(Message, frozen=True):
    """The outcome of a call, in gRPC's codes."""

    code: Annotated[int, 1] = 0
    message: Annotated[str, 2] = ""


class Response(Message, frozen=True):
    """The answer of a call of ttrpc."""

    status: Annotated[Status | None, 1] = None
    payload: Annotated[bytes, 2] = b""
