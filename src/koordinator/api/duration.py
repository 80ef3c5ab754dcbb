"""Durations as text: `90s`, `1h30m`, `0`. Source: behaviour/api 1.3."""

import functools
import re

from koordinator.api.scalars import ScalarError

_UNIT_NS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,  # micro sign
    "μs": 10**3,  # Greek mu
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_TEXT_MAX_CHARS = 128
_NS_MAX = 2**63 - 1


@functools.lru_cache(maxsize=1024)  # the windows of reports are few, and come again with each
def parse_ns(text: str) -> int:
    """Nanoseconds that `text` says, finer parts cut off. Raises: ScalarError."""
    body = text[1:] if text[:1] in ("+", "-") else text
    if body == "0":
        return 0
    total_ns, at = 0, 0
    if not body or len(body) > _TEXT_MAX_CHARS:
        raise ScalarError(text, "a duration")
    while at < len(body):
        part = _PART.match(body, at)
        if part is None or not (part[1] or part[2]):
            raise ScalarError(text, "a duration (like 30s, 5m or 1h30m)")
        unit_ns, fraction = _UNIT_NS[part[3]], part[2] or ""
        total_ns += int(part[1] or "0") * unit_ns + int(fraction or "0") * unit_ns // 10 ** len(fraction)
        at = part.end()
    if total_ns > _NS_MAX:
        raise ScalarError(text, "a duration below 292 years")
    return -total_ns if text[0] == "-" else total_ns


def parse(text: str) -> float:
    """Return seconds that `text` says. Raises: ScalarError."""
    return parse_ns(text) / 10**9


def text_of(seconds: float) -> str:
    """Return the text that is written for a duration: `5m0s`, `1h0m0s`, `1.5s`, `200ms`, `0s`."""
    ns = round(abs(seconds) * 10**9)
    sign = "-" if seconds < 0 and ns else ""
    if ns < 10**9:
        for unit in ("ms", "µs", "ns"):
            if ns >= _UNIT_NS[unit]:
                return f"{sign}{_trimmed(ns, _UNIT_NS[unit])}{unit}"
        return "0s"
    minutes, rest_ns = divmod(ns, _UNIT_NS["m"])
    hours, minutes = divmod(minutes, 60)
    text = f"{_trimmed(rest_ns, 10**9)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    return f"{sign}{minutes}m{text}" if minutes else sign + text


def _trimmed(amount: int, unit: int) -> str:
    """`amount / unit` as decimal text without trailing zeros; `unit` is a power of ten."""
    whole, part = divmod(amount, unit)
    fraction = str(part + unit)[1:].rstrip("0") if part else ""
    return f"{whole}.{fraction}" if fraction else str(whole)
