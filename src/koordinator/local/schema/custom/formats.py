"""Formats of texts (`format: ipv4`) that schemas of custom resources may ask for."""

import base64
import datetime
import ipaddress
import re
import uuid
from collections.abc import Callable
from urllib.parse import urlsplit

from koordinator.local.schema import names

_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?)*"
)
_DURATION = re.compile(r"[+-]?(\d+(\.\d+)?\s*(ns|us|µs|ms|s|m|h|d|w|[a-z]+)\s*)+|0")
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:?\d\d)")
_MAC = re.compile(r"([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}")


def _parses(parse: Callable[[str], object]) -> Callable[[str], bool]:
    """Return a check that good texts pass: those that `parse` takes without an error or False."""

    def check(text: str) -> bool:
        try:
            return parse(text) is not False
        except (ValueError, OverflowError):
            return False

    return check


def _matches(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


def _is_date_time(text: str) -> bool:
    return _DATE_TIME.fullmatch(text) is not None and _parses(datetime.datetime.fromisoformat)(text.upper())


def _uuid(version: int) -> Callable[[str], bool]:
    return _parses(lambda text: uuid.UUID(text).version == version)


def _is_isbn(*lengths: int) -> Callable[[str], bool]:
    """Return a check of the digits of a book's number, the last of which follows from the others."""

    def check(text: str) -> bool:
        digits = re.sub(r"[\s-]", "", text)
        if len(digits) not in lengths or not re.fullmatch(r"[0-9]{9}([0-9]{3})?[0-9X]", digits):
            return False
        values = [10 if digit == "X" else int(digit) for digit in digits]
        if len(values) == 10:
            return (
                sum(value * weight for value, weight in zip(values, range(10, 0, -1), strict=True)) % 11 == 0
            )
        return "X" not in digits and sum(value * (1, 3)[at % 2] for at, value in enumerate(values)) % 10 == 0

    return check


def _has_luhn_digit(text: str) -> bool:
    digits = re.sub(r"[^0-9]", "", text)
    doubled = [int(digit) * (1 + at % 2) for at, digit in enumerate(reversed(digits))]
    return 12 <= len(digits) <= 19 and sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


_PART = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_RGB = re.compile(rf"rgb\(\s*{_PART}\s*,\s*{_PART}\s*,\s*{_PART}\s*\)")

FORMATS: dict[str, Callable[[str], bool]] = {
    "date": _parses(datetime.date.fromisoformat),
    "date-time": _is_date_time,
    "datetime": _is_date_time,
    "byte": _parses(lambda text: base64.b64decode(text, validate=True)),
    "ipv4": _parses(ipaddress.IPv4Address),
    "ipv6": _parses(ipaddress.IPv6Address),
    "cidr": _parses(lambda text: ipaddress.ip_network(text, strict=False)),
    "mac": _matches(_MAC),
    "uri": _parses(lambda text: bool(urlsplit(text).scheme)),
    "email": _matches(_EMAIL),
    "hostname": _matches(_HOST),
    "duration": _matches(_DURATION),
    "hexcolor": _matches(re.compile(r"#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})")),
    "rgbcolor": _matches(_RGB),
    "ssn": _matches(re.compile(r"\d{3}[- ]?\d{2}[- ]?\d{4}", re.ASCII)),
    "bsonobjectid": _matches(re.compile(r"[0-9a-fA-F]{24}")),
    "isbn": _is_isbn(10, 13),
    "isbn10": _is_isbn(10),
    "isbn13": _is_isbn(13),
    "creditcard": _has_luhn_digit,
    "k8s-short-name": lambda text: not names.label_1123(text),
    "k8s-long-name": lambda text: not names.subdomain_1123(text),
    "uuid": _parses(uuid.UUID),
    "uuid3": _uuid(3),
    "uuid4": _uuid(4),
    "uuid5": _uuid(5),
}
"""Name of a format → whether a text has it; the API server ignores all others, and so do we."""
