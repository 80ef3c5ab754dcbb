"""The HTTP server: who may ask, what is asked, which verb answers, and that clients understand every answer."""

import asyncio
import logging
import random
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from koordinator import profiling
from koordinator.api.errors import KoordinatorError
from koordinator.api.meta import Resource
from koordinator.clock import SystemClock
from koordinator.cluster import errors
from koordinator.cluster.backend import Backend
from koordinator.cluster.config import is_loopback
from koordinator.cluster.delegated_auth import ANONYMOUS, refused
from koordinator.cluster.resource_path import ResourcePath, parse_path
from koordinator.local.apiserver import bodies, calls, pod_streams, query, tls
from koordinator.local.apiserver.auth import Access, Authenticator, StaticToken, is_health
from koordinator.local.apiserver.calls import MediaForm, ResourceCall
from koordinator.local.apiserver.documents import Pages, Telemetry
from koordinator.local.apiserver.extras import (
    Bindings,
    Extra,
    UsageMetrics,
    all_reviews,
    not_allowed,
)
from koordinator.local.apiserver.pod_streams import NoStreams, PodStreams, container_of, pod_log
from koordinator.local.apiserver.short_requests import AnyRequest, ShortServer, WatchRequest
from koordinator.local.apiserver.tls import ServerTls
from koordinator.local.apiserver.verbs import Verbs, metadata_only
from koordinator.local.apiserver.watching import Watches
from koordinator.local.authorization.rbac import Authorizer, MastersOnly
from koordinator.local.openapi import OpenApi
from koordinator.local.service_account_tokens import ServiceAccountTokens

log = logging.getLogger(__name__)

# Requests answered at once, watches aside; more are told to come back (the API server's limits for mutating
# and for reading requests, added up).
IN_FLIGHT_MAX = 600
_STOP_S = 2.0  # for open connections to finish what they are doing
_HEADER_BYTES_MAX = 64 * 1024


class ApiServer:
    """The Kubernetes API of a backend, served over HTTP.

    Without `tokens` everybody on this machine is the administrator, and the server binds to loopback only; to
    bind elsewhere it needs tokens and `tls`. `hosts` are further names under which it may be addressed.
    `authorizer` says what users other than administrators may do, nothing without one; `accounts` recognises the
    tokens of ServiceAccounts.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tokens: Iterable[StaticToken] = (),
        tls: ServerTls | None = None,
        hosts: Iterable[str] = (),
        streams: PodStreams | None = None,
        openapi: OpenApi | None = None,
        authorizer: Authorizer | None = None,
        accounts: ServiceAccountTokens | None = None,
        seed: int = 0,
    ) -> None:
        self._authenticator = Authenticator(tokens, hosts, accounts)
        self._access = Access(self._authenticator, authorizer or MastersOnly(), backend)
        self._tokens = list(tokens)
        if not is_loopback(host) and not (self._authenticator.enabled and tls is not None):
            raise UnsafeBind(host)
        self._host, self._port, self._tls = host, port, tls
        self.watches = Watches(backend, random.Random(seed))
        self.telemetry = Telemetry(self.watches)
        extras: list[Extra] = [
            *all_reviews(self._authenticator, self._access.authorizer),
            Bindings(backend),
            UsageMetrics("NodeMetrics", "nodes", backend),
            UsageMetrics("PodMetrics", "pods", backend),
        ]
        self._pages = Pages(backend, extras, openapi, self.telemetry)
        self._requests = Requests(backend, extras, self.watches, streams or NoStreams())
        self._server: web.Server | None = None
        self._short: ShortServer | None = None
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT` once started."""
        scheme = "http" if self._tls is None else "https"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{scheme}://{host}:{self._port}"

    @property
    def port(self) -> int:
        """Return the port where it listens, once started."""
        return self._port

    async def start(self) -> None:
        """Listen; with port 0 the system chooses one. Raises: OSError when the address is taken."""
        loop = asyncio.get_running_loop()
        self._server = web.Server(
            self._answer,
            request_factory=_request,
            access_log=None,
            max_field_size=_HEADER_BYTES_MAX,
            max_line_size=_HEADER_BYTES_MAX,
            auto_decompress=False,
        )
        self._short = ShortServer(self._answer, self._server, SystemClock())
        context: ssl.SSLContext | None = None if self._tls is None else self._tls.context()
        self._listener = await loop.create_server(
            self._short, self._host, self._port, ssl=context, backlog=1024
        )
        self._port = self._listener.sockets[0].getsockname()[1]
        self._pages.address = f"{self._host}:{self._port}"
        self.watches.start()

    async def stop(self) -> None:
        """Stop listening, end open watches and finish what is under way."""
        if self._listener is not None:
            self._listener.close()
        await self.watches.stop()
        if self._short is not None and self._server is not None:
            await asyncio.gather(self._short.shutdown(_STOP_S), self._server.shutdown(_STOP_S))
        if self._listener is not None:
            await self._listener.wait_closed()
        self._server = self._short = self._listener = None

    def write_kubeconfig(self, path: Path, extension: Mapping[str, str] | None = None) -> None:
        """Write a kubeconfig for this server, readable by its owner only."""
        ca = None if self._tls is None else self._tls.ca_certificate
        token = self._tokens[0].secret if self._tokens else ""
        tls.write_kubeconfig(path, server=self.url, ca_certificate=ca, token=token, extension=extension)

    async def refusal(self, request: web.BaseRequest) -> web.Response | None:
        """Return a guard for other ports of this process (`cluster.delegated_auth.guarded`): who may not ask for a path
        here may not there, health checks aside."""
        if is_health(request.path):
            return None
        try:
            self._access.user_of(request, request.path, None)
        except errors.ApiError as error:
            return refused(error)
        return None

    async def _answer(self, request: AnyRequest) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        path = request.path
        target = parse_path(path)
        telemetry = self.telemetry
        long_running = target is not None and (target.watch or bool(query.boolean(request.query, "watch")))
        try:
            response = await self._response(request, path, target, long_running=long_running)
        except Exception as error:
            response = self._failed(request, path, error)
        if not long_running:
            # Names that were not looked up are whatever the client made up: no labels for them.
            known = target is not None and response.status not in _UNRESOLVED
            group, plural = (target.group, target.plural) if target is not None and known else ("", "")
            telemetry.record(request.method, group, plural, response.status, loop.time() - started_s)
            if isinstance(response, web.Response):
                return await calls.compress(request, response)
        return response

    async def _response(
        self, request: AnyRequest, path: str, target: ResourcePath | None, *, long_running: bool
    ) -> web.StreamResponse:
        telemetry = self.telemetry
        try:
            if telemetry.in_flight >= IN_FLIGHT_MAX and not is_health(path) and not long_running:
                raise _TOO_MANY
            telemetry.in_flight += not long_running
            try:
                return await self._dispatch(request, path, target)
            finally:
                telemetry.in_flight -= not long_running
        except errors.ApiError as error:
            if _has_begun(request):
                raise
            return calls.failure(error)

    def _failed(self, request: AnyRequest, path: str, error: Exception) -> web.Response:
        """Return the answer to a request on which the server itself failed. Raises when there is nobody to answer, or
        the answer has begun: a second one in its body would be read as part of it."""
        transport = request.transport
        if transport is None or transport.is_closing():
            raise error  # the client left while it was answered
        self.telemetry.panics += 1
        log.error("request failed", extra={"method": request.method, "path": path}, exc_info=error)
        if _has_begun(request):
            transport.abort()
            raise ConnectionAbortedError("an answer was broken off") from error
        return calls.failure(errors.InternalError(f"Internal error occurred: {type(error).__name__}"))

    async def _dispatch(
        self, request: AnyRequest, path: str, target: ResourcePath | None
    ) -> web.StreamResponse:
        user = ANONYMOUS if is_health(path) else self._access.user_of(request, path, target)
        if target is None:
            if path in profiling.PAGES and request.method == "GET" and isinstance(request, web.BaseRequest):
                return await profiling.PAGES[path](request)
            return self._pages.page(request, path)
        resource = self._requests.resource_of(target)
        call = ResourceCall(request, target, resource, user)
        try:
            response = await self._requests.answer(call)
        except errors.ApiError as error:
            response = calls.failure(error)
        calls.warn(response, call)
        return calls.in_wanted_form(response, call.wanted) if isinstance(response, web.Response) else response


class UnsafeBind(KoordinatorError, ValueError):
    """The address is reachable from other machines and the server has no tokens or no TLS."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"refusing to listen on {host}, where other machines could reach it without a credential: "
            "add --token, or leave --host away"
        )


_UNRESOLVED = frozenset({401, 403, 404, 429})
_TOO_MANY = errors.TooManyRequests(
    "too many requests, please try again later", details=errors.StatusDetails(retry_after_seconds=1)
)


def _has_begun(request: AnyRequest) -> bool:
    """Return whether some of the answer was sent."""
    if isinstance(request, web.BaseRequest):
        return request.writer.output_size > 0
    return isinstance(request, WatchRequest) and request.has_begun


def _request(message, payload, protocol, writer, task):  # type: ignore[no-untyped-def]
    """aiohttp's request with our limit for bodies, and headers that are text."""
    headers = _as_text(message.headers)
    return web.BaseRequest(
        message if headers is message.headers else message._replace(headers=headers),
        payload,
        protocol,
        writer,
        task,
        asyncio.get_running_loop(),
        client_max_size=bodies.BODY_BYTES_MAX,
    )


def _as_text(headers: CIMultiDictProxy[str]) -> CIMultiDictProxy[str]:
    """Return the same with U+FFFD for bytes that are no UTF-8, as in Go: they end up in objects and errors."""
    if all(value.isascii() for value in headers.values()):
        return headers
    clean = [
        (name, value.encode(errors="surrogateescape").decode(errors="replace"))
        for name, value in headers.items()
    ]
    return CIMultiDictProxy(CIMultiDict(clean))


# Subresources that need a kubelet to talk to; nobody here has one.
_STREAMS = frozenset({"attach", "exec", "portforward", "proxy"})
_CONNECTED = frozenset({"binding", "eviction", "token"})
_UNKNOWN = "the server could not find the requested resource"


class Requests:
    """Routes calls to the verbs, the watches and the extras."""

    def __init__(
        self,
        backend: Backend,
        extras: list[Extra],
        watches: Watches,
        streams: PodStreams,
    ) -> None:
        self._backend = backend
        self._verbs = Verbs(backend)
        self._watches = watches
        self._streams = streams
        self._extras = {
            (extra.served.resource.group, extra.served.resource.version, extra.served.resource.plural): extra
            for extra in extras
        }

    def resource_of(self, target: ResourcePath) -> Resource:
        """Raises: NotFound for what is not served at this path."""
        extra = self._extras.get((target.group, target.version, target.plural))
        if extra is not None:
            resource = extra.served.resource
        else:
            resource = self._backend.resolve(target.group, target.version, target.plural)
        if (target.namespace and not resource.namespaced) or target.rest:
            raise errors.NotFound(_UNKNOWN) if target.subresource != "proxy" else _no_streams(target)
        return resource

    async def answer(self, call: ResourceCall) -> web.StreamResponse:
        """Raises: ApiError."""
        target = call.target
        extra = self._extras.get((target.group, target.version, target.plural))
        if extra is not None:
            return await self._extra(call, extra)
        if target.subresource:
            return await self._subresource(call)
        method = call.request.method
        if not target.name:
            return await self._collection(call, method)
        if call.resource.namespaced and not target.namespace:
            raise errors.NotFound(_UNKNOWN)
        if method == "GET":
            if target.watch or query.boolean(call.params, "watch"):
                return await self._watches.serve(call)
            return await self._verbs.get(call)
        if method == "PUT":
            return await self._verbs.update(call)
        if method == "PATCH":
            return await self._verbs.patch(call)
        if method == "DELETE":
            return await self._verbs.delete(call)
        raise not_allowed()

    async def _collection(self, call: ResourceCall, method: str) -> web.StreamResponse:
        target = call.target
        if method == "GET":
            if target.watch or query.boolean(call.params, "watch"):
                return await self._watches.serve(call)
            return await self._verbs.list(call)
        if call.resource.namespaced and not target.namespace:
            raise not_allowed()
        if method == "POST":
            return await self._verbs.create(call)
        if method == "DELETE":
            return await self._verbs.delete_collection(call)
        raise not_allowed()

    async def _subresource(self, call: ResourceCall) -> web.StreamResponse:
        target, method, name = call.target, call.request.method, call.target.subresource
        pod = call.resource.plural == "pods" and not call.resource.group
        if pod and name == "log" and method == "GET":
            return await pod_log(call, self._backend, self._streams)
        if pod and name == "exec" and method in ("GET", "POST"):
            return await self._exec(call)
        if name in _STREAMS and not call.resource.group:
            raise _no_streams(target)
        if name not in call.resource.subresources or (call.resource.namespaced and not target.namespace):
            raise self._verbs.missing_subresource(call)
        if name in _CONNECTED:
            if method != "POST":
                raise not_allowed()
            return await self._verbs.connect(call)
        if method == "GET" and name != "finalize":
            return await self._verbs.get(call)
        if method == "PUT":
            return await self._verbs.update(call)
        if method == "PATCH" and name != "finalize":
            return await self._verbs.patch(call)
        raise not_allowed()

    async def _exec(self, call: ResourceCall) -> web.StreamResponse:
        target, params = call.target, call.params
        pod = self._backend.get(call.resource, target.namespace, target.name)
        request = call.request
        if not isinstance(request, web.BaseRequest):
            raise _no_streams(target)
        wanted = pod_streams.ExecOptions(
            container=container_of(pod, params.get("container", "")),
            command=tuple(request.query.getall("command", [])),
            stdin=bool(query.boolean(params, "stdin")),
            stdout=bool(query.boolean(params, "stdout")),
            stderr=bool(query.boolean(params, "stderr")),
            tty=bool(query.boolean(params, "tty")),
        )
        return await pod_streams.serve(request, pod, wanted, self._streams)

    async def _extra(self, call: ResourceCall, extra: Extra) -> web.Response:
        target, method = call.target, call.request.method
        if target.subresource:
            raise errors.NotFound(_UNKNOWN)
        if target.watch or query.boolean(call.params, "watch"):
            raise not_allowed()
        if method == "POST" and "create" in extra.served.verbs and not target.name:
            body = await self._verbs.read_object(call, "")
            return calls.answer(await extra.create(call, body), status=201)
        if method == "GET" and "get" in extra.served.verbs:
            if target.name:
                return calls.answer(_in_form(call, extra.get(call)))
            return calls.answer(_extra_list(call, extra))
        raise not_allowed()


def _extra_list(call: ResourceCall, extra: Extra) -> dict[str, Any]:
    resource = extra.served.resource
    items = [_in_form(call, item) for item in extra.list(call)]
    listed = {
        "kind": f"{resource.kind}List",
        "apiVersion": resource.api_version,
        "metadata": {},
        "items": items,
    }
    if call.wanted.form in (MediaForm.METADATA, MediaForm.METADATA_LIST):
        listed.update(kind="PartialObjectMetadataList", apiVersion="meta.k8s.io/v1")
    return listed


def _in_form(call: ResourceCall, obj: dict[str, Any]) -> dict[str, Any]:
    return metadata_only(obj) if call.wanted.form in (MediaForm.METADATA, MediaForm.METADATA_LIST) else obj


def _no_streams(target: ResourcePath) -> errors.BadRequest:
    return errors.BadRequest(
        f"{target.plural}/{target.subresource} is not served: "
        "the pods of this cluster have no kubelet to connect to"
    )
