"""The container runtime behind the proxy, asked for what the proxy does not remember.

Source: behaviour/koordlet-act 23.3.
"""

import logging
from typing import TypeVar

from koordinator.host import protobuf_messages
from koordinator.host.cri_messages import (
    RUNTIME_SERVICE,
    ContainerIDMessage,
    ContainerStatusResponse,
    IDFilter,
    LinuxContainerResources,
    ListByID,
    ListContainersResponse,
    ListPodSandboxResponse,
)
from koordinator.host.errors import CallError, ContentError
from koordinator.host.grpc_client import Channel
from koordinator.host.protobuf_messages import Message
from koordinator.runtime_proxy.checkpoints import Checkpoints, ContainerInfo, SandboxInfo

log = logging.getLogger(__name__)

LOOK_S_MAX = 5.0
"""Looking up what was forgotten must not hold up the call for which it is done."""
M = TypeVar("M", bound=Message)


class Backend:
    """The runtime's socket."""

    def __init__(self, path: str, checkpoints: Checkpoints) -> None:
        self.path = path
        self._channel = Channel(path)
        self._checkpoints = checkpoints

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def sandbox(self, own_id: str) -> SandboxInfo | None:
        """Return a sandbox, as remembered or as the runtime tells; None when there is none."""
        known = self._checkpoints.sandboxes.get(own_id)
        if known is not None or not own_id:
            return known
        listed = await self._ask("ListPodSandbox", ListByID(IDFilter(own_id)), ListPodSandboxResponse)
        for each in listed.items if listed is not None else ():
            if each.id == own_id:
                found = SandboxInfo.of_listed(each)
                self._checkpoints.sandboxes.put(own_id, found)
                return found
        return None

    async def container(self, own_id: str) -> ContainerInfo | None:
        """Return a container, as remembered or as the runtime tells; None when there is none."""
        known = self._checkpoints.containers.get(own_id)
        if known is not None or not own_id:
            return known
        listed = await self._ask("ListContainers", ListByID(IDFilter(own_id)), ListContainersResponse)
        for each in listed.containers if listed is not None else ():
            sandbox = await self.sandbox(each.pod_sandbox_id) if each.id == own_id else None
            if sandbox is not None:
                found = ContainerInfo.of_listed(each, sandbox, await self._resources(own_id))
                self._checkpoints.containers.put(own_id, found)
                return found
        return None

    async def _resources(self, container_id: str) -> LinuxContainerResources | None:
        """Return what a container was given; None with runtimes that do not tell (before containerd 1.7)."""
        found = await self._ask("ContainerStatus", ContainerIDMessage(container_id), ContainerStatusResponse)
        if found is None or found.status is None or found.status.resources is None:
            return None
        return found.status.resources.linux

    async def _ask(self, method: str, request: Message, kind: type[M]) -> M | None:
        message = protobuf_messages.encode(request)
        try:
            answer = await self._channel.call(f"/{RUNTIME_SERVICE}/{method}", message, LOOK_S_MAX)
            return protobuf_messages.decode(kind, answer)
        except CallError as error:
            problem = f"{error.code.name}: {error.reason}"
        except ContentError as error:
            problem = str(error)
        log.warning("runtime not asked", extra={"method": method, "problem": problem})
        return None
