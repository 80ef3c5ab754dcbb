"""The interfaces between the registry and its neighbours: schemas, patches and admission.

`local.registry` does the life of objects (versions, finalizers, deletion); `local.schema` knows what an object
may contain; `local.patches` computes the next object from a patch; `local.admission` asks webhooks.
All functions here are pure (objects in, objects out, the input untouched) except `Admission.admit`.
"""

from typing import Any, Protocol

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster.backend import WriteOptions
from koordinator.cluster.errors import Forbidden, StatusCause, StatusDetails
from koordinator.cluster.protocol import PatchType

KUBERNETES = "1.35.0"
"""The release whose API, defaults and rules the local cluster follows. `make test-real` runs the same stories on
servers of this release, so that the claim is held."""

Json = dict[str, Any]


class ObjectSchema(Protocol):
    """The schema of one resource's objects."""

    def decode(self, obj: dict[str, Any], field_validation: str) -> tuple[dict[str, Any], list[str]]:
        """Return the object without unknown fields, and warnings for them.

        `field_validation` is "Strict" (unknown fields raise), "Warn" or "Ignore" ("" means Warn).
        Raises: BadRequest for wrong types in built-in kinds (`json: cannot unmarshal ...`) and in Strict mode
        (`strict decoding error: unknown field "spec.foo"`).
        """
        ...

    def default(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return the object with the defaults that the API server would fill in."""
        ...

    def validate(self, obj: dict[str, Any], old: dict[str, Any] | None) -> list[StatusCause]:
        """Return what is wrong with an object to be created (`old` None) or updated; field paths as Kubernetes."""
        ...


class SchemaCatalog(Protocol):
    """Schemas of all served resources; custom ones come and go with their CRDs."""

    def schema_of(self, resource: Resource) -> ObjectSchema: ...

    def check_crd(self, crd: dict[str, Any]) -> list[StatusCause]:
        """Return why a CustomResourceDefinition cannot be served (structural-schema rules, names, versions)."""
        ...

    def add_crd(self, crd: dict[str, Any]) -> list[Resource]:
        """Serve a CRD (again): one Resource per served version, with subresources filled in."""
        ...

    def remove_crd(self, crd: dict[str, Any]) -> None: ...


class WriteContext(msgspec.Struct, frozen=True):
    """The context of a write, apart from the objects: `now_s` (seconds since 1970) stamps the owners of fields."""

    resource: Resource
    options: WriteOptions
    now_s: float
    subresource: str = ""


class Patcher(Protocol):
    """Computes the object that a patch asks for."""

    def apply(
        self,
        patch_type: PatchType,
        current: dict[str, Any],
        patch: Any,
        context: WriteContext,
    ) -> dict[str, Any]:
        """For APPLY, `current` is {} when the object does not exist; managedFields are kept in
        `metadata.managedFields`.

        Raises: BadRequest (malformed), Invalid (a JSON patch that does not fit, `422`), Conflict
        (server-side apply conflicts), UnsupportedMediaType (strategic merge on a custom resource).
        """
        ...

    def track(
        self,
        old: dict[str, Any] | None,
        new: dict[str, Any],
        context: WriteContext,
    ) -> dict[str, Any]:
        """`new` with managedFields brought up to date after a create (`old` None) or a non-apply update."""
        ...


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
