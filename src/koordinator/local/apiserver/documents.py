"""Everything that is no resource: discovery, OpenAPI, version, health and the server's own metrics."""

import bisect
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

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
from koordinator.prometheus import escaped

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
_CHECKS = ("ping",)  # the store is this process: if it answers at all, it is ready
_AGGREGATED_TYPE = "application/json;g=apidiscovery.k8s.io;v=%s;as=APIGroupDiscoveryList"

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_VERBS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Telemetry:
    """The server's counts so far."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str, int]] = Counter()
        self._durations: dict[str, list[float]] = {}
        self.in_flight = 0
        self.panics = 0

    def record(self, verb: str, group: str, resource: str, code: int, duration_s: float) -> None:
        """One finished request."""
        verb = verb if verb in _VERBS else "OTHER"
        self._requests[verb, group, resource, code] += 1
        row = self._durations.get(verb)
        if row is None:
            # One count per bucket, one for +Inf, then the sum.
            row = self._durations[verb] = [0.0] * (len(_BUCKETS_S) + 2)
        row[bisect.bisect_left(_BUCKETS_S, duration_s)] += 1
        row[-1] += duration_s

    def exposition(self, *, watches: int, cut_off: int) -> str:
        """Return the text of `/metrics`."""
        lines = _head(
            "apiserver_request_total", "counter", "Requests by verb, group, resource and HTTP code."
        )
        for (verb, group, resource, code), requests in sorted(self._requests.items()):
            labels = f'code="{code}",group="{escaped(group)}",resource="{escaped(resource)}",verb="{verb}"'
            lines.append(f"apiserver_request_total{{{labels}}} {requests}")
        name = "apiserver_request_duration_seconds"
        lines += _head(
            name, "histogram", "Time from the request's head to the answer's end, without watches."
        )
        for verb, row in sorted(self._durations.items()):
            total = 0.0
            for bound, count in zip((*_BUCKETS_S, "+Inf"), row[:-1], strict=True):
                total += count
                lines.append(f'{name}_bucket{{verb="{verb}",le="{bound}"}} {int(total)}')
            lines.append(f'{name}_sum{{verb="{verb}"}} {row[-1]:.6f}')
            lines.append(f'{name}_count{{verb="{verb}"}} {int(total)}')
        for gauge, kind, words, number in (
            (
                "apiserver_current_inflight_requests",
                "gauge",
                "Requests being answered, without watches.",
                self.in_flight,
            ),
            ("apiserver_longrunning_requests", "gauge", "Open watches.", watches),
            (
                "apiserver_terminated_watchers_total",
                "counter",
                "Watches cut off because the client fell behind.",
                cut_off,
            ),
            (
                "apiserver_request_panics_total",
                "counter",
                "Requests that ended in an error of our own.",
                self.panics,
            ),
        ):
            lines += [*_head(gauge, kind, words), f"{gauge} {number}"]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, words: str) -> list[str]:
    return [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]


class Pages:
    """Answers GETs outside the resources."""

    def __init__(
        self,
        backend: Backend,
        extras: list[Extra],
        openapi: OpenApi | None,
        telemetry: Telemetry,
        watches: Watches,
    ) -> None:
        self._backend = backend
        self._extras = extras
        self._openapi = openapi
        self._telemetry = telemetry
        self._watches = watches
        self._known: tuple[int, discovery.Documents] | None = None
        self._encoded: dict[tuple[str, MediaForm, str], tuple[bytes, str]] = {}
        self.address = ""

    def page(self, request: AnyRequest, path: str) -> web.Response:
        """Raises: NotFound, MethodNotSupported, NotAcceptable."""
        if request.method not in ("GET", "HEAD"):
            raise errors.MethodNotSupported("the server does not allow this method on the requested resource")
        path = path.rstrip("/") or "/"
        for health in _HEALTH:
            if path == health or path.startswith(health + "/"):
                return _health(request, health, path)
        if path == "/version":
            return calls.answer(VERSION)
        if path == "/metrics":
            text = self._telemetry.exposition(
                watches=self._watches.open_count, cut_off=self._watches.cut_off_count
            )
            return web.Response(text=text, content_type="text/plain", charset="utf-8")
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
        mark = discovery.fingerprint(served)
        if self._known is None or self._known[0] != mark:
            self._known = (mark, discovery.Documents(served))
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


def _health(request: AnyRequest, health: str, path: str) -> web.Response:
    single = path.removeprefix(health).strip("/")
    if single and single not in _CHECKS:
        raise errors.NotFound("the server could not find the requested resource")
    if "verbose" in request.query and not single:
        lines = [f"[+]{check} ok" for check in _CHECKS]
        return web.Response(text="\n".join([*lines, f"{health.strip('/')} check passed", ""]))
    return web.Response(text="ok")
