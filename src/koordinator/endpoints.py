"""Serve metrics and health over HTTP, alike for every component."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from koordinator import health, prometheus
from koordinator.health import Check
from koordinator.prometheus import MetricsRegistry

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def add_component(
    app: web.Application, registry: MetricsRegistry, synced: asyncio.Event, lease: Check
) -> None:
    """Serve `/metrics` and the health endpoints of a component with leader election; `lease` says why that is
    unwell."""
    app.router.add_get("/metrics", metrics(registry))
    add_health(app, synced, lease)


def add_health(app: web.Application, synced: asyncio.Event, lease: Check) -> None:
    """Serve `/healthz`, `/livez` and `/readyz`; a component is ready once its informers have `synced`."""

    def informers() -> str:
        return "" if synced.is_set() else "caches are not filled yet"

    alive: dict[str, Check] = {"ping": health.well, "leaderElection": lease}
    ready = {**alive, "informer-sync": informers}
    for endpoint, checks in (("healthz", alive), ("livez", alive), ("readyz", ready)):
        app.router.add_get(f"/{endpoint}", _health(endpoint, checks))
        for name, check in checks.items():
            app.router.add_get(f"/{endpoint}/{name}", _health(endpoint, {name: check}))


def metrics(*registries: MetricsRegistry) -> Handler:
    """Return the handler that answers with all families of these registries."""

    async def handle(_: web.Request) -> web.Response:
        text = "".join(registry.text() for registry in registries)
        return web.Response(body=text.encode(), headers={"Content-Type": prometheus.CONTENT_TYPE})

    return handle


def health_response(request: web.Request, endpoint: str, checks: Mapping[str, Check]) -> web.Response:
    """Return the answer of a health endpoint: `?verbose` shows all checks, `?exclude=` leaves some out."""
    found = health.report(
        endpoint,
        checks,
        verbose="verbose" in request.query,
        excluded=request.query.getall("exclude", []),
    )
    headers = {"X-Content-Type-Options": "nosniff"}
    return web.Response(text=found.text, status=200 if found.is_well else 500, headers=headers)


def _health(endpoint: str, checks: Mapping[str, Check]) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        return health_response(request, endpoint, checks)

    return handle
