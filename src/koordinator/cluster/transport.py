"""HTTP to an API server: one request at a time, tried again where that is safe.

Connections are pooled and kept alive; the identity is renewed on 401; the client's own rate is limited. Why a
request got no answer is described in terms of networks rather than those of libraries.
"""

import asyncio
import contextlib
import contextvars
import os
import random
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from koordinator.cluster import errors, exchange, tunnel, wire
from koordinator.cluster.backoff import Backoff, BackoffPolicy, Rate, TokenBucket, retry_after_s
from koordinator.cluster.config import ClientConfig, ClusterConfigError

# Five tries spread over some two seconds; loops above have longer breath and their own backoff.
TRIES_MAX = 5
BACKOFF = BackoffPolicy(initial_s=0.1, max_s=5.0, factor=2.0, jitter_ratio=0.5)
# A server that asks for a longer pause gets it from the caller's loop, not from a call that seems to hang.
RETRY_AFTER_S_MAX = 30.0
# Requests at once (watches included); more wait for a connection.
CONNECTIONS_MAX = 256
CONNECT_TIMEOUT_S = 10.0
# Less than servers and load balancers keep idle connections, so that we do not write into a closing one.
KEEP_ALIVE_S = 30.0
# Larger ones go the general way, which minds how fast the server reads.
SHORT_BODY_BYTES_MAX = 256 << 10

_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._~:-]*")

# 503 is an answer of a server (or its proxy) that did not take the request in hand.
_NOT_TAKEN = (429, 503)


_Answer = contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `repeatable`: sending it twice does no harm, so it may be repeated when it is not known
    whether the first arrived."""

    method: str
    path: str
    params: Mapping[str, str] = {}
    body: bytes | None = None
    content_type: str = "application/json"
    repeatable: bool = False


BEFORE_SENDING: contextvars.ContextVar[Callable[[], None] | None] = contextvars.ContextVar(
    "before sending", default=None
)
"""Called when a request of this context is about to leave, whatever it has waited for until then (the rate limit, a
connection, the next try). Raises RequestFenced to keep it back."""


class Transport:
    """Speaks to the server of `config`; `rng` seeds the jitter of retries. Open it with `async with`."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        rng: random.Random,
        user_agent: str,
        timeout_s: float,
        rate: Rate | None = None,
    ) -> None:
        self.request_count = 0
        self.on_answer: Callable[[str, str, float], None] | None = None
        """Hears of each request that ended: method, status code (`<error>` without an answer), seconds."""
        self.on_limited: Callable[[str, float], None] | None = None
        """Hears how many seconds each request waited for the client's own rate limit: method, seconds."""
        self.on_retry: Callable[[str, str], None] | None = None
        """Hears of each request that is sent again: method, status code of the answer before."""
        self._config = config
        self._rng = rng
        self._user_agent = user_agent
        self._timeout_s = timeout_s
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        self._rate = rate
        self._bucket: TokenBucket | None = None
        self._session: aiohttp.ClientSession | None = None
        self._origin: exchange.Origin | None = None
        self._writes: exchange.ConnectionPool | None = None
        self._path_prefix = ""
        self._fixed_head = b""
        self._renewing = asyncio.Lock()
        self._identity = 0

    async def open(self) -> None:
        """Make the connection pool (in the running loop)."""
        if self._rate is not None:
            self._bucket = TokenBucket(self._rate, asyncio.get_running_loop().time())
        connector = aiohttp.TCPConnector(
            limit=CONNECTIONS_MAX,
            keepalive_timeout=KEEP_ALIVE_S,
            ssl=self._config.tls or True,
            socket_factory=_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=CIMultiDict(
                [("User-Agent", self._user_agent), ("Accept", "application/json"), *self._config.headers]
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        # aiohttp would repeat any DELETE by itself; what is repeatable is decided here (a test holds it).
        self._session._retry_connection = False
        self._writes = self._pool_of_writes()

    async def close(self) -> None:
        """Close all connections; watches end with an error."""
        if self._writes is not None:
            self._writes.close()
            self._writes = None
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, call: HttpRequest) -> bytes:
        """Return the body of the answer.

        Raises: ApiError: the server's last refusal, or ConnectionFailed when there was no answer.
        """
        backoff: Backoff | None = None
        renewed = False
        for attempt in range(1, TRIES_MAX + 1):
            identity = self._identity
            try:
                return await self._once(call)
            except errors.RequestFenced:
                raise
            except errors.Unauthorized:
                if renewed or not await self._renew(identity):
                    raise
                renewed = True
            except errors.ApiError as error:
                if attempt == TRIES_MAX or not _may_repeat(call, error):
                    raise
                backoff = backoff or Backoff(BACKOFF, self._rng)
                if self.on_retry is not None:
                    self.on_retry(call.method, str(error.code) if error.code else "<error>")
                await asyncio.sleep(backoff.next_s(error))
        raise errors.Unauthorized("the server refuses our credentials")

    @contextlib.asynccontextmanager
    async def stream(
        self, call: HttpRequest, *, timeout_s: float, head_timeout_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the chunks of a long answer, as they arrive; its head has to come within `head_timeout_s`.

        Raises: as `send`, also between chunks; not retried, except once after renewing the identity.
        """
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        identity = self._identity
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(head_timeout_s):
                    response = await stack.enter_async_context(await self._request(call, timeout))
                    if response.status == 401 and await self._renew(identity):
                        response = await stack.enter_async_context(await self._request(call, timeout))
                if response.status >= 400:
                    raise _failure(response, await response.read())
                yield response.content.iter_any()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(call, self._config.server, error) from error

    async def upgrade(self, caller: web.BaseRequest, path: str, headers: Mapping[str, str]) -> None:
        """Pass a caller's upgrade request on to `path` (with its query), with our identity and these `headers`.

        Once the server agrees, carry bytes both ways until either side closes.

        A server that refuses gets nothing more of what the caller sends, since it would take that for requests of ours.
        Raises: ApiError while the caller has got no answer.
        """
        call = HttpRequest(method=caller.method, path=path)
        if self._origin is None:
            raise errors.ConnectionFailed("streams through a proxy are not supported")
        every = {**headers, **await self._headers(call)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in every.items())
        head = f"{call.method} {self._path_prefix}{path} HTTP/1.1\r\n{lines}".encode() + self._fixed_head
        self.request_count += 1
        try:
            async with tunnel.connected(self._origin, CONNECT_TIMEOUT_S) as server:
                server[1].write(head + b"Content-Length: 0\r\n\r\n")
                async with asyncio.timeout(self._timeout_s):
                    answer = await tunnel.read_answer(server[0])
                if answer.status >= 400:
                    raise wire.read_failure(answer.status, answer.body)
                if answer.status != 101:
                    raise ValueError(f"it answered {answer.status} to an upgrade")
                async with tunnel.taken_over(caller) as connection:
                    connection[1].write(answer.head)
                    await tunnel.join(connection, server)
        except (TimeoutError, OSError, EOFError, ValueError) as error:
            raise _no_answer(call, self._config.server, error) from error

    async def _once(self, call: HttpRequest) -> bytes:
        began_s = asyncio.get_running_loop().time()
        code = "<error>"
        try:
            answer = await self._answer(call)
            code = str(answer.status)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(call, self._config.server, error) from error
        finally:
            if self.on_answer is not None:
                self.on_answer(call.method, code, asyncio.get_running_loop().time() - began_s)
        if answer.status >= 400:
            raise wire.read_failure(answer.status, answer.body, answer.retry_after)
        return answer.body

    async def _answer(self, call: HttpRequest) -> exchange.HttpResponse:
        if self._writes is not None and call.body is not None and len(call.body) <= SHORT_BODY_BYTES_MAX:
            headers = await self._headers(call)
            if _is_one_line(headers.get("Authorization", "")):
                await self._within_rate(call)
                self.request_count += 1
                request = self._composed(call, headers)
                return await self._writes.exchange(request, self._timeout_s, BEFORE_SENDING.get())
        async with await self._request(call, self._timeout) as response:
            data = await response.read()
        return exchange.HttpResponse(response.status, data, response.headers.get("Retry-After", ""))

    def _composed(self, call: HttpRequest, headers: Mapping[str, str]) -> bytes:
        """Return the request as it goes over the wire."""
        assert call.body is not None, call.path
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        text = f"{call.method} {self._path_prefix}{_path(call)} HTTP/1.1\r\n{lines}"
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (
            text.encode(),
            self._fixed_head,
            len(call.body),
            call.body,
        )

    def _pool_of_writes(self) -> exchange.ConnectionPool | None:
        """Connections for short writes; None where only the general client knows the way."""
        config, url = self._config, URL(self._config.server, encoded=True)
        own = [("User-Agent", self._user_agent), ("Accept", "application/json"), *config.headers]
        if config.proxy_url or url.user or not url.host or url.port is None or url.query_string:
            return None
        if not all(_is_one_line(text) for pair in own for text in pair):
            return None
        at = url.host_subcomponent or ""
        host = at if url.is_default_port() else f"{at}:{url.port}"
        lines = [("Host", host), *own, ("Accept-Encoding", "identity")]
        self._fixed_head = "".join(f"{name}: {value}\r\n" for name, value in lines).encode()
        self._path_prefix = url.raw_path.rstrip("/")
        tls = (config.tls or ssl.create_default_context()) if url.scheme == "https" else None
        self._origin = exchange.Origin(host=url.host, port=url.port, tls=tls, server_name=config.server_name)
        return exchange.ConnectionPool(
            self._origin,
            connections_max=CONNECTIONS_MAX,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            keep_alive_s=KEEP_ALIVE_S,
        )

    async def _request(self, call: HttpRequest, timeout: aiohttp.ClientTimeout) -> _Answer:
        if self._session is None:
            raise errors.ConnectionFailed("the cluster client is closed; open it with `async with`")
        await self._within_rate(call)
        if (check := BEFORE_SENDING.get()) is not None:
            check()
        self.request_count += 1
        return self._session.request(
            call.method,
            URL(f"{self._config.server}{_path(call)}", encoded=True),
            data=call.body,
            headers=await self._headers(call),
            timeout=timeout,
            allow_redirects=False,  # a redirect would carry our token elsewhere
            proxy=self._config.proxy_url or None,
            server_hostname=self._config.server_name or None,
        )

    async def _within_rate(self, call: HttpRequest) -> None:
        if self._bucket is not None:
            waited_s = await self._bucket.wait()
            if self.on_limited is not None:
                self.on_limited(call.method, waited_s)

    async def _headers(self, call: HttpRequest) -> dict[str, str]:
        headers = {} if call.body is None else {"Content-Type": call.content_type}
        try:
            authorization = await self._config.credentials.authorization()
        except ClusterConfigError as error:
            raise errors.Unauthorized(f"no credentials: {error}") from error
        if authorization:
            headers["Authorization"] = authorization
        return headers

    async def _renew(self, refused: int) -> bool:
        """Get a new identity after number `refused`: made once for all requests that were refused together."""
        async with self._renewing:
            if self._identity != refused:
                return True
            try:
                renewed = await self._config.credentials.renew()
            except ClusterConfigError as error:
                raise errors.Unauthorized(f"no credentials: {error}") from error
            self._identity += 1
            return renewed


def _path(call: HttpRequest) -> str:
    """Path and query as they go over the wire."""
    path = call.path if _PLAIN_PATH.fullmatch(call.path) else quote(call.path, safe="/:")
    return f"{path}?{urlencode(call.params)}" if call.params else path


def _is_one_line(text: str) -> bool:
    """Return whether a text can stand in a header as it is."""
    return text.isascii() and (text.isprintable() or not text)


def _may_repeat(call: HttpRequest, error: errors.ApiError) -> bool:
    """Return whether sending the call again is safe and can help."""
    if retry_after_s(error) > RETRY_AFTER_S_MAX:
        return False
    if isinstance(error, NotConnected):
        return True
    if isinstance(error, errors.ConnectionFailed):
        return call.repeatable
    if isinstance(error, errors.TooManyRequests) and refused_by_budget(error):
        return False
    return error.code in _NOT_TAKEN or (error.code >= 500 and call.repeatable)


def refused_by_budget(error: errors.TooManyRequests) -> bool:
    """Return whether a PodDisruptionBudget forbids the eviction, in contrast to a server under load."""
    causes = error.details.causes if error.details is not None else []
    return any(cause.reason == "DisruptionBudget" for cause in causes)


class NotConnected(errors.ConnectionFailed):
    """No connection could be made, so the server did not see the request."""


def _no_answer(call: HttpRequest, server: str, error: Exception) -> errors.ConnectionFailed:
    refused = isinstance(
        error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | exchange.NotReached
    )
    cls = NotConnected if refused else errors.ConnectionFailed
    return cls(f"{call.method} {call.path}: {server}: {reason_of(error)}")


def _failure(response: aiohttp.ClientResponse, data: bytes) -> errors.ApiError:
    return wire.read_failure(response.status, data, response.headers.get("Retry-After", ""))


def _socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    exchange.keep_alive(made)
    return made


_NUMBER = re.compile(r"\[Errno (\d+)\]")


def reason_of(error: BaseException) -> str:
    """Return what went wrong between us and a server: `connection refused`, say. Text of the error itself where nothing
    better is known."""
    chain = list(_chain(error))
    for each in chain:
        if isinstance(each, ssl.SSLCertVerificationError):
            hint = "is certificate-authority or tls-server-name right?"
            return f"its certificate is not trusted: {getattr(each, 'verify_message', each)} ({hint})"
    for each in chain:
        if isinstance(each, socket.gaierror):
            return "its host name is not known"
        if isinstance(each, ssl.SSLError):
            return "it does not answer in TLS (does it speak plain http?)"
    for each in chain:
        if isinstance(each, TimeoutError):
            return "no answer in time"
        if number := _errno_of(each):
            return os.strerror(number).lower()
    return str(error) or "the connection ended before the answer"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, and what it came from."""
    seen: BaseException | None = error
    for _ in range(8):
        if seen is None:
            return
        yield seen
        inner = getattr(seen, "os_error", None)  # as aiohttp wraps it
        seen = inner if isinstance(inner, BaseException) and inner is not seen else seen.__cause__


def _errno_of(error: BaseException) -> int:
    if not isinstance(error, OSError):
        return 0
    if error.errno is not None and error.errno > 0:
        return error.errno
    # Where a name has several addresses, asyncio tells of all in one text.
    found = _NUMBER.search(str(error))
    return int(found[1]) if found else 0
