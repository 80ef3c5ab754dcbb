"""`ObjectSchema` of one served version of a custom resource, its `SchemaType` for patches and field ownership, and
the decoding of its `metadata`.
"""

import functools
from typing import Any

from koordinator.api.meta import Resource
from koordinator.cluster.errors import BadRequest, StatusCause
from koordinator.local.schema import decode, errors, metadata, names, types
from koordinator.local.schema import decode as decoding
from koordinator.local.schema.builtin import models
from koordinator.local.schema.custom import prune, rules, validate
from koordinator.local.schema.types import Fields, ListType, SchemaField, SchemaType, WireKind

Json = dict[str, Any]

_IMPLICIT = frozenset({"apiVersion", "kind", "metadata"})


_SCALARS = {
    "string": types.STRING,
    "boolean": types.BOOL,
    "integer": types.INT64,
    "number": types.FLOAT,
}


def shape_of(schema: Json, *, is_root: bool = False) -> SchemaType:
    """Return the type that a structural schema describes; what it leaves open is ANY."""
    if schema.get("x-kubernetes-int-or-string"):
        return types.INT_OR_STRING
    kind = schema.get("type")
    if kind in _SCALARS:
        return _SCALARS[kind]
    if kind == "array":
        return _list(schema)
    if kind == "object" or is_root or schema.get("x-kubernetes-embedded-resource"):
        return _object(schema, is_root)
    return types.ANY


def _list(schema: Json) -> SchemaType:
    items = schema.get("items")
    element = shape_of(items) if isinstance(items, dict) else types.ANY
    keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
    properties = (items or {}).get("properties") or {}
    return SchemaType(
        WireKind.LIST,
        element=element,
        list_type=ListType(schema.get("x-kubernetes-list-type") or "atomic"),
        list_keys=keys,
        key_defaults={
            key: properties[key]["default"] for key in keys if "default" in properties.get(key, {})
        },
    )


def _object(schema: Json, is_root: bool) -> SchemaType:
    atomic = schema.get("x-kubernetes-map-type") == "atomic"
    more = schema.get("additionalProperties")
    keeps = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    embedded = is_root or bool(schema.get("x-kubernetes-embedded-resource"))
    properties = schema.get("properties") or {}
    if not properties and not embedded:
        if isinstance(more, dict) and more:
            return SchemaType(WireKind.MAP, element=shape_of(more), atomic=atomic)
        return (
            SchemaType(WireKind.MAP, element=types.ANY, atomic=atomic)
            if keeps or more
            else SchemaType(WireKind.STRUCT, atomic=atomic)
        )
    return SchemaType(
        WireKind.STRUCT,
        load=functools.partial(_fields, schema, embedded),
        element=types.ANY if keeps else None,
        atomic=atomic,
        open=keeps,
    )


def _fields(schema: Json, embedded: bool) -> Fields:
    required = set(schema.get("required") or ())
    fields: Fields = {
        name: SchemaField(
            name=name,
            type=shape_of(inner),
            required=name in required,
            description=inner.get("description", ""),
        )
        for name, inner in (schema.get("properties") or {}).items()
    }
    if embedded:
        fields["apiVersion"] = SchemaField(name="apiVersion", type=types.STRING)
        fields["kind"] = SchemaField(name="kind", type=types.STRING)
        fields["metadata"] = SchemaField(name="metadata", type=models.struct_of("V1ObjectMeta"))
    return fields


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
                typed = decode_meta(meta, unknown)
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


@functools.cache
def _decoder() -> decoding.Decoder:
    return decoding.decoder_of(models.struct_of("V1ObjectMeta"))


def decode_meta(meta: Any, unknown: list[str]) -> Any:
    """`metadata` by its Go types; paths of unknown fields are added to `unknown`. Raises: decode.Unreadable."""
    found: list[str] = []
    try:
        decoded = _decoder()(meta, found)
    except decoding.Undecodable as error:
        error.struct = error.struct or "Object"
        error.path.insert(0, "metadata")
        raise
    unknown += [f"metadata.{path}" for path in found]
    return decoded
