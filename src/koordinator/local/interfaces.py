"""Tell the neighbours of the registry about a write, and ask admission for its word.

`local.registry` does the life of objects (versions, finalizers, deletion); `local.schema` knows what an object
may contain; `local.patches` computes the next object from a patch; `local.admission` asks webhooks.
All of them take objects and return objects, the input untouched.
"""

from typing import Any, Protocol

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster.backend import WriteOptions
from koordinator.cluster.errors import Forbidden, StatusDetails

KUBERNETES = "1.35.0"
"""The release whose API, defaults and rules the local cluster follows. `make test-real` runs the same stories on
servers of this release, so that the claim is held."""

Json = dict[str, Any]


class WriteContext(msgspec.Struct, frozen=True):
    """The context of a write, apart from the objects: `now_s` (seconds since 1970) stamps the owners of fields."""

    resource: Resource
    options: WriteOptions
    now_s: float
    subresource: str = ""


class AdmissionAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """A write that is to be admitted; `old` is the stored object, if any."""

    operation: str
    """CREATE, UPDATE, DELETE or CONNECT."""
    resource: Resource
    namespace: str
    name: str
    old: Json | None
    options: WriteOptions
    subresource: str = ""

    def forbidden(self, why: str, obj: Json | None = None) -> Forbidden:
        """Return the refusal as the API server words it; `obj` names the object where the request does not."""
        meta = (obj or {}).get("metadata") or {}
        name = self.name or meta.get("name") or meta.get("generateName") or ""
        resource = self.resource
        shown = f'{resource.qualified} "{name}"' if name else resource.qualified
        details = StatusDetails(name=name, group=resource.group, kind=resource.plural)
        return Forbidden(f"{shown} is forbidden: {why}", details=details)


class Admission(Protocol):
    """Mutating then validating admission."""

    def wants(self, resource: Resource, operation: str, subresource: str, namespace: str) -> bool:
        """False when nobody has anything to say: the registry then skips `admit` (the fast path)."""
        ...

    async def admit(self, asked: AdmissionAttributes, obj: Json | None) -> Json | None:
        """Return the object as built-in plugins and webhooks change it, accepted by those that only judge.

        Raises: ApiError with the API server's text when a webhook denies or fails (failurePolicy Fail).
        """
        ...
