"""`ObjectSchema` of one served version of a custom resource."""

from typing import Any

from koordinator.api.meta import Resource
from koordinator.cluster.errors import BadRequest, StatusCause
from koordinator.local.schema import decode, errors, metadata, names
from koordinator.local.schema.custom import meta as typed_meta
from koordinator.local.schema.custom import prune, rules, validate
from koordinator.local.schema.custom.shape import shape_of
from koordinator.local.schema.types import SchemaType

Json = dict[str, Any]

_IMPLICIT = frozenset({"apiVersion", "kind", "metadata"})


class CustomSchema:
    """The schema of one custom resource's objects; `schema` is its `openAPIV3Schema`."""

    def __init__(self, resource: Resource, schema: Json) -> None:
        self.resource = resource
        self.schema = schema
        self.type: SchemaType = shape_of(schema, is_root=True)
        self._prune = prune.compile_pruner(schema, is_root=True)
        self._fill = prune.compile_defaulter(schema)
        own = {
            name: inner for name, inner in (schema.get("properties") or {}).items() if name not in _IMPLICIT
        }
        self._check = validate.compile_schema({**schema, "properties": own})
        self._ask_rules = rules.compile_rules(schema)
        self._check_name = validate.compile_schema((schema.get("properties") or {}).get("metadata") or {})

    def decode(self, obj: Json, field_validation: str) -> tuple[Json, list[str]]:
        """See `local.interfaces.ObjectSchema`. Only metadata has Go types; the rest is pruned here and its
        types are a matter of `validate`."""
        unknown: list[str] = []
        try:
            decoded = self._prune(obj, unknown)
            meta = decoded.get("metadata")
            if meta is not None:
                typed = typed_meta.decode(meta, unknown)
                if typed is not meta:
                    decoded = {**decoded, "metadata": typed}
        except decode.Undecodable as error:
            raise errors.unreadable(self.resource, str(error)) from error
        except RecursionError:
            raise BadRequest("json: exceeded max depth") from None
        if not unknown or field_validation == "Ignore":
            return decoded, []
        if field_validation == "Strict":
            raise errors.strict(self.resource, unknown)
        return decoded, [f'unknown field "{path}"' for path in unknown]

    def default(self, obj: Json) -> Json:
        """See `local.interfaces.ObjectSchema`; also for objects stored before the schema had the default."""
        if self._fill is None:
            return obj
        filled: Json = self._fill(obj)
        return filled

    def validate(self, obj: Json, old: Json | None) -> list[StatusCause]:
        """See `local.interfaces.ObjectSchema`. Ratcheting: parts that an update leaves alone (by identity) do
        not block it when the schema became stricter since."""
        meta = obj.get("metadata") or {}
        causes: list[StatusCause] = []
        if old is None or meta is not old.get("metadata"):
            causes += metadata.check(meta, self.resource.namespaced, names.subdomain_1123, is_core=False)
            causes += validate.causes_of(self._check_name, meta, "metadata")
        if old is not None:
            causes += metadata.check_update(meta, old.get("metadata") or {})
        is_same = old is not None and _same_but_metadata(obj, old)
        found = [] if is_same else validate.causes_of(self._check, obj, "")
        if self._ask_rules is None:
            return causes + found
        if found:
            return [*causes, *found, rules.UNCHECKED]
        return causes + self._ask_rules(obj, old)


def _same_but_metadata(obj: Json, old: Json) -> bool:
    return all(obj.get(key) is old.get(key) for key in obj.keys() | old.keys() if key != "metadata")


__all__ = ["CustomSchema"]
