"""Docker behind the proxy: its socket, and what it tells of sandboxes and containers that the proxy does not remember.

Source: behaviour/koordlet-act 23.4.
"""

import logging
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from koordinator.host.errors import ContentError
from koordinator.host.grpc_sockets import MESSAGE_BYTES_MAX, SocketError
from koordinator.runtime_proxy import docker_calls
from koordinator.runtime_proxy.checkpoints import Checkpoints, ContainerInfo, SandboxInfo
from koordinator.runtime_proxy.docker_calls import Body

log = logging.getLogger(__name__)

LOOK_S_MAX = 5.0
"""Looking up what was forgotten must not hold up the call for which it is done."""
_HOST = "http://docker"


class Answer(msgspec.Struct, frozen=True):
    """The answer of Docker to a call."""

    status: int
    reason: str
    kind: str
    body: bytes

    @property
    def is_success(self) -> bool:
        """Return whether it did it, or had done it before (304)."""
        return self.status < 400


class DockerBackend:
    """Docker's socket; `start` first. `driver` is that of its cgroups."""

    def __init__(self, path: str, checkpoints: Checkpoints) -> None:
        self.path = path
        self.driver = ""
        self._checkpoints = checkpoints
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Ask Docker how it makes cgroups. Raises: SocketError where it does not say."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(self.path, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),  # a kubelet waits as long as it wants to
            auto_decompress=False,
        )
        try:
            self.driver = str((await self._look("/info"))["CgroupDriver"])
        except (aiohttp.ClientError, OSError, TimeoutError, ContentError, KeyError) as error:
            raise SocketError(
                self.path, f"Docker does not say which cgroup driver it has: {error}"
            ) from error

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def call(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Call Docker with a target as it was written. Raises: aiohttp.ClientError, OSError, ContentError."""
        assert self._session is not None
        url = URL(f"{_HOST}{target}", encoded=True)
        async with self._session.request(method, url, data=body or None, headers=headers) as response:
            found = await response.content.read(MESSAGE_BYTES_MAX + 1)
            while not response.content.at_eof() and len(found) <= MESSAGE_BYTES_MAX:
                found += await response.content.read(MESSAGE_BYTES_MAX + 1 - len(found))
            if len(found) > MESSAGE_BYTES_MAX:
                raise ContentError("docker", f"an answer of more than {MESSAGE_BYTES_MAX} bytes")
            kind = response.headers.get("Content-Type", "application/json")
            return Answer(response.status, response.reason or "", kind, found)

    async def sandbox(self, own_id: str) -> SandboxInfo | None:
        """Return a sandbox, as remembered or as Docker tells; None when there is none. Raises: ContentError."""
        known = self._checkpoints.sandboxes.get(own_id)
        if known is not None or not own_id:
            return known
        inspected = await self._inspected(own_id)
        if inspected is None or not docker_calls.is_sandbox(inspected[1]):
            return None
        found = docker_calls.sandbox_info(*inspected, self.driver)
        self._checkpoints.sandboxes.put(own_id, found)
        return found

    async def container(self, own_id: str) -> ContainerInfo | None:
        """Return a container of a pod, as remembered or as Docker tells; None when there is none.

        Raises: ContentError.
        """
        known = self._checkpoints.containers.get(own_id)
        if known is not None or not own_id:
            return known
        inspected = await self._inspected(own_id)
        if inspected is None or docker_calls.is_sandbox(inspected[1]):
            return None
        sandbox = await self.sandbox(docker_calls.sandbox_id(inspected[1]))
        if sandbox is None:
            return None
        found = docker_calls.container_info(*inspected, sandbox, own_id)
        self._checkpoints.containers.put(own_id, found)
        return found

    async def _inspected(self, own_id: str) -> tuple[str, Body] | None:
        """Return a container's name, and its configuration in the form of `create`."""
        try:
            found = await self._look(f"/containers/{own_id}/json")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.warning("docker not asked", extra={"container": own_id, "problem": str(error)})
            return None
        config, host_config = found.get("Config"), found.get("HostConfig")
        if not isinstance(config, dict) or not isinstance(host_config, dict):
            return None
        return str(found.get("Name") or ""), {**config, "HostConfig": host_config}

    async def _look(self, target: str) -> dict[str, Any]:
        """Raises: aiohttp.ClientError, OSError, TimeoutError, ContentError."""
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=LOOK_S_MAX)
        async with self._session.get(URL(f"{_HOST}{target}", encoded=True), timeout=timeout) as response:
            return docker_calls.read(await response.read()) if response.status == 200 else {}
