"""Functions, methods and operators. Sources: CEL's standard definitions, its string extension, and the libraries that
Kubernetes adds (quantities, semantic versions, lists, sets, regular expressions, optional values)."""

import itertools
import operator
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from koordinator.api import quantity
from koordinator.api.quantity import Quantity, QuantityError
from koordinator.cel import libraries, patterns
from koordinator.cel.syntax import INT_MAX, INT_MIN
from koordinator.cel.values import (
    NONE,
    EvaluationError,
    OptionalValue,
    Semver,
    equal,
    is_ordered_with,
    merged,
    no_overload,
)

Function = Callable[..., Any]

LENGTH_MAX = 1 << 20
"""Characters or items of a value that an expression makes."""


def _whole(number: int) -> int:
    if not INT_MIN <= number <= INT_MAX:
        raise EvaluationError("integer overflow")
    return number


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


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
        return make()
    except (OverflowError, TypeError) as error:
        raise EvaluationError(f"timestamp overflow: {error}") from error


def _arithmetic(
    sign: str, whole: Callable[[int, int], int], real: Callable[[float, float], float]
) -> Function:
    def apply(a: Any, b: Any) -> Any:
        if type(a) is int and type(b) is int:
            return _whole(whole(a, b))
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
        return float("nan") if a == 0 or a != a else float("inf") if a > 0 else float("-inf")
    return a / b


def _modulo(a: Any, b: Any) -> int:
    if type(a) is not int or type(b) is not int:
        raise no_overload("%", a, b)
    return a - b * _divide_whole(a, b)


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
        return not isinstance(item, list | dict) and item in group
    raise no_overload("in", item, group)


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


def to_int(value: Any) -> int:
    """Cut towards zero; 64 bits. Raises: EvaluationError."""
    try:
        if isinstance(value, bool):
            raise no_overload("int", value)
        if isinstance(value, int | float | str):
            return _whole(int(value))
        if isinstance(value, datetime):
            return int(value.timestamp())
    except (ValueError, OverflowError) as error:
        raise EvaluationError(f"{value!r} is no integer") from error
    raise no_overload("int", value)


def to_double(value: Any) -> float:
    """Raises: EvaluationError when the text is no number."""
    try:
        if _is_number(value) or isinstance(value, str):
            return float(value)
    except ValueError as error:
        raise EvaluationError(f"{value!r} is no number") from error
    raise no_overload("double", value)


def to_string(value: Any) -> str:
    """Return a value's text as CEL writes it. Raises: EvaluationError for lists and maps."""
    if isinstance(value, _WITH_TEXT):
        return libraries.shown(value)
    raise no_overload("string", value)


_WITH_TEXT = (
    *(bool, str, int, float, datetime, timedelta, bytes, Quantity),
    *(libraries.Address, libraries.Network, libraries.Url),
)


def to_bool(value: Any) -> bool:
    """The words that Go takes for true and false. Raises: EvaluationError."""
    if isinstance(value, bool):
        return value
    if value in ("true", "True", "TRUE", "t", "1"):
        return True
    if value in ("false", "False", "FALSE", "f", "0"):
        return False
    raise EvaluationError(f"{value!r} is no bool")


def to_quantity(text: Any) -> Quantity:
    """Return a Kubernetes amount (`2Gi`). Raises: EvaluationError."""
    if not isinstance(text, str):
        raise no_overload("quantity", text)
    try:
        return quantity.parse(text)
    except QuantityError as error:
        raise EvaluationError(str(error)) from error


def to_semver(text: Any, is_loose: Any = False) -> Semver:
    """Return a version; `is_loose` allows a leading v and missing parts. Raises: EvaluationError."""
    if not isinstance(text, str) or not isinstance(is_loose, bool):
        raise no_overload("semver", text)
    return Semver.normalized(text) if is_loose else Semver.of(text)


def _holds(make: Function) -> Function:
    """Return a function that tells whether a value can be made."""

    def apply(*args: Any) -> bool:
        try:
            make(*args)
        except EvaluationError:
            return False
        return True

    return apply


def _is_subset(part: Any, whole: Any) -> bool:
    return all(_in(item, whole) for item in part)


FUNCTIONS: dict[str, Function] = {
    "size": size,
    "int": to_int,
    "double": to_double,
    "string": to_string,
    "bool": to_bool,
    "dyn": lambda value: value,
    "quantity": to_quantity,
    "isQuantity": _holds(to_quantity),
    "semver": to_semver,
    "isSemver": _holds(to_semver),
    "optional.of": lambda value: OptionalValue(True, value),
    "optional.none": lambda: NONE,
    "sets.contains": lambda a, b: _is_subset(b, a),
    "sets.equivalent": lambda a, b: _is_subset(a, b) and _is_subset(b, a),
    "sets.intersects": lambda a, b: any(_in(item, b) for item in a),
    **libraries.FUNCTIONS,
    **{name: _holds(make) for name, make in libraries.TESTS.items()},
}


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
    if not 0 <= start <= end <= len(text):
        raise EvaluationError(f"no substring from {start} to {end} of {len(text)} characters")
    return text[start:end]


def _char_at(text: str, index: Any) -> str:
    if type(index) is not int or not 0 <= index <= len(text):
        raise EvaluationError(f"no character {index} in {len(text)}")
    return text[index : index + 1]


def _index_in(text: str, part: Any, start: Any = 0) -> int:
    _check_offset("indexOf", text, part, start)
    return text.find(part, start) if part else int(start)


def _last_index_in(text: str, part: Any, start: Any = None) -> int:
    """Find it at `start` or before; behind the end there is nothing, as in cel-go."""
    if start is None and isinstance(part, str):
        return text.rfind(part)
    _check_offset("lastIndexOf", text, part, start)
    if not part:
        return int(start)
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


def _join(items: list[Any], by: Any = "") -> str:
    if not isinstance(by, str) or not all(isinstance(item, str) for item in items):
        raise no_overload("join", items, by)
    return by.join(items)


def _sum(items: list[Any]) -> Any:
    total: Any = 0
    for index, item in enumerate(items):
        total = item if index == 0 else _add(total, item)
    return total


def _extreme(name: str, choose: Callable[[Sequence[Any]], Any]) -> Function:
    def apply(items: list[Any]) -> Any:
        if not items:
            raise EvaluationError(f"{name} of an empty list")
        if not all(is_ordered_with(items[0], item) for item in items):
            raise no_overload(name, *items[:2])
        return choose(items)

    return apply


def _is_sorted(items: list[Any]) -> bool:
    for a, b in itertools.pairwise(items):
        if not is_ordered_with(a, b):
            raise no_overload("isSorted", a, b)
        if a > b:
            return False
    return True


def _index_of(items: Any, item: Any) -> int:
    return next((at for at, each in enumerate(items) if equal(each, item)), -1)


def _last_index_of(items: Any, item: Any) -> int:
    return len(items) - 1 - at if (at := _index_of(items[::-1], item)) >= 0 else -1


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
        "matches": _texts("matches", lambda text, pattern: patterns.of(pattern).matches(text)),
        "find": _texts("find", lambda text, pattern: patterns.of(pattern).find(text)),
        "findAll": patterns.find_all,
        "lowerAscii": _texts("lowerAscii", lambda text: text.translate(patterns.LOWER)),
        "upperAscii": _texts("upperAscii", lambda text: text.translate(patterns.UPPER)),
        "trim": _texts("trim", lambda text: text.strip()),
        "indexOf": _index_in,
        "lastIndexOf": _last_index_in,
        "charAt": _char_at,
        "substring": _substring,
        "replace": _replace,
        "split": _split,
    },
    "list": {
        "size": size,
        "join": _join,
        "sum": _sum,
        "min": _extreme("min", min),
        "max": _extreme("max", max),
        "isSorted": _is_sorted,
        "indexOf": _index_of,
        "lastIndexOf": _last_index_of,
    },
    "map": {"size": size},
    "optional_type": {
        "hasValue": lambda optional: optional.has_value,
        "value": _value_of,
        "or": lambda optional, other: optional if optional.has_value else other,
        "orValue": lambda optional, other: optional.content if optional.has_value else other,
    },
    "kubernetes.Quantity": {
        **_orders(Quantity),
        "sign": lambda amount: _signum(amount.nanos, 0),
        "add": lambda a, b: a + _amount(b),
        "sub": lambda a, b: a - _amount(b),
        "asInteger": _as_integer,
        "isInteger": _holds(_as_integer),
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
for _kind, _methods in libraries.METHODS.items():
    METHODS.setdefault(_kind, {}).update(_methods)

METHOD_NAMES = frozenset(name for methods in METHODS.values() for name in methods)
