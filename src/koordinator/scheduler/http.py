"""What the scheduler serves over HTTP: health, metrics, its configuration, its view of nodes.

Source: spec 03, A6.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from koordinator.scheduler.scheduler import Scheduler

NOT_LEADER = {"message": "the instance is not leader"}


def application(scheduler: Scheduler, is_leader: Callable[[], bool]) -> web.Application:
    """The HTTP application; `/apis/v1` answers on the leader only."""

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(_: web.Request) -> web.Response:
        if scheduler.synced.is_set():
            return web.Response(text="ok")
        return web.Response(text="caches are not filled yet", status=503)

    async def metrics(_: web.Request) -> web.Response:
        text = scheduler.metrics.text(scheduler.queue.counts())
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    async def configz(_: web.Request) -> web.Response:
        return _json({"kubescheduler.config.k8s.io": scheduler.config})

    async def node(request: web.Request) -> web.Response:
        if not is_leader():
            return _json(NOT_LEADER, 503)
        name = request.match_info["node"]
        found = describe_node(scheduler, name)
        if found is None:
            return _json({"message": f"cannot find node {name}"}, 404)
        return _json(found)

    app = web.Application()
    app.router.add_get("/healthz", healthy)
    app.router.add_get("/livez", healthy)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/configz", configz)
    app.router.add_get("/apis/v1/nodes/{node}", node)
    return app


def describe_node(scheduler: Scheduler, name: str) -> dict[str, Any] | None:
    """A node as the scheduler counts it; None when there is none of that name."""
    table = scheduler.table
    row = table.row_of(name)
    if row is None:
        return None
    allocatable, requested = table.allocatable[:, row], table.requested[:, row]
    return {
        "pods": sorted(pod.key for pod in table.pods_at(row).values()),
        "allocatable": table.registry.to_wire(allocatable),
        "requested": table.registry.to_wire(requested),
        "remaining": table.registry.to_wire(allocatable - requested),
    }


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")
