"""From what a client sent to an object of its kind: kind and version, types, unknown fields, defaults."""

from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.backend import WriteOptions
from koordinator.cluster.protocol import PatchType
from koordinator.local.interfaces import SchemaCatalog
from koordinator.local.schema.errors import go_text, invalid_patch, shown


class Decoder:
    """Decodes by the schemas of a catalog; with `checks` False only kind and version are looked at."""

    def __init__(self, schemas: SchemaCatalog, *, checks: bool) -> None:
        self._schemas = schemas
        self._checks = checks

    def decoded(
        self,
        resource: Resource,
        obj: dict[str, Any],
        options: WriteOptions,
        patch_type: PatchType | None = None,
        patch: Any = None,
    ) -> dict[str, Any]:
        """The object with known fields only, and defaults. `patch_type` and `patch`: what made it, if a patch did.

        Raises: BadRequest (wrong kind or types, unknown fields in Strict mode); Invalid instead when a patch
        made the object of wrong types.
        """
        _name_kind(resource, obj)
        if not self._checks:
            return obj
        _check_encodable(resource, obj)
        schema = self._schemas.schema_of(resource)
        if patch_type in (None, PatchType.APPLY):
            decoded, warnings = schema.decode(obj, options.field_validation)
        else:
            is_strict = options.field_validation == "Strict"
            try:
                decoded, warnings = schema.decode(obj, "Ignore" if is_strict else options.field_validation)
            except errors.BadRequest as error:
                # A strategic merge patch is shown itself, the others by what they made, as kube-apiserver does.
                value = go_text(patch) if patch_type is PatchType.STRATEGIC else shown(obj)
                raise invalid_patch(value, error.message.partition(": ")[2] or error.message) from error
            if is_strict:
                schema.decode(obj, "Strict")
        if options.warn is not None:
            for warning in warnings:
                options.warn(warning)
        return schema.default(decoded)

    def defaulted(self, resource: Resource, obj: dict[str, Any]) -> dict[str, Any]:
        """Return the object with the defaults of what webhooks added."""
        return self._schemas.schema_of(resource).default(obj) if self._checks else obj


def _check_encodable(resource: Resource, obj: dict[str, Any]) -> None:
    """Half of a surrogate pair (an escape in YAML) has no JSON text; nobody could read such an object back."""
    try:
        msgspec.json.encode(obj)
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.BadRequest(f"{resource.kind}: the object cannot be written as JSON: {error}") from error


def _name_kind(resource: Resource, obj: dict[str, Any]) -> None:
    """Put kind and version in where they were left out. Raises: BadRequest when they are others."""
    if obj.setdefault("apiVersion", resource.api_version) != resource.api_version:
        raise errors.BadRequest(
            f"the API version in the data ({obj['apiVersion']}) does not match the expected API version "
            f"({resource.api_version})"
        )
    if obj.setdefault("kind", resource.kind) != resource.kind:
        raise errors.BadRequest(
            f'{obj["kind"]} in version "{resource.version}" cannot be handled as a {resource.kind}'
        )
