"""`GET /events`: the audit log over HTTP. Source: behaviour/koordlet-observe 13."""

import msgspec
from aiohttp import web

from koordinator.koordlet.audit_query import AuditQuery, QueryError

PATH = "/events"
_TOKEN_HEADER = "Next-Page-Token"


def route(query: AuditQuery) -> web.RouteDef:
    """The route that answers with pages of events: one JSON line each, or all as JSON when asked for."""

    async def handle(request: web.Request) -> web.Response:
        try:
            page = query.page(request.query.get("size", ""), request.query.get("pageToken", ""))
        except QueryError as error:
            return web.Response(status=error.status, text=str(error))
        if "application/json" in request.headers.get("Accept", ""):
            return web.Response(body=msgspec.json.encode(page), content_type="application/json")
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in page.events)
        headers = {_TOKEN_HEADER: page.next_page_token} if page.next_page_token else {}
        return web.Response(body=lines, content_type="text/plain", headers=headers)

    return web.get(PATH, handle)
