"""Serve over HTTP: health, metrics, the configuration, and what the last cycles did and why.
Source: behaviour/descheduler 1.2."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from koordinator import health, profiling, prometheus
from koordinator.descheduler import explain
from koordinator.descheduler.descheduler import Descheduler
from koordinator.health import Check

FLAG_BYTES_MAX = 1_024


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`lease` says why the election is unwell; `set_verbosity` takes what was put to `/debug/flags/v`."""

    lease: Check = health.well
    set_verbosity: Callable[[int], None] | None = None


def application(
    descheduler: Descheduler, options: HttpOptions, middlewares: tuple[Any, ...] = ()
) -> web.Application:
    """Return the HTTP application; `middlewares` guard a secure port."""
    app = web.Application(middlewares=middlewares)

    def informers() -> str:
        return "" if descheduler.synced.is_set() else "caches are not filled yet"

    alive: dict[str, Check] = {"ping": health.well, "leaderElection": options.lease}
    for endpoint, checks in (
        ("healthz", alive),
        ("livez", alive),
        ("readyz", {**alive, "informer-sync": informers}),
    ):
        app.router.add_get(f"/{endpoint}", _health(endpoint, checks))
        for name, check in checks.items():
            app.router.add_get(f"/{endpoint}/{name}", _health(endpoint, {name: check}))
    app.router.add_get("/metrics", _metrics(descheduler))
    app.router.add_get("/configz", _configz(descheduler))
    explain.add_routes(app, descheduler)
    if options.set_verbosity is not None:
        app.router.add_put("/debug/flags/v", _verbosity(options.set_verbosity))
    if descheduler.config.enable_profiling:
        profiling.add_routes(app)
    return app


def _health(endpoint: str, checks: Mapping[str, Check]) -> Callable[[web.Request], Any]:
    async def handle(request: web.Request) -> web.Response:
        excluded = request.query.getall("exclude", [])
        found = health.report(endpoint, checks, verbose="verbose" in request.query, excluded=excluded)
        headers = {"X-Content-Type-Options": "nosniff"}
        return web.Response(text=found.text, status=200 if found.is_well else 500, headers=headers)

    return handle


def _metrics(descheduler: Descheduler) -> Callable[[web.Request], Any]:
    async def handle(_: web.Request) -> web.Response:
        body = descheduler.metrics.registry.text().encode()
        return web.Response(body=body, headers={"Content-Type": prometheus.CONTENT_TYPE})

    return handle


def _configz(descheduler: Descheduler) -> Callable[[web.Request], Any]:
    async def handle(_: web.Request) -> web.Response:
        return explain.json_response(
            {"componentconfig": explain.effective(descheduler.config, descheduler.registry)}
        )

    return handle


def _verbosity(change: Callable[[int], None]) -> Callable[[web.Request], Any]:
    async def handle(request: web.Request) -> web.Response:
        text = (await request.content.read(FLAG_BYTES_MAX)).decode(errors="replace").strip()
        try:
            change(int(text))
        except ValueError as error:
            return web.Response(text=f"failed set v {text}: {error}\n", status=400)
        return web.Response(text=f"successfully set klog.logging.verbosity to {text}\n")

    return handle
