"""The proxy before Docker: HTTP calls of a kubelet's Docker client, four of them with hooks before and after.

All other calls pass as bytes in both directions, also those that take the connection over (`attach`, `exec`). Each call
has a connection of its own. Source: behaviour/koordlet-act 23.4.
"""

import asyncio
import contextlib
import logging
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec

from koordinator.host import grpc_sockets
from koordinator.host.errors import ContentError
from koordinator.host.grpc_sockets import MESSAGE_BYTES_MAX, SocketError
from koordinator.host.syscalls import Syscalls
from koordinator.runtime_proxy import docker, docker_calls, http1
from koordinator.runtime_proxy.checkpoints import Checkpoints, ContainerInfo, SandboxInfo
from koordinator.runtime_proxy.docker import DockerCall
from koordinator.runtime_proxy.docker_backend import Answer, DockerBackend
from koordinator.runtime_proxy.hook_client import HookClient
from koordinator.runtime_proxy.hooked import HookedCalls
from koordinator.runtime_proxy.http1 import Head
from koordinator.runtime_proxy.interception import Interception, OfContainer, OfSandbox
from koordinator.runtime_proxy.proxy import ProxyConfig
from koordinator.runtime_proxy.relay import Refused

log = logging.getLogger(__name__)

_COPIED_BYTES = 64 * 1024
_CONTAINER_METHODS = {"start": "StartContainer", "stop": "StopContainer"}
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class DockerProxy:
    """`run` until cancelled."""

    def __init__(self, config: ProxyConfig, syscalls: Syscalls) -> None:
        self._config = config
        self._checkpoints = Checkpoints()
        self.hooks = HookClient(config.hook_directory, syscalls)
        self._calls = HookedCalls(self.hooks, self._checkpoints, config.skip)
        self._backend = DockerBackend(grpc_sockets.path_of(config.backend), self._checkpoints)
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_serving = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled. Raises: SocketError when Docker's socket is not to be trusted or does not answer, or
        ours cannot be made."""
        problem = grpc_sockets.problem_of_socket(self._backend.path)
        if problem:
            raise SocketError("remote-runtime-service-endpoint", problem)
        path = grpc_sockets.path_of(self._config.endpoint)
        try:
            await self._backend.start()
            await self.hooks.refresh()
            listener = grpc_sockets.listening(path)
            server = await asyncio.start_unix_server(
                self._connected, sock=listener, limit=http1.HEAD_BYTES_MAX
            )
            log.info("runtime proxy started", extra={"socket": path, "docker": self._backend.path})
            self.is_serving.set()
            try:
                await self.hooks.follow()
            finally:
                server.close()
                for task in tuple(self._tasks):
                    task.cancel()
        finally:
            await self.hooks.close()
            await self._backend.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._served(reader, writer)
        except ContentError as error:
            log.warning("call refused", extra={"problem": str(error)})
            await _answer(writer, _problem(HTTPStatus.BAD_REQUEST, str(error)))
        except (OSError, EOFError) as error:
            log.debug("connection ended", extra={"problem": str(error)})
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await http1.read_head(reader)
        if head is None:
            return
        call = docker.call_of(head.method, head.target)
        if call is None:
            await self._passed(head, (reader, writer))
            return
        body = await http1.read_body(reader, head, MESSAGE_BYTES_MAX)
        await self._intercepted(call, head, body, writer)

    async def _passed(self, head: Head, kubelet: Streams) -> None:
        """Hand a call on, and then all bytes, until Docker ends the connection."""
        try:
            runtime = await asyncio.open_unix_connection(self._backend.path)
        except OSError as error:
            await _answer(kubelet[1], _problem(HTTPStatus.BAD_GATEWAY, f"docker: {error}"))
            return
        runtime[1].write(head.closing())
        there = asyncio.create_task(_copied(kubelet[0], runtime[1]))
        try:
            await _copied(runtime[0], kubelet[1])
        finally:
            there.cancel()
            await asyncio.gather(there, return_exceptions=True)
            runtime[1].close()

    async def _intercepted(
        self, call: DockerCall, head: Head, body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        try:
            method, found = await self._known(call, body)
        except ContentError as error:
            log.warning("call not understood", extra={"call": call.verb, "problem": str(error)})
            await _answer(writer, _problem(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)))
            return
        if found is None:
            await _answer(writer, await self._asked(head, body))
            return
        try:
            exchange = await self._calls.begun(method, found)
        except Refused as refused:
            await _answer(writer, _problem(HTTPStatus.INTERNAL_SERVER_ERROR, str(refused)))
            return
        answer = await self._asked(head, exchange.request)
        after = exchange.answered(answer.body if answer.is_success else None)
        await _answer(writer, answer)
        writer.close()  # the hook that comes after holds nobody up
        if after is not None:
            await after

    async def _known(self, call: DockerCall, body: bytes) -> tuple[str, Interception | None]:
        """Return a call in the words of CRI with what it is about; None where no hooks belong to it: for the start of a
        sandbox, and of what is not known.

        Raises: ContentError where what is made or stopped is not known, or not named as a kubelet does.
        """
        if call.verb == "create":
            config = docker_calls.read(body)
            sandbox = await self._backend.sandbox(docker_calls.sandbox_id(config))
            made = docker_calls.create(call.name, config, sandbox, self._backend.driver)
            return ("RunPodSandbox" if docker_calls.is_sandbox(config) else "CreateContainer"), made
        found = await self._named(call)
        if isinstance(found, ContainerInfo):
            if call.verb == "update":
                return "UpdateContainerResources", docker_calls.UpdateContainer.of(
                    docker_calls.read(body), found
                )
            return _CONTAINER_METHODS[call.verb], OfContainer(body, found)
        if found is not None and call.verb == "stop":
            return "StopPodSandbox", OfSandbox(body, call.name, found)
        return "", None

    async def _named(self, call: DockerCall) -> ContainerInfo | SandboxInfo | None:
        """Return the container or sandbox that a call names; None where it goes on without hooks.

        Raises: ContentError where something is to be stopped that is not known, or that no kubelet named.
        """
        try:
            found = await self._backend.container(call.name) or await self._backend.sandbox(call.name)
            if found is None:
                raise ContentError("docker", f"No such container: {call.name}")
        except ContentError as error:
            if call.verb == "stop":
                raise
            log.warning("call not understood", extra={"call": call.verb, "problem": str(error)})
            return None
        return found

    async def _asked(self, head: Head, body: bytes) -> Answer:
        """Return Docker's answer to a call with this body, or that it does not answer."""
        headers = {"Content-Type": head.get("content-type") or "application/json"}
        try:
            return await self._backend.call(head.method, head.target, headers, body)
        except (aiohttp.ClientError, OSError, ContentError) as error:
            log.warning("docker not reached", extra={"target": head.target, "problem": str(error)})
            return _problem(HTTPStatus.BAD_GATEWAY, f"docker: {error}")


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until there are no more, and say so to the other end."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_COPIED_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _problem(status: HTTPStatus, text: str) -> Answer:
    """Return an error as Docker writes it."""
    body: dict[str, Any] = {"message": text.removeprefix("docker: ")}
    return Answer(status.value, status.phrase, "application/json", msgspec.json.encode(body))


async def _answer(writer: asyncio.StreamWriter, answer: Answer) -> None:
    lines = [f"HTTP/1.1 {answer.status} {answer.reason}", "Connection: close"]
    if answer.status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        lines += [f"Content-Type: {answer.kind}", f"Content-Length: {len(answer.body)}"]
    with contextlib.suppress(OSError):
        writer.write("\r\n".join((*lines, "", "")).encode("latin-1") + answer.body)
        await writer.drain()
