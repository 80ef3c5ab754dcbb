"""Structural schemas: each part has its type outside of `allOf`, `anyOf`, `oneOf` and `not`, which only bound values.

Source: Kubernetes, "Specifying a structural schema"; texts are those of the API server.
"""

from collections.abc import Iterator
from typing import Any

from koordinator.cel import EvaluationError, patterns
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors

Json = dict[str, Any]

_UNSUPPORTED = ("id", "$ref", "definitions", "dependencies", "patternProperties", "additionalItems")
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]
_EMPTY_INSIDE = ("type", "title", "description")
_FALSE_INSIDE = (
    *("nullable", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"),
    "x-kubernetes-int-or-string",
)
_UNDEFINED_INSIDE = ("additionalProperties", "default", "x-kubernetes-list-type", "x-kubernetes-map-type")
_NO_ITEMS_INSIDE = ("x-kubernetes-list-map-keys", "x-kubernetes-validations")
_META = {"name", "generateName"}


def is_supported(schema: Json) -> bool:
    """Return whether no part says what structural schemas cannot."""
    return not any(schema.get(name) for name in _UNSUPPORTED) and all(map(is_supported, parts_of(schema)))


def parts_of(schema: Json) -> Iterator[Json]:
    """Yield the schemas right below one."""
    yield from (schema.get("properties") or {}).values()
    for name in ("items", "additionalProperties", "not"):
        if isinstance(schema.get(name), dict):
            yield schema[name]
    for junctor in ("allOf", "anyOf", "oneOf"):
        yield from schema.get(junctor) or ()


def check(schema: Json, field: str) -> list[StatusCause]:
    """Return why a schema is not structural, in order."""
    causes = [*_invariants(schema, "root", field), *_inside_is_outside(schema, schema, field, field)]
    return sorted(causes, key=lambda cause: f"{cause.field}: {cause.message}")


def _invariants(schema: Json, role: str, field: str) -> Iterator[StatusCause]:
    """Check one part outside of junctors and all below it; `role` says where it stands."""
    properties, more = schema.get("properties") or {}, schema.get("additionalProperties")
    if schema.get("type") == "array" and schema.get("items") is None:
        yield errors.required(f"{field}.items", "must be specified")
    if isinstance(schema.get("items"), dict):
        yield from _invariants(schema["items"], "array items", f"{field}.items")
    for name, inner in properties.items():
        yield from _invariants(inner, "object fields", f"{field}.properties[{name}]")
    if more is not None:
        if role == "root":
            yield errors.forbidden(f"{field}.additionalProperties", "must not be used at the root")
        if isinstance(more, dict):
            yield from _invariants(more, "object fields", f"{field}.additionalProperties")
    if schema.get("x-kubernetes-int-or-string"):
        for name in ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"):
            if schema.get(name):
                detail = "must be false if x-kubernetes-int-or-string is true"
                yield errors.invalid(f"{field}.{name}", True, detail)
    yield from _values(schema, field, skips=_customary(schema))
    yield from _own_type(schema, role, field)
    yield from _identity(schema, role, field)


def _customary(schema: Json) -> tuple[str, int]:
    """Return the junctor, and its index, that says again what `x-kubernetes-int-or-string` says."""
    if schema.get("anyOf") == _INT_OR_STRING:
        return "anyOf", -1
    first = (schema.get("allOf") or [{}])[0]
    return ("allOf", 0) if first.get("anyOf") == _INT_OR_STRING else ("", -1)


def _own_type(schema: Json, role: str, field: str) -> Iterator[StatusCause]:
    kind = schema.get("type")
    is_open = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    embedded = schema.get("x-kubernetes-embedded-resource")
    if embedded and kind != "object":
        detail = "must be object if x-kubernetes-embedded-resource is true"
        yield (
            errors.invalid(f"{field}.type", kind, detail)
            if kind
            else errors.required(f"{field}.type", detail)
        )
    elif not kind and not is_open:
        where = "at the root" if role == "root" else f"for specified {role}"
        yield errors.required(f"{field}.type", f"must not be empty {where}")
    if role == "root" and kind and kind != "object":
        yield errors.invalid(f"{field}.type", kind, "must be object at the root")
    if not embedded:
        return
    if schema.get("additionalProperties") is not None:
        detail = "must not be used if x-kubernetes-embedded-resource is set"
        yield errors.forbidden(f"{field}.additionalProperties", detail)
    if not schema.get("properties") and not schema.get("x-kubernetes-preserve-unknown-fields"):
        detail = (
            "must not be empty if x-kubernetes-embedded-resource is true without "
            "x-kubernetes-preserve-unknown-fields"
        )
        yield errors.required(f"{field}.properties", detail)


def _identity(schema: Json, role: str, field: str) -> Iterator[StatusCause]:
    """Check properties that all objects have."""
    if role != "root" and not schema.get("x-kubernetes-embedded-resource"):
        return
    properties = schema.get("properties") or {}
    for name in ("kind", "apiVersion"):
        if name in properties and properties[name].get("type") != "string":
            kind = properties[name].get("type", "")
            yield errors.invalid(f"{field}.properties[{name}].type", kind, "must be string")
    if "metadata" not in properties:
        return
    meta, where = properties["metadata"], f"{field}.properties[metadata]"
    if meta.get("type") != "object":
        yield errors.invalid(f"{where}.type", meta.get("type", ""), "must be object")
    if role == "root" and (
        set(meta) - {"type", "properties", "default"} or set(meta.get("properties") or ()) - _META
    ):
        detail = (
            "must not specify anything other than name and generateName, but metadata is implicitly specified"
        )
        yield errors.forbidden(where, detail)


def _values(schema: Json, field: str, skips: tuple[str, int] = ("", -1)) -> Iterator[StatusCause]:
    """Check what bounds values: a pattern, and junctors; one that `skips` names may say types."""
    for junctor in ("anyOf", "allOf", "oneOf"):
        if skips == (junctor, -1):
            continue
        for index, inner in enumerate(schema.get(junctor) or ()):
            yield from _inside(inner, f"{field}.{junctor}[{index}]", says_types=skips == (junctor, index))
    if isinstance(schema.get("not"), dict):
        yield from _inside(schema["not"], f"{field}.not", says_types=False)
    if pattern := schema.get("pattern"):
        try:
            patterns.of(pattern)
        except EvaluationError as error:
            detail = f"must be a valid regular expression, but isn't: {error}"
            yield errors.invalid(f"{field}.pattern", pattern, detail)


def _inside(schema: Json, field: str, *, says_types: bool) -> Iterator[StatusCause]:
    """Check one part inside a junctor, which must not say what a part is."""
    yield from _values(schema, field, skips=("anyOf", -1) if says_types else ("", -1))
    if isinstance(schema.get("items"), dict):
        yield from _inside(schema["items"], f"{field}.items", says_types=False)
    for name, inner in (schema.get("properties") or {}).items():
        yield from _inside(inner, f"{field}.properties[{name}]", says_types=False)
    for names, word in ((_EMPTY_INSIDE, "empty"), (_FALSE_INSIDE, "false"), (_NO_ITEMS_INSIDE, "empty")):
        for name in names:
            if schema.get(name):
                yield errors.forbidden(f"{field}.{name}", f"must be {word} to be structural")
    for name in _UNDEFINED_INSIDE:
        if schema.get(name) is not None:
            yield errors.forbidden(f"{field}.{name}", "must be undefined to be structural")
    if "metadata" in (schema.get("properties") or {}):
        detail = "must not be specified in a nested context"
        yield errors.forbidden(f"{field}.properties[metadata]", detail)


def _inside_is_outside(inner: Json, outer: Json | None, field: str, where: str) -> Iterator[StatusCause]:
    """Check that parts named in junctors of `inner` (at `where`) are parts of `outer` (at `field`) as well."""
    for junctor in ("not", "allOf", "anyOf", "oneOf"):
        nested = inner.get(junctor)
        if isinstance(nested, dict):
            yield from _is_outside(nested, outer, field, f"{where}.{junctor}")
        for index, each in enumerate(nested if isinstance(nested, list) else ()):
            yield from _is_outside(each, outer, field, f"{where}.{junctor}[{index}]")


def _is_outside(inner: Json, outer: Json | None, field: str, where: str) -> Iterator[StatusCause]:
    if outer is None:
        yield errors.required(field, f"because it is defined in {where}")
        return
    yield from _inside_is_outside(inner, outer, field, where)
    if isinstance(inner.get("items"), dict):
        items = outer.get("items")
        yield from _is_outside(
            inner["items"], items if isinstance(items, dict) else None, f"{field}.items", f"{where}.items"
        )
    for name, below in (inner.get("properties") or {}).items():
        known = (outer.get("properties") or {}).get(name)
        yield from _is_outside(below, known, f"{field}.properties[{name}]", f"{where}.properties[{name}]")
