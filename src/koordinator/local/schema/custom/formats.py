"""Formats of texts (`format: ipv4`) that schemas of custom resources may ask for."""

import base64
import datetime
import ipaddress
import re
import uuid
from collections.abc import Callable
from urllib.parse import urlsplit

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
    "uuid": _parses(uuid.UUID),
    "uuid3": _uuid(3),
    "uuid4": _uuid(4),
    "uuid5": _uuid(5),
}
"""Name of a format → whether a text has it; the API server ignores all others, and so do we."""
