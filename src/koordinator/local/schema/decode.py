"""Decoding of objects of built-in kinds, with the texts of Go's JSON decoder.

A type is compiled once to a closure. Decoding copies only what it changes: unknown fields and nulls go (Go
leaves a field at its zero value for null), quantities become canonical; an object without any of these is
returned as it is.
"""

import base64
import binascii
import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from koordinator import clock
from koordinator.api import quantity
from koordinator.clock import parse_rfc3339
from koordinator.local.schema.builtin.pointers import POINTERS
from koordinator.local.schema.types import SchemaType, WireKind

Step = Callable[[Any, list[str]], Any]
"""Value and the list that collects the paths of unknown fields → the value as it should be. Raises: Undecodable."""
NULL_GOES = object()
"""In place of what null becomes, or a zero value: the field is left out."""


def keep(value: Any, unknown: list[str]) -> Any:
    """Return the value: the step of what is taken as it comes."""
    return value


def fields_step(
    steps_of: Callable[[], Mapping[str, Step]],
    other: Step | None,
    null: Any,
    otherwise: Step,
    struct: str = "",
) -> Step:
    """Return the step of an object: each field as its step makes it, or `other` where it has none, and `null` for null;
    the object itself when nothing changes.

    Without any step a field is unknown and goes. `steps_of` is asked on first use, since types may contain themselves;
    `otherwise` is the step of what is no object. `struct` is the name of the Go struct, if errors tell the field.
    """
    steps: Mapping[str, Step] | None = None

    def decode(value: Any, unknown: list[str]) -> Any:
        nonlocal steps
        if not isinstance(value, dict):
            return otherwise(value, unknown)
        if steps is None:
            steps = steps_of()
        result: dict[str, Any] | None = None
        mark = len(unknown)
        for key, item in value.items():
            step = steps.get(key) or other
            if item is None or step is None:
                if step is None:
                    unknown.append(key)
                    mark += 1
                elif null is None:
                    continue
                result = dict(value) if result is None else result
                if step is None or null is NULL_GOES:
                    del result[key]
                else:
                    result[key] = null
                continue
            try:
                new = step(item, unknown)
            except Undecodable as error:
                if struct:
                    error.struct = error.struct or struct
                    error.path.insert(0, key)
                raise
            if len(unknown) > mark:
                put_below(unknown, mark, key)
                mark = len(unknown)
            if new is not item:
                result = dict(value) if result is None else result
                if new is NULL_GOES:
                    del result[key]
                else:
                    result[key] = new
        return value if result is None else result

    return decode


def through_list(values: list[Any], step: Step, unknown: list[str], null: Any) -> list[Any]:
    """Return the list with each item as `step` makes it and `null` for null; `values` itself when nothing changed."""
    result: list[Any] | None = None
    mark = len(unknown)
    for index, item in enumerate(values):
        new = null if item is None else step(item, unknown)
        if len(unknown) > mark:
            put_below(unknown, mark, f"[{index}]")
            mark = len(unknown)
        if new is not item:
            result = list(values) if result is None else result
            result[index] = new
    return values if result is None else result


def put_below(unknown: list[str], mark: int, key: str) -> None:
    """Paths from `mark` on were found below `key`, a field's name or `[index]`."""
    for index in range(mark, len(unknown)):
        tail = unknown[index]
        unknown[index] = f"{key}{tail}" if tail.startswith("[") else f"{key}.{tail}"


_QUANTITY_TEXT = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_QUANTITY_FORM = re.compile(r"[+-]?[0-9.]+[eEinumkKMGTP]*[-+]?[0-9]*")
_INTEGER_RANGES = {WireKind.INT32: 31, WireKind.INT64: 63}
_TIME_LAYOUT = "2006-01-02T15:04:05Z07:00"
_MICRO_TIME_LAYOUT = "2006-01-02T15:04:05.000000Z07:00"
_MICRO_TIME_FORM = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_TIME_FORM = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


class Undecodable(Exception):
    """A value cannot become its Go type.

    A plain mismatch gets its place in words on the way up (`Go struct field PodSpec.spec.nodeName`); errors of
    types that decode themselves (quantities, times) come without one, as in Go.
    """

    def __init__(self, word: str, go_type: str, *, text: str = "") -> None:
        super().__init__(word, go_type, text)
        self.word, self.go_type, self.text = word, go_type, text
        self.struct = ""
        self.path: list[str] = []

    def __str__(self) -> str:
        if self.text:
            return self.text
        where = f"Go struct field {self.struct}.{'.'.join(self.path)}" if self.path else "Go value"
        return f"json: cannot unmarshal {self.word} into {where} of type {self.go_type}"


def word_of(value: Any) -> str:
    """Return what Go's decoder calls a JSON value."""
    match value:
        case bool():
            return "bool"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
        case dict():
            return "object"
    return "null"


def go_type(shape: SchemaType) -> str:
    """Return the Go type in an error message: `[]v1.Container`, `map[string]string`, `int32`."""
    match shape.kind:
        case WireKind.LIST:
            assert shape.element is not None
            return f"[]{go_type(shape.element)}"
        case WireKind.MAP:
            assert shape.element is not None
            return f"map[string]{go_type(shape.element)}"
        case WireKind.STRUCT:
            match = re.match(r"^(?:[A-Z][a-z]+)?(V\d+(?:(?:alpha|beta)\d+)?)([A-Z].*)$", shape.name)
            return f"{match[1].lower()}.{match[2]}" if match else shape.name
    return str(shape.kind.value)


def struct_name(shape: SchemaType) -> str:
    """Return the struct's bare Go name."""
    return go_type(shape).rpartition(".")[2]


@functools.cache
def decoder_of(shape: SchemaType) -> Step:
    """Return the compiled decoder of a type."""
    compile_ = {WireKind.STRUCT: _struct, WireKind.MAP: _map, WireKind.LIST: _list}.get(shape.kind)
    return _PLAIN[shape.kind] if compile_ is None else compile_(shape)


def _struct(shape: SchemaType) -> Step:
    kept = POINTERS.get(struct_name(shape), frozenset())

    def steps() -> dict[str, Step]:
        found = {key: decoder_of(field.type) for key, field in shape.fields.items()}
        for key, field in shape.fields.items():
            if not field.required and field.type.kind in _LEFT_OUT and key not in kept:
                found[key] = _unless_zero(found[key])
        return found

    return fields_step(steps, None, NULL_GOES, _refusal(shape), struct_name(shape))


_LEFT_OUT = frozenset(
    {
        *(WireKind.STRING, WireKind.BOOL, WireKind.INT32, WireKind.INT64, WireKind.FLOAT),
        *(WireKind.BYTES, WireKind.LIST, WireKind.MAP),
    }
)
"""Types whose zero values Go leaves out of an object where they are optional (`omitempty`)."""


def _unless_zero(step: Step) -> Step:
    """Return the step of an optional field, which goes with its zero value."""
    if step is _string:
        return _text

    def decode(value: Any, unknown: list[str]) -> Any:
        new = step(value, unknown)
        return new if new else NULL_GOES

    return decode


def _map(shape: SchemaType) -> Step:
    assert shape.element is not None
    return fields_step(dict, decoder_of(shape.element), _zero(shape.element), _refusal(shape))


def _refusal(shape: SchemaType) -> Step:
    """Return the step of a value of another type, which raises."""
    type_text = go_type(shape)

    def refuse(value: Any, unknown: list[str]) -> Any:
        raise Undecodable(word_of(value), type_text)

    return refuse


def _list(shape: SchemaType) -> Step:
    assert shape.element is not None
    element = decoder_of(shape.element)
    type_text = go_type(shape)
    zero = _zero(shape.element)

    def decode(value: Any, unknown: list[str]) -> Any:
        if not isinstance(value, list):
            raise Undecodable(word_of(value), type_text)
        return through_list(value, element, unknown, zero)

    return decode


def _zero(shape: SchemaType) -> Any:
    """Return what null becomes inside a list or map."""
    match shape.kind:
        case WireKind.STRING | WireKind.BYTES:
            return ""
        case WireKind.STRUCT | WireKind.MAP:
            return {}
        case WireKind.LIST:
            return []
        case WireKind.BOOL:
            return False
        case WireKind.QUANTITY:
            return "0"
        case WireKind.ANY | WireKind.TIME | WireKind.MICRO_TIME:
            return None
    return 0


def _string(value: Any, unknown: list[str]) -> Any:
    if not isinstance(value, str):
        raise Undecodable(word_of(value), "string")
    return value


def _text(value: Any, unknown: list[str]) -> Any:
    """The same where an empty text goes, in one step: most fields are texts."""
    if not isinstance(value, str):
        raise Undecodable(word_of(value), "string")
    return value or NULL_GOES


def _bool(value: Any, unknown: list[str]) -> Any:
    if not isinstance(value, bool):
        raise Undecodable(word_of(value), "bool")
    return value


def _integer(kind: WireKind) -> Step:
    limit = 1 << _INTEGER_RANGES[kind]

    def decode(value: Any, unknown: list[str]) -> Any:
        if type(value) is int and -limit <= value < limit:
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise Undecodable(f"number {value}", kind.value)
        raise Undecodable(word_of(value), kind.value)

    return decode


def _float(value: Any, unknown: list[str]) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Undecodable(word_of(value), "float64")
    return value


def _quantity(value: Any, unknown: list[str]) -> Any:
    if isinstance(value, str):
        text = _canonical(value)
        return value if text == value else text
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Undecodable("", "", text=_QUANTITY_TEXT)
    return _canonical(repr(value) if isinstance(value, float) else str(value))


@functools.lru_cache(maxsize=16384)
def _canonical(text: str) -> str:
    try:
        return quantity.parse(text.strip()).text
    except quantity.QuantityError as error:
        known = _QUANTITY_FORM.fullmatch(text.strip())
        reason = "unable to parse quantity's suffix" if known else _QUANTITY_TEXT
        raise Undecodable("", "", text=reason) from error


def _int_or_string(value: Any, unknown: list[str]) -> Any:
    if isinstance(value, str):
        return value
    if type(value) is int and -(1 << 31) <= value < 1 << 31:
        return value
    word = (
        f"number {value}"
        if isinstance(value, int | float) and not isinstance(value, bool)
        else word_of(value)
    )
    raise Undecodable("", "", text=f"json: cannot unmarshal {word} into Go value of type int32")


def _bytes(value: Any, unknown: list[str]) -> Any:
    if not isinstance(value, str):
        raise Undecodable(word_of(value), "[]uint8")
    try:
        base64.b64decode(value.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError) as error:
        at = next(
            (i for i, c in enumerate(value) if not (c.isascii() and (c.isalnum() or c in "+/="))), len(value)
        )
        raise Undecodable("", "", text=f"illegal base64 data at input byte {at}") from error
    return value


def _time(canonical: Callable[[str], str], layout: str) -> Step:
    """Return the decoder of a time, which becomes the one text that Go writes for it: clients send other zones and
    parts of seconds back."""

    def decode(value: Any, unknown: list[str]) -> Any:
        if not isinstance(value, str):
            text = f"json: cannot unmarshal {word_of(value)} into Go value of type string"
            raise Undecodable("", "", text=text)
        try:
            text = canonical(value)
        except (ValueError, OverflowError) as error:
            text = f'parsing time "{value}" as "{layout}": cannot parse "{value}" as "2006"'
            raise Undecodable("", "", text=text) from error
        return value if text == value else text

    return decode


@functools.lru_cache(maxsize=4096)
def _canonical_time(text: str) -> str:
    return clock.rfc3339(_seconds(text, _TIME_FORM))


@functools.lru_cache(maxsize=256)  # no two events share theirs
def _canonical_micro_time(text: str) -> str:
    return clock.rfc3339_micro(_seconds(text, _MICRO_TIME_FORM))


def _seconds(text: str, form: re.Pattern[str]) -> float:
    if not form.fullmatch(text):
        raise ValueError(text)
    return parse_rfc3339(text)


_PLAIN: dict[WireKind, Step] = {
    WireKind.ANY: keep,
    WireKind.STRING: _string,
    WireKind.BOOL: _bool,
    WireKind.INT32: _integer(WireKind.INT32),
    WireKind.INT64: _integer(WireKind.INT64),
    WireKind.FLOAT: _float,
    WireKind.QUANTITY: _quantity,
    WireKind.INT_OR_STRING: _int_or_string,
    WireKind.BYTES: _bytes,
    WireKind.MICRO_TIME: _time(_canonical_micro_time, _MICRO_TIME_LAYOUT),
    WireKind.TIME: _time(_canonical_time, _TIME_LAYOUT),
}
"""Steps of types that have no parts."""
