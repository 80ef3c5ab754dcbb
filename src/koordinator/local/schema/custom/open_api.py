"""Check `openAPIV3Schema` of a definition: structure, defaults, what else the API server says of each part, rules.

Source: the validation of CustomResourceDefinitions; texts are those of the API server.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors
from koordinator.local.schema.custom import defaults, rules, structural

Json = dict[str, Any]

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_NOT_SUPPORTED = ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref")
_LIST_TYPES, _MAP_TYPES = ("atomic", "set", "map"), ("atomic", "granular")
_LIST, _MAP, _KEYS = "x-kubernetes-list-type", "x-kubernetes-map-type", "x-kubernetes-list-map-keys"
_RESOURCE_FIELDS = frozenset(("apiVersion", "kind", "metadata"))
_WITH_STATUS = (
    *("description", "type", "format", "title", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
    *("maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "multipleOf", "required"),
    *("items", "properties", "externalDocs", "example", "x-kubernetes-preserve-unknown-fields"),
    "x-kubernetes-validations",
)
"""Members of the root of a schema with a status subresource, whose schema is taken out of it."""
_IN_GO = {
    "x-kubernetes-preserve-unknown-fields": "XPreserveUnknownFields",
    "x-kubernetes-validations": "XValidations",
}


_AT_ROOT = "at the root of the schema if the status subresource is enabled"


class _Place(NamedTuple):
    """A part as seen from above."""

    no_default: str = ""
    """Words for why it may have no default; empty where it may."""
    in_meta: bool = False
    lost: str = ""
    """The list above it whose items cannot be found again in an older state."""
    has_rules: bool = False
    """Whether rules are looked at."""
    is_root: bool = False


class _Causes(NamedTuple):
    schema: list[StatusCause]
    rules: list[StatusCause]

    def add(self, more: "_Causes") -> None:
        self.schema.extend(more.schema)
        self.rules.extend(more.rules)


def check(schema: Json, field: str, *, has_status: bool) -> list[StatusCause]:
    """Return why a schema cannot be served; `field` is its path in the definition."""
    causes = _check_status(schema, field) if has_status else []
    if schema.get("nullable"):
        causes.append(errors.forbidden(f"{field}.nullable", "nullable cannot be true at the root"))
    has_rules = False
    if structural.is_supported(schema):
        found = structural.check(schema, field) or defaults.check(schema, field)
        causes += found
        has_rules = not found
    walked = _walk(schema, field, _Place(has_rules=has_rules, is_root=True))
    return [*causes, *walked.schema, *walked.rules]


def _check_status(schema: Json, field: str) -> list[StatusCause]:
    for name, value in schema.items():
        if not value or (name == "type" and value == "object"):
            continue
        if name == "type":
            return [
                errors.invalid(f"{field}.type", value, f'only "object" is allowed as the type {_AT_ROOT}')
            ]
        if name not in _WITH_STATUS:
            allowed = " ".join(_IN_GO.get(each, each[0].upper() + each[1:]) for each in _WITH_STATUS)
            return [errors.invalid(field, schema, f"only [{allowed}] fields are allowed {_AT_ROOT}")]
    return []


def _walk(schema: Json, field: str, place: _Place) -> _Causes:
    """Return what is wrong with a part and with those below it."""
    found = _Causes([*_own(schema, field, place)], [])
    more = schema.get("additionalProperties")
    inside = place._replace(is_root=False)
    if more is not None:
        if schema.get("properties") and more is not True:
            detail = "additionalProperties and properties are mutual exclusive"
            found.schema.append(errors.forbidden(f"{field}.additionalProperties", detail))
        if isinstance(more, dict):
            why = (
                "inside additionalProperties applying to object metadata"
                if place.in_meta
                else inside.no_default
            )
            found.add(_walk(more, f"{field}.additionalProperties", inside._replace(no_default=why)))
    for name, inner in (schema.get("properties") or {}).items():
        below = inside
        if (place.is_root or schema.get("x-kubernetes-embedded-resource")) and name in _RESOURCE_FIELDS:
            why = f"in top-level {name}" if place.is_root else inside.no_default
            below = inside._replace(in_meta=True, no_default=why)
        found.add(_walk(inner, f"{field}.properties[{name}]", below))
    plain = inside._replace(has_rules=False)
    if isinstance(schema.get("not"), dict):
        found.add(_walk(schema["not"], f"{field}.not", plain))
    for junctor in ("allOf", "oneOf", "anyOf"):
        for index, inner in enumerate(schema.get(junctor) or ()):
            found.add(_walk(inner, f"{field}.{junctor}[{index}]", plain))
    for name, inner in (schema.get("definitions") or {}).items():
        found.add(_walk(inner, f"{field}.definitions[{name}]", plain))
    if isinstance(schema.get("items"), dict):
        lost = place.lost or ("" if schema.get(_LIST) == "map" else field)
        found.add(_walk(schema["items"], f"{field}.items", inside._replace(lost=lost)))
    found.schema.extend(_extensions(schema, field))
    for index, rule in enumerate(schema.get(rules.FIELD) or ()):
        found.schema.extend(rules.check_words(rule, schema, f"{field}.{rules.FIELD}[{index}]"))
    if place.has_rules and not found.schema:
        found.rules.extend(rules.check(schema, field, place.lost, is_root=place.is_root))
    return found


def _own(schema: Json, field: str, place: _Place) -> Iterator[StatusCause]:
    """Check what a part says without looking at others."""
    kind = schema.get("type")
    if kind and kind not in _TYPES:
        yield errors.not_supported(f"{field}.type", kind, _TYPES)
    if schema.get("default") is not None and place.no_default:
        yield errors.forbidden(f"{field}.default", f"must not be set {place.no_default}")
    for name in _NOT_SUPPORTED:
        if schema.get(name) or (
            name in ("additionalItems", "dependencies", "$ref") and schema.get(name) is not None
        ):
            yield errors.forbidden(f"{field}.{name}", f"{name} is not supported")
    if kind == "null":
        yield errors.forbidden(f"{field}.type", "type cannot be set to null, use nullable as an alternative")
    if place.in_meta and schema.get("x-kubernetes-embedded-resource"):
        detail = "must not be used inside of resource meta"
        yield errors.forbidden(f"{field}.x-kubernetes-embedded-resource", detail)
    if schema.get("uniqueItems"):
        detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield errors.forbidden(f"{field}.uniqueItems", detail)


def _extensions(schema: Json, field: str) -> Iterator[StatusCause]:
    """Check list types, map types and what goes with them."""
    kind, list_type, map_type = schema.get("type"), schema.get(_LIST), schema.get(_MAP)
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        detail = "must be true or undefined"
        yield errors.invalid(f"{field}.x-kubernetes-preserve-unknown-fields", False, detail)
    for said, wanted, name in ((map_type, "object", _MAP), (list_type, "array", _LIST)):
        if said is not None and kind != wanted:
            detail = f"must be {wanted} if {name} is specified"
            yield (
                errors.invalid(f"{field}.type", kind, detail)
                if kind
                else errors.required(f"{field}.type", detail)
            )
    if map_type is not None and map_type not in _MAP_TYPES:
        yield errors.not_supported(f"{field}.{_MAP}", map_type, _MAP_TYPES)
    items = schema.get("items") if isinstance(schema.get("items"), dict) else None
    if kind == "array" and list_type == "set" and items is not None:
        yield from _set_items(items, f"{field}.items")
    if list_type is not None and list_type not in _LIST_TYPES:
        yield errors.not_supported(f"{field}.{_LIST}", list_type, _LIST_TYPES)
    keys = schema.get(_KEYS) or []
    if keys and list_type != "map":
        detail = f"must be map if {_KEYS} is non-empty"
        where = f"{field}.{_LIST}"
        yield (
            errors.required(where, detail) if list_type is None else errors.invalid(where, list_type, detail)
        )
    if list_type == "map":
        yield from _keyed(keys, items, field)
    if list_type in ("set", "map") and items is not None:
        yield from _not_null(keys if list_type == "map" else [], items, f"{field}.items", list_type)


def _set_items(items: Json, field: str) -> Iterator[StatusCause]:
    detail = f"must be atomic as item of a list with {_LIST}=set"
    own = items.get(_LIST)
    if items.get("type") == "array" and own not in (None, "atomic"):
        yield errors.invalid(f"{field}.{_LIST}", own, detail)
    if items.get("type") == "object" and items.get(_MAP) != "atomic":
        yield errors.invalid(f"{field}.{_MAP}", own, detail)


def _keyed(keys: list[str], items: Json | None, field: str) -> Iterator[StatusCause]:
    if not keys:
        yield errors.required(f"{field}.{_KEYS}", f"must not be empty if {_LIST} is map")
    if items is None:
        yield errors.required(f"{field}.items", f"must have a schema if {_LIST} is map")
        return
    if items.get("type") != "object":
        detail = f"must be object if parent array's {_LIST} is map"
        yield errors.invalid(f"{field}.items.type", items.get("type", ""), detail)
        return
    for index, key in enumerate(keys):
        inner = (items.get("properties") or {}).get(key)
        if inner is None:
            yield errors.invalid(f"{field}.{_KEYS}", keys, "entries must all be names of item properties")
        elif inner.get("type") in ("array", "object"):
            detail = f"must be a scalar type if parent array's {_LIST} is map"
            yield errors.invalid(f"{field}.items.properties[{key}].type", "object", detail)
        if key in keys[:index]:
            yield errors.invalid(f"{field}.{_KEYS}", keys, "must not contain duplicate entries")


def _not_null(keys: list[str], items: Json, field: str, list_type: str) -> Iterator[StatusCause]:
    if items.get("nullable"):
        yield errors.forbidden(f"{field}.nullable", f"cannot be nullable when {_LIST} is {list_type}")
    for key in keys:
        inner = (items.get("properties") or {}).get(key)
        if inner is None:
            continue
        where, why = f"{field}.properties[{key}]", f"this property is in {_KEYS}, so it"
        if key not in (items.get("required") or ()) and inner.get("default") is None:
            yield errors.required(f"{where}.default", f"{why} must have a default or be a required property")
        if inner.get("nullable"):
            yield errors.forbidden(f"{where}.nullable", f"{why} cannot be nullable")
