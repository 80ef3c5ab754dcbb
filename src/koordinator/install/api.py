"""Whole objects on a cluster, as an installer handles them: read, applied on the server, deleted.

Components write patches of typed views; an installer carries objects that it does not look into.
"""

from typing import Any

import msgspec

from koordinator.api import kinds
from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.protocol import PatchType
from koordinator.cluster.transport import HttpRequest, Transport

Json = dict[str, Any]

FIELD_MANAGER = "koordinator-install"
_SERVICE_MONITOR = Resource(
    group="monitoring.coreos.com", version="v1", kind="ServiceMonitor", plural="servicemonitors"
)


def resource_of(kind: str, group: str) -> Resource:
    """Return where objects of a kind live; those that an installation can have."""
    if (group, kind) == (_SERVICE_MONITOR.group, _SERVICE_MONITOR.kind):
        return _SERVICE_MONITOR
    found = kinds.by_kind(group, kind)
    assert found is not None, (group, kind)
    return found


def resource_of_body(body: Json) -> Resource:
    """Return the same of an object."""
    return resource_of(body["kind"], body["apiVersion"].rpartition("/")[0])


class Api:
    """Calls of `transport`. All raise ApiError."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """Return the object, None when there is none (or no such kind)."""
        try:
            return await self._send("GET", resource.path(namespace, name))
        except errors.NotFound:
            return None

    async def apply(self, resource: Resource, body: Json, *, force: bool) -> Json:
        """Server-side apply. Raises: Conflict for fields that others changed, unless `force`."""
        metadata = body["metadata"]
        params = {"fieldManager": FIELD_MANAGER, "force": str(force).lower(), "fieldValidation": "Strict"}
        path = resource.path(metadata.get("namespace", ""), metadata["name"])
        return await self._send("PATCH", path, params, body, PatchType.APPLY.value)

    async def labelled(self, resource: Resource, selector: str) -> list[Json]:
        """Objects with these labels in all namespaces; none when there is no such kind."""
        try:
            found = await self._send("GET", resource.path(), {"labelSelector": selector})
        except errors.NotFound:
            return []
        return list(found.get("items") or [])

    async def delete(self, resource: Resource, namespace: str, name: str) -> bool:
        """Delete an object, and what belongs to it in the background; return whether it was there."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        try:
            await self._send("DELETE", resource.path(namespace, name), {}, body)
        except errors.NotFound:
            return False
        return True

    async def _send(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        # All of these may be sent twice: applying and deleting again changes nothing.
        call = HttpRequest(
            method=method,
            path=path,
            params=params or {},
            body=None if body is None else msgspec.json.encode(body),
            content_type=content_type,
            repeatable=True,
        )
        data = await self._transport.send(call)
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise errors.InternalError(f"{method} {path}: the answer is no JSON object: {error}") from error
