"""Serve over HTTP: metrics, the audit log, health, how degraded services are.

Source: behaviour/koordlet-observe 2.5, 13.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from koordinator import endpoints
from koordinator.endpoints import Handler
from koordinator.koordlet.audit import AuditFilter, AuditQuery, QueryError
from koordinator.prometheus import MetricsRegistry

Troubles = Callable[[], Mapping[str, str]]
"""Function that returns the problems, by name."""

Interference = Callable[[str], Mapping[str, Any]]
"""Function that returns the degradation of services and the culprits; of one pod when its `namespace/name` is given."""

_TOKEN_HEADER = "Next-Page-Token"


def application(
    internal: MetricsRegistry,
    external: MetricsRegistry,
    events: AuditQuery | None,
    troubles: Troubles,
    interference: Interference | None = None,
    bills: Callable[[], Mapping[str, Any]] = dict,
) -> web.Application:
    """`events` is None while the audit log is not served, `interference` while its gate is off; `bills` are those of
    strategies (`/shadow`).

    `/healthz` is well as long as the process answers: an API server or kubelet that is away is no reason to restart an
    agent that protects the node by what it knew last. `/readyz` tells about those.
    """
    app = web.Application()
    app.router.add_get("/metrics", endpoints.metrics(internal, external))
    app.router.add_get("/internal-metrics", endpoints.metrics(internal))
    app.router.add_get("/external-metrics", endpoints.metrics(external))
    app.router.add_get("/healthz", endpoints.ok)
    app.router.add_get("/readyz", _ready(troubles))
    if interference is not None:
        app.router.add_get("/interference", _interference(interference))
    app.router.add_get("/shadow", _bills(bills))
    if events is not None:
        app.router.add_get("/events", audit_events(events))
    return app


def audit_events(query: AuditQuery) -> Handler:
    """Answer `GET /events` with pages of events: one JSON line each, or all as JSON when asked for.

    `type`, `namespace`, `name`, `container` and `reason` leave all others out.
    """

    async def handle(request: web.Request) -> web.Response:
        try:
            asked = request.query
            wanted = AuditFilter(*(asked.get(field, "") for field in AuditFilter.__struct_fields__))
            page = query.page(asked.get("size", ""), asked.get("pageToken", ""), wanted)
        except QueryError as error:
            return web.Response(status=error.status, text=str(error))
        if "application/json" in request.headers.get("Accept", ""):
            return endpoints.json_response(page)
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in page.events)
        headers = {_TOKEN_HEADER: page.next_page_token} if page.next_page_token else {}
        return web.Response(body=lines, content_type="text/plain", headers=headers)

    return handle


def _interference(found: Interference) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        return endpoints.json_response(found(request.query.get("pod", "")))

    return handle


def _bills(bills: Callable[[], Mapping[str, Any]]) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return endpoints.json_response(bills())

    return handle


def _ready(troubles: Troubles) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        found = troubles()
        if not found:
            return web.Response(text="ok")
        text = "".join(f"{name}: {trouble}\n" for name, trouble in sorted(found.items()))
        return web.Response(text=text, status=503)

    return handle
