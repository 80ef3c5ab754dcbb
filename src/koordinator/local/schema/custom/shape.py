"""The `SchemaType` of a custom resource, for patches and field ownership."""

import functools
from typing import Any

from koordinator.local.schema import types
from koordinator.local.schema.builtin import models
from koordinator.local.schema.types import Fields, ListType, SchemaField, SchemaType, WireKind

Json = dict[str, Any]

_SCALARS = {
    "string": types.STRING,
    "boolean": types.BOOL,
    "integer": types.INT64,
    "number": types.FLOAT,
}


def shape_of(schema: Json, *, is_root: bool = False) -> SchemaType:
    """The type that a structural schema describes; what it leaves open is ANY."""
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


__all__ = ["shape_of"]
