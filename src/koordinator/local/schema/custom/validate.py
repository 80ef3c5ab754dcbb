"""Validation of custom resources by their OpenAPI v3 schema, compiled once to closures.

A check returns None for a good value, which is what nearly all values are: no path is built and no text is
formatted on the way. Troubles carry their path relative to the value; parents put themselves in front.
Texts are those of the API server (`spec.x in body must be of type integer: "string"`).
"""

import base64
import datetime
import ipaddress
import re
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from koordinator.cel import EvaluationError, patterns
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors

Json = dict[str, Any]
Maker = Callable[[str], StatusCause]
Trouble = tuple[str, Maker]
"""Path below the value (`.name`, `[0].x` or empty) and what makes the cause once the whole path is known."""
Check = Callable[[Any], list[Trouble] | None]


def compile_schema(schema: Json) -> Check:
    """Return the check of one structural schema (assumed to have passed `structural.check`)."""
    rules = _all([part for part in (_bounds(schema), _children(schema), _junctors(schema)) if part])
    rest: Check = rules or _anything
    wanted = _type(schema)
    accepted = _CLASSES.get(wanted)
    if accepted is None:
        return _anything if rules is None else lambda value: None if value is None else rest(value)
    nullable, takes_whole = bool(schema.get("nullable")), int in accepted

    def check(value: Any) -> list[Trouble] | None:
        if type(value) not in accepted:
            if value is None and nullable:
                return None
            if not (takes_whole and type(value) is float and value.is_integer()):
                return _wrong_type(value, wanted)  # the rest would only say so again
        return rest(value)

    return check


def _type(schema: Json) -> str:
    return "integer,string" if schema.get("x-kubernetes-int-or-string") else schema.get("type", "")


def _plain_classes(schema: Json) -> frozenset[type]:
    """Return the classes of which every value is good: a parent needs no call for those. Empty when there are rules."""
    return frozenset() if schema.keys() & _RULES else _CLASSES.get(_type(schema), frozenset())


def causes_of(check: Check, value: Any, path: str) -> list[StatusCause]:
    """Return what is wrong with a value that stands at `path` (empty: the whole object)."""
    found = check(value)
    if not found:
        return []
    return [make(f"{path}{suffix}".lstrip(".") or "<nil>") for suffix, make in found]


_CLASSES: dict[str, frozenset[type]] = {
    "object": frozenset({dict}),
    "array": frozenset({list}),
    "string": frozenset({str}),
    "boolean": frozenset({bool}),
    "integer": frozenset({int}),
    "number": frozenset({int, float}),
    "integer,string": frozenset({int, str}),
}
"""The classes of JSON values that have a type; a float without a fraction is an integer, too."""
_RULES = frozenset(
    {
        *("enum", "minimum", "maximum", "multipleOf", "minLength", "maxLength", "pattern", "format"),
        *("minItems", "maxItems", "uniqueItems", "x-kubernetes-list-type", "required", "minProperties"),
        *("maxProperties", "properties", "additionalProperties", "items", "anyOf", "oneOf", "allOf", "not"),
    }
)
"""Members of a schema that say more than a type."""

_INT_OR_STRING = ([{"type": "integer"}, {"type": "string"}], [{"type": "string"}, {"type": "integer"}])


def _anything(value: Any) -> None:
    return None


def _invalid(value: Any, detail: str) -> list[Trouble]:
    return [("", lambda path: errors.invalid(path, value, f"{path} in body {detail}"))]


def _wrong_type(value: Any, wanted: str) -> list[Trouble]:
    word = _JSON_TYPES.get(type(value), "object")
    detail = f'in body must be of type {wanted}: "{word}"'
    return [("", lambda path: errors.type_invalid(path, word, f"{path} {detail}"))]


_JSON_TYPES = {
    type(None): "null",
    bool: "boolean",
    str: "string",
    int: "integer",
    float: "number",
    list: "array",
}


def _bounds(schema: Json) -> Check | None:
    """Rules for the value itself: numbers, texts, sizes, enumerations."""
    checks = [
        check
        for check in (_enum(schema), _number(schema), _text(schema), _array(schema), _object(schema))
        if check
    ]
    return _all(checks)


def _all(checks: list[Check]) -> Check | None:
    if len(checks) < 2:
        return checks[0] if checks else None

    def check(value: Any) -> list[Trouble] | None:
        found: list[Trouble] | None = None
        for part in checks:
            more = part(value)
            if more:
                found = [*found, *more] if found else more
        return found

    return check


def _enum(schema: Json) -> Check | None:
    values = schema.get("enum")
    if not values:
        return None
    allowed: list[Any] = list(values)
    words = [value if isinstance(value, str) else errors.shown(value) for value in allowed]

    def check(value: Any) -> list[Trouble] | None:
        if any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in allowed):
            return None
        return [("", lambda path: errors.not_supported(path, value, words))]

    return check


def _number(schema: Json) -> Check | None:
    low, high, step = schema.get("minimum"), schema.get("maximum"), schema.get("multipleOf")
    if low is None and high is None and step is None:
        return None
    over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")

    def check(value: Any) -> list[Trouble] | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        found: list[Trouble] = []
        if high is not None and (value >= high if under else value > high):
            found += _invalid(value, f"should be less than {'' if under else 'or equal to '}{_plain(high)}")
        if low is not None and (value <= low if over else value < low):
            found += _invalid(value, f"should be greater than {'' if over else 'or equal to '}{_plain(low)}")
        if step and value % step:
            found += _invalid(value, f"should be a multiple of {_plain(step)}")
        return found or None

    return check


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else str(number)


def _text(schema: Json) -> Check | None:
    low, high = schema.get("minLength"), schema.get("maxLength")
    pattern_text, form = schema.get("pattern"), schema.get("format")
    is_form = FORMATS.get(form) if form else None
    if low is None and high is None and not pattern_text and is_form is None:
        return None
    matches = _matcher(pattern_text) if pattern_text else None

    def check(value: Any) -> list[Trouble] | None:
        if not isinstance(value, str):
            return None
        found: list[Trouble] = []
        if high is not None and len(value) > high:
            found.append(("", lambda path: errors.too_long(path, high)))
        if low is not None and len(value) < low:
            found += _invalid(value, f"should be at least {low} chars long")
        if matches is not None and not matches(value):
            found += _invalid(value, f"should match '{pattern_text}'")
        if is_form is not None and not is_form(value):
            found += _invalid(value, f"must be of type {form}: {errors.shown(value)}")
        return found or None

    return check


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Return the function that tells whether a text matches. A pattern that was stored before patterns of its kind were
    refused matches nothing."""
    try:
        return patterns.of(pattern).matches
    except EvaluationError:
        return lambda text: False


def _array(schema: Json) -> Check | None:
    low, high, unique = schema.get("minItems"), schema.get("maxItems"), schema.get("uniqueItems")
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or []
    if low is None and high is None and not unique and kind not in {"set", "map"}:
        return None
    defaults = {
        key: ((schema.get("items") or {}).get("properties") or {}).get(key, {}).get("default") for key in keys
    }

    def check(value: Any) -> list[Trouble] | None:
        if not isinstance(value, list):
            return None
        found: list[Trouble] = []
        if high is not None and len(value) > high:
            found.append(("", lambda path: errors.too_many(path, len(value), high)))
        if low is not None and len(value) < low:
            found += _invalid(value, f"should have at least {low} items")
        if kind == "map":
            found += _repeated(value, lambda item: _keys(item, defaults))
        elif kind == "set":
            found += _repeated(value, lambda item: item)
        elif unique and len({errors.shown(item) for item in value}) < len(value):
            found += _invalid("", "shouldn't contain duplicates")
        return found or None

    return check


def _keys(item: Any, defaults: Json) -> Any:
    if not isinstance(item, dict):
        return item
    return {key: item.get(key, default) for key, default in defaults.items()}


def _repeated(value: list[Any], key_of: Callable[[Any], Any]) -> list[Trouble]:
    seen: set[str] = set()
    found: list[Trouble] = []
    for index, item in enumerate(value):
        key = key_of(item)
        text = errors.shown(key)
        if text in seen:
            found.append((f"[{index}]", lambda path, key=key: errors.duplicate(path, key)))  # type: ignore[misc]
        seen.add(text)
    return found


def _object(schema: Json) -> Check | None:
    low, high = schema.get("minProperties"), schema.get("maxProperties")
    required = schema.get("required") or ()
    if low is None and high is None and not required:
        return None
    names = tuple(required)

    def check(value: Any) -> list[Trouble] | None:
        if not isinstance(value, dict):
            return None
        found: list[Trouble] = []
        for name in names:
            if name not in value:
                found.append((f".{name}", errors.required))
        if high is not None and len(value) > high:
            found.append(("", lambda path: errors.too_many(path, len(value), high)))
        if low is not None and len(value) < low:
            found += _invalid(value, f"should have at least {low} properties")
        return found or None

    return check


def _children(schema: Json) -> Check | None:
    """Properties, additional properties and items."""
    checks: list[Check] = []
    schemas = schema.get("properties") or {}
    properties = {name: compile_schema(inner) for name, inner in schemas.items()}
    properties = {name: check for name, check in properties.items() if check is not _anything}
    if properties:
        checks.append(_properties(properties, {name: _plain_classes(schemas[name]) for name in properties}))
    more = schema.get("additionalProperties")
    if isinstance(more, dict) and more:
        inner = compile_schema(more)
        if inner is not _anything:
            checks.append(_values(inner, _plain_classes(more)))
    items = schema.get("items")
    if isinstance(items, dict):
        inner = compile_schema(items)
        if inner is not _anything:
            checks.append(_items(inner))
    return _all(checks)


def _properties(properties: dict[str, Check], plain: dict[str, frozenset[type]]) -> Check:
    unknown: frozenset[type] = frozenset()

    def check(value: Any) -> list[Trouble] | None:
        if not isinstance(value, dict):
            return None
        found: list[Trouble] | None = None
        for key, item in value.items():
            if type(item) in plain.get(key, unknown):
                continue
            inner = properties.get(key)
            if inner is not None and (more := inner(item)):
                found = (found or []) + [(f".{key}{suffix}", make) for suffix, make in more]
        return found

    return check


def _values(inner: Check, plain: frozenset[type]) -> Check:
    def check(value: Any) -> list[Trouble] | None:
        if not isinstance(value, dict):
            return None
        found: list[Trouble] | None = None
        for key, item in value.items():
            if type(item) in plain:
                continue
            if more := inner(item):
                found = (found or []) + [(f".{key}{suffix}", make) for suffix, make in more]
        return found

    return check


def _items(inner: Check) -> Check:
    def check(value: Any) -> list[Trouble] | None:
        if not isinstance(value, list):
            return None
        found: list[Trouble] | None = None
        for index, item in enumerate(value):
            if more := inner(item):
                found = (found or []) + [(f"[{index}]{suffix}", make) for suffix, make in more]
        return found

    return check


def _junctors(schema: Json) -> Check | None:
    checks: list[Check] = []
    either = schema.get("anyOf") or []
    if schema.get("x-kubernetes-int-or-string") and either in _INT_OR_STRING:
        either = []  # the customary way to say again what the extension says
    any_of = [compile_schema(item) for item in either]
    one_of = [compile_schema(item) for item in schema.get("oneOf") or ()]
    all_of = [compile_schema(item) for item in schema.get("allOf") or ()]
    if any_of:
        checks.append(
            lambda value: (
                None
                if any(not check(value) for check in any_of)
                else _invalid("", "must validate at least one schema (anyOf)")
            )
        )
    if one_of:
        checks.append(lambda value: _one_of(one_of, value))
    if all_of:
        checks += all_of
    if "not" in schema:
        unwanted = compile_schema(schema["not"])
        checks.append(
            lambda value: _invalid("", "must not validate the schema (not)") if not unwanted(value) else None
        )
    return _all(checks)


def _one_of(checks: list[Check], value: Any) -> list[Trouble] | None:
    valid = sum(1 for check in checks if not check(value))
    if valid == 1:
        return None
    how = "Found none valid" if not valid else f"Found {valid} valid alternatives"
    return _invalid("", f"must validate one and only one schema (oneOf). {how}")


_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?)*"
)
_DURATION = re.compile(r"[+-]?(\d+(\.\d+)?\s*(ns|us|µs|ms|s|m|h|d|w|[a-z]+)\s*)+|0")
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:?\d\d)")
_MAC = re.compile(r"([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}")


def _parses(parse: Callable[[str], object]) -> Callable[[str], bool]:
    """Return a check that good texts pass: those that `parse` takes without an error or False."""

    def check(text: str) -> bool:
        try:
            return parse(text) is not False
        except (ValueError, OverflowError):
            return False

    return check


def _matches(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


def _is_date_time(text: str) -> bool:
    return _DATE_TIME.fullmatch(text) is not None and _parses(datetime.datetime.fromisoformat)(text.upper())


def _uuid(version: int) -> Callable[[str], bool]:
    return _parses(lambda text: uuid.UUID(text).version == version)


FORMATS: dict[str, Callable[[str], bool]] = {
    "date": _parses(datetime.date.fromisoformat),
    "date-time": _is_date_time,
    "datetime": _is_date_time,
    "byte": _parses(lambda text: base64.b64decode(text, validate=True)),
    "ipv4": _parses(ipaddress.IPv4Address),
    "ipv6": _parses(ipaddress.IPv6Address),
    "cidr": _parses(lambda text: ipaddress.ip_network(text, strict=False)),
    "mac": _matches(_MAC),
    "uri": _parses(lambda text: bool(urlsplit(text).scheme)),
    "email": _matches(_EMAIL),
    "hostname": _matches(_HOST),
    "duration": _matches(_DURATION),
    "uuid": _parses(uuid.UUID),
    "uuid3": _uuid(3),
    "uuid4": _uuid(4),
    "uuid5": _uuid(5),
}
"""Name of a format → whether a text has it; the API server ignores all others, and so do we."""
