"""HTTP to an API server: one request at a time, tried again where that is safe.

Connections are pooled and kept alive; the identity is renewed on 401; the client's own rate is limited.
"""

import asyncio
import contextlib
import random
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from koordinator.cluster import errors, wire
from koordinator.cluster.backoff import Backoff, BackoffPolicy, retry_after_s
from koordinator.cluster.config import ClientConfig, ConfigError
from koordinator.cluster.rate_limit import Rate, TokenBucket

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
# A peer that vanished without a word is noticed after 30 + 3 × 10 s also by a watch that only listens.
_KEEPALIVE_OPTIONS = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))

_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._~:-]*")

# 503 is an answer of a server (or its proxy) that did not take the request in hand.
_NOT_TAKEN = (429, 503)


_Answer = contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `repeatable`: sending it twice does no harm, so it may be repeated when it is not known
    whether the first arrived."""

    method: str
    path: str
    params: Mapping[str, str] = {}
    body: bytes | None = None
    content_type: str = "application/json"
    repeatable: bool = False


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
        self.retry_count = 0
        self.on_answer: Callable[[str, str, float], None] | None = None
        """Hears of each request that ended: method, status code (`<error>` without an answer), seconds."""
        self.on_limited: Callable[[str, float], None] | None = None
        """Hears how many seconds each request waited for the client's own rate limit: method, seconds."""
        self.on_retry: Callable[[str, str], None] | None = None
        """Hears of each request that is sent again: method, status code of the answer before."""
        self._config = config
        self._rng = rng
        self._user_agent = user_agent
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        self._rate = rate
        self._bucket: TokenBucket | None = None
        self._session: aiohttp.ClientSession | None = None
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

    async def close(self) -> None:
        """Close all connections; watches end with an error."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, call: Call) -> bytes:
        """The body of the answer.

        Raises: ApiError: the server's last refusal, or ConnectionFailed when there was no answer.
        """
        backoff: Backoff | None = None
        renewed = False
        for attempt in range(1, TRIES_MAX + 1):
            identity = self._identity
            try:
                return await self._once(call)
            except errors.Unauthorized:
                if renewed or not await self._renew(identity):
                    raise
                renewed = True
            except errors.ApiError as error:
                if attempt == TRIES_MAX or not _may_repeat(call, error):
                    raise
                backoff = backoff or Backoff(BACKOFF, self._rng)
                self.retry_count += 1
                if self.on_retry is not None:
                    self.on_retry(call.method, str(error.code) if error.code else "<error>")
                await asyncio.sleep(backoff.next_s(error))
        raise errors.Unauthorized("the server refuses our credentials")

    @contextlib.asynccontextmanager
    async def stream(self, call: Call, *, timeout_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """The chunks of a long answer, as they arrive. Raises: as `send`, also between chunks; not retried,
        except once after renewing the identity."""
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        identity = self._identity
        try:
            async with contextlib.AsyncExitStack() as stack:
                response = await stack.enter_async_context(await self._request(call, timeout))
                if response.status == 401 and await self._renew(identity):
                    response = await stack.enter_async_context(await self._request(call, timeout))
                if response.status >= 400:
                    raise _failure(response, await response.read())
                yield response.content.iter_any()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(call, error) from error

    async def _once(self, call: Call) -> bytes:
        began_s = asyncio.get_running_loop().time()
        code = "<error>"
        try:
            async with await self._request(call, self._timeout) as response:
                data = await response.read()
            code = str(response.status)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(call, error) from error
        finally:
            if self.on_answer is not None:
                self.on_answer(call.method, code, asyncio.get_running_loop().time() - began_s)
        if response.status >= 400:
            raise _failure(response, data)
        return data

    async def _request(self, call: Call, timeout: aiohttp.ClientTimeout) -> _Answer:
        if self._session is None:
            raise errors.ConnectionFailed("the cluster client is closed; open it with `async with`")
        if self._bucket is not None:
            waited_s = await self._bucket.wait()
            if self.on_limited is not None:
                self.on_limited(call.method, waited_s)
        self.request_count += 1
        return self._session.request(
            call.method,
            self._url(call),
            data=call.body,
            headers=await self._headers(call),
            timeout=timeout,
            allow_redirects=False,  # a redirect would carry our token elsewhere
            proxy=self._config.proxy_url or None,
            server_hostname=self._config.server_name or None,
        )

    async def _headers(self, call: Call) -> dict[str, str]:
        headers = {} if call.body is None else {"Content-Type": call.content_type}
        try:
            authorization = await self._config.credentials.authorization()
        except ConfigError as error:
            raise errors.Unauthorized(f"no credentials: {error}") from error
        if authorization:
            headers["Authorization"] = authorization
        return headers

    async def _renew(self, refused: int) -> bool:
        """A new identity after number `refused`: made once for all requests that were refused together."""
        async with self._renewing:
            if self._identity != refused:
                return True
            try:
                renewed = await self._config.credentials.renew()
            except ConfigError as error:
                raise errors.Unauthorized(f"no credentials: {error}") from error
            self._identity += 1
            return renewed

    def _url(self, call: Call) -> URL:
        path = call.path if _PLAIN_PATH.fullmatch(call.path) else quote(call.path, safe="/:")
        query = f"?{urlencode(call.params)}" if call.params else ""
        return URL(f"{self._config.server}{path}{query}", encoded=True)


def _may_repeat(call: Call, error: errors.ApiError) -> bool:
    """Whether sending the call again is safe and can help."""
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
    """An eviction that a PodDisruptionBudget forbids, not a server under load."""
    causes = error.details.causes if error.details is not None else []
    return any(cause.reason == "DisruptionBudget" for cause in causes)


class NotConnected(errors.ConnectionFailed):
    """No connection could be made, so the server did not see the request."""


def _no_answer(call: Call, error: Exception) -> errors.ConnectionFailed:
    text = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        text += " (is certificate-authority or tls-server-name right?)"
    refused = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    cls = NotConnected if refused else errors.ConnectionFailed
    return cls(f"{call.method} {call.path}: {text}")


def _failure(response: aiohttp.ClientResponse, data: bytes) -> errors.ApiError:
    return wire.read_failure(response.status, data, response.headers.get("Retry-After", ""))


def _socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE_OPTIONS:
        if hasattr(socket, name):  # not on every system
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
