"""Values of a structural schema as rules (CEL) see them: their types, and what stands for the JSON at run time.

Source: the schema adaptor of k8s.io/apiserver/pkg/cel.
"""

import re
from collections.abc import Callable
from typing import Any

from koordinator.cel import conversions, times
from koordinator.cel.overloads import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    CELType,
    list_of,
    map_of,
)
from koordinator.cel.values import KeyedList, SetList

Json = dict[str, Any]
Adapt = Callable[[Any], Any]

_RESERVED = frozenset(
    (
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if"),
        *("import", "let", "loop", "package", "namespace", "return", "var", "void", "while"),
    )
)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PIECES = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__", " ": "__space__"}
_PIECE = re.compile(r"__|[./ -]")
_STRING_TYPES = {"byte": BYTES, "duration": DURATION, "date": TIMESTAMP, "date-time": TIMESTAMP}
_META = CELType("object.metadata", (), {"name": STRING, "generateName": STRING})
_IDENTITY = {"apiVersion": STRING, "kind": STRING, "metadata": _META}


def escaped(name: str) -> str | None:
    """Return a property's name as expressions write it (`x.y` is `x__dot__y`); None when they cannot."""
    if name in _RESERVED:
        return f"__{name}__"
    found = _PIECE.sub(lambda piece: _PIECES[piece[0]], name)
    return found if _IDENTIFIER.fullmatch(found) else None


def type_of(schema: Json, path: str = "self", *, is_root: bool = False) -> CELType | None:
    """Return the type of values of a schema; None for what rules cannot see, as nobody says what it is."""
    if schema.get("x-kubernetes-int-or-string"):
        return DYN
    match schema.get("type"):
        case "object":
            return _object_type(schema, path, is_root=is_root)
        case "array":
            items = type_of(schema.get("items") or {}, f"{path}.@items")
            return None if items is None else list_of(items)
        case "string":
            return _STRING_TYPES.get(schema.get("format", ""), STRING)
        case "boolean":
            return BOOL
        case "integer":
            return INT
        case "number":
            return DOUBLE
    return None


def _object_type(schema: Json, path: str, *, is_root: bool) -> CELType | None:
    more = schema.get("additionalProperties")
    if isinstance(more, dict) and more:
        value = type_of(more, f"{path}.@values")
        return None if value is None else map_of(STRING, value)
    fields: dict[str, CELType] = {}
    for name, inner in (schema.get("properties") or {}).items():
        field, kind = escaped(name), type_of(inner, f"{path}.{name}")
        if field is not None and kind is not None:
            fields[field] = kind
    if is_root or schema.get("x-kubernetes-embedded-resource"):
        fields.update(_IDENTITY)
    return CELType(f"object {path}", (), fields)


def adapter(schema: Json) -> Adapt | None:
    """Return the function that makes a JSON value one for rules; None where they are the same."""
    if schema.get("x-kubernetes-int-or-string"):
        return None
    match schema.get("type"):
        case "object":
            return _object_adapter(schema)
        case "array":
            return _array_adapter(schema)
        case "string":
            return _of_text(schema.get("format", ""))
        case "integer":
            return lambda value: int(value) if isinstance(value, float) else value
        case "number":
            return lambda value: float(value) if type(value) is int else value
    return None


def _of_text(form: str) -> Adapt | None:
    make: dict[str, Adapt] = {
        "byte": conversions.decode_base64,
        "duration": times.duration,
        "date": times.date_or_time,
        "date-time": times.date_or_time,
    }
    parse = make.get(form)
    return None if parse is None else lambda value: parse(value) if isinstance(value, str) else value


def _object_adapter(schema: Json) -> Adapt | None:
    more = schema.get("additionalProperties")
    if isinstance(more, dict) and more:
        inner = adapter(more)
        if inner is None:
            return None
        return lambda value: (
            {key: inner(item) for key, item in value.items()} if isinstance(value, dict) else value
        )
    parts: dict[str, tuple[str, Adapt | None, bool]] = {}
    is_same = True
    for name, below in (schema.get("properties") or {}).items():
        field, change = escaped(name), adapter(below)
        nullable = bool(below.get("nullable"))
        if field is not None:
            parts[name] = (field, change, nullable)
        is_same = is_same and change is None and field == name and not nullable

    def adapt(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        found = {}
        for key, item in value.items():
            field, change, nullable = parts.get(key, (key, None, False))
            if item is None and nullable:
                continue  # a null that may be there counts as absent
            found[field] = item if change is None else change(item)
        return found

    return None if is_same else adapt


def _array_adapter(schema: Json) -> Adapt | None:
    inner = adapter(schema.get("items") or {})
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or []

    def adapt(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        items = value if inner is None else [inner(item) for item in value]
        if kind == "set":
            return SetList(items)
        if kind == "map":
            keyed = KeyedList(items)
            keyed.keys = tuple(escaped(key) or key for key in keys)
            return keyed
        return items

    return adapt if inner is not None or kind in ("set", "map") else None
