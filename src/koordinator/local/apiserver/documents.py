"""Everything that is no resource: discovery, OpenAPI, version, health and the server's own metrics."""

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from koordinator import health
from koordinator.cluster import errors
from koordinator.cluster.backend import Backend
from koordinator.host.protobuf import field
from koordinator.local import interfaces
from koordinator.local.apiserver import calls, discovery
from koordinator.local.apiserver.calls import MediaForm
from koordinator.local.apiserver.extras import Extra
from koordinator.local.apiserver.short_requests import AnyRequest
from koordinator.local.apiserver.watching import Watches
from koordinator.local.openapi import OpenApi
from koordinator.prometheus import Counter, GaugeReading, Histogram, MetricsRegistry

VERSION = {
    "major": interfaces.KUBERNETES.split(".")[0],
    "minor": interfaces.KUBERNETES.split(".")[1],
    "gitVersion": f"v{interfaces.KUBERNETES}+koordinator",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",  # as Go programs say that were built without one
    "goVersion": "",
    "compiler": "cpython",
    "platform": "linux/amd64",
}
_HEALTH = ("/healthz", "/livez", "/readyz")
_CHECKS = {"ping": ""}  # the store is this process: if it answers at all, it is ready
_AGGREGATED_TYPE = "application/json;g=apidiscovery.k8s.io;v=%s;as=APIGroupDiscoveryList"

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_VERBS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Telemetry:
    """The server's metrics."""

    def __init__(self, watches: Watches) -> None:
        self.in_flight = 0
        self.panics = 0
        self._requests = Counter(
            "apiserver_request_total",
            "Requests by verb, group, resource and HTTP code.",
            ("code", "group", "resource", "verb"),
        )
        self._durations = Histogram(
            "apiserver_request_duration_seconds",
            "Time from the request's head to the answer's end, without watches.",
            _BUCKETS_S,
            ("verb",),
        )
        self._all = MetricsRegistry((self._requests, self._durations))
        self._read(
            "apiserver_current_inflight_requests",
            "Requests being answered, without watches.",
            lambda: self.in_flight,
        )
        self._read("apiserver_longrunning_requests", "Open watches.", lambda: watches.open_count)
        self._read(
            "apiserver_terminated_watchers_total",
            "Watches cut off because the client fell behind.",
            lambda: watches.cut_off_count,
        )
        self._read(
            "apiserver_request_panics_total",
            "Requests that ended in an error of our own.",
            lambda: self.panics,
        )

    def _read(self, name: str, description: str, number: Callable[[], int]) -> None:
        kind = "counter" if name.endswith("_total") else "gauge"
        self._all.add(GaugeReading(name, description, (), lambda: {(): number()}, kind=kind))

    def record(self, verb: str, group: str, resource: str, code: int, duration_s: float) -> None:
        """One finished request."""
        verb = verb if verb in _VERBS else "OTHER"
        self._requests.inc(str(code), group, resource, verb)
        self._durations.of(verb).observe(duration_s)

    def exposition(self) -> str:
        """Return the text of `/metrics`."""
        return self._all.text()


class Pages:
    """Answers GETs outside the resources."""

    def __init__(
        self,
        backend: Backend,
        extras: list[Extra],
        openapi: OpenApi | None,
        telemetry: Telemetry,
    ) -> None:
        self._backend = backend
        self._extras = extras
        self._openapi = openapi
        self._telemetry = telemetry
        self._known: tuple[list[discovery.Served], discovery.Documents] | None = None
        self._encoded: dict[tuple[str, MediaForm, str], tuple[bytes, str]] = {}
        self.address = ""

    def page(self, request: AnyRequest, path: str) -> web.Response:
        """Raises: NotFound, MethodNotSupported, NotAcceptable."""
        if request.method not in ("GET", "HEAD"):
            raise errors.MethodNotSupported("the server does not allow this method on the requested resource")
        path = path.rstrip("/") or "/"
        for endpoint in _HEALTH:
            if path == endpoint or path.startswith(endpoint + "/"):
                return _health(request, endpoint, path)
        if path == "/version":
            return calls.answer(VERSION)
        if path == "/metrics":
            return web.Response(text=self._telemetry.exposition(), content_type="text/plain", charset="utf-8")
        if path.startswith("/openapi/"):
            return self._open_api(request, path)
        return self._discovery(request, path)

    def _discovery(self, request: AnyRequest, path: str) -> web.Response:
        wanted = calls.wanted(request.headers.get("Accept", ""))
        documents = self._documents()
        aggregated = wanted.form is MediaForm.AGGREGATED_DISCOVERY and path in ("/api", "/apis")
        key = (path, wanted.form if aggregated else MediaForm.OBJECT, wanted.version if aggregated else "")
        found = self._encoded.get(key)
        if found is None:
            make = self._maker(documents, path, wanted.version if aggregated else "")
            value = make()
            if value is None:
                raise errors.NotFound("the server could not find the requested resource")
            body = msgspec.json.encode(value)
            found = self._encoded[key] = (body, discovery.etag(body))
        media = _AGGREGATED_TYPE % wanted.version if aggregated else calls.JSON
        response = _tagged(request, *found, media)
        return calls.as_yaml(response) if wanted.yaml and response.body else response

    def _maker(self, documents: discovery.Documents, path: str, aggregated: str) -> Callable[[], Any]:
        parts = path.strip("/").split("/")
        match parts:
            case ["api" | "apis"] if aggregated:
                return lambda: documents.aggregated(core=parts[0] == "api", version=aggregated)
            case ["api"]:
                return lambda: documents.core_versions(self.address)
            case ["api", version]:
                return lambda: documents.resources("", version)
            case ["apis"]:
                return documents.groups
            case ["apis", group]:
                return lambda: documents.group(group)
            case ["apis", group, version]:
                return lambda: documents.resources(group, version)
            case [""]:
                return lambda: {"paths": _ROOT_PATHS}
        return lambda: None

    def _documents(self) -> discovery.Documents:
        """Discovery of what is served now; made again when that changed."""
        served = [extra.served for extra in self._extras]
        own = {(item.resource.group, item.resource.version, item.resource.plural) for item in served}
        served += [
            discovery.Served(resource)
            for resource in self._backend.resources()
            if (resource.group, resource.version, resource.plural) not in own
        ]
        if self._known is None or self._known[0] != served:
            self._known = (served, discovery.Documents(served))
            self._encoded.clear()
        return self._known[1]

    def _open_api(self, request: AnyRequest, path: str) -> web.Response:
        body = None
        if self._openapi is not None:
            if path == "/openapi/v2" and _wants_protobuf(request):
                return _tagged(
                    request, _OPENAPI_V2_HEAD, discovery.etag(_OPENAPI_V2_HEAD), _OPENAPI_V2_PROTOBUF
                )
            if path == "/openapi/v2":
                body = self._openapi.v2()
            elif path == "/openapi/v3":
                body = self._openapi.v3_index()
            elif path.startswith("/openapi/v3/"):
                body = self._openapi.v3(path.removeprefix("/openapi/v3/"))
        if body is None:
            raise errors.NotFound("the server could not find the requested resource")
        return _tagged(request, body, discovery.etag(body), calls.JSON)


_OPENAPI_V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


# Go clients ask for OpenAPI v2 in protobuf, and only for kinds that v3 does not describe (kubectl, of a kind
# that nobody serves). What they need then is a document that does not hold the kind: swagger, info, paths.
_OPENAPI_V2_HEAD = (
    field(1, b"2.0")
    + field(2, field(1, b"Kubernetes") + field(2, VERSION["gitVersion"].encode()))
    + field(8, b"")
)


def _wants_protobuf(request: AnyRequest) -> bool:
    accept = request.headers.get("Accept", "")
    return "proto-openapi.spec.v2" in accept and "json" not in accept


_ROOT_PATHS = ["/api", "/api/v1", "/apis", *_HEALTH, "/metrics", "/openapi/v2", "/openapi/v3", "/version"]


def _tagged(request: AnyRequest, body: bytes, tag: str, media: str) -> web.Response:
    """Return the document, or 304 when the client has it already."""
    headers = {"ETag": tag, "Vary": "Accept", "Content-Type": media, "Cache-Control": "public"}
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, headers=headers)


def _health(request: AnyRequest, endpoint: str, path: str) -> web.Response:
    single = path.removeprefix(endpoint).strip("/")
    if single not in ("", *_CHECKS):
        raise errors.NotFound("the server could not find the requested resource")
    verbose = "verbose" in request.query and not single
    return web.Response(text=health.report(endpoint.strip("/"), _CHECKS, verbose=verbose).text)
