"""Requests as tests send them."""

from typing import Any

import aiohttp
import msgspec

POD = "/api/v1/namespaces/default/pods/web"
PODS_PATH = "/api/v1/namespaces/default/pods"
JSON = {"Content-Type": "application/json"}


async def send(
    http: aiohttp.ClientSession,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, Any]]:
    """Code and object of an answer; `body` is sent as it is when it is text or bytes."""
    data = body if isinstance(body, str | bytes | None) else msgspec.json.encode(body)
    async with http.request(method, path, data=data, headers={**JSON, **(headers or {})}) as response:
        return response.status, await response.json()


def pod(name: str = "web", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, **fields}
