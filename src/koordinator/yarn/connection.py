"""One kept TCP connection to a Hadoop RPC server and protocol: opened when needed, one call at a time, bounded.

Source: behaviour/yarn 4.1 to 4.4.
"""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from koordinator.api.errors import KoordinatorError, SubjectError
from koordinator.host.errors import ContentError
from koordinator.yarn import rpc, sasl
from koordinator.yarn.rpc import Auth, Response, RpcStatus
from koordinator.yarn.sasl import Mechanism

FRAME_BYTES_MAX = 64 << 20
"""A hundred thousand nodes in one answer are half of it."""
CONNECT_S = 5.0
CALL_S = 10.0
_READ_BYTES = 1 << 18  # one read of a large answer
_LENGTH_BYTES = 4

ACCESS_EXCEPTIONS = (
    "org.apache.hadoop.security.AccessControlException",
    "org.apache.hadoop.security.authorize.AuthorizationException",
)
YARN_EXCEPTION = "org.apache.hadoop.yarn.exceptions.YarnException"


class Unreachable(SubjectError):
    """A server does not answer, or not in Hadoop's protocol; the connection is closed."""

    is_denied = False


class CallRefused(KoordinatorError):
    """A server answered with an exception."""

    def __init__(self, server: str, exception: str, message: str) -> None:
        super().__init__(server, exception, message)
        self.server, self.exception, self.message = server, exception, message

    def __str__(self) -> str:
        first_line = self.message.strip().partition("\n")[0]
        return f"{self.server}: {self.exception.rpartition('.')[2]}: {first_line}"

    @property
    def is_denied(self) -> bool:
        """Return whether the caller lacks the right to call this, or is not who it says."""
        # The admin service hands what its own check raises on inside an exception of YARN's.
        return self.exception in ACCESS_EXCEPTIONS or self.message.startswith(ACCESS_EXCEPTIONS)

    @property
    def is_unknown_node(self) -> bool:
        """Return whether the call names a node that is not registered; nothing of it was carried out then."""
        return self.exception == YARN_EXCEPTION and "unrecognized node" in self.message.lower()


class Login(msgspec.Struct, frozen=True):
    """The caller: a user name, and its proof for a server (host:port) and protocol; None: none is needed."""

    user: str
    mechanism: Callable[[str, str], Mechanism | None] = lambda server, protocol: None


class Connection:
    """To the protocol of `method` at `server` (host:port)."""

    def __init__(self, server: str, protocol: str, login: Login, client_id: bytes) -> None:
        self.server = server
        self._protocol = protocol
        self._login = login
        self._client_id = client_id
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._call_id = 0
        self._turn = asyncio.Lock()

    async def call(self, frame: Callable[[bytes, int], bytes], within_s: float = CALL_S) -> bytes:
        """Return the result of the call that `frame` writes for a client and call id. Raises: Unreachable,
        CallRefused."""
        async with self._turn:
            try:
                async with asyncio.timeout(within_s):
                    response = await self._called(frame)
            except TimeoutError as error:
                self.close()
                raise Unreachable(self.server, f"no answer within {within_s:g} s") from error
            except (OSError, EOFError, ContentError, sasl.SaslError) as error:
                self.close()
                raise Unreachable(self.server, str(error) or type(error).__name__) from error
            except asyncio.CancelledError:
                self.close()  # the answer would be taken for the next call's
                raise
        if response.status is RpcStatus.SUCCESS:
            return response.result
        if response.status is not RpcStatus.ERROR:
            self.close()
        raise CallRefused(
            self.server, response.exception or response.status.value, response.message or "no reason given"
        )

    def close(self) -> None:
        """Close; the next call opens it anew."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _called(self, frame: Callable[[bytes, int], bytes]) -> Response:
        is_fresh = self._streams is None
        try:
            return await self._exchanged(frame)
        except (ConnectionError, EOFError):
            self.close()
            if is_fresh:
                raise
        return await self._exchanged(frame)  # the server had closed a kept connection: it is idle after 10 s

    async def _exchanged(self, frame: Callable[[bytes, int], bytes]) -> Response:
        reader, writer = self._streams or await self._open()
        self._call_id += 1
        writer.write(frame(self._client_id, self._call_id))
        await writer.drain()
        response = rpc.parse(await read_frame(reader), self._client_id)
        # What is wrong with a connection is told to call -1 and the like.
        if response.status is RpcStatus.SUCCESS and response.call_id != self._call_id:
            raise ContentError(rpc.SOURCE, f"the answer is to call {response.call_id}, not {self._call_id}")
        return response

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.server.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=_READ_BYTES)
        except TimeoutError as error:
            raise ConnectionError(f"no connection within {CONNECT_S:g} s") from error
        try:
            mechanism = self._login.mechanism(self.server, self._protocol)
            writer.write(rpc.connection_header(Auth.SIMPLE if mechanism is None else Auth.SASL))
            if mechanism is not None:
                await self._prove(mechanism, reader, writer)
            user = self._login.user if mechanism is None else mechanism.user
            writer.write(rpc.connection_context(self._client_id, self._protocol, user))
        except BaseException:
            writer.close()
            raise
        self._streams = reader, writer
        return self._streams

    async def _prove(
        self, mechanism: Mechanism, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Exchange SASL messages until the server is satisfied. Raises: SaslError, ContentError, EOFError."""
        message: bytes | None = sasl.negotiate()
        for _ in range(sasl.ROUNDS_MAX):
            if message is not None:
                writer.write(sasl.frame(message))
                await writer.drain()
            response = rpc.parse(await read_frame(reader), b"")
            if response.status is not RpcStatus.SUCCESS:
                raise sasl.SaslError(f"{response.exception}: {response.message}")
            if mechanism.asks_others:
                message = await asyncio.to_thread(sasl.answer_to, response.result, mechanism)
            else:
                message = sasl.answer_to(response.result, mechanism)
            if message is None:
                return
        raise sasl.SaslError(f"no agreement after {sasl.ROUNDS_MAX} messages")


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Return the next frame with its length. Raises: ContentError, EOFError."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        head = await reader.readexactly(_LENGTH_BYTES)
        length = int.from_bytes(head, "big")
        if length > FRAME_BYTES_MAX:
            raise ContentError(
                rpc.SOURCE, f"a frame of {length} bytes is announced, {FRAME_BYTES_MAX} are taken"
            )
        return head + await reader.readexactly(length)
    raise EOFError("the server closed the connection")
