"""Serve over HTTP: health, metrics, the configuration, and what the last cycles did and why.
Source: behaviour/descheduler 1.2."""

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from koordinator import endpoints, health, profiling
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

    endpoints.add_component(app, descheduler.metrics.registry, descheduler.synced, options.lease)
    app.router.add_get("/configz", _configz(descheduler))
    explain.add_routes(app, descheduler)
    if options.set_verbosity is not None:
        app.router.add_put("/debug/flags/v", _verbosity(options.set_verbosity))
    if descheduler.config.enable_profiling:
        profiling.add_routes(app)
    return app


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
