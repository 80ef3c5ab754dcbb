"""A ResourceManager's web services: state, nodes, and new totals where RPC cannot be used. Source: behaviour/yarn 5."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import aiohttp

from koordinator.yarn.amounts import YarnResource
from koordinator.yarn.connection import ACCESS_EXCEPTIONS, CallRefused, Unreachable
from koordinator.yarn.node_sync import NodeId, NodeManagerReport
from koordinator.yarn.rpc import NodeUpdate

CALL_S = 10.0
ANSWER_BYTES_MAX = 256 << 20
_DENIED = (401, 403)


class RestClient:
    """Calls of one user; a standby's redirect to the active ResourceManager is followed once."""

    def __init__(self, session: aiohttp.ClientSession, user: str, scheme: str = "http") -> None:
        self._session = session
        self._user = user
        self._scheme = scheme

    async def state(self, web: str) -> str:
        """Return the HA state of exactly this ResourceManager. Raises: Unreachable, CallRefused."""
        answer = await self._called("GET", web, "info", redirects=False)
        return str(_section(answer, "clusterInfo").get("haState") or "says no state")

    async def nodes(self, web: str, states: Sequence[str]) -> list[NodeManagerReport]:
        """Return all nodes in these states. Raises: Unreachable, CallRefused."""
        answer = await self._called("GET", web, f"nodes?states={','.join(states)}")
        listed = _section(answer, "nodes").get("node") or []
        try:
            found = [_report(each) for each in (listed if isinstance(listed, list) else [listed])]
            return [each for each in found if each is not None]
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise Unreachable(web, f"a node of the list cannot be read: {error!r}") from error

    async def update(self, web: str, update: NodeUpdate) -> None:
        """Tell the new total of a node. Raises: Unreachable, CallRefused."""
        node = quote(f"{update.node.host}:{update.node.port}", safe=":")
        body = {
            "resource": {"memory": update.total.memory_mb, "vCores": update.total.vcores},
            "overCommitTimeout": update.over_commit_timeout_ms,
        }
        await self._called("POST", web, f"nodes/{node}/resource", body)

    async def _called(
        self, method: str, web: str, path: str, body: Any = None, *, redirects: bool = True
    ) -> Any:
        url = f"{self._scheme}://{web}/ws/v1/cluster/{path}"
        try:
            async with self._session.request(
                method,
                url,
                params={"user.name": self._user},
                json=body,
                headers={"Accept": "application/json"},
                allow_redirects=redirects,
                max_redirects=1,
                timeout=aiohttp.ClientTimeout(total=CALL_S),
            ) as response:
                text = await _bounded(response)
                if response.status in _DENIED:
                    raise CallRefused(web, ACCESS_EXCEPTIONS[0], f"{response.status} {response.reason}")
                if response.status >= 300:
                    raise CallRefused(web, f"HTTP.{response.status}", text.decode(errors="replace")[:500])
                return json.loads(text) if text else None
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            raise Unreachable(web, str(error) or "no answer") from error


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    text = bytearray()
    async for chunk in response.content.iter_any():
        text += chunk
        if len(text) > ANSWER_BYTES_MAX:
            raise ValueError(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
    return bytes(text)


def _section(answer: Any, name: str) -> dict[str, Any]:
    """Return a member that is an object; empty when it is null or empty text."""
    found = answer.get(name) if isinstance(answer, dict) else None
    return found if isinstance(found, dict) else {}


def _report(node: dict[str, Any]) -> NodeManagerReport | None:
    """Return what a node reports; None for one without host or port."""
    host, _, port = str(node.get("id") or "").rpartition(":")
    if not host or not port.isdecimal():
        return None
    used = YarnResource(int(node.get("usedVirtualCores") or 0), int(node.get("usedMemoryMB") or 0))
    total = YarnResource(
        used.vcores + int(node.get("availableVirtualCores") or 0),
        used.memory_mb + int(node.get("availMemoryMB") or 0),
    )
    return NodeManagerReport(NodeId(host, int(port)), str(node.get("state") or ""), used, total)
