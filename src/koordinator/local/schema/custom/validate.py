"""Validation of custom resources by their OpenAPI v3 schema, compiled once to closures.

A check returns None for a good value, which is what nearly all values are: no path is built and no text is
formatted on the way. Troubles carry their path relative to the value; parents put themselves in front.
Texts are those of the API server (`spec.x in body must be of type integer: "string"`).
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from koordinator.cel import EvaluationError, patterns
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors
from koordinator.local.schema.custom.formats import FORMATS

Json = dict[str, Any]
Maker = Callable[[str], StatusCause]


class Trouble(NamedTuple):
    """Something wrong with a value, or with what it holds."""

    suffix: str
    """Path below the value: `.name`, `[0].x` or empty."""
    make: Maker
    """Function that makes the cause once the whole path is known."""
    node: tuple[str | int, ...] = ()
    """The part whose schema complains, by names and indexes."""
    is_repeated: bool = False
    """Whether an item of a set or keyed list is there twice."""

    def below(self, part: str, key: str | int) -> "Trouble":
        """Return the same as the one that holds the value sees it."""
        return self._replace(suffix=part + self.suffix, node=(key, *self.node))


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
                return [*_wrong_type(value, wanted), *(rest(value) or ())]
        return rest(value)

    return check


def _type(schema: Json) -> str:
    return "integer,string" if schema.get("x-kubernetes-int-or-string") else schema.get("type", "")


def _plain_classes(schema: Json) -> frozenset[type]:
    """Return the classes of which every value is good: a parent needs no call for those. Empty when there are rules."""
    return frozenset() if schema.keys() & _RULES else _CLASSES.get(_type(schema), frozenset())


def causes_of(check: Check, value: Any, path: str) -> list[StatusCause]:
    """Return what is wrong with a value that stands at `path` (empty: the whole object)."""
    return causes(check(value) or [], path)


def causes(troubles: list[Trouble], path: str = "") -> list[StatusCause]:
    """Return what troubles say about the value at `path`."""
    made = [trouble.make(f"{path}{trouble.suffix}".lstrip(".")) for trouble in troubles]
    return [each if each.field else msgspec.structs.replace(each, field="<nil>") for each in made]


def ratcheted(troubles: list[Trouble], schema: Json, value: Any, old: Any) -> list[Trouble]:
    """Return the troubles that are new: those of parts that an update leaves as they were do not count."""
    return [trouble for trouble in troubles if not _is_same(trouble.node, schema, value, old)]


def _is_same(node: tuple[str | int, ...], schema: Json, value: Any, old: Any) -> bool:
    """Return whether a part, or something that holds it, has an older state and is as it was."""
    for step in node:
        if isinstance(step, int):
            old = _found_again(schema, value, old, step)
            value, schema = value[step], schema.get("items") or {}
        else:
            more = schema.get("additionalProperties")
            value, old = value[step], old.get(step, _MISSING) if isinstance(old, dict) else _MISSING
            inner = (schema.get("properties") or {}).get(step, more)
            schema = inner if isinstance(inner, dict) else {}
        if old is _MISSING:
            return False
        if value == old:
            return True
    return False


def _found_again(schema: Json, value: Any, old: Any, index: int) -> Any:
    """Return the older state of a list's item, which has one in keyed lists alone."""
    if schema.get("x-kubernetes-list-type") != "map" or not isinstance(old, list):
        return _MISSING
    keys = schema.get("x-kubernetes-list-map-keys") or []
    wanted = _keys(value[index], dict.fromkeys(keys))
    return next((item for item in old if _keys(item, dict.fromkeys(keys)) == wanted), _MISSING)


_MISSING = object()


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


def _anything(value: Any) -> None:
    return None


def _invalid(value: Any, detail: str) -> list[Trouble]:
    return [Trouble("", lambda path: errors.invalid(path, value, f"{path} in body {detail}"))]


def _wrong_type(value: Any, wanted: str) -> list[Trouble]:
    word = _JSON_TYPES.get(type(value), "object")
    detail = f'in body must be of type {wanted}: "{word}"'
    return [Trouble("", lambda path: errors.type_invalid(path, word, f"{path} {detail}"))]


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
        return [Trouble("", lambda path: errors.not_supported(path, value, words))]

    return check


def _number(schema: Json) -> Check | None:
    low, high, step = schema.get("minimum"), schema.get("maximum"), schema.get("multipleOf")
    if low is None and high is None and step is None:
        return None
    over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    bounds = {
        name: of for name, of in (("minimum", low), ("maximum", high), ("multipleOf", step)) if of is not None
    }
    has_fraction = any(not float(of).is_integer() for of in bounds.values())
    # Whole numbers are compared with the whole part of the bounds.
    whole = _number(schema | {name: int(of) for name, of in bounds.items()}) if has_fraction else None

    def check(value: Any) -> list[Trouble] | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if whole is not None and isinstance(value, int):
            return whole(value)
        found: list[Trouble] = []
        if high is not None and (value >= high if under else value > high):
            found += _invalid(value, f"should be less than {'' if under else 'or equal to '}{_plain(high)}")
        if low is not None and (value <= low if over else value < low):
            found += _invalid(value, f"should be greater than {'' if over else 'or equal to '}{_plain(low)}")
        if step is not None and step <= 0:
            found += _positive(value)
        elif step and not _is_multiple(value, step):
            found += _invalid(value, f"should be a multiple of {_plain(step)}")
        return found or None

    return check


def _positive(value: Any) -> list[Trouble]:
    return [
        Trouble(
            "",
            lambda path: errors.invalid(
                path, value, f"factor MultipleOf declared for {path} must be positive: 0"
            ),
        )
    ]


_EPSILON = 1e-9


def _is_multiple(value: float, step: float) -> bool:
    """Whole numbers exactly; others with the tolerance of the API server."""
    if isinstance(value, int) and float(step).is_integer():
        return value % int(step) == 0
    quotient = value / step
    rest = abs(quotient - int(quotient))
    return rest == 0 or rest / (2 * abs(quotient)) < _EPSILON


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
            found.append(Trouble("", lambda path: errors.too_long(path, high)))
        elif low is not None and len(value) < low:
            found += _invalid(value, f"should be at least {low} chars long")
        elif matches is not None and not matches(value):
            found += _invalid(value, f"should match '{pattern_text}'")
        if is_form is not None and not is_form(value):
            detail = f"in body must be of type {form}: {errors.shown(value)}"
            found.append(Trouble("", lambda path: errors.type_invalid(path, value, f"{path} {detail}")))
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
            found.append(Trouble("", lambda path: errors.too_many(path, len(value), high)))
        if low is not None and len(value) < low:
            found += _invalid(value, f"should have at least {low} items")
        if kind == "map":
            found += _no_objects(value)
            found += _repeated(value, lambda item: _keys(item, defaults))
        elif kind == "set":
            found += _repeated(value, lambda item: item)
        elif unique and len({errors.shown(item) for item in value}) < len(value):
            found += _invalid("", "shouldn't contain duplicates")
        return found or None

    return check


def _no_objects(value: list[Any]) -> list[Trouble]:
    detail = "must be an object for an array of list-type map"
    return [
        Trouble(f"[{index}]", lambda path, item=item: errors.invalid(path, item, detail), (), True)  # type: ignore[misc]
        for index, item in enumerate(value)
        if not isinstance(item, dict)
    ]


def _keys(item: Any, defaults: Json) -> Any:
    if not isinstance(item, dict):
        return item
    return {key: item.get(key, default) for key, default in defaults.items()}


def _repeated(value: list[Any], key_of: Callable[[Any], Any]) -> list[Trouble]:
    seen: Counter[str] = Counter()
    found: list[Trouble] = []
    for index, item in enumerate(value):
        key = key_of(item)
        if isinstance(item, dict) is not isinstance(key, dict):
            continue
        text = errors.shown(key)
        seen[text] += 1
        if seen[text] == 2:
            made = Trouble(f"[{index}]", lambda path, key=key: errors.duplicate(path, key), (), True)  # type: ignore[misc]
            found.append(made)
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
                found.append(Trouble(f".{name}", errors.required))
        if high is not None and len(value) > high:
            found.append(Trouble("", lambda path: errors.too_many(path, len(value), high)))
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
                found = (found or []) + [trouble.below(f".{key}", key) for trouble in more]
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
                found = (found or []) + [
                    trouble.below(f"[{key}]" if trouble.is_repeated else f".{key}", key) for trouble in more
                ]
        return found

    return check


def _items(inner: Check) -> Check:
    def check(value: Any) -> list[Trouble] | None:
        if not isinstance(value, list):
            return None
        found: list[Trouble] | None = None
        for index, item in enumerate(value):
            if more := inner(item):
                found = (found or []) + [trouble.below(f"[{index}]", index) for trouble in more]
        return found

    return check


def _junctors(schema: Json) -> Check | None:
    any_of = [compile_schema(item) for item in schema.get("anyOf") or ()]
    one_of = [compile_schema(item) for item in schema.get("oneOf") or ()]
    all_of = [compile_schema(item) for item in schema.get("allOf") or ()]
    unwanted = compile_schema(schema["not"]) if "not" in schema else None
    if not (any_of or one_of or all_of or unwanted):
        return None

    def check(value: Any) -> list[Trouble] | None:
        if value is None:
            return None
        found: list[Trouble] = []
        if any_of:
            found += _any_of(any_of, value)
        if one_of:
            found += _one_of(one_of, value)
        if all_of:
            found += _all_of(all_of, value)
        if unwanted is not None and not unwanted(value):
            found += _about_all("must not validate the schema (not)")
        return [trouble._replace(node=()) for trouble in found] or None

    return check


def _about_all(detail: str) -> list[Trouble]:
    """Return what the API server says of a value as a whole: without its field."""
    return [Trouble("", lambda path: errors.invalid("<nil>", "", f'"{path}" {detail}'))]


def _any_of(checks: list[Check], value: Any) -> list[Trouble]:
    results = [check(value) for check in checks]
    if not all(results):
        return []
    return [*_about_all("must validate at least one schema (anyOf)"), *(results[0] or ())]


def _one_of(checks: list[Check], value: Any) -> list[Trouble]:
    results = [check(value) for check in checks]
    valid = sum(1 for result in results if not result)
    if valid == 1:
        return []
    how = "Found none valid" if not valid else f"Found {valid} valid alternatives"
    told = _about_all(f"must validate one and only one schema (oneOf). {how}")
    return told if valid else [*told, *(results[0] or ())]


def _all_of(checks: list[Check], value: Any) -> list[Trouble]:
    results = [result for check in checks if (result := check(value))]
    if not results:
        return []
    how = ". None validated" if len(results) == len(checks) else ""
    told = [trouble for result in results for trouble in result]
    return [*told, *_about_all(f"must validate all the schemas (allOf){how}")]
