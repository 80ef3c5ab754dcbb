"""Decide whether a text is a cron schedule, as CronJobs understand it (five fields, names, ranges, steps, `@daily`)."""

_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]),
    ("day of week", 0, 6, ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
)
_MACROS = frozenset({"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"})


def trouble(schedule: str) -> str:
    """Return why a text is no schedule; empty when it is one."""
    text = schedule.strip()
    if text.startswith(("TZ=", "CRON_TZ=")):
        return "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
    if text.startswith("@"):
        return "" if text in _MACROS or text.startswith("@every ") else f"unrecognized descriptor: {text}"
    fields = text.split()
    if len(fields) != len(_FIELDS):
        return f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]"
    for field, (_, low, high, words) in zip(fields, _FIELDS, strict=True):
        for part in field.split(","):
            reason = _part_trouble(part, low, high, list(words))
            if reason:
                return reason
    return ""


def _part_trouble(part: str, low: int, high: int, words: list[str]) -> str:
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
