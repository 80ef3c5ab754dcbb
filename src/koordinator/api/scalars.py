"""Plain texts in labels and annotations: integers, booleans, floats. Source: behaviour/api 1.3."""

import ipaddress
import math
import re

from koordinator.api.errors import KoordinatorError

_INTEGER = re.compile(r"[+-]?[0-9]{1,64}")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BOOLEAN = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


class ScalarError(KoordinatorError, ValueError):
    """`text` is not a value of the `expected` kind."""

    def __init__(self, text: str, expected: str) -> None:
        super().__init__(text, expected)
        self.text, self.expected = text, expected

    def __str__(self) -> str:
        return f"{self.text[:80]!r} is not {self.expected}"


def parse_int(text: str, bits: int = 64) -> int:
    """Return a signed decimal integer of at most `bits` bits: no spaces, underscores or hexadecimal.

    Raises: ScalarError.
    """
    if not _INTEGER.fullmatch(text):
        raise ScalarError(text, "an integer")
    number = int(text)
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise ScalarError(text, f"a {bits}-bit integer")
    return number


def parse_bool(text: str) -> bool:
    """One of the words that stand for true and false. Raises: ScalarError."""
    if (known := _BOOLEAN.get(text)) is None:
        raise ScalarError(text, "a boolean (true or false)")
    return known


def is_ip(text: str) -> bool:
    """Return whether a text is an IP address, of either version."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def parse_float(text: str) -> float:
    """Return a finite number in decimal or exponent form. Raises: ScalarError."""
    if not _FLOAT.fullmatch(text) or not math.isfinite(number := float(text)):
        raise ScalarError(text, "a number")
    return number
