"""Times and spans: CEL's timestamps and durations, down to microseconds.

Source: CEL's definitions of time.
"""

import datetime
import re
from collections.abc import Callable
from typing import Any

from koordinator.api import duration as durations
from koordinator.api.scalars import ScalarError
from koordinator.cel.values import INT_MAX, INT_MIN, EvaluationError, Function, kind_of, no_overload

_UTC = datetime.UTC
_STAMP = re.compile(r"(\d{4}-\d{2}-\d{2})T(\d{2}:\d{2}:\d{2})(\.\d+)?(?:(Z)|([+-]\d{2}:\d{2}))", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_OFFSET = re.compile(r"([+-]?)(\d{1,2}):(\d{2})", re.ASCII)
_FIRST, _LAST = -62_135_596_800, 253_402_300_799


def timestamp(value: Any) -> datetime.datetime:
    """Return a time of RFC 3339, or of seconds since 1970. Raises: EvaluationError."""
    if isinstance(value, datetime.datetime):
        return value
    if type(value) is int:
        if not _FIRST <= value <= _LAST:
            raise EvaluationError("timestamp overflow")
        return datetime.datetime.fromtimestamp(0, _UTC) + datetime.timedelta(seconds=value)
    if not isinstance(value, str):
        raise no_overload("timestamp", value)
    found = _STAMP.fullmatch(value)
    try:
        if found is None:
            raise ValueError(value)
        fraction = ((found[3] or "")[1:7]).ljust(6, "0")
        zone = "+00:00" if found[4] else found[5]
        return datetime.datetime.fromisoformat(f"{found[1]}T{found[2]}.{fraction}{zone}")
    except ValueError as error:
        raise EvaluationError(f"{value!r} is no time") from error


def date_or_time(text: Any) -> datetime.datetime:
    """Return the time that a field of format `date` or `date-time` holds. Raises: EvaluationError."""
    is_date = isinstance(text, str) and _DATE.fullmatch(text)
    return timestamp(f"{text}T00:00:00Z" if is_date else text)


def duration(value: Any) -> datetime.timedelta:
    """Return a span as Go writes it (`1h30m`). Raises: EvaluationError."""
    if isinstance(value, datetime.timedelta):
        return value
    if not isinstance(value, str):
        raise EvaluationError(f"type conversion error from '{kind_of(value)}' to 'google.protobuf.Duration'")
    try:
        return datetime.timedelta(microseconds=durations.parse_ns(value) / 1000)
    except ScalarError as error:
        raise EvaluationError(str(error)) from error


def nanoseconds(span: datetime.timedelta) -> int:
    """Return a span's length."""
    return (span // datetime.timedelta(microseconds=1)) * 1000


def checked_span(span: datetime.timedelta) -> datetime.timedelta:
    """Return the span if it fits 64 bits of nanoseconds. Raises: EvaluationError."""
    if not INT_MIN <= nanoseconds(span) <= INT_MAX:
        raise EvaluationError("duration overflow")
    return span


def duration_text(span: datetime.timedelta) -> str:
    """Seconds, as CEL prints a duration: `90s`, `0.5s`."""
    micros = span // datetime.timedelta(microseconds=1)
    sign, (seconds, rest) = "-" if micros < 0 else "", divmod(abs(micros), 10**6)
    return f"{sign}{seconds}{f'.{rest:06d}'.rstrip('0') if rest else ''}s"


def timestamp_text(moment: datetime.datetime) -> str:
    """RFC 3339, in the zone that the time was written with."""
    text = moment.replace(tzinfo=None).isoformat()
    zone = moment.isoformat()[len(text) :].replace("+00:00", "Z")
    return (text.rstrip("0") if "." in text else text) + zone


def _zoned(moment: datetime.datetime, zone: Any) -> datetime.datetime:
    if zone is None:
        return moment.astimezone(_UTC)
    from zoneinfo import ZoneInfo

    try:
        if found := _OFFSET.fullmatch(zone):
            minutes = int(found[2]) * 60 + int(found[3])
            span = datetime.timedelta(minutes=-minutes if found[1] == "-" else minutes)
            return moment.astimezone(datetime.timezone(span))
        return moment.astimezone(ZoneInfo(zone or "UTC"))
    except (KeyError, ValueError, TypeError, OSError, OverflowError) as error:
        raise EvaluationError(f"unknown time zone {zone}") from error


def _part(read: Callable[[datetime.datetime], int]) -> Function:
    return lambda moment, zone=None: read(_zoned(moment, zone))


METHODS: dict[str, dict[str, Function]] = {
    "google.protobuf.Timestamp": {
        "getFullYear": _part(lambda moment: moment.year),
        "getMonth": _part(lambda moment: moment.month - 1),
        "getDate": _part(lambda moment: moment.day),
        "getDayOfMonth": _part(lambda moment: moment.day - 1),
        "getDayOfWeek": _part(lambda moment: moment.isoweekday() % 7),
        "getDayOfYear": _part(lambda moment: moment.timetuple().tm_yday - 1),
        "getHours": _part(lambda moment: moment.hour),
        "getMinutes": _part(lambda moment: moment.minute),
        "getSeconds": _part(lambda moment: moment.second),
        "getMilliseconds": _part(lambda moment: moment.microsecond // 1000),
    },
    "google.protobuf.Duration": {
        "getHours": lambda span: int(span.total_seconds() / 3600),
        "getMinutes": lambda span: int(span.total_seconds() / 60),
        "getSeconds": lambda span: int(span.total_seconds()),
        "getMilliseconds": lambda span: int(span.total_seconds() * 1000),
    },
}
"""By type of the receiver, by name."""
