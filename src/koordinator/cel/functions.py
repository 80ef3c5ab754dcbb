"""Functions, methods and operators. Sources: CEL's standard definitions, cel-go's extensions for strings, lists, sets
and optional values, and the libraries that Kubernetes adds."""

import math
import operator
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from koordinator.api import quantity
from koordinator.api.quantity import Quantity, QuantityError
from koordinator.cel import conversions, formats, formatting, lists, network, patterns, times
from koordinator.cel.conversions import unsigned as _unsigned
from koordinator.cel.conversions import whole as _whole
from koordinator.cel.values import (
    INT_MAX,
    INT_MIN,
    LENGTH_MAX,
    NONE,
    EvaluationError,
    Function,
    OptionalValue,
    Semver,
    UInt,
    equal,
    is_ordered_with,
    merged,
    no_overload,
)


def _add(a: Any, b: Any) -> Any:
    if isinstance(a, list) and isinstance(b, list) and not type(a) is type(b) is list:
        return merged(a, b)
    if isinstance(b, timedelta) and isinstance(a, datetime | timedelta):
        return _time(lambda: a + b)
    if isinstance(a, timedelta) and isinstance(b, datetime):
        return _time(lambda: b + a)
    if type(a) is type(b):
        if type(a) is int:
            return _whole(a + b)
        if type(a) is UInt:
            return _unsigned(a + b)
        if type(a) is float:
            return a + b
        if isinstance(a, str | list | bytes):
            if len(a) + len(b) > LENGTH_MAX:
                raise EvaluationError("the value becomes too long")
            return a + b
    raise no_overload("+", a, b)


def _subtract(a: Any, b: Any) -> Any:
    if isinstance(a, datetime | timedelta) and isinstance(b, datetime | timedelta):
        return _time(lambda: a - b)  # type: ignore[operator]
    return _minus(a, b)


def _time(make: Callable[[], Any]) -> Any:
    try:
        made = make()
        return times.checked_span(made) if isinstance(made, timedelta) else made
    except (OverflowError, TypeError) as error:
        raise EvaluationError(f"timestamp overflow: {error}") from error


def _arithmetic(
    sign: str, whole: Callable[[int, int], int], real: Callable[[float, float], float]
) -> Function:
    def apply(a: Any, b: Any) -> Any:
        if type(a) is int and type(b) is int:
            return _whole(whole(a, b))
        if type(a) is UInt and type(b) is UInt:
            return _unsigned(whole(a, b))
        if type(a) is float and type(b) is float:
            return real(a, b)
        raise no_overload(sign, a, b)

    return apply


def _divide_whole(a: int, b: int) -> int:
    if b == 0:
        raise EvaluationError("division by zero")
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _divide_real(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def _modulo(a: Any, b: Any) -> int:
    if type(a) is not type(b) or type(a) not in (int, UInt):
        raise no_overload("%", a, b)
    if b == 0:
        raise EvaluationError("modulus by zero")
    rest = int(a) - int(b) * _divide_whole(a, b)
    return UInt(rest) if type(a) is UInt else rest


def _compare(sign: str, holds: Callable[[Any, Any], bool]) -> Function:
    def apply(a: Any, b: Any) -> bool:
        if not is_ordered_with(a, b):
            raise no_overload(sign, a, b)
        return holds(a, b)

    return apply


def _in(item: Any, group: Any) -> bool:
    if isinstance(group, list):
        return any(equal(item, each) for each in group)
    if isinstance(group, dict):
        return has_key(group, item)
    raise no_overload("in", item, group)


def has_key(entries: dict[Any, Any], key: Any) -> bool:
    """Return whether a map has a key; Python takes true for 1."""
    if isinstance(key, list | dict) or key not in entries:
        return False
    return key not in (0, 1) or isinstance(key, str) or any(equal(each, key) for each in entries)


def _not(value: Any) -> bool:
    if not isinstance(value, bool):
        raise no_overload("!", value)
    return not value


def _negate(value: Any) -> Any:
    if type(value) is int:
        return _whole(-value)
    if type(value) is float:
        return -value
    raise no_overload("-", value)


_minus = _arithmetic("-", operator.sub, operator.sub)
OPERATORS: dict[str, Function] = {
    "==": equal,
    "!=": lambda a, b: not equal(a, b),
    "<": _compare("<", operator.lt),
    "<=": _compare("<=", operator.le),
    ">": _compare(">", operator.gt),
    ">=": _compare(">=", operator.ge),
    "in": _in,
    "+": _add,
    "-": _subtract,
    "*": _arithmetic("*", operator.mul, operator.mul),
    "/": _arithmetic("/", _divide_whole, _divide_real),
    "%": _modulo,
    "!_": _not,
    "-_": _negate,
}


def size(value: Any) -> int:
    """Characters of a text, items of a list, keys of a map. Raises: EvaluationError."""
    if isinstance(value, str | list | dict | bytes):
        return len(value)
    raise no_overload("size", value)


_NO_QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def to_quantity(text: Any) -> Quantity:
    """Return a Kubernetes amount (`2Gi`). Raises: EvaluationError."""
    if not isinstance(text, str):
        raise no_overload("quantity", text)
    try:
        return quantity.parse(text)
    except QuantityError as error:
        raise EvaluationError(_NO_QUANTITY) from error


def to_semver(text: Any, is_loose: Any = False) -> Semver:
    """Return a version; `is_loose` allows a leading v and missing parts. Raises: EvaluationError."""
    if not isinstance(text, str) or not isinstance(is_loose, bool):
        raise no_overload("semver", text)
    return Semver.normalized(text) if is_loose else Semver.of(text)


def _holds(name: str, make: Function) -> Function:
    """Return a function that tells whether a value can be made of a text."""

    def apply(*args: Any) -> bool:
        if not args or not isinstance(args[0], str):
            raise no_overload(name, *args)
        try:
            make(*args)
        except EvaluationError:
            return False
        return True

    return apply


def _of_non_zero(value: Any) -> OptionalValue:
    """Return the value if it is none that a field has without being set."""
    is_zero = value is None or (
        isinstance(value, bool | int | float | str | bytes | list | dict | timedelta) and not value
    )
    return NONE if is_zero else OptionalValue(True, value)


def _matches(text: Any, pattern: Any) -> bool:
    if not isinstance(text, str) or not isinstance(pattern, str):
        raise no_overload("matches", text, pattern)
    return patterns.of(pattern).matches(text)


def _quote(text: Any) -> str:
    if not isinstance(text, str):
        raise no_overload("strings.quote", text)
    return formatting.quoted(text)


def _sign(amount: Any) -> int:
    if not isinstance(amount, Quantity):
        raise no_overload("sign", amount)
    return _signum(amount.nanos, 0)


FUNCTIONS: dict[str, Function] = {
    **conversions.CONVERSIONS,
    "size": size,
    "matches": _matches,
    "quantity": to_quantity,
    "isQuantity": _holds("isQuantity", to_quantity),
    "sign": _sign,
    "semver": to_semver,
    "isSemver": _holds("isSemver", to_semver),
    "optional.of": lambda value: OptionalValue(True, value),
    "optional.none": lambda: NONE,
    "optional.ofNonZeroValue": _of_non_zero,
    "strings.quote": _quote,
    **lists.FUNCTIONS,
    **network.FUNCTIONS,
    **formats.FUNCTIONS,
    **{name: _holds(name, make) for name, make in network.TESTS.items()},
}


_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""White space, as Go sees it."""


def _texts(name: str, apply: Callable[..., Any]) -> Function:
    """Return a method whose arguments are all strings."""

    def checked(*args: Any) -> Any:
        if not all(isinstance(arg, str) for arg in args):
            raise no_overload(name, *args)
        return apply(*args)

    return checked


def _substring(text: str, start: Any, end: Any = None) -> str:
    end = len(text) if end is None else end
    if type(start) is not int or type(end) is not int:
        raise no_overload("substring", text, start, end)
    for index in (start, end):
        if not 0 <= index <= len(text):
            raise EvaluationError(f"index out of range: {index}")
    if start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    return text[start:end]


def _char_at(text: str, index: Any) -> str:
    if type(index) is not int or not 0 <= index <= len(text):
        raise EvaluationError(f"index out of range: {index}")
    return text[index : index + 1]


def _index_in(text: str, part: Any, start: Any = 0) -> int:
    if part == "" and type(start) is int:
        return start
    _check_offset("indexOf", text, part, start)
    return text.find(part, start)


def _last_index_in(text: str, part: Any, start: Any = None) -> int:
    """Find it at `start` or before; behind the end there is nothing, as in cel-go."""
    if start is None and isinstance(part, str):
        return text.rfind(part)
    if part == "" and type(start) is int:
        return start
    _check_offset("lastIndexOf", text, part, start)
    return text.rfind(part, 0, start + len(part)) if start < len(text) else -1


def _check_offset(name: str, text: str, part: Any, start: Any) -> None:
    if not isinstance(part, str) or type(start) is not int:
        raise no_overload(name, text, part, start)
    if start < 0:
        raise EvaluationError(f"index out of range: {start}")


def _replace(text: str, old: Any, new: Any, count: Any = -1) -> str:
    if not isinstance(old, str) or not isinstance(new, str) or type(count) is not int:
        raise no_overload("replace", text, old, new)
    found = text.replace(old, new, count)
    if len(found) > LENGTH_MAX:
        raise EvaluationError("the value becomes too long")
    return found


def _split(text: str, by: Any, count: Any = -1) -> list[str]:
    if not isinstance(by, str) or type(count) is not int:
        raise no_overload("split", text, by)
    if count in (0, 1):
        return [text] if count else []
    limit = -1 if count < 0 else count - 1
    if by:
        return text.split(by, limit)
    parts = list(text)
    return parts if limit < 0 or len(parts) <= count else [*parts[:limit], text[limit:]]


def _signum(a: Any, b: Any) -> int:
    return int(a > b) - int(a < b)


def _amount(raw: Any) -> Quantity:
    if isinstance(raw, Quantity):
        return raw
    if type(raw) is int:
        return Quantity.of_value(raw)
    raise no_overload("add", raw)


def _as_integer(amount: Quantity) -> int:
    if Quantity.of_value(amount.value) != amount:
        raise EvaluationError("cannot convert value to integer")
    return _whole(amount.value)


def _is_integer(amount: Quantity) -> bool:
    return Quantity.of_value(amount.value) == amount and INT_MIN <= amount.value <= INT_MAX


def _value_of(optional: OptionalValue) -> Any:
    if not optional.has_value:
        raise EvaluationError("optional.none() dereference")
    return optional.content


def _orders(kind: type) -> dict[str, Function]:
    """Return the comparisons of two quantities or two versions."""

    def order(name: str, judge: Callable[[Any, Any], Any]) -> Function:
        def apply(a: Any, b: Any) -> Any:
            if not isinstance(b, kind):
                raise no_overload(name, a, b)
            return judge(a, b)

        return apply

    judges = {"compareTo": _signum, "isGreaterThan": operator.gt, "isLessThan": operator.lt}
    return {name: order(name, judge) for name, judge in judges.items()}


METHODS: dict[str, dict[str, Function]] = {
    "string": {
        "size": size,
        "startsWith": _texts("startsWith", str.startswith),
        "endsWith": _texts("endsWith", str.endswith),
        "contains": _texts("contains", lambda text, part: part in text),
        "matches": _matches,
        "find": _texts("find", lambda text, pattern: patterns.of(pattern).find(text)),
        "findAll": patterns.find_all,
        "lowerAscii": _texts("lowerAscii", lambda text: text.translate(patterns.LOWER)),
        "upperAscii": _texts("upperAscii", lambda text: text.translate(patterns.UPPER)),
        "trim": lambda text: text.strip(_SPACE),
        "indexOf": _index_in,
        "lastIndexOf": _last_index_in,
        "charAt": _char_at,
        "substring": _substring,
        "replace": _replace,
        "split": _split,
        "format": formatting.format_text,
    },
    "list": {**lists.METHODS, "sum": lambda items: lists.sum_of(items, _add)},
    "map": {"size": size},
    "bytes": {"size": size},
    "optional_type": {
        "hasValue": lambda optional: optional.has_value,
        "value": _value_of,
    },
    "kubernetes.Quantity": {
        **_orders(Quantity),
        "add": lambda a, b: a + _amount(b),
        "sub": lambda a, b: a - _amount(b),
        "asInteger": _as_integer,
        "isInteger": _is_integer,
        "asApproximateFloat": lambda amount: amount.nanos / quantity.NANO,
    },
    "kubernetes.Semver": {
        **_orders(Semver),
        "major": lambda version: version.major,
        "minor": lambda version: version.minor,
        "patch": lambda version: version.patch,
    },
}
"""By type of the receiver, by name."""
METHODS |= {**times.METHODS, **network.METHODS, **formats.METHODS}

METHOD_NAMES = frozenset(name for methods in METHODS.values() for name in methods)
