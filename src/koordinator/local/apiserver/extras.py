"""Resources that no store holds: they are computed when asked for (access reviews, usage metrics)."""

from typing import Any, Protocol

from koordinator.cluster import errors
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
