"""Serve the part of a kubelet's HTTPS interface that `kubectl logs`, `exec`, `attach` and `port-forward` need.

The borrower's API server asks here, as it asks a kubelet; the lender's API server gives the streams of the lent pod.
"""

from collections.abc import Awaitable, Callable
from urllib.parse import quote, urlencode

from aiohttp import hdrs, web

from koordinator import endpoints
from koordinator.api.core import Pod
from koordinator.cluster import errors
from koordinator.cluster.delegated_auth import AccessReviewer, DelegatedAuth, Unauthenticated
from koordinator.cluster.transport import HttpRequest, Transport
from koordinator.virtual_node.objects import PodDocument

FOLLOWED_S_MAX = 4 * 3600.0
"""Longest time that a kubelet lets a stream go on."""
HEAD_S_MAX = 30.0
_STREAM_FLAGS = {"input": "stdin", "output": "stdout", "error": "stderr", "tty": "tty"}
"""Parameters of a kubelet → those of an API server."""
_FORWARDED = ("Upgrade", "Connection", "X-Stream-Protocol-Version")
_WEBSOCKET = "Sec-WebSocket-"

FindPod = Callable[[str, str], tuple[str, PodDocument] | None]
"""Returns the virtual node of a borrower's pod, by namespace and name, and the lent pod."""


class PodStreams:
    """Passes streams on from the lender, to callers that the borrower lets reach the node."""

    def __init__(
        self, lender: Transport, find: FindPod, callers: DelegatedAuth, access: AccessReviewer, node: str
    ) -> None:
        """`node`: the virtual node that callers need permission for where the pod is not known."""
        self._lender = lender
        self._find = find
        self._callers = callers
        self._access = access
        self._node = node

    def application(self) -> web.Application:
        """Return the HTTP application."""
        app = web.Application(middlewares=[self._checked])
        app.router.add_get("/healthz", endpoints.ok)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._log)
        for kind in ("exec", "attach"):
            for path in ("{namespace}/{pod}/{container}", "{namespace}/{pod}/{uid}/{container}"):
                app.router.add_route("*", f"/{kind}/{path}", self._upgrade(kind))
        for path in ("{namespace}/{pod}", "{namespace}/{pod}/{uid}"):
            app.router.add_route("*", f"/portForward/{path}", self._upgrade("portforward"))
        return app

    @web.middleware
    async def _checked(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path == "/healthz":
            return await handler(request)
        verb = "get" if request.path.startswith("/containerLogs/") else "create"
        try:
            user = await self._callers.user_of(request)
        except Unauthenticated as error:
            return web.Response(status=401, text=f"Unauthorized: {error}")
        found = self._found(request)
        if not await self._access.may_reach_node(user, verb, found[0] if found else self._node):
            reason = f"user={user.name}, verb={verb}, resource=nodes, subresource=proxy"
            return web.Response(status=403, text=f"Forbidden ({reason})")
        try:
            return await handler(request)
        except errors.ApiError as error:
            return web.Response(status=error.code or 502, text=str(error))

    async def _log(self, request: web.Request) -> web.StreamResponse:
        params = {"container": request.match_info["container"], **request.query}
        call = HttpRequest(method="GET", path=self._path(request, "log"), params=params)
        async with self._lender.stream(call, timeout_s=FOLLOWED_S_MAX, head_timeout_s=HEAD_S_MAX) as pieces:
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            await response.prepare(request)
            async for piece in pieces:
                await response.write(piece)
            await response.write_eof()
        return response

    def _upgrade(self, kind: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            if hdrs.UPGRADE not in request.headers:
                raise errors.BadRequest("you must request an upgrade of the connection")
            headers = {
                name: text
                for name, text in request.headers.items()
                if name in _FORWARDED or name.startswith(_WEBSOCKET)
            }
            path = f"{self._path(request, kind)}?{urlencode(_params(request))}"
            await self._lender.upgrade(request, path, headers)
            return web.Response()  # to nobody: the connection is closed

        return handle

    def _found(self, request: web.Request) -> tuple[str, PodDocument] | None:
        where = request.match_info
        return self._find(where.get("namespace", ""), where.get("pod", ""))

    def _path(self, request: web.Request, kind: str) -> str:
        found = self._found(request)
        if found is None:
            where = request.match_info
            raise errors.NotFound(f'pod "{where["namespace"]}/{where["pod"]}" does not run in the lender')
        meta = found[1].metadata
        base = Pod.resource.path(meta.namespace, meta.name)
        return quote(f"{base}/{kind}", safe="/")


def _params(request: web.Request) -> list[tuple[str, str]]:
    """Return the parameters of a kubelet's stream as those of the API server's."""
    container = request.match_info.get("container")
    found = [("container", container)] if container else []
    for name, text in request.query.items():
        if name in _STREAM_FLAGS:
            name, text = _STREAM_FLAGS[name], "true" if text in ("1", "true") else "false"
        found.append((name, text))
    return found
