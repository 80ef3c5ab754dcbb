"""Check that defaults in a schema are good values of it, without unknown fields."""

from collections.abc import Iterator
from typing import Any

import msgspec

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors
from koordinator.local.schema.custom import embedded, rules, validate
from koordinator.local.schema.custom.schema import compile_pruner, decode_meta

Json = dict[str, Any]

_SCALARS = ("boolean", "integer", "number", "string")
_RESOURCE_FIELDS = frozenset(("apiVersion", "kind", "metadata"))


def check(schema: Json, field: str) -> list[StatusCause]:
    """Return what is wrong with the defaults in a structural schema; those of metadata are not allowed anyway."""
    properties = {
        name: inner
        for name, inner in (schema.get("properties") or {}).items()
        if name not in _RESOURCE_FIELDS
    }
    return [*_part({**schema, "properties": properties, "x-kubernetes-embedded-resource": True}, field)]


def _below(schema: Json, field: str) -> Iterator[StatusCause]:
    """Additional properties have no defaults of their own."""
    items = schema.get("items")
    if isinstance(items, dict):
        yield from _part(items, f"{field}.items")
    is_embedded = bool(schema.get("x-kubernetes-embedded-resource"))
    for name, inner in (schema.get("properties") or {}).items():
        if not (is_embedded and name in _RESOURCE_FIELDS):
            yield from _part(inner, f"{field}.properties[{name}]")


def _part(schema: Json, field: str) -> Iterator[StatusCause]:
    if schema.get("default") is not None:
        yield from _default(schema, schema["default"], f"{field}.default")
    yield from _below(schema, field)


def _default(schema: Json, value: Any, field: str) -> list[StatusCause]:
    causes = []
    unknown: list[str] = []
    compile_pruner(schema)(value, unknown)
    if unknown or (isinstance(value, dict) and value and schema.get("type") in _SCALARS):
        causes.append(errors.invalid(field, value, "must not have unknown fields"))
    found = _embedded(schema, value, field)
    if not found:
        troubles = validate.compile_schema(schema)(value) or []
        told = validate.causes([each for each in troubles if not each.is_repeated])
        found = [
            msgspec.structs.replace(each, field=field if each.field == "<nil>" else f"{field}.{each.field}")
            for each in told
        ]
    ask = rules.compile_rules(schema, is_root=bool(schema.get("x-kubernetes-embedded-resource")))
    if found or ask is None:
        return causes + found
    told = ask(value, value, field) or ask(value, None, field)
    return causes + told


def _embedded(schema: Json, value: Any, field: str) -> list[StatusCause]:
    read, is_good = embedded.compile_decoder(schema, decode_meta), embedded.compile_check(schema)
    if read is None or is_good is None:
        return []
    try:
        return is_good(read(value, field, []), field)
    except embedded.NotEmbedded as error:
        return [error.cause]
