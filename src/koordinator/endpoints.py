"""Serve metrics, health and JSON over HTTP, alike for every component."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec
from aiohttp import web

from koordinator import health, prometheus
from koordinator.prometheus import MetricsRegistry

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Check = health.Check | Callable[[], Awaitable[str]]
"""Function that returns why something is not well; empty when it is."""
Seen = Callable[[str, str, bool], None]
"""Called with an endpoint, one of its checks, and whether that is well."""
CHECK_S_MAX = 5.0
"""A check that takes longer has failed: probes do not wait for long."""
FLAG_BYTES_MAX = 1_024


class HasText(Protocol):
    """Metrics."""

    def text(self) -> str:
        """Return them in the Prometheus text format."""


def add_component(
    app: web.Application, registry: MetricsRegistry, synced: asyncio.Event, lease: Check
) -> None:
    """Serve `/metrics` and the health endpoints of a component with leader election; `lease` says why that is
    unwell."""
    app.router.add_get("/metrics", metrics(registry))
    add_health(app, synced, lease)


def add_health(app: web.Application, synced: asyncio.Event, lease: Check) -> None:
    """Serve `/healthz`, `/livez` and `/readyz`; a component is ready once its informers have `synced`."""
    alive: dict[str, Check] = {"ping": health.well, "leaderElection": lease}
    add_checks(app, "healthz", alive)
    add_checks(app, "livez", alive)
    add_checks(app, "readyz", {**alive, "informer-sync": filled(synced)})


def filled(synced: asyncio.Event) -> health.Check:
    """Return the check of caches that are filled once `synced` is set."""
    return lambda: "" if synced.is_set() else "caches are not filled yet"


def add_checks(
    app: web.Application,
    endpoint: str,
    checks: Mapping[str, Check],
    *,
    failure: int = 500,
    seen: Seen | None = None,
) -> None:
    """Serve `/ENDPOINT` with all checks, and each below it: `?verbose` shows all, `?exclude=` leaves some out.

    `failure` is the status when one fails; `seen` is called with each that ran.
    """

    def handler(checks: Mapping[str, Check]) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            excluded = request.query.getall("exclude", [])
            reasons = {
                name: "" if name in excluded else await _reason(check) for name, check in checks.items()
            }
            found = health.report(endpoint, reasons, verbose="verbose" in request.query, excluded=excluded)
            for name, reason in reasons.items():
                if seen is not None and name not in excluded:
                    seen(endpoint, name, not reason)
            headers = {"X-Content-Type-Options": "nosniff"}
            return web.Response(text=found.text, status=200 if found.is_well else failure, headers=headers)

        return handle

    app.router.add_get(f"/{endpoint}", handler(checks))
    for name, check in checks.items():
        app.router.add_get(f"/{endpoint}/{name}", handler({name: check}))


async def ok(_: web.Request) -> web.Response:
    """Answer that the process is there."""
    return web.Response(text="ok")


def metrics(*families: HasText) -> Handler:
    """Return the handler that answers with all of these."""

    async def handle(_: web.Request) -> web.Response:
        return metrics_response("".join(each.text() for each in families))

    return handle


def metrics_response(text: str) -> web.Response:
    """Return metrics as an answer."""
    return web.Response(body=text.encode(), headers={"Content-Type": prometheus.CONTENT_TYPE})


def json_response(body: object, status: int = 200) -> web.Response:
    """Return an answer with a body that is encoded as JSON."""
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def add_flag(app: web.Application, name: str, upstream: str, change: Callable[[str], None]) -> None:
    """Serve `PUT /debug/flags/NAME`; `upstream` is the flag's name in answers. `change` raises ValueError."""

    async def handle(request: web.Request) -> web.Response:
        text = (await request.content.read(FLAG_BYTES_MAX)).decode(errors="replace").strip()
        try:
            change(text)
        except ValueError as error:
            return web.Response(text=f"failed set {name} {text}: {error}\n", status=400)
        return web.Response(text=f"successfully set {upstream} to {text}\n")

    app.router.add_put(f"/debug/flags/{name}", handle)


async def _reason(check: Check) -> str:
    found = check()
    if isinstance(found, str):
        return found
    try:
        async with asyncio.timeout(CHECK_S_MAX):
            return await found
    except TimeoutError:
        return f"no answer within {CHECK_S_MAX:g} s"
