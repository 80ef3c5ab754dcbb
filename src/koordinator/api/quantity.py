"""Kubernetes quantities: exact amounts with a text form (`500m`, `16Gi`, `12e6`).

Two ways to read one. `value(raw)` and `milli(raw)` give the integers that arithmetic on hot paths works
with, straight from what the wire holds, cached. `Quantity` is the exact amount with the family of its
suffix, for what is written back and for the rare amounts that integers cannot hold.

Amounts are exact multiples of 10^-9; anything finer is rounded away from zero. Amounts are compared by
value, never by text. Source: behaviour/api 1.1.
"""

import enum
import re
from functools import lru_cache
from typing import Self

import msgspec

from koordinator.api.errors import KoordinatorError

RawQuantity = str | int | float
"""A quantity as it stands in JSON: text, or a bare number."""

ResourceList = dict[str, RawQuantity]
"""Resource name → amount, as on the wire."""

NANO = 10**9
"""Parts of a unit that a quantity counts in."""

INT64_MAX = 2**63 - 1
_TEXT_MAX_CHARS = 256  # no sensible amount is longer; keeps a hostile one from costing seconds
_EXPONENT_MAX = 256
_CACHE_MAX = 1 << 14  # some 4 MiB when full
_NOT_A_SCALAR = "expected text or a number"

_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_SUFFIX = {exponent: suffix for suffix, exponent in _BINARY.items()}

_FORM = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?"
)


class QuantityError(KoordinatorError, ValueError):
    """Not a quantity; `raw` is what stood there."""

    def __init__(self, raw: object, reason: str = "") -> None:
        super().__init__(raw, reason)
        self.raw, self.reason = raw, reason

    def __str__(self) -> str:
        shown = repr(self.raw)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return f"{shown} is not a quantity: {self.reason or 'expected a number like 2, 500m or 16Gi'}"


class Family(enum.Enum):
    """The notation of an amount: powers of 1000 by letter, powers of 1024, or powers of ten."""

    DECIMAL = "decimal"
    BINARY = "binary"
    EXPONENT = "exponent"


class Quantity(msgspec.Struct, frozen=True, eq=False):
    """An exact amount: `nanos` × 10^-9, written in the style of `family`."""

    nanos: int
    family: Family = Family.DECIMAL

    @classmethod
    def of_value(cls, value: int, family: Family = Family.DECIMAL) -> Self:
        """Return a whole amount."""
        return cls(value * NANO, family)

    @classmethod
    def of_milli(cls, milli: int, family: Family = Family.DECIMAL) -> Self:
        """Return an amount of thousandths."""
        return cls(milli * (NANO // 1000), family)

    @property
    def value(self) -> int:
        """Whole units, rounded away from zero."""
        return _divide_away(self.nanos, NANO)

    @property
    def milli(self) -> int:
        """Thousandths, rounded away from zero."""
        return _divide_away(self.nanos, NANO // 1000)

    @property
    def text(self) -> str:
        """Return the canonical text, as it is written back."""
        if self.nanos == 0:
            return "0"
        if self.family is Family.BINARY:
            whole, rest = divmod(self.nanos, NANO)
            if not rest and abs(whole) >= 1024:
                return _binary_text(whole)
        return _decimal_text(self.nanos, self.family is Family.EXPONENT)

    def __str__(self) -> str:
        return self.text

    def __add__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nanos + other.nanos, self.family if self.nanos else other.family)

    def __sub__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nanos - other.nanos, self.family if self.nanos else other.family)

    def __neg__(self) -> "Quantity":
        return Quantity(-self.nanos, self.family)

    def __bool__(self) -> bool:
        return self.nanos != 0

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Quantity) else NotImplemented

    # msgspec's own `!=` compares identities; Python derives it from `==` only where none is inherited.
    def __ne__(self, other: object) -> bool:
        return self.nanos != other.nanos if isinstance(other, Quantity) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __lt__(self, other: "Quantity") -> bool:
        return self.nanos < other.nanos

    def __le__(self, other: "Quantity") -> bool:
        return self.nanos <= other.nanos

    def __gt__(self, other: "Quantity") -> bool:
        return self.nanos > other.nanos

    def __ge__(self, other: "Quantity") -> bool:
        return self.nanos >= other.nanos


ZERO = Quantity(0)


def parse(text: str) -> Quantity:
    """Return the quantity that `text` says; no white space around it. Raises: QuantityError."""
    if len(text) > _TEXT_MAX_CHARS:
        raise QuantityError(text, f"longer than {_TEXT_MAX_CHARS} characters")
    form = _FORM.fullmatch(text)
    if form is None or not text:
        raise QuantityError(text)
    part = form["part"] or ""
    mantissa = int(form["whole"] + part or "0")  # no digit at all, as in `m`, is none of them
    suffix = form["suffix"] or ""
    if suffix in _BINARY:
        family = Family.BINARY
        nanos = min(_scale((mantissa << _BINARY[suffix]) * NANO, -len(part)), INT64_MAX * NANO)
        if nanos < NANO:
            family = Family.DECIMAL
    else:
        family = Family.DECIMAL if form["exponent"] is None else Family.EXPONENT
        exponent = _DECIMAL[suffix] if form["exponent"] is None else int(form["exponent"])
        if exponent > _EXPONENT_MAX:
            raise QuantityError(text, f"exponent above {_EXPONENT_MAX}")
        nanos = _scale(mantissa, max(exponent, -2 * _TEXT_MAX_CHARS) + 9 - len(part))
    return Quantity(-nanos if form["sign"] == "-" else nanos, family)


def of(raw: RawQuantity | None) -> Quantity:
    """Return the quantity of a JSON value: text (white space around it is fine), a bare number, or null (zero).

    Raises: QuantityError.
    """
    if raw is None:
        return ZERO
    try:
        return _of_raw(raw)
    except TypeError as error:  # an object or a list, which no cache takes
        raise QuantityError(raw, _NOT_A_SCALAR) from error


def value(raw: RawQuantity) -> int:
    """Whole units of a JSON value, rounded away from zero (bytes, counts). Raises: QuantityError."""
    try:
        return _value_of_raw(raw)
    except TypeError as error:  # an object or a list, which no cache takes
        raise QuantityError(raw, _NOT_A_SCALAR) from error


def milli(raw: RawQuantity) -> int:
    """Thousandths of a JSON value, rounded away from zero (CPU in milli-cores). Raises: QuantityError."""
    try:
        return _milli_of_raw(raw)
    except TypeError as error:  # an object or a list, which no cache takes
        raise QuantityError(raw, _NOT_A_SCALAR) from error


@lru_cache(_CACHE_MAX, typed=True)
def measured_milli(raw: RawQuantity) -> int:
    """Return the amount as `milli` does, for measured usage: CPU in thousandths comes again and again, bytes do not,
    and neither may push out of memory what `milli` is asked for.

    Raises: QuantityError.
    """
    return _milli_of_raw.__wrapped__(raw)


@lru_cache(_CACHE_MAX, typed=True)
def measured_nanos(raw: RawQuantity) -> int:
    """Billionths of a JSON value, exact: for measured amounts that are summed before they are rounded.

    Raises: QuantityError.
    """
    if isinstance(raw, str) and raw.isascii() and len(raw) < 19:
        if raw[-1:] == "m" and raw[:-1].isdigit():
            return int(raw[:-1]) * (NANO // 1000)
        if raw[-1:] == "n" and raw[:-1].isdigit():
            return int(raw[:-1])
    return _of_raw.__wrapped__(raw).nanos


def canonical(raw: RawQuantity) -> str:
    """Canonical text of a JSON value. Raises: QuantityError."""
    try:
        return _text_of_raw(raw)
    except TypeError as error:
        raise QuantityError(raw, _NOT_A_SCALAR) from error


def text_of_value(value: int, family: Family = Family.DECIMAL) -> str:
    """Canonical text of a whole amount, e.g. bytes with `Family.BINARY`."""
    if family is Family.BINARY and not -1024 < value < 1024:
        return _binary_text(value)
    return (
        str(value) if value % 1000 and family is not Family.EXPONENT else Quantity(value * NANO, family).text
    )


@lru_cache(_CACHE_MAX)  # usage of CPU in thousandths comes again and again
def text_of_milli(milli: int) -> str:
    """Canonical text of thousandths, e.g. milli-cores of CPU."""
    return f"{milli}m" if milli % 1000 else text_of_value(milli // 1000)


@lru_cache(_CACHE_MAX, typed=True)
def _of_raw(raw: RawQuantity) -> Quantity:
    if isinstance(raw, str):
        return parse(raw.strip())
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise QuantityError(raw, _NOT_A_SCALAR)
    return parse(repr(raw))


@lru_cache(_CACHE_MAX, typed=True)
def _text_of_raw(raw: RawQuantity) -> str:
    return _of_raw(raw).text


@lru_cache(_CACHE_MAX, typed=True)
def _value_of_raw(raw: RawQuantity) -> int:
    if isinstance(raw, str) and raw.isascii() and len(raw) < 19:
        if raw.isdigit():
            return int(raw)
        if raw[:-2].isdigit() and (shift := _BINARY.get(raw[-2:])):
            return min(int(raw[:-2]) << shift, INT64_MAX)
    return _of_raw(raw).value


@lru_cache(_CACHE_MAX, typed=True)
def _milli_of_raw(raw: RawQuantity) -> int:
    if isinstance(raw, str) and raw.isascii() and len(raw) < 19:
        if raw.isdigit():
            return int(raw) * 1000
        if raw[-1:] == "m" and raw[:-1].isdigit():
            return int(raw[:-1])
        if raw[:-2].isdigit() and (shift := _BINARY.get(raw[-2:])):
            return min(int(raw[:-2]) << shift, INT64_MAX) * 1000
    return _of_raw(raw).milli


def _divide_away(amount: int, unit: int) -> int:
    """`amount / unit`, rounded away from zero."""
    return -(-amount // unit) if amount >= 0 else amount // unit


def _scale(amount: int, exponent: int) -> int:
    """`amount` × 10^`exponent` for a non-negative amount, rounded up."""
    return amount * 10**exponent if exponent >= 0 else _divide_away(amount, 10**-exponent)


def _decimal_text(nanos: int, exponent_style: bool) -> str:
    """Integer mantissa with the largest exponent that is a multiple of three."""
    mantissa, exponent = nanos, -9
    while mantissa % 1000 == 0:
        mantissa //= 1000
        exponent += 3
    if exponent in _DECIMAL_SUFFIX and (not exponent_style or exponent == 0):
        return f"{mantissa}{_DECIMAL_SUFFIX[exponent]}"
    return f"{mantissa}e{exponent}"


@lru_cache(_CACHE_MAX)  # few amounts of memory are met once only
def _binary_text(whole: int) -> str:
    """Whole amount, not 0, with the largest suffix that divides it."""
    shift = min(((whole & -whole).bit_length() - 1) // 10 * 10, 60)
    return f"{whole >> shift}{_BINARY_SUFFIX.get(shift, '')}"
