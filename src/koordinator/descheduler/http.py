"""Serve over HTTP: health, metrics, the configuration, and what the last cycles did and why.
Source: behaviour/descheduler 1.2."""

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from koordinator import endpoints, health, profiling
from koordinator.descheduler import explain
from koordinator.descheduler.descheduler import Descheduler
from koordinator.endpoints import Check


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
        change = options.set_verbosity
        endpoints.add_flag(app, "v", "klog.logging.verbosity", lambda text: change(int(text)))
    if descheduler.config.enable_profiling:
        profiling.add_routes(app)
    return app


def _configz(descheduler: Descheduler) -> Callable[[web.Request], Any]:
    async def handle(_: web.Request) -> web.Response:
        return endpoints.json_response(
            {"componentconfig": explain.effective(descheduler.config, descheduler.registry)}
        )

    return handle
