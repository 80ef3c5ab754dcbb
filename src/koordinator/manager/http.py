"""Serve what is no webhook: metrics and health (behaviour/manager 2.4)."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from koordinator import endpoints
from koordinator.endpoints import Check
from koordinator.manager.metrics import ManagerMetrics
from koordinator.manager.noderesource.ledger_answers import LedgerQuestionError, LentAnswers


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
        return endpoints.json_response(found)

    app.router.add_get("/apis/v1/explain/lent", handle)
    app.router.add_get("/apis/v1/explain/lent/{node}", handle)


def health_application(alive: Mapping[str, Check], ready: Mapping[str, Check]) -> web.Application:
    """`/healthz` and `/readyz` with their checks, together and one by one; 500 when one fails, as upstream."""
    app = web.Application()
    endpoints.add_checks(app, "healthz", alive)
    endpoints.add_checks(app, "readyz", ready)
    return app
