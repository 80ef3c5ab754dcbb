"""Ask kubelets beyond this process for logs of their pods and for commands in them, as a real API server does."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from koordinator import clock
from koordinator.cluster import errors, wire
from koordinator.cluster.backend import Backend, ObjectRecord
from koordinator.local.apiserver.pod_streams import (
    CLOSE,
    ENDED,
    PROTOCOLS,
    RESIZE,
    STDERR,
    STDIN,
    STDOUT,
    Command,
    ExecOptions,
    LogOptions,
    PodStreams,
    ending_of,
)

_CONNECT_S = 10.0
_PIECES_MAX = 256
"""Pieces of a command's output that wait for the client; then the kubelet waits."""


class KubeletStreams:
    """Logs and commands of pods whose node says where its kubelet serves.

    `token` is shown to kubelets; their certificates are not checked, which is an API server's default, too.
    """

    def __init__(
        self,
        backend: Backend,
        own: PodStreams,
        token: Callable[[], str],
        is_own: Callable[[dict[str, Any]], bool],
    ) -> None:
        """`own` are those of pods on this process's own nodes, which `is_own` tells from others."""
        self._backend = backend
        self._own = own
        self._token = token
        self._is_own = is_own

    async def open(self, pod: ObjectRecord, options: LogOptions) -> AsyncIterator[bytes]:
        """Raises: ApiError."""
        url = self._url(pod, "containerLogs", options.container)
        if url is None:
            return await self._own.open(pod, options)
        session = self._session()
        try:
            response = await session.get(url.with_query(_log_params(options)), ssl=_unchecked())
            if response.status >= 400:
                raise wire.read_failure(response.status, await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            await session.close()
            raise _unreachable(url, error) from error
        except errors.ApiError:
            await session.close()
            raise
        return _pieces(session, response)

    async def start(self, pod: ObjectRecord, options: ExecOptions) -> Command:
        """Raises: ApiError."""
        url = self._url(pod, "exec", options.container)
        if url is None:
            return await self._own.start(pod, options)
        flags = {
            "input": options.stdin,
            "output": options.stdout,
            "error": options.stderr,
            "tty": options.tty,
        }
        params = [("command", part) for part in options.command]
        params += [(name, "1") for name, is_on in flags.items() if is_on]
        session = self._session()
        try:
            socket = await session.ws_connect(url.with_query(params), protocols=PROTOCOLS, ssl=_unchecked())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            await session.close()
            raise _unreachable(url, error) from error
        return RemoteCommand(session, socket)

    def _url(self, pod: ObjectRecord, kind: str, container: str) -> URL | None:
        """Return the kubelet's path for a container, None where the node has none beyond this process."""
        meta, name = pod.obj["metadata"], (pod.obj.get("spec") or {}).get("nodeName") or ""
        try:
            node = self._backend.get(self._backend.resolve("", "v1", "nodes"), "", name).obj
        except errors.NotFound:
            return None
        if self._is_own(node):
            return None
        status = node.get("status") or {}
        port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
        hosts = [each["address"] for each in status.get("addresses") or [] if each["type"] == "InternalIP"]
        if not (port and hosts):
            return None
        base = URL.build(scheme="https", host=hosts[0], port=port)
        url: URL = base / kind / meta["namespace"] / meta["name"] / container
        return url

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._token()}"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        )


class RemoteCommand:
    """A command that runs behind a kubelet."""

    def __init__(self, session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._session, self._socket = session, socket
        self._pieces: dict[int, asyncio.Queue[bytes | None]] = {
            channel: asyncio.Queue(_PIECES_MAX) for channel in (STDOUT, STDERR)
        }
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._sending: list[asyncio.Task[None]] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """Sort what comes by channel, until the command or the connection ends."""
        code = 1  # of a connection that was cut
        try:
            async for message in self._socket:
                if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                    continue
                channel, data = message.data[0], message.data[1:]
                if channel == ENDED:
                    code, why = ending_of(data)
                    await self._pieces[STDERR].put(why)
                elif channel in self._pieces:
                    await self._pieces[channel].put(data)
        finally:
            if not self._code.done():
                self._code.set_result(code)
            for queue in self._pieces.values():
                await queue.put(None)

    def outputs(self) -> Mapping[int, AsyncIterator[bytes]]:
        return {channel: _until_empty(queue) for channel, queue in self._pieces.items()}

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            await self._socket.send_bytes(bytes((STDIN,)) + data)

    def close_input(self) -> None:
        self._send(bytes((CLOSE, STDIN)))

    def resize(self, columns: int, rows: int) -> None:
        self._send(bytes((RESIZE,)) + msgspec.json.encode({"Width": columns, "Height": rows}))

    async def wait(self) -> int:
        return await self._code

    def abandon(self) -> None:
        self._reading.cancel()
        self._sending.append(asyncio.create_task(self._close()))

    def _send(self, message: bytes) -> None:
        async def send() -> None:
            with contextlib.suppress(ConnectionError):
                await self._socket.send_bytes(message)

        self._sending.append(asyncio.create_task(send()))

    async def _close(self) -> None:
        await self._socket.close()
        await self._session.close()


async def _until_empty(queue: "asyncio.Queue[bytes | None]") -> AsyncIterator[bytes]:
    while (piece := await queue.get()) is not None:
        if piece:
            yield piece


async def _pieces(session: aiohttp.ClientSession, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async with session, response:
        with contextlib.suppress(aiohttp.ClientError):  # the node is gone: what came is what there is
            async for piece in response.content.iter_any():
                yield piece


def _log_params(options: LogOptions) -> dict[str, str]:
    flags = {"follow": options.follow, "previous": options.previous, "timestamps": options.timestamps}
    found = {name: "true" for name, is_on in flags.items() if is_on}
    if options.tail_lines is not None:
        found["tailLines"] = str(options.tail_lines)
    if options.limit_bytes:
        found["limitBytes"] = str(options.limit_bytes)
    if options.since_s:
        found["sinceSeconds"] = str(options.since_s)
    if options.since_time_s is not None:
        found["sinceTime"] = clock.rfc3339(options.since_time_s)
    return found


def _unchecked() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _unreachable(url: URL, error: Exception) -> errors.InternalError:
    return errors.InternalError(f"Get {str(url.with_query(None))!r}: {str(error) or type(error).__name__}")
