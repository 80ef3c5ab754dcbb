"""Resources that no store holds: they are computed when asked for (access reviews, usage metrics), or carried out
(`POST .../bindings`, the older way to put a pod on a node; the body names the pod).
"""

from typing import Any, Protocol

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.backend import Backend
from koordinator.local.apiserver.calls import ResourceCall
from koordinator.local.apiserver.discovery import Served


class Extra(Protocol):
    """A resource served by the API server itself."""

    served: Served

    def get(self, call: ResourceCall) -> dict[str, Any]:
        """One object. Raises: ApiError."""
        ...

    def list(self, call: ResourceCall) -> list[dict[str, Any]]:
        """All objects. Raises: ApiError."""
        ...

    async def create(self, call: ResourceCall, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a posted object. Raises: ApiError."""
        ...


def create_only() -> errors.MethodNotSupported:
    """405 for reading what can only be posted."""
    return errors.MethodNotSupported("the server does not allow this method on the requested resource")


_BINDING = Resource(group="", version="v1", kind="Binding", plural="bindings")


class Bindings:
    """Bindings that are posted to their namespace instead of to the pod."""

    def __init__(self, backend: Backend) -> None:
        self.served = Served(_BINDING, ("create",))
        self._backend = backend

    def get(self, call: ResourceCall) -> dict[str, Any]:
        raise create_only()

    def list(self, call: ResourceCall) -> list[dict[str, Any]]:
        raise create_only()

    async def create(self, call: ResourceCall, body: dict[str, Any]) -> dict[str, Any]:
        """Raises: ApiError, as the `binding` subresource does."""
        meta = body.get("metadata")
        name = meta.get("name") if isinstance(meta, dict) else None
        if not isinstance(name, str) or not name:
            raise errors.BadRequest("the binding names no pod: metadata.name: Required value")
        pods = self._backend.resolve("", "v1", "pods")
        options = call.write_options("CreateOptions")
        return await self._backend.connect(pods, call.target.namespace, name, "binding", body, options)
