"""An HTTP server on 127.0.0.1 that answers as it is told, faults included."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Asked:
    """A request as it arrived."""

    def __init__(self, request: web.Request, body: bytes, at_s: float) -> None:
        self.method = request.method
        self.path = request.path
        self.raw_path = request.raw_path
        self.query = dict(request.query)
        self.headers = request.headers.copy()
        is_form = request.content_type == "application/x-www-form-urlencoded"
        self.body = json.loads(body) if body and not is_form else None
        self.at_s = at_s


class ScriptedServer:
    """Gives the `answers` in order; `otherwise` when there are none left."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.otherwise: Answer = status(404, "NotFound")
        self.asked: list[Asked] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(Asked(request, await request.read(), asyncio.get_running_loop().time()))
        answer = self.answers.pop(0) if self.answers else self.otherwise
        return await answer(request)


@contextlib.asynccontextmanager
async def scripted(*answers: Answer, ssl: Any = None) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer()
    server.answers = list(answers)
    runner = web.ServerRunner(web.Server(server.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=ssl)
    await site.start()
    scheme = "https" if ssl else "http"
    server.url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def ok(body: Any) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    return answer


def text(body: str, code: int = 200) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text=body, status=code)

    return answer


def status(code: int, reason: str, *, causes: tuple[str, ...] = (), **headers: str) -> Answer:
    body: dict[str, Any] = {"kind": "Status", "status": "Failure", "code": code, "reason": reason}
    body["message"] = f"scripted {reason}"
    if causes:
        body["details"] = {"causes": [{"reason": cause} for cause in causes]}

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(
            body, status=code, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )

    return answer


async def reset(request: web.Request) -> web.StreamResponse:
    """Drop the connection instead of answering."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def slow(seconds: float, body: Any) -> Answer:
    """The head of the answer at once, the body late."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(seconds)
        with contextlib.suppress(ConnectionError):
            await response.write(json.dumps(body).encode())
        return response

    return answer


def stream(*chunks: bytes, end: str = "close", pause_s: float = 0.01) -> Answer:
    """A watch: chunks with pauses, then `close` (cleanly), `reset` or `hang`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(pause_s)
        if end == "reset":
            return await reset(request)
        if end == "hang":
            await asyncio.sleep(30)
        return response

    return answer


def line(kind: str, obj: Any) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"
