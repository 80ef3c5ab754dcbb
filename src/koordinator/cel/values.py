"""Values beyond JSON: optional ones, semantic versions; equality and order as CEL has them; errors of an expression,
and of its evaluation."""

import datetime
import ipaddress
import re
from collections.abc import Callable
from typing import Any

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.api.quantity import Quantity


class CompileError(KoordinatorError):
    """The expression is none, or uses what we do not have; `position` counts characters from 0."""

    def __init__(self, source: str, position: int, reason: str) -> None:
        super().__init__(source, position, reason)
        self.source, self.position, self.reason = source, position, reason

    def __str__(self) -> str:
        return f"{self.reason} at character {self.position + 1} of {self.source!r}"


class EvaluationError(KoordinatorError):
    """The expression has no value for what it was asked about."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OutOfBudget(EvaluationError):
    """The evaluation costs more than it may; whatever it would give, it ends."""


Function = Callable[..., Any]

INT_MIN, INT_MAX, UINT_MAX = -(2**63), 2**63 - 1, 2**64 - 1

LENGTH_MAX = 1 << 20
"""Characters or items of a value that an expression makes."""


class UInt(int):
    """A number without a sign: 64 bits."""


_IDENTIFIER = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    rf"(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)
_LOOSE = re.compile(r"v?([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?([-+].*)?")


class OptionalValue(msgspec.Struct, frozen=True):
    """A value that may be missing."""

    has_value: bool
    content: Any = None


NONE = OptionalValue(has_value=False)


class Semver(msgspec.Struct, frozen=True, order=True):
    """A version; build metadata does not count. Source: semver.org, 2.0.0."""

    major: int
    minor: int
    patch: int
    is_release: bool
    """It comes after its pre-releases."""
    pre: tuple[tuple[int, int, str], ...]
    """Identifiers of a pre-release: numbers come before words."""

    @classmethod
    def of(cls, text: str) -> "Semver":
        """Raises: EvaluationError."""
        found = _SEMVER.fullmatch(text)
        if found is None:
            raise EvaluationError(f"{text!r} is no semantic version")
        if any(int(found[index]) > UINT_MAX for index in (1, 2, 3)):
            raise EvaluationError(f"{text!r} has a number that does not fit 64 bits")
        parts = found[4].split(".") if found[4] else ()
        pre = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)
        return cls(int(found[1]), int(found[2]), int(found[3]), not pre, pre)

    @classmethod
    def normalized(cls, text: str) -> "Semver":
        """Also of `v1`, `1.2` and `01.2.3`. Raises: EvaluationError."""
        found = _LOOSE.fullmatch(text)
        if found is None:
            raise EvaluationError(f"{text!r} is no semantic version")
        numbers = (str(int(found[index] or 0)) for index in (1, 2, 3))
        return cls.of(".".join(numbers) + (found[4] or ""))


class TypeName(msgspec.Struct, frozen=True):
    """A type as a value: `type(1) == int`."""

    name: str


class SetList(list[Any]):
    """A list whose order does not matter (`x-kubernetes-list-type: set`)."""


class KeyedList(list[Any]):
    """A list of objects by key (`x-kubernetes-list-type: map`), whose order does not matter."""

    keys: tuple[str, ...] = ()

    def by_key(self) -> dict[tuple[Any, ...], Any]:
        """Return the entries by the values of their keys."""
        return {tuple(item.get(key) for key in self.keys): item for item in self}


TYPE_NAMES = {
    name: TypeName(name)
    for name in (
        *("bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"),
        *("google.protobuf.Duration", "google.protobuf.Timestamp", "net.CIDR", "net.IP", "optional_type"),
    )
}
"""Types that expressions can name."""


def kind_of(value: Any) -> str:
    """Return the name of a value's type, as errors show it."""
    for name, kind in _KINDS:
        if isinstance(value, kind):
            return name
    return _MORE_KINDS.get(type(value).__name__, type(value).__name__)


_KINDS: tuple[tuple[str, Any], ...] = (
    ("bool", bool),
    ("uint", UInt),
    ("int", int),
    ("double", float),
    ("string", str),
    ("list", list),
    ("map", dict),
    ("null_type", type(None)),
    ("bytes", bytes),
    ("google.protobuf.Timestamp", datetime.datetime),
    ("google.protobuf.Duration", datetime.timedelta),
    ("type", TypeName),
    ("net.CIDR", ipaddress.IPv4Interface | ipaddress.IPv6Interface),
    ("net.IP", ipaddress.IPv4Address | ipaddress.IPv6Address),
    ("optional_type", OptionalValue),
    ("kubernetes.Quantity", Quantity),
    ("kubernetes.Semver", Semver),
)


# Of modules that stand on this one.
_MORE_KINDS = {"Url": "kubernetes.URL", "NamedFormat": "kubernetes.NamedFormat"}


def equal(a: Any, b: Any) -> bool:
    """Numbers are equal across types, nothing else is; lists and maps by their contents. Raises: EvaluationError for
    an address, amount or version and something else."""
    if type(a) is str:
        return bool(a == b)
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, SetList | KeyedList) or isinstance(b, SetList | KeyedList):
        return _equal_unordered(a, b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(value, b[key]) for key, value in a.items())
    if isinstance(a, OptionalValue) and isinstance(b, OptionalValue):
        return a.has_value == b.has_value and equal(a.content, b.content)
    if type(a) is not type(b) and not isinstance(a, _PLAIN) and b is not None and kind_of(a) != kind_of(b):
        raise EvaluationError("no such overload")
    return bool(a == b)


_PLAIN = (
    int,
    float,
    str,
    bytes,
    list,
    dict,
    type(None),
    datetime.date,
    datetime.timedelta,
    OptionalValue,
    TypeName,
)
"""Classes of values that are compared with any other; the others are with their like alone."""


def _equal_unordered(a: Any, b: Any) -> bool:
    if not isinstance(a, list) or not isinstance(b, list) or len(a) != len(b):
        return False
    keyed = a if isinstance(a, KeyedList) else b if isinstance(b, KeyedList) else None
    if keyed is not None:
        other = KeyedList(b if keyed is a else a)
        other.keys = keyed.keys
        return equal(keyed.by_key(), other.by_key())
    return all(any(equal(x, y) for y in b) for x in a)


NUMBERS = {"int", "uint", "double"}
_ORDERED = {"bool", "string", "bytes", "google.protobuf.Timestamp", "google.protobuf.Duration"}


def is_ordered_with(a: Any, b: Any) -> bool:
    """Return whether one of two values is the smaller one."""
    kinds = {kind_of(a), kind_of(b)}
    return kinds <= NUMBERS or (len(kinds) == 1 and kinds <= _ORDERED)


def merged(a: list[Any], b: list[Any]) -> list[Any]:
    """Join lists, one of which has no order: sets have each value once, of two entries of a key the second counts."""
    if isinstance(a, SetList):
        return SetList([*a, *(item for item in b if not any(equal(item, each) for each in a))])
    if isinstance(a, KeyedList):
        other = KeyedList(b)
        other.keys = a.keys
        both = KeyedList({**a.by_key(), **other.by_key()}.values())
        both.keys = a.keys
        return both
    return [*a, *b]


def no_overload(name: str, *values: Any) -> EvaluationError:
    """Return the error of a function or operator that does not take values of these types."""
    if not name[0].isalpha():
        return EvaluationError("no such overload")
    return EvaluationError(f"no such overload: {name}({', '.join(kind_of(value) for value in values)})")
