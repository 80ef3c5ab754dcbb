"""One type into another: `int('7')`, `string(1.5)`. Source: CEL's standard definitions; texts are read as in Go."""

import base64
import datetime
import math
import re
from typing import Any

from koordinator.cel import times
from koordinator.cel.values import (
    INT_MAX,
    INT_MIN,
    UINT_MAX,
    EvaluationError,
    TypeName,
    UInt,
    kind_of,
    no_overload,
)

_PLAIN_DIGITS_MAX = 6
"""Digits before the point from which on a number is written with an exponent."""
_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DECIMAL = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|infinity)|nan", re.ASCII | re.I
)
_HEX = re.compile(r"[+-]?0x([0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)p[+-]?[0-9]+", re.ASCII | re.I)


def whole(number: int) -> int:
    """Return a number that fits 64 bits. Raises: EvaluationError."""
    if not INT_MIN <= number <= INT_MAX:
        raise EvaluationError("integer overflow")
    return int(number)


def unsigned(number: int) -> UInt:
    """Return a number that fits 64 bits without a sign. Raises: EvaluationError."""
    if not 0 <= number <= UINT_MAX:
        raise EvaluationError("unsigned integer overflow")
    return UInt(number)


def to_int(value: Any) -> int:
    """Cut towards zero; 64 bits. Raises: EvaluationError."""
    match value:
        case bool():
            raise no_overload("int", value)
        case int():
            return whole(value)
        case float():
            # The bounds themselves are no numbers that a double holds.
            if not -(2.0**63) < value < 2.0**63:
                raise EvaluationError("integer overflow")
            return int(value)
        case str() if _WHOLE.fullmatch(value) and INT_MIN <= int(value) <= INT_MAX:
            return int(value)
        case str():
            raise EvaluationError("type conversion error from 'string' to 'int'")
        case datetime.datetime():
            return math.floor(value.timestamp())
        case datetime.timedelta():
            return times.nanoseconds(value)
    raise no_overload("int", value)


def to_uint(value: Any) -> UInt:
    """Cut towards zero; 64 bits without a sign. Raises: EvaluationError."""
    match value:
        case bool():
            raise no_overload("uint", value)
        case int():
            return unsigned(value)
        case float():
            if not 0 <= value < 2.0**64:
                raise EvaluationError("unsigned integer overflow")
            return UInt(value)
        case str() if value.isascii() and value.isdigit() and int(value) <= UINT_MAX:
            return UInt(int(value))
        case str():
            raise EvaluationError("type conversion error from 'string' to 'uint'")
    raise no_overload("uint", value)


def to_double(value: Any) -> float:
    """Raises: EvaluationError when the text is no number."""
    match value:
        case bool():
            raise no_overload("double", value)
        case int() | float():
            return float(value)
        case str() if _DECIMAL.fullmatch(value):
            return _finite(float(value), value)
        case str() if _HEX.fullmatch(value):
            return float.fromhex(value)
        case str():
            raise EvaluationError("type conversion error from 'string' to 'double'")
    raise no_overload("double", value)


def _finite(number: float, text: str) -> float:
    if math.isinf(number) and "i" not in text.lower():
        raise EvaluationError("type conversion error from 'string' to 'double'")
    return number


def to_string(value: Any) -> str:
    """Return a value's text as CEL writes it. Raises: EvaluationError for what has none."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value))
        case float():
            return double_text(value)
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None
        case datetime.datetime():
            return times.timestamp_text(value)
        case datetime.timedelta():
            return times.duration_text(value)
    if kind_of(value) in ("net.IP", "net.CIDR"):
        return str(value)
    raise no_overload("string", value)


def double_text(number: float) -> str:
    """Return the shortest text of a number, as Go writes it: `1.5`, `1e+10`."""
    if math.isnan(number) or math.isinf(number):
        return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"
    mantissa, _, power = (
        f"{number!r}e0".partition("e") if "e" not in repr(number) else repr(number).partition("e")
    )
    sign, digits = ("-", mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
    before, _, after = digits.partition(".")
    figures = (before + after).lstrip("0")
    point = len(before) + int(power.removesuffix("e0")) - (len(before + after) - len(figures))
    figures = figures.rstrip("0") or "0"
    if figures == "0":
        return f"{sign}0"
    exponent = point - 1
    if exponent < -4 or exponent >= _PLAIN_DIGITS_MAX:
        tail = f".{figures[1:]}" if len(figures) > 1 else ""
        return f"{sign}{figures[0]}{tail}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{figures}"
    if point >= len(figures):
        return sign + figures + "0" * (point - len(figures))
    return f"{sign}{figures[:point]}.{figures[point:]}"


def to_bool(value: Any) -> bool:
    """The words that Go takes for true and false. Raises: EvaluationError."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise no_overload("bool", value)
    if value in ("true", "True", "TRUE", "t", "1"):
        return True
    if value in ("false", "False", "FALSE", "f", "0"):
        return False
    raise EvaluationError("type conversion error from 'string' to 'bool'")


def bytes_of(value: Any) -> bytes:
    """Return the UTF-8 of a text. Raises: EvaluationError."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    raise no_overload("bytes", value)


def decode_base64(text: str) -> bytes:
    """Return the bytes that a field of format `byte` holds. Raises: EvaluationError."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise EvaluationError("illegal base64 data") from error


CONVERSIONS = {
    "int": to_int,
    "uint": to_uint,
    "double": to_double,
    "string": to_string,
    "bool": to_bool,
    "bytes": bytes_of,
    "dyn": lambda value: value,
    "type": lambda value: TypeName(kind_of(value)),
    "timestamp": times.timestamp,
    "duration": times.duration,
}
"""By name; those of a literal are made when an expression is compiled."""
