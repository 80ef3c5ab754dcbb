"""Call a webhook: over HTTPS, or a function in this process. The one place of admission that does I/O.

A cluster of pods on hollow nodes has no network, so a `clientConfig.service` is looked up in two places: what was
registered for it (`ServiceResolver.register`: a webhook server running in or beside this process), else the first
ready address of its EndpointSlices. Document your webhook's address in one of the two.
"""

import asyncio
import base64
import binascii
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from koordinator.cluster.backend import Backend, ListOptions
from koordinator.cluster.errors import NotFound
from koordinator.local.admission.rules import CompiledWebhook

_SERVICE_LABEL = "kubernetes.io/service-name"


class UnresolvedService(Exception):
    """Nothing is known to serve a Service; the text is that of the API server."""


class ServiceResolver:
    """Finds the address of a Service: the registered one, else the first ready one of its EndpointSlices."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._registered: dict[tuple[str, str], tuple[str, int]] = {}

    def register(self, namespace: str, name: str, host: str, port: int) -> None:
        """Serve a Service from `host:port`, whatever its own port is."""
        self._registered[namespace, name] = (host, port)

    def resolve(self, namespace: str, name: str, port: int) -> tuple[str, int]:
        """Return host and port. Raises: UnresolvedService."""
        registered = self._registered.get((namespace, name))
        if registered is not None:
            return registered
        backend = self._backend
        try:
            backend.get(backend.resolve("", "v1", "services"), namespace, name)
        except NotFound:
            raise UnresolvedService(f'service "{name}" not found') from None
        slices = backend.list(
            backend.resolve("discovery.k8s.io", "v1", "endpointslices"),
            namespace,
            ListOptions(label_selector=f"{_SERVICE_LABEL}={name}"),
        )
        for record in slices.records:
            ports = [item["port"] for item in record.obj.get("ports") or () if item.get("port")]
            for endpoint in record.obj.get("endpoints") or ():
                if (endpoint.get("conditions") or {}).get("ready", True) and endpoint.get("addresses"):
                    return endpoint["addresses"][0], ports[0] if ports else port
        raise UnresolvedService(f'no endpoints available for service "{name}"')


Handler = Callable[[bytes], Awaitable[bytes]]
"""A webhook in this process: AdmissionReview in, AdmissionReview out, as JSON."""

INPROC = "inproc"
QUESTION_BYTES_MAX = 7 * 1024 * 1024  # what webhooks made with the usual library (controller-runtime) read
ANSWER_BYTES_MAX = 8 * 1024 * 1024  # an object is at most 3 MiB; a patch may hold it twice, in base64
CONNECTIONS_MAX = 16
"""To one server; others wait. Each holds a quarter of a megabyte of TLS buffers, twice that with the server's side."""
_TLS_CONTEXTS_MAX = 256  # more CA bundles than webhooks of any cluster we know


class CallFailed(Exception):
    """A webhook could not be asked; the text is what the API server says after `failed to call webhook: `."""


class Caller:
    """Calls webhooks. `close` ends its connections."""

    def __init__(self, services: ServiceResolver) -> None:
        self._services = services
        self._handlers: dict[str, Handler] = {}
        self._session: aiohttp.ClientSession | None = None
        self._tls: dict[str, ssl.SSLContext] = {}

    def register(self, name: str, handler: Handler) -> None:
        """Answer webhooks whose URL is `inproc://NAME` by a function, without a socket: at any path, or at one
        when `name` has it (`NAME/path`)."""
        self._handlers[name] = handler

    async def call(self, webhook: CompiledWebhook, body: bytes) -> bytes:
        """Return the response body. Raises: CallFailed."""
        url = webhook.client.get("url")
        if url is not None and urlsplit(url).scheme == INPROC:
            return await self._call_handler(url, webhook, body)
        shown, target, host = self._address(webhook)
        suffix = f"?timeout={webhook.timeout_s}s"
        try:
            async with asyncio.timeout(webhook.timeout_s):
                return await self._post(target + suffix, host, webhook, body)
        except CallFailed as error:
            raise CallFailed(f'Post "{shown}{suffix}": {error}') from error
        except TimeoutError as error:
            raise CallFailed(f'Post "{shown}{suffix}": context deadline exceeded') from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CallFailed(f'Post "{shown}{suffix}": {describe(error, target)}') from error

    async def close(self) -> None:
        """End open connections; a later call opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _call_handler(self, url: str, webhook: CompiledWebhook, body: bytes) -> bytes:
        parts = urlsplit(url)
        name = parts.netloc
        handler = self._handlers.get(f"{name}{parts.path}") or self._handlers.get(name)
        if handler is None:
            raise CallFailed(f'Post "{url}": no handler is registered in this process as "{name}"')
        try:
            async with asyncio.timeout(webhook.timeout_s):
                return await handler(body)
        except TimeoutError as error:
            raise CallFailed(f'Post "{url}": context deadline exceeded') from error
        except Exception as error:  # the handler is a guest: what it raises is its failure, not ours
            raise CallFailed(f'Post "{url}": the handler raised {type(error).__name__}: {error}') from error

    def _address(self, webhook: CompiledWebhook) -> tuple[str, str, str | None]:
        """URL as the API server shows it, URL to connect to, and the name in the certificate."""
        service = webhook.client.get("service")
        if service is None:
            url = str(webhook.client.get("url", ""))
            return url, url, None
        namespace, name, port = (
            service.get("namespace", ""),
            service.get("name", ""),
            service.get("port", 443),
        )
        path = "/" + (service.get("path") or "").lstrip("/")
        host = f"{name}.{namespace}.svc"
        shown = f"https://{host}:{port}{path}"
        try:
            address, real_port = self._services.resolve(namespace, name, port)
        except UnresolvedService as error:
            raise CallFailed(f'Post "{shown}?timeout={webhook.timeout_s}s": {error}') from error
        return shown, f"https://{address}:{real_port}{path}", host

    async def _post(self, url: str, host: str | None, webhook: CompiledWebhook, body: bytes) -> bytes:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit_per_host=CONNECTIONS_MAX)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=True, trust_env=False)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if host is not None:
            headers["Host"] = host
        async with self._session.post(
            url,
            data=body,
            headers=headers,
            ssl=self._context(webhook.client.get("caBundle") or ""),
            server_hostname=host,
            allow_redirects=False,
        ) as response:
            answer = await response.content.read(ANSWER_BYTES_MAX + 1)
            while len(answer) <= ANSWER_BYTES_MAX and (more := await response.content.read(ANSWER_BYTES_MAX)):
                answer += more
            if len(answer) > ANSWER_BYTES_MAX:
                raise CallFailed(f"the response is larger than {ANSWER_BYTES_MAX} bytes")
            if response.status != 200:
                raise CallFailed(_status_text(response.status, answer))
            return answer

    def _context(self, bundle: str) -> ssl.SSLContext:
        context = self._tls.get(bundle)
        if context is None:
            try:
                pem = base64.b64decode(bundle).decode("ascii") if bundle else None
                context = ssl.create_default_context(cadata=pem)
            except (binascii.Error, UnicodeDecodeError, ssl.SSLError) as error:
                raise CallFailed(
                    "unable to load root certificates: unable to parse bytes as PEM block"
                ) from error
            if len(self._tls) >= _TLS_CONTEXTS_MAX:
                self._tls.clear()
            self._tls[bundle] = context
        return context


def _status_text(status: int, body: bytes) -> str:
    if status == 404:
        return "the server could not find the requested resource"
    shown = body[:256].decode(errors="replace").strip()
    if status >= 500:
        return f'an error on the server ("{shown}") has prevented the request from succeeding'
    return f"the server responded with the status code {status} but did not return more information"


def describe(error: BaseException, url: str) -> str:
    """Return a connection failure in the words of Go's net package."""
    parts = urlsplit(url)
    where = f"{parts.hostname}:{parts.port or 443}"
    cause: Any = getattr(error, "os_error", None) or error.__cause__ or error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
        unknown = "self-signed" in reason or "unable to get" in reason
        said = "certificate signed by unknown authority" if unknown else reason
        return f"tls: failed to verify certificate: x509: {said}"
    if isinstance(cause, ConnectionRefusedError) or getattr(cause, "errno", None) == 111:
        return f"dial tcp {where}: connect: connection refused"
    if isinstance(cause, socket.gaierror):
        return f"dial tcp: lookup {parts.hostname}: no such host"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
        return f"remote error: tls: {cause}"
    return str(error) or type(error).__name__
