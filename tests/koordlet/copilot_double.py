"""The agent of another runtime at a socket: tells of containers, and notes whom it is asked to end."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from koordinator.api import copilot
from koordinator.yarn.copilot import http


class CopilotDouble:
    """`refuses`: containers that it cannot end."""

    def __init__(self, *containers: dict[str, Any]) -> None:
        self.containers = list(containers)
        self.killed: list[str] = []
        self.reasons: list[str] = []
        self.refuses: set[str] = set()
        self.answer: web.Response | None = None

    async def list(self, _: web.Request) -> web.Response:
        if self.answer is not None:
            return web.Response(status=self.answer.status, body=self.answer.body)
        return web.json_response(self.containers)

    async def kill(self, request: web.Request) -> web.Response:
        body = await request.json()
        asked = body["containerID"]
        if asked in self.refuses:
            return web.json_response({"error": "it clings"}, status=503)
        self.killed.append(asked)
        self.reasons.append(body["reason"])
        return web.json_response({"items": []})

    @contextlib.asynccontextmanager
    async def served(self, socket: Path) -> AsyncIterator["CopilotDouble"]:
        app = web.Application()
        app.router.add_get(copilot.CONTAINERS, self.list)
        app.router.add_post(copilot.KILL, self.kill)
        async with http.served_on_socket(app, socket):
            yield self


def told(number: int, *, cpu: str = "1", memory: str = "1Gi", **more: Any) -> dict[str, Any]:
    """A YARN container as its agent tells; number 1 is the application master."""
    name = yarn_id(number)
    amounts = {"cpu": cpu, "memory": memory}
    return {
        "name": name,
        "uid": name,
        "namespace": "yarn",
        "labels": None,
        "annotations": None,
        "priority": 1,
        "createTimestamp": "0001-01-01T00:00:00Z",
        "cgroupDir": f"kubepods/besteffort/hadoop-yarn/{name}",
        "hostNetwork": True,
        "resources": {"requests": amounts, "limits": amounts},
    } | more


def yarn_id(number: int) -> str:
    return f"container_1700000000000_0001_01_{number:06d}"
