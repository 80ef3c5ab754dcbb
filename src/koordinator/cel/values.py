"""Values beyond JSON: optional ones, semantic versions; equality and order as CEL has them."""

import re
from typing import Any

import msgspec

from koordinator.api.quantity import Quantity
from koordinator.cel.errors import EvaluationError

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


class Semver(msgspec.Struct, frozen=True, eq=False):
    """A version; build metadata does not count in comparisons. Source: semver.org, 2.0.0."""

    major: int
    minor: int
    patch: int
    pre: tuple[str, ...] = ()
    build: str = ""

    @classmethod
    def of(cls, text: str) -> "Semver":
        """Raises: EvaluationError."""
        found = _SEMVER.fullmatch(text)
        if found is None:
            raise EvaluationError(f"{text!r} is no semantic version")
        pre = tuple(found[4].split(".")) if found[4] else ()
        return cls(int(found[1]), int(found[2]), int(found[3]), pre, found[5] or "")

    @classmethod
    def normalized(cls, text: str) -> "Semver":
        """Also of `v1`, `1.2` and `01.2.3`. Raises: EvaluationError."""
        found = _LOOSE.fullmatch(text)
        if found is None:
            raise EvaluationError(f"{text!r} is no semantic version")
        numbers = (str(int(found[index] or 0)) for index in (1, 2, 3))
        return cls.of(".".join(numbers) + (found[4] or ""))

    @property
    def _order(self) -> tuple[Any, ...]:
        # A version without a pre-release comes after those with one; numbers come before words.
        pre = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in self.pre)
        return (self.major, self.minor, self.patch, not self.pre, pre)

    def __eq__(self, other: object) -> bool:
        return self._order == other._order if isinstance(other, Semver) else NotImplemented

    # `!=` and the orders are written out: those that msgspec's base brings would be taken for ours.
    def __ne__(self, other: object) -> bool:
        return self._order != other._order if isinstance(other, Semver) else NotImplemented

    def __lt__(self, other: "Semver") -> bool:
        return bool(self._order < other._order)

    def __le__(self, other: "Semver") -> bool:
        return bool(self._order <= other._order)

    def __gt__(self, other: "Semver") -> bool:
        return bool(self._order > other._order)

    def __ge__(self, other: "Semver") -> bool:
        return bool(self._order >= other._order)

    def __hash__(self) -> int:
        return hash(self._order)


def kind_of(value: Any) -> str:
    """The name of a value's type, as errors show it."""
    for name, kind in _KINDS:
        if isinstance(value, kind):
            return name
    return type(value).__name__


_KINDS: tuple[tuple[str, Any], ...] = (
    ("bool", bool),
    ("int", int),
    ("double", float),
    ("string", str),
    ("list", list),
    ("map", dict),
    ("null_type", type(None)),
    ("optional_type", OptionalValue),
    ("kubernetes.Quantity", Quantity),
    ("kubernetes.Semver", Semver),
)


def equal(a: Any, b: Any) -> bool:
    """Numbers are equal across types, nothing else is; lists and maps by their contents."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(value, b[key]) for key, value in a.items())
    if isinstance(a, OptionalValue) and isinstance(b, OptionalValue):
        return a.has_value == b.has_value and equal(a.content, b.content)
    return bool(a == b)


def is_ordered_with(a: Any, b: Any) -> bool:
    """Whether there is a smaller one among two values."""
    kinds = {kind_of(a), kind_of(b)}
    return kinds <= {"int", "double"} or (len(kinds) == 1 and kinds <= {"bool", "string"})
