"""JSON annotations as typed payloads, by the decoding rules that all of them share (behaviour/api 1.2).

A payload is a frozen struct below `Payload`, or a map or list of such. The type of a field says:

* `int` is an integer literal of 64 bits (`Int32`: of 32), never `80.0` or `"80"`; `float` is any number;
* `RawQuantity` is quantity text or a bare number, `Seconds` a duration in text, `Time` RFC 3339 text;
* a field without default is always written, even when zero; one that may be None is written unless None;
  any other is left out when empty;
* `NotNull` items make a null inside a list an error (else it is an empty item), and so do durations.

Member names match case-insensitively, unknown members are ignored, null is as if absent, unknown enum text is kept.
Encoding is compact and stable: fixed member order, sorted map keys, canonical quantities.

Each type of a payload is decoded from JSON values, encoded to them, and known to be empty or not.
"""

import enum
import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from math import isfinite
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from koordinator.api import duration, quantity
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import wire_name
from koordinator.api.scalars import ScalarError

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
_JSON_BLANKS = " \t\r\n"
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class JSONNumber:
    """A number literal with a fraction or exponent; quantities need its text, floats its value."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class CodecMismatch(Exception):
    """A value that does not fit its type; `path` grows on the way up."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = ""

    def __str__(self) -> str:
        return f"{self.path.lstrip('.')}: {self.reason}" if self.path else self.reason


class ValueCodec(msgspec.Struct, frozen=True):
    """The treatment of values of one type."""

    decode: Callable[[Any], Any]
    encode: Callable[[Any], Any]
    zero: Callable[[], Any]
    is_optional: bool = False
    is_nullable_item: bool = True


def _shape(info: inspect.Type) -> ValueCodec:
    """Raises: TypeError for a type that payloads cannot have."""
    match info:
        case inspect.StructType():
            return _struct(info)
        case inspect.ListType():
            return _list(_shape(info.item_type))
        case inspect.DictType():
            return _dict(_shape(info.value_type), isinstance(info.key_type, inspect.IntType))
        case inspect.UnionType():
            return _union(info)
        case inspect.Metadata():
            return _annotated(info)
        case inspect.StrType():
            return _TEXT
        case inspect.BoolType():
            return _BOOLEAN
        case inspect.IntType():
            low = _INT64_MIN if info.ge is None else info.ge
            high = _INT64_MAX if info.le is None else info.le
            return ValueCodec(lambda value: _decode_int(value, low, high), _same, int)
        case inspect.FloatType():
            return ValueCodec(_decode_float, _encode_float, float)
        case inspect.AnyType():
            return ValueCodec(_decode_any, _encode_any, lambda: None)
    raise TypeError(f"payloads cannot have {info}")


def _union(info: inspect.UnionType) -> ValueCodec:
    members = [member for member in info.types if not isinstance(member, inspect.NoneType)]
    if {type(member) for member in members} == {inspect.StrType, inspect.IntType, inspect.FloatType}:
        shape = _QUANTITY
    elif {type(member) for member in members} == {inspect.StrType, inspect.IntType}:
        shape = _INT_OR_TEXT
    elif len(members) == 1:
        shape = _shape(members[0])
    else:
        raise TypeError(f"payloads cannot have {info}")
    return msgspec.structs.replace(shape, is_optional=True) if info.includes_none else shape


def _annotated(info: inspect.Metadata) -> ValueCodec:
    match (info.extra or {}).get("json"):
        case "duration":
            return _DURATION
        case "time":
            return _TIME
        case "not-null":
            return msgspec.structs.replace(_shape(info.type), is_nullable_item=False)
    return _shape(info.type)


def _struct(info: inspect.StructType) -> ValueCodec:
    fields = [(field, _shape(field.type)) for field in info.fields]
    exact = {field.encode_name: (field.name, shape.decode) for field, shape in fields}
    folded = {name.casefold(): member for name, member in exact.items()}
    required = [(field.name, shape.zero) for field, shape in fields if field.required]

    def decode(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _expected("an object", value)
        members: dict[str, Any] = {}
        for name, member in value.items():
            known = exact.get(name) or folded.get(name.casefold())
            if known is not None and member is not None:
                members[known[0]] = _within(f".{name}", known[1], member)
        for name, zero in required:
            if name not in members:
                members[name] = zero()
        try:
            return info.cls(**members)
        except ValueError as error:
            raise CodecMismatch(str(error)) from error

    def encode(value: Any) -> dict[str, Any]:
        written = {}
        for field, shape in fields:
            member = getattr(value, field.name)
            if field.required or (member is not None if shape.is_optional else not _is_empty(member)):
                written[field.encode_name] = shape.encode(member)
        return written

    return ValueCodec(decode, encode, lambda: decode({}))


def _is_empty(member: Any) -> bool:
    return not member or (isinstance(member, msgspec.Struct) and member == type(member)())


def _list(item: ValueCodec) -> ValueCodec:
    def decode(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _expected("a list", value)
        return [_within(f"[{index}]", decode_item, member) for index, member in enumerate(value)]

    def decode_item(value: Any) -> Any:
        if value is None and item.is_nullable_item:
            return item.zero()
        return item.decode(value)

    return ValueCodec(decode, lambda value: [item.encode(member) for member in value], list)


def _dict(member: ValueCodec, has_int_keys: bool) -> ValueCodec:
    def decode(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _expected("an object", value)
        decoded = {}
        for name, raw in value.items():
            key = _within(f".{name}", _decode_int_key, name) if has_int_keys else name
            decoded[key] = member.zero() if raw is None else _within(f".{name}", member.decode, raw)
        return decoded

    def encode(value: dict[Any, Any]) -> dict[str, Any]:
        return {name: member.encode(raw) for name, raw in sorted((str(k), v) for k, v in value.items())}

    return ValueCodec(decode, encode, dict)


def _within(step: str, decode: Callable[[Any], Any], value: Any) -> Any:
    try:
        return decode(value)
    except CodecMismatch as mismatch:
        mismatch.path = step + mismatch.path
        raise


def _decode_text(value: Any) -> str:
    if not isinstance(value, str):
        raise _expected("text", value)
    return value


def _decode_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _expected("true or false", value)
    return value


def _decode_int(value: Any, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _expected("an integer", value)
    if not low <= value <= high:
        raise CodecMismatch(f"expected an integer from {low} to {high}, got {value}")
    return value


def _decode_int_or_text(value: Any) -> int | str:
    return value if isinstance(value, str) else _decode_int(value, _INT64_MIN, _INT64_MAX)


def _decode_int_key(name: str) -> int:
    digits = name[1:] if name[:1] in ("+", "-") else name
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise CodecMismatch("expected an integer as member name")
    return int(name)


def _decode_float(value: Any) -> float:
    if isinstance(value, JSONNumber):
        number = float(value.text)
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**300:
        number = float(value)
    else:
        raise _expected("a number", value)
    if not isfinite(number):
        raise CodecMismatch("number out of range")
    return number


def _decode_quantity(value: Any) -> Any:
    raw = value.text if isinstance(value, JSONNumber) else value
    try:
        quantity.value(raw)
    except quantity.QuantityError as error:
        if isinstance(raw, str):
            raise CodecMismatch(str(error)) from error
        raise _expected("a quantity", raw) from error
    return raw


def _decode_duration(value: Any) -> float:
    try:
        return duration.parse(_decode_text(value))
    except ScalarError as error:
        raise CodecMismatch(str(error)) from error


def _decode_time(value: Any) -> str:
    text = _decode_text(value)
    try:
        if _RFC3339.fullmatch(text):
            datetime.fromisoformat(text)
            return text
    except ValueError:  # the form is right, the date is none
        pass
    raise CodecMismatch(f"{text[:80]!r} is not an RFC 3339 time")


def _decode_any(value: Any) -> Any:
    match value:
        case dict():
            return {name: _decode_any(member) for name, member in value.items()}
        case list():
            return [_decode_any(member) for member in value]
        case JSONNumber():
            return float(value.text)
    return value


def _encode_float(value: float) -> int | float:
    """Whole numbers are written without a fraction."""
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _encode_any(value: Any) -> Any:
    match value:
        case dict():
            return {name: _encode_any(value[name]) for name in sorted(value)}
        case list():
            return [_encode_any(member) for member in value]
        case float():
            return _encode_float(value)
    return value


def _same(value: Any) -> Any:
    return value


def _expected(what: str, value: Any) -> CodecMismatch:
    return CodecMismatch(f"expected {what}, got {_kind(value)}")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | JSONNumber():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
    return "an object"


_TEXT = ValueCodec(_decode_text, _same, str)
_BOOLEAN = ValueCodec(_decode_boolean, _same, bool)
_QUANTITY = ValueCodec(_decode_quantity, quantity.canonical, lambda: "0")
_INT_OR_TEXT = ValueCodec(_decode_int_or_text, _same, int)
_DURATION = ValueCodec(_decode_duration, duration.text_of, float, is_nullable_item=False)
_TIME = ValueCodec(_decode_time, _same, str)


T = TypeVar("T")

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Seconds = Annotated[float, msgspec.Meta(extra={"json": "duration"})]
Time = Annotated[str, msgspec.Meta(extra={"json": "time"})]
NotNull = msgspec.Meta(extra={"json": "not-null"})


_DECODER = msgspec.json.Decoder(float_hook=JSONNumber)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


class Payload(msgspec.Struct, frozen=True, kw_only=True, rename=wire_name, gc=False):
    """Base of annotation payloads."""


class Empty(enum.Enum):
    """The meaning of an annotation with empty text."""

    ERROR = "malformed"
    ABSENT = "as if the annotation were absent"
    NOTHING_SET = "a payload with nothing set"


class Annotation(Generic[T]):
    """An annotation (or label) that holds a JSON payload of type `T`."""

    def __init__(
        self,
        key: str,
        payload: type[T],
        *,
        empty: Empty = Empty.ERROR,
        null_is_error: bool = False,
        null_is_absent: bool = False,
    ) -> None:
        self.key = key
        self._empty = empty
        self._null_is_error = null_is_error
        self._null_is_absent = null_is_absent
        self._shape = _shape(inspect.type_info(payload))

    def read(self, annotations: Mapping[str, str], obj: str = "") -> T | None:
        """Return the payload in an object's annotations, None when absent; `obj` names the object in errors.

        Raises: ProtocolError when malformed.
        """
        text = annotations.get(self.key)
        if text is None or (text == "" and self._empty is Empty.ABSENT):
            return None
        if self._null_is_absent and text.strip(_JSON_BLANKS) == "null":
            return None
        return self.decode(text, obj)

    def decode(self, text: str, obj: str = "") -> T:
        """Return the payload that the annotation's text says. Raises: ProtocolError when malformed."""
        if text == "" and self._empty is not Empty.ERROR:
            return self.nothing()
        try:
            value = _DECODER.decode(text)
            if value is None and not self._null_is_error:
                return self.nothing()
            decoded: T = self._shape.decode(value)
            return decoded
        except CodecMismatch as mismatch:
            raise ProtocolError(obj, self.key, str(mismatch)) from mismatch
        except RecursionError as error:
            raise ProtocolError(obj, self.key, "nested too deeply") from error
        except ValueError as error:
            raise ProtocolError(obj, self.key, f"not JSON: {error}") from error

    def nothing(self) -> T:
        """Return the payload with nothing set."""
        zero: T = self._shape.zero()
        return zero

    def encode(self, value: T) -> str:
        """Return the annotation's text; equal payloads give equal texts."""
        return dump(self._shape.encode(value))


def dump(value: Any) -> str:
    """Compact JSON with `<`, `>`, `&` escaped as the API's other writers do."""
    return _ENCODER.encode(value).translate(_ESCAPES)
