"""Serve health and metrics over HTTP."""

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from koordinator import health, prometheus
from koordinator.health import Check
from koordinator.virtual_node.virtual_node import VirtualNodes


def application(nodes: VirtualNodes, lease: Check = health.well) -> web.Application:
    """Return the HTTP application; `lease` says why the election is unwell."""
    app = web.Application()

    def informers() -> str:
        return "" if nodes.synced.is_set() else "caches are not filled yet"

    alive: dict[str, Check] = {"ping": health.well, "leaderElection": lease}
    for endpoint, checks in (
        ("healthz", alive),
        ("livez", alive),
        ("readyz", {**alive, "informer-sync": informers}),
    ):
        app.router.add_get(f"/{endpoint}", _health(endpoint, checks))
    app.router.add_get("/metrics", _metrics(nodes))
    return app


def _health(endpoint: str, checks: Mapping[str, Check]) -> Callable[[web.Request], Any]:
    async def handle(request: web.Request) -> web.Response:
        found = health.report(endpoint, checks, verbose="verbose" in request.query)
        return web.Response(text=found.text, status=200 if found.is_well else 500)

    return handle


def _metrics(nodes: VirtualNodes) -> Callable[[web.Request], Any]:
    async def handle(_: web.Request) -> web.Response:
        body = nodes.metrics.registry.text().encode()
        return web.Response(body=body, headers={"Content-Type": prometheus.CONTENT_TYPE})

    return handle
