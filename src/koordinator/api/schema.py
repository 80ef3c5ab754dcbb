"""OpenAPI v3 schemas from views: a CRD says about a field exactly what the view's declaration says.

A field of a view carries its rules and its description as `Annotated` metadata:

    threshold_percent: Annotated[int | None, between(0, 100), "Share of the node that pods may use."] = None

Rules describe the schema only. Decoding does not enforce them: the API server has already done so, and an
object that another version of the CRD let in must still be readable.

The schemas are structural (behaviour/crds): every node has a type, or is int-or-string, or keeps unknown fields.
"""

import copy
import functools
import inspect
import typing
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar

import msgspec

from koordinator.api.quantity import RawQuantity

T = TypeVar("T")

QUANTITY_PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
"""Text that the API server accepts as a quantity (the form that all Go projects publish)."""

IntOrString = int | str
"""A number, or text such as a percentage."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Members to add to the schema of a field, and whether the field is required."""

    members: dict[str, Any] = {}
    required: bool = False


REQUIRED = Rules(required=True)
"""The field must be there; its default is given as `always(...)`, so that it is also written."""
NULLABLE = Rules(members={"nullable": True})
ATOMIC = Rules(members={"x-kubernetes-map-type": "atomic"})
"""Server-side apply treats the object as one value."""
ATOMIC_LIST = Rules(members={"x-kubernetes-list-type": "atomic"})
INT32 = Rules(members={"format": "int32"})
DATE_TIME = Rules(members={"format": "date-time"})
FREE_FORM = Rules(members={"x-kubernetes-preserve-unknown-fields": True})


def always(value: T, name: str | None = None) -> T:
    """Return a default that is written, too, although views leave defaults out when they are encoded."""
    # msgspec leaves out only what equals a plain default, not what a factory made.
    field: T = msgspec.field(default_factory=lambda: copy.copy(value), name=name)
    return field


def between(minimum: int, maximum: int) -> Rules:
    """Return a number within a range, both ends included."""
    return Rules(members={"minimum": minimum, "maximum": maximum})


def at_least(minimum: int) -> Rules:
    return Rules(members={"minimum": minimum})


def one_of(*values: str) -> Rules:
    """Return a text out of a closed set."""
    return Rules(members={"enum": list(values)})


def default(value: Any) -> Rules:
    """The API server fills the value in when the field is absent."""
    return Rules(members={"default": value})


def limits(
    *,
    min_length: int | None = None,
    max_length: int | None = None,
    pattern: str | None = None,
    min_items: int | None = None,
    min_properties: int | None = None,
) -> Rules:
    """Sizes and forms."""
    members = {
        "minLength": min_length,
        "maxLength": max_length,
        "pattern": pattern,
        "minItems": min_items,
        "minProperties": min_properties,
    }
    return Rules(members={name: value for name, value in members.items() if value is not None})


def of_struct(view: type[msgspec.Struct]) -> dict[str, Any]:
    """Schema of an object; its description is the first paragraph of the docstring.

    Raises: TypeError when a field's type has no schema.
    """
    hints = typing.get_type_hints(view, include_extras=True)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for field in msgspec.structs.fields(view):
        try:
            schema, is_required = _of_type(hints[field.name])
        except TypeError as error:
            raise TypeError(f"{view.__name__}.{field.name}: {error}") from None
        properties[field.encode_name] = schema
        if is_required:
            required.append(field.encode_name)
    result: dict[str, Any] = {"type": "object"}
    text = description(view)
    if text:
        result["description"] = text
    if properties:
        result["properties"] = dict(sorted(properties.items()))
    if required:
        result["required"] = sorted(required)
    return result


def out_of_bounds(value: msgspec.Struct) -> Iterator[str]:
    """Numbers that the schema of a view, and so the API server, refuses, each by its path and the rule."""
    return _out_of_bounds(_known_schema(type(value)), msgspec.to_builtins(value), "")


_known_schema = functools.cache(of_struct)


def _out_of_bounds(schema: dict[str, Any], value: Any, path: str) -> Iterator[str]:
    match value:
        case dict():
            for name, member in value.items():
                rules = schema.get("properties", {}).get(name) or schema.get("additionalProperties") or {}
                yield from _out_of_bounds(rules, member, f"{path}.{name}")
        case list():
            for index, member in enumerate(value):
                yield from _out_of_bounds(schema.get("items", {}), member, f"{path}[{index}]")
        case int() | float():
            if value < schema.get("minimum", value):
                yield f"{path.lstrip('.')} must be at least {schema['minimum']}, not {value}"
            if value > schema.get("maximum", value):
                yield f"{path.lstrip('.')} must be at most {schema['maximum']}, not {value}"


def description(view: type[msgspec.Struct]) -> str:
    """First paragraph of the docstring, on one line."""
    return " ".join((inspect.getdoc(view) or "").split("\n\n")[0].split())


def _of_type(hint: Any) -> tuple[dict[str, Any], bool]:
    """Schema of a field's type, and whether the field is required."""
    if typing.get_origin(hint) is Annotated:
        inner, *extras = typing.get_args(hint)
        schema, is_required = _of_type(inner)
        for extra in extras:
            if isinstance(extra, str):
                schema["description"] = extra
            elif isinstance(extra, Rules):
                schema.update(extra.members)
                is_required = is_required or extra.required
        return schema, is_required
    return _of_plain(hint), False


def _of_plain(hint: Any) -> dict[str, Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (UnionType, typing.Union):
        return _of_union(args)
    if origin is list:
        return {"type": "array", "items": _of_type(args[0])[0]}
    if origin is dict:
        if args[1] is Any:
            return {"type": "object", **FREE_FORM.members}
        return {"type": "object", "additionalProperties": _of_type(args[1])[0]}
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return of_struct(hint)
    if hint is Any:
        return dict(FREE_FORM.members)
    scalar = _SCALARS.get(hint)
    if scalar is None:
        raise TypeError(f"no schema for {hint!r}")
    return dict(scalar)


def _of_union(members: tuple[Any, ...]) -> dict[str, Any]:
    """`X | None` is X (absence is not a type); of other unions, only quantities and int-or-string exist."""
    present = [member for member in members if member is not NoneType]
    if len(present) == 1:
        return _of_type(present[0])[0]
    schema: dict[str, Any] = {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
    }
    if set(present) == set(typing.get_args(RawQuantity)):
        return {**schema, "pattern": QUANTITY_PATTERN}
    if set(present) == set(typing.get_args(IntOrString)):
        return schema
    raise TypeError(f"no schema for a union of {present}")


_SCALARS: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    str: {"type": "string"},
}
