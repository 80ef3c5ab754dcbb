"""The webhooks of one manager (behaviour/manager 12): the HTTPS server with routes to the handlers, a health check and
a certificate that can be exchanged; certificates and configurations beside it.

`/convert` answers ConversionReviews of custom resources (apiextensions.k8s.io/v1). All our CRDs have one version, so
nobody needs a conversion: objects that are in the wanted version already are returned as they are, anything else is
refused.
"""

import asyncio
import logging
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from koordinator.api.errors import KoordinatorError
from koordinator.cluster.backoff import new_rng
from koordinator.cluster.delegated_auth import (
    AccessReviewer,
    ClientCAs,
    DelegatedAuth,
    Refusal,
    TokenReviewer,
)
from koordinator.manager.parts import ManagerContext
from koordinator.manager.webhooks import review
from koordinator.manager.webhooks.all import AdmissionHandlers
from koordinator.manager.webhooks.certificates import CertificateSet
from koordinator.manager.webhooks.configuration import WebhookSettings
from koordinator.manager.webhooks.sync import WebhookSync

log = logging.getLogger(__name__)

PATH = "/convert"
API_VERSIONS = ("apiextensions.k8s.io/v1", "apiextensions.k8s.io/v1beta1")

Json = dict[str, Any]


class _Request(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    desired_api_version: str = msgspec.field(default="", name="desiredAPIVersion")
    objects: list[Json] = []


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = API_VERSIONS[0]
    request: _Request | None = None


def convert(body: bytes) -> bytes:
    """Return the answer to one ConversionReview; whatever is wrong with it is said in the answer."""
    try:
        review = msgspec.json.decode(body, type=_Review)
    except (msgspec.DecodeError, RecursionError) as error:
        return _answer(API_VERSIONS[0], "", [], f"decode ConversionReview: {error}")
    version, request = review.api_version, review.request
    if version not in API_VERSIONS:
        return _answer(API_VERSIONS[0], "", [], f"unsupported ConversionReview version {version!r}")
    if request is None:
        return _answer(version, "", [], "ConversionReview without request")
    for obj in request.objects:
        if obj.get("apiVersion") != request.desired_api_version:
            problem = (
                f"conversion of {obj.get('kind')} from {obj.get('apiVersion')} to {request.desired_api_version} is "
                "not supported: its definition has one version"
            )
            return _answer(version, request.uid, [], problem)
    return _answer(version, request.uid, request.objects, "")


def _answer(version: str, uid: str, objects: list[Json], problem: str) -> bytes:
    result: Json = {"status": "Failure", "message": problem} if problem else {"status": "Success"}
    response: Json = {"uid": uid, "convertedObjects": objects, "result": result}
    return msgspec.json.encode({"apiVersion": version, "kind": "ConversionReview", "response": response})


BODY_BYTES_MAX = 8 * 1024 * 1024  # two copies of the largest object (3 MiB each) and the envelope
CACHES_WAIT_S = 5.0
"""Time that a request waits for caches that are being filled; below the API server's patience (10 s)."""
STOP_S = 5.0
"""For requests under way when the server stops."""
BACKLOG = 1024
KEEP_ALIVE_S = 180.0
"""For idle connections: longer than API servers keep them (90 s), so that no request meets one that is just closing."""

HEALTH_PATH = "/healthz"
_Answerer = Callable[[web.BaseRequest], Awaitable[web.Response]]


class WebhookServer:
    """Serves admission handlers, and pages for people, by path over TLS.

    `synced` is set when the handlers' caches are filled; requests that come before wait, but not for long, and are
    then answered 503, so that the failurePolicy decides.
    """

    def __init__(
        self,
        handlers: Mapping[str, review.Handler],
        *,
        synced: asyncio.Event,
        host: str | None = "127.0.0.1",
        port: int = 0,
        pages: Mapping[str, review.Page] | None = None,
        refusal: Refusal | None = None,
    ) -> None:
        """`host` None is all addresses of this machine. `refusal` says who may not see the pages; handlers, which
        tell nothing that the caller did not send, are open to every API server."""
        assert refusal is not None or not pages, "pages for everybody"
        self._refusal = refusal
        self._synced = synced
        self._host, self._port = host, port
        self._posts: dict[str, _Answerer] = {
            path: self._admitting(handler) for path, handler in handlers.items()
        }
        self._posts[PATH] = _converted
        self._pages = dict(pages or {})
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Return the bound port; only after `start`."""
        assert self._listener is not None, "the webhook server is not started"
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    def present(self, certs: CertificateSet) -> None:
        """The certificate for connections from now on; those that are open stay.

        Raises: ssl.SSLError when certificate and key do not fit; then the one before stays.
        """
        _load(
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certs
        )  # a pair that does not fit would leave half of it
        _load(self._context, certs)
        log.info("webhook certificate presented")

    async def start(self) -> None:
        """Listen; without a certificate (`present`) handshakes fail. Raises: OSError when the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = web.Server(
            self._answer,
            request_factory=_request,
            access_log=None,
            keepalive_timeout=KEEP_ALIVE_S,
            auto_decompress=False,  # API servers pack nothing, and the rest of a bomb is unpacked at one go
        )
        self._listener = await loop.create_server(
            self._server, self._host, self._port, ssl=self._context, backlog=BACKLOG
        )
        log.info("webhook server started", extra={"port": self.port, "paths": sorted(self._posts)})

    async def stop(self) -> None:
        """Take no new connections, answer what was asked, close; may be called twice."""
        listener, self._listener = self._listener, None
        server, self._server = self._server, None
        if listener is not None:
            listener.close()
        if server is not None:
            server.pre_shutdown()
            await server.shutdown(STOP_S)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        path = request.rel_url.raw_path
        if request.method == "POST":
            post = self._posts.get(path)
            if post is not None:
                return await post(request)
        elif request.method in ("GET", "HEAD"):
            if path == HEALTH_PATH:
                return web.Response(text="ok")
            page = self._pages.get(path)
            if page is not None:
                assert self._refusal is not None, path
                refused = await self._refusal(request)
                return refused or web.Response(body=page(), content_type="application/json")
        is_known = path in self._posts or path in self._pages or path == HEALTH_PATH
        if is_known:
            return web.Response(status=405, text=f"{request.method} is not for {path}\n")
        return web.Response(status=404, text=f"{path} is not served; is its feature gate on?\n")

    def _admitting(self, handler: review.Handler) -> _Answerer:
        async def admit(request: web.BaseRequest) -> web.Response:
            body = await request.read()
            if not self._synced.is_set() and not await self._caches_filled():
                text = "koord-manager cannot answer yet: its caches are being filled; try again"
                return web.Response(status=503, text=text)
            answer = await review.review(handler, body)
            return web.Response(body=answer, content_type="application/json")

        return admit

    async def _caches_filled(self) -> bool:
        try:
            async with asyncio.timeout(CACHES_WAIT_S):
                return await self._synced.wait()
        except TimeoutError:
            return False


async def _converted(request: web.BaseRequest) -> web.Response:
    return web.Response(body=convert(await request.read()), content_type="application/json")


def _load(context: ssl.SSLContext, certs: CertificateSet) -> None:
    # The ssl module reads certificates from files only; these are gone at once.
    with tempfile.TemporaryDirectory(prefix="koordinator-webhook-") as folder:
        cert, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        cert.write_bytes(certs.cert)
        key.touch(mode=0o600)
        key.write_bytes(certs.key)
        context.load_cert_chain(cert, key)


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    """aiohttp's request with our limit for bodies."""
    return web.BaseRequest(
        message,
        payload,
        protocol,
        writer,
        task,
        asyncio.get_running_loop(),
        client_max_size=BODY_BYTES_MAX,
    )


START_S = 20.0
"""For the first round of certificates and configurations; then the process had better say what is wrong."""
CHECK_S = 5.0
DRAIN_S = 2.0
"""A process that was told to stop answers so long still: API servers learn late that its address is gone."""


class WebhookStartError(KoordinatorError):
    """The webhooks could not be set up in time; the text says what was in the way."""


class Webhooks:
    """Build before the informers of `shared.factory` are started, then `run` beside them.

    `synced` is set when the handlers' caches are filled. Pages are for those whom the API server knows and lets.
    `host` None listens where the settings say. With
    `drain_s` requests are answered for so long after `run` was cancelled, while `check` says that it stops.
    """

    def __init__(
        self,
        shared: ManagerContext,
        admission: AdmissionHandlers,
        settings: WebhookSettings,
        *,
        synced: asyncio.Event,
        host: str | None = None,
        drain_s: float = 0.0,
    ) -> None:
        self.ready = asyncio.Event()
        """Set when certificates are presented and the configurations name them."""
        self._synced = synced
        self._drain_s = drain_s
        self._is_stopping = False
        self._certs: CertificateSet | None = None
        self._check_host = host or settings.listen_host or "localhost"
        self._server: WebhookServer | None = None
        handlers = admission.handlers
        if handlers:
            delegated_auth = DelegatedAuth(
                ClientCAs(), TokenReviewer(shared.cluster), AccessReviewer(shared.cluster), (HEALTH_PATH,)
            )
            self._server = WebhookServer(
                handlers,
                synced=synced,
                host=host or settings.listen_host,
                port=settings.port,
                pages=admission.pages,
                refusal=delegated_auth.refusal,
            )
        self._sync = WebhookSync(
            shared.cluster,
            shared.factory,
            settings,
            handlers.keys(),
            self._present,
            rng=new_rng(shared.rng),
        )

    @property
    def port(self) -> int:
        """Return where the server listens; only when `ready`, and with any handler at all."""
        assert self._server is not None, "no webhook is on"
        return self._server.port

    async def run(self) -> None:
        """Serve and keep certificates and configurations until cancelled.

        Raises: WebhookStartError, OSError when the port is taken.
        """
        server = self._server
        try:
            if server is not None:
                await server.start()
                self._sync.serve_at(server.port)
            async with asyncio.TaskGroup() as group:
                syncing = group.create_task(self._sync.run(), name="webhook sync")
                try:
                    async with asyncio.timeout(START_S):
                        await self._sync.done.wait()
                except TimeoutError:
                    syncing.cancel()
                    why = self._sync.guard.last_error or "the API server does not answer"
                    raise WebhookStartError(f"webhooks not set up after {START_S:g} s: {why}") from None
                self.ready.set()
        except ExceptionGroup as problems:
            raise problems.exceptions[0] from None
        finally:
            self._is_stopping = True
            if server is not None:
                try:
                    if self.ready.is_set() and self._drain_s > 0:
                        await asyncio.sleep(self._drain_s)
                finally:
                    await server.stop()

    async def check(self) -> str:
        """Return the check `webhook-ready`: why requests cannot be answered now, empty when they can."""
        if self._is_stopping:
            return "stopping"
        if self._server is None:
            return "" if self.ready.is_set() else "webhook configurations are not in order yet"
        if not self.ready.is_set() or self._certs is None:
            return f"certificates or configurations are not in order yet: {self._sync.guard.last_error or 'starting'}"
        if not self._synced.is_set():
            return "caches are not filled yet"
        try:
            async with asyncio.timeout(CHECK_S):
                return await _problem_at(self._check_host, self._server.port, self._certs.ca_cert)
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError) as error:
            return f"GET https://{self._check_host}:{self._server.port}{HEALTH_PATH}: {error or type(error).__name__}"

    def _present(self, certs: CertificateSet) -> None:
        assert self._server is not None, "certificates without a server"
        self._server.present(certs)
        self._certs = certs


async def _problem_at(host: str, port: int, ca_cert: bytes) -> str:
    """Return what is wrong with the server on this machine, seen by a client that trusts the CA only."""
    context = ssl.create_default_context(cadata=ca_cert.decode("ascii"))
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="localhost")
    try:
        writer.write(f"GET {HEALTH_PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        status = (await reader.readuntil(b"\r\n")).strip().decode("latin-1")
        return "" if status.partition(" ")[2].startswith("200") else f"{HEALTH_PATH} answers {status}"
    finally:
        writer.close()
