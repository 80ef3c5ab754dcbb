"""Serve health and metrics over HTTP."""

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from koordinator import health, prometheus
from koordinator.health import Check
from koordinator.yarn.operator import YarnOperator


def metrics_application(operator: YarnOperator) -> web.Application:
    """`/metrics`."""

    async def metrics(_: web.Request) -> web.Response:
        body = operator.metrics.registry.text().encode()
        return web.Response(body=body, headers={"Content-Type": prometheus.CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    return app


def health_application(operator: YarnOperator, lease: Check) -> web.Application:
    """`/healthz` and `/readyz`; `lease` says why the election is unwell."""

    def informers() -> str:
        return "" if operator.synced.is_set() else "caches are not filled yet"

    alive: dict[str, Check] = {"ping": health.well, "leaderElection": lease}
    app = web.Application()
    app.router.add_get("/healthz", _health("healthz", alive))
    app.router.add_get("/readyz", _health("readyz", {**alive, "informer-sync": informers}))
    return app


def _health(endpoint: str, checks: Mapping[str, Check]) -> Callable[[web.Request], Any]:
    async def handle(request: web.Request) -> web.Response:
        found = health.report(endpoint, checks, verbose="verbose" in request.query)
        return web.Response(text=found.text, status=200 if found.is_well else 500)

    return handle
