"""Serve what is no webhook: metrics and health (behaviour/manager 2.4)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from koordinator import endpoints, health
from koordinator.endpoints import Handler
from koordinator.manager.metrics import ManagerMetrics
from koordinator.manager.noderesource.ledger_answers import LedgerQuestionError, LentAnswers

Check = Callable[[], Awaitable[str]]
"""Why something is not well; empty when it is."""
CHECK_S_MAX = 5.0
"""A check that takes longer has failed: probes do not wait for long."""


def metrics_application(
    metrics: ManagerMetrics, answers: LentAnswers | None = None, middlewares: tuple[Any, ...] = ()
) -> web.Application:
    """`/metrics` tells of the process, its client and its queues; the others as their names say. `middlewares` guard
    a port that not everybody may use."""
    app = web.Application(middlewares=middlewares)
    if answers is not None:
        add_ledger(app, answers)
    app.router.add_get("/metrics", endpoints.metrics(metrics.runtime))
    app.router.add_get("/internal-metrics", endpoints.metrics(metrics.internal))
    app.router.add_get("/external-metrics", endpoints.metrics(metrics.external))
    app.router.add_get("/all-metrics", endpoints.metrics(metrics.runtime, metrics.internal, metrics.external))
    return app


def add_ledger(app: web.Application, answers: LentAnswers) -> None:
    """Serve `/apis/v1/explain/lent` (`?pool=SELECTOR`) and `/apis/v1/explain/lent/NODE`, of now or `?at=TIME`."""

    async def handle(request: web.Request) -> web.Response:
        query = request.query
        node = request.match_info.get("node", "")
        try:
            found = await answers.answer(node, query.get("at", ""), query.get("pool", ""))
        except LedgerQuestionError as error:
            return web.json_response({"message": str(error)}, status=error.status)
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    app.router.add_get("/apis/v1/explain/lent", handle)
    app.router.add_get("/apis/v1/explain/lent/{node}", handle)


def health_application(alive: Mapping[str, Check], ready: Mapping[str, Check]) -> web.Application:
    """`/healthz` and `/readyz` with their checks, together and one by one; 500 when one fails, as upstream."""
    app = web.Application()
    for endpoint, checks in (("healthz", alive), ("readyz", ready)):
        app.router.add_get(f"/{endpoint}", _health(endpoint, checks))
        for name, check in checks.items():
            app.router.add_get(f"/{endpoint}/{name}", _health(endpoint, {name: check}))
    return app


async def well() -> str:
    """Return the check of a process that answers."""
    return ""


def _health(endpoint: str, checks: Mapping[str, Check]) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        excluded = request.query.getall("exclude", [])
        found = {name: await _reason(check) for name, check in checks.items() if name not in excluded}
        known = {name: _saying(found.get(name, "")) for name in checks}
        return endpoints.health_response(request, endpoint, known)

    return handle


def _saying(reason: str) -> health.Check:
    return lambda: reason


async def _reason(check: Check) -> str:
    try:
        async with asyncio.timeout(CHECK_S_MAX):
            return await check()
    except TimeoutError:
        return f"no answer within {CHECK_S_MAX:g} s"
