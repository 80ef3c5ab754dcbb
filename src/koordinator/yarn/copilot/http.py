"""The agent's API on a unix socket that only root can use, and its metrics. Source: behaviour/yarn 8.5 and 8.8."""

import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web

from koordinator import endpoints
from koordinator.api import copilot, decode
from koordinator.api.copilot import CopilotInfo, CopilotProblem, KillRequest, ReleaseRequest
from koordinator.api.errors import KoordinatorError, SubjectError
from koordinator.endpoints import Handler, json_response
from koordinator.yarn.copilot.agent import BadRequest, KillFailed, UnknownContainer, YarnCopilot

log = logging.getLogger(__name__)

T = TypeVar("T")

INFO = CopilotInfo("yarn", "v1")
SOCKET_MODE = 0o600
BODY_BYTES_MAX = 64 * 1024
_STATUSES: dict[type[KoordinatorError], int] = {BadRequest: 400, UnknownContainer: 404, KillFailed: 503}


class SocketError(SubjectError):
    """The socket cannot be made."""

    kind = "--server-endpoint "


def application(agent: YarnCopilot) -> web.Application:
    """Return all routes."""

    async def health(_: web.Request) -> web.Response:
        return json_response("ok")

    async def information(_: web.Request) -> web.Response:
        return json_response(INFO)

    async def containers(_: web.Request) -> web.Response:
        return json_response(await agent.containers())

    async def container(request: web.Request) -> web.Response:
        return json_response(await agent.container(request.query.get(copilot.CONTAINER_ID, "")))

    async def kill(request: web.Request) -> web.Response:
        return json_response(await agent.kill(await _body(request, KillRequest)))

    async def release(request: web.Request) -> web.Response:
        return json_response(await agent.release(await _body(request, ReleaseRequest)))

    app = web.Application(middlewares=[_errors], client_max_size=BODY_BYTES_MAX)
    app.router.add_get(copilot.HEALTH, health)
    app.router.add_get(copilot.INFORMATION, information)
    app.router.add_get(copilot.CONTAINERS, containers)
    app.router.add_get(copilot.CONTAINER, container)
    app.router.add_post(copilot.KILL, kill)
    app.router.add_post(copilot.RELEASE, release)
    return app


def metrics_application(agent: YarnCopilot) -> web.Application:
    """Return `/metrics` and `/healthz`, for a port."""

    app = web.Application()
    app.router.add_get("/metrics", endpoints.metrics(agent.metrics.registry))
    app.router.add_get("/healthz", endpoints.ok)
    return app


@contextlib.asynccontextmanager
async def served_on_socket(app: web.Application, path: Path) -> AsyncIterator[None]:
    """Serve inside; the socket is made with its mode before anybody can connect, and removed at the end.

    Raises: SocketError.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        listening = _listening(path)
        made = path.stat().st_ino
        await web.SockSite(runner, listening).start()
        log.info("serving on a socket", extra={"path": str(path)})
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if path.stat().st_ino == made:  # else another agent has taken the place
                    path.unlink()
    finally:
        await runner.cleanup()


def _listening(path: Path) -> socket.socket:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        if path.is_socket():
            path.unlink()  # of a run that was killed
        elif path.exists():
            raise SocketError(path, "something else than a socket is there")
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.setblocking(False)
        made.bind(str(path))
        os.chmod(path, SOCKET_MODE)  # nobody is answered before it listens
    except OSError as error:
        raise SocketError(path, error.strerror or str(error)) from error
    return made


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except (BadRequest, UnknownContainer, KillFailed) as error:
        return json_response(CopilotProblem(str(error)), _STATUSES[type(error)])
    except web.HTTPException as error:
        return json_response(CopilotProblem(error.text or error.reason), error.status)


async def _body(request: web.Request, view: type[T]) -> T:
    try:
        return decode.from_json(await request.read(), view)
    except msgspec.MsgspecError as error:
        raise BadRequest("body", str(error)) from error
