"""Read cron schedules as CronJobs understand them: five fields with names, ranges and steps, `@daily`, `@every 5m`.

Time is walked as it passes, so that a local time which a clock change skips does not run, and one that it repeats runs
twice. Source: robfig/cron, which kube-controller-manager uses.
"""

import datetime
import zoneinfo
from collections.abc import Callable

import msgspec

from koordinator.api import duration
from koordinator.api.errors import ProtocolError

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 6, _DAYS),
)
_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY = "@every "
_YEARS_MAX = 5  # a schedule without a time in five years (30 February) has none
# How far back the latest time is looked for, growing; the last covers 29 February.
_WINDOWS_S = (3_600.0, 86_400.0, 40 * 86_400.0, 400 * 86_400.0, _YEARS_MAX * 366 * 86_400.0)


def trouble(schedule: str) -> str:
    """Return why a text is no schedule; empty when it is one."""
    text = schedule.strip()
    if text.startswith(("TZ=", "CRON_TZ=")):
        return "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
    if text.startswith("@"):
        return "" if text in _MACROS or text.startswith(_EVERY) else f"unrecognized descriptor: {text}"
    fields = text.split()
    if len(fields) != len(_FIELDS):
        return f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]"
    for field, (_, low, high, words) in zip(fields, _FIELDS, strict=True):
        for part in field.split(","):
            reason = _part_trouble(part, low, high, words)
            if reason:
                return reason
    return ""


def _part_trouble(part: str, low: int, high: int, words: tuple[str, ...]) -> str:
    span, slash, step = part.partition("/")
    if slash and (not (step.isascii() and step.isdigit()) or int(step) == 0):
        return (
            f"failed to parse int from {step}"
            if not step.isdigit()
            else f"step of range should be a positive number: {part}"
        )
    if span in {"*", "?"}:
        return ""
    ends = span.split("-")
    if len(ends) > 2:
        return f"too many hyphens: {part}"
    numbers: list[int] = []
    for end in ends:
        if end.lower() in words:
            numbers.append(words.index(end.lower()) + low)
        elif end.isascii() and end.isdigit():
            numbers.append(int(end))
        else:
            return f'failed to parse int from {end}: strconv.Atoi: parsing "{end}": invalid syntax'
    if numbers[0] < low:
        return f"beginning of range ({numbers[0]}) below minimum ({low}): {part}"
    if numbers[-1] > high:
        return f"end of range ({numbers[-1]}) above maximum ({high}): {part}"
    if numbers[0] > numbers[-1]:
        return f"beginning of range ({numbers[0]}) beyond end of range ({numbers[-1]}): {part}"
    return ""


Next = Callable[[float], float | None]
"""The first time after a time (seconds since 1970); None when there is none."""


class Fields(msgspec.Struct, frozen=True):
    """The sets of a five-field schedule. A day matches by either of its sets, unless one was a star."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    needs_both_days: bool

    def matches_day(self, day: datetime.datetime) -> bool:
        if day.month not in self.months:
            return False
        by_date, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (by_date and by_weekday) if self.needs_both_days else (by_date or by_weekday)


def parse(schedule: str, zone: str | None) -> Next:
    """Raises: ProtocolError naming the field that makes no sense."""
    if reason := trouble(schedule):
        raise ProtocolError("", "spec.schedule", reason)
    text = schedule.strip()
    if text.startswith(_EVERY):
        return _every(text.removeprefix(_EVERY).strip())
    fields, tz = _fields(_MACROS.get(text, text)), time_zone(zone)
    return lambda after_s: _next(fields, tz, after_s)


def time_zone(name: str | None) -> datetime.tzinfo:
    """Return the time zone of a name; none means UTC. Raises: ProtocolError."""
    if name is None:
        return datetime.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ProtocolError("", "spec.timeZone", f"unknown time zone {name}") from error


def latest(next_after: Next, after_s: float, now_s: float, limit: int) -> tuple[float | None, int]:
    """Return the last time after `after_s` up to now, and how many there are, counted up to `limit` + 1."""
    count, found, time_s = 0, None, next_after(after_s)
    while time_s is not None and time_s <= now_s:
        count, found = count + 1, time_s
        if count > limit:
            return _latest_at_once(next_after, found, now_s), count
        time_s = next_after(time_s)
    return found, count


def _latest_at_once(next_after: Next, known_s: float, now_s: float) -> float:
    """Return the same without walking all the way; `known_s` is one of the times."""
    for window_s in _WINDOWS_S:
        start_s = max(known_s, now_s - window_s)
        found, time_s = None, next_after(start_s)
        while time_s is not None and time_s <= now_s:
            found, time_s = time_s, next_after(time_s)
        if found is not None:
            return found
    return known_s


def _every(text: str) -> Next:
    try:
        period_s = max(int(duration.parse(text)), 1)
    except ValueError as error:
        raise ProtocolError(
            "", "spec.schedule", f"failed to parse duration @every {text}: {error}"
        ) from error
    return lambda after_s: float(int(after_s) + period_s)


def _fields(text: str) -> Fields:
    minute, hour, day, month, weekday = text.split()
    return Fields(
        _set(minute, 0, 59),
        _set(hour, 0, 23),
        _set(day, 1, 31),
        _set(month, 1, 12, _MONTHS),
        _set(weekday, 0, 6, _DAYS),
        _is_star(day) or _is_star(weekday),
    )


def _is_star(field: str) -> bool:
    """Return whether a field leaves the choice of days to the other one; steps do not."""
    return any(part in ("*", "?", "*/1", "?/1") for part in field.split(","))


def _set(field: str, low: int, high: int, words: tuple[str, ...] = ()) -> frozenset[int]:
    numbers: set[int] = set()
    for part in field.split(","):
        span, slash, step = part.partition("/")
        if span in ("*", "?"):
            first, last = low, high
        else:
            begin, dash, end = span.partition("-")
            first = _number(begin, low, words)
            # A step after a single number runs to the end.
            last = _number(end, low, words) if dash else (high if slash else first)
        numbers.update(range(first, last + 1, int(step) if slash else 1))
    return frozenset(numbers)


def _number(text: str, low: int, words: tuple[str, ...]) -> int:
    word = text.lower()
    return words.index(word) + low if word in words else int(text)


def _next(fields: Fields, tz: datetime.tzinfo, after_s: float) -> float | None:
    """Walk over days, then hours, then minutes, always forward in real time."""
    time_s = (int(after_s) // 60 + 1) * 60
    limit_s = time_s + _YEARS_MAX * 366 * 86_400
    while time_s < limit_s:
        local = datetime.datetime.fromtimestamp(time_s, tz)
        if not fields.matches_day(local):
            time_s = _next_day(local, tz, time_s)
        elif local.hour not in fields.hours:
            time_s += (60 - local.minute) * 60
        elif local.minute not in fields.minutes:
            time_s += 60
        else:
            return float(time_s)
    return None


def _next_day(local: datetime.datetime, tz: datetime.tzinfo, time_s: int) -> int:
    """Return the local midnight after `local`, or an hour later where a clock change makes that no progress."""
    midnight = datetime.datetime.combine(local.date() + datetime.timedelta(days=1), datetime.time(), tz)
    return max(int(midnight.timestamp()), time_s + 60)
