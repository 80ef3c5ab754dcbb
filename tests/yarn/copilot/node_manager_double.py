"""A NodeManager's web service as far as the agent asks it, on a port of this machine."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web


def container(number: int, *, memory_mb: int = 1024, vcores: int = 1, **more: Any) -> dict[str, Any]:
    """One item of its list; number 1 is the application master."""
    return {
        "id": container_id(number),
        "state": "RUNNING",
        "exitCode": -1000,
        "diagnostics": "",
        "user": "hadoop",
        "totalMemoryNeededMB": memory_mb,
        "totalVCoresNeeded": vcores,
        "executionType": "GUARANTEED",
    } | more


def container_id(number: int) -> str:
    return f"container_1700000000000_0001_01_{number:06d}"


class NodeManagerDouble:
    """Answers with `containers`, or with `answer` where that is set; `is_away`: closes connections unanswered."""

    def __init__(self, *containers: dict[str, Any]) -> None:
        self.containers = list(containers)
        self.answer: web.Response | None = None
        self.is_away = False
        self.endpoint = ""

    async def list(self, request: web.Request) -> web.Response:
        if self.is_away and request.transport is not None:
            request.transport.close()
        if self.answer is not None:
            return web.Response(status=self.answer.status, body=self.answer.body)
        found = {"container": self.containers} if self.containers else None
        return web.json_response({"containers": found})

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator["NodeManagerDouble"]:
        app = web.Application()
        app.router.add_get("/ws/v1/node/containers", self.list)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.endpoint = f"127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()
