"""Pods by CRI calls, as a kubelet makes them: the few messages that tests need, and a client that waits for answers.

Source: k8s.io/cri-api, runtime/v1/api.proto.
"""

from typing import Annotated, Any, TypeVar

import grpc

from koordinator.host import cri_messages
from koordinator.host.cri_messages import (
    RUNTIME_SERVICE,
    Container,
    ContainerConfig,
    ContainerIDMessage,
    ContainerStatus,
    ContainerStatusResponse,
    CreateContainerRequest,
    LinuxContainerResources,
    ListContainersResponse,
    ListPodSandboxResponse,
    PodSandbox,
    PodSandboxConfig,
    PodSandboxRequest,
    RunPodSandboxRequest,
    RunPodSandboxResponse,
    StopContainerRequest,
    UpdateContainerResourcesRequest,
)
from koordinator.host.protobuf_messages import Message, decode, encode

CALL_S_MAX = 30.0
NODE, CONTAINER = 2, 1
"""Modes of namespaces."""

A = TypeVar("A", bound=Message)


class Empty(Message, frozen=True):
    pass


class NamespaceOption(Message, frozen=True):
    """The network of the node needs no CNI."""

    network: Annotated[int, 1] = NODE
    pid: Annotated[int, 2] = CONTAINER


class SandboxSecurity(Message, frozen=True):
    namespace_options: Annotated[NamespaceOption | None, 1] = NamespaceOption()
    privileged: Annotated[bool, 6] = False


class LinuxPodSandboxConfig(cri_messages.LinuxPodSandboxConfig, frozen=True):
    security_context: Annotated[SandboxSecurity | None, 2] = SandboxSecurity()


class ContainerSecurity(Message, frozen=True):
    privileged: Annotated[bool, 2] = False
    namespace_options: Annotated[NamespaceOption | None, 3] = NamespaceOption()
    readonly_rootfs: Annotated[bool, 7] = False


class LinuxContainerConfig(cri_messages.LinuxContainerConfig, frozen=True):
    security_context: Annotated[ContainerSecurity | None, 2] = ContainerSecurity()


class Mount(Message, frozen=True):
    container_path: Annotated[str, 1] = ""
    host_path: Annotated[str, 2] = ""
    readonly: Annotated[bool, 3] = False
    propagation: Annotated[int, 5] = 0


PROPAGATIONS = {"": 0, "None": 0, "HostToContainer": 1, "Bidirectional": 2}


class MountingContainerConfig(ContainerConfig, frozen=True):
    mounts: Annotated[tuple[Mount, ...], 7] = ()


class CRIClient:
    """Calls of a runtime, or of a proxy in front of it, at a socket. Raises: grpc.RpcError."""

    def __init__(self, socket: str) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}")

    def close(self) -> None:
        self._channel.close()

    def call(self, method: str, request: Message, answer: type[A]) -> A:
        """Any method; waits until the server is there."""
        raw: Any = self._channel.unary_unary(f"/{RUNTIME_SERVICE}/{method}")
        return decode(answer, raw(encode(request), timeout=CALL_S_MAX, wait_for_ready=True))

    def run_sandbox(self, config: PodSandboxConfig) -> str:
        return self.call("RunPodSandbox", RunPodSandboxRequest(config), RunPodSandboxResponse).pod_sandbox_id

    def create_container(self, sandbox: str, container: ContainerConfig, pod: PodSandboxConfig) -> str:
        request = CreateContainerRequest(sandbox, container, pod)
        return self.call("CreateContainer", request, ContainerIDMessage).container_id

    def start_container(self, container: str) -> None:
        self.call("StartContainer", ContainerIDMessage(container), Empty)

    def update_container(self, container: str, resources: LinuxContainerResources) -> None:
        self.call("UpdateContainerResources", UpdateContainerResourcesRequest(container, resources), Empty)

    def stop_container(self, container: str) -> None:
        self.call("StopContainer", StopContainerRequest(container), Empty)

    def container_status(self, container: str) -> ContainerStatus:
        status = self.call("ContainerStatus", ContainerIDMessage(container), ContainerStatusResponse).status
        assert status is not None
        return status

    def containers(self) -> tuple[Container, ...]:
        return self.call("ListContainers", Empty(), ListContainersResponse).containers

    def sandboxes(self) -> tuple[PodSandbox, ...]:
        return self.call("ListPodSandbox", Empty(), ListPodSandboxResponse).items

    def remove_sandbox(self, sandbox: str) -> None:
        """Stop it with all of its containers, and remove them."""
        self.call("StopPodSandbox", PodSandboxRequest(sandbox), Empty)
        self.call("RemovePodSandbox", PodSandboxRequest(sandbox), Empty)
