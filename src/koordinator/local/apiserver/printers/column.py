"""The parts of a printer: columns, and the cells of one object's row; with the words that cells are made of."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from koordinator import clock

Json = dict[str, Any]


class PrintedColumn(msgspec.Struct, frozen=True, omit_defaults=False):
    """A `TableColumnDefinition`; `priority` above 0 shows with `-o wide` only."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


class Printer(msgspec.Struct, frozen=True):
    """Columns of a kind and how a row is made: `row(obj, now_s)` gives one cell per column."""

    columns: tuple[PrintedColumn, ...]
    row: Callable[[Json, float], list[Any]]


NAME = PrintedColumn("Name", format="name", description="Name must be unique within a namespace.")
AGE = PrintedColumn("Age", description="Time since the object was created.")
NONE = "<none>"
UNKNOWN = "<unknown>"
UNSET = "<unset>"


def wide(name: str) -> PrintedColumn:
    """Return a column of `-o wide`."""
    return PrintedColumn(name, priority=1)


def integer(name: str, priority: int = 0) -> PrintedColumn:
    return PrintedColumn(name, "integer", priority=priority)


class OverTime(msgspec.Struct, frozen=True):
    """A cell that depends on the time, too: `make(obj, now_s)`."""

    make: Callable[[Json, float], Any]


Cell = str | Callable[[Json], Any] | OverTime
"""A cell: how it is made of an object, or the path of the text that it shows, keys with dots between."""
Column = tuple[str | PrintedColumn, Cell]
"""A column and its cells; of one of text not more is said than its name."""


def table(*columns: Column) -> Printer:
    """Return the printer that makes each cell by itself."""
    makers = [given(cell) if isinstance(cell, str) else cell for _, cell in columns]

    def row(obj: Json, now_s: float) -> list[Any]:
        return [make.make(obj, now_s) if isinstance(make, OverTime) else make(obj) for make in makers]

    return Printer(headers(*(column for column, _ in columns)), row)


def headers(*columns: str | PrintedColumn) -> tuple[PrintedColumn, ...]:
    return tuple(PrintedColumn(each) if isinstance(each, str) else each for each in columns)


def aged(*columns: Column) -> Printer:
    """Return the printer of most kinds: name, these columns, age."""
    return table(NAMED, *columns, AGED)


def given(path: str, otherwise: str = "") -> Callable[[Json], str]:
    """Return a cell: the text at a path, or another one where there is none."""
    keys = path.split(".")
    return lambda obj: text(obj, *keys) or otherwise


def figure(path: str) -> Callable[[Json], int]:
    """Return a cell: the whole number at a path."""
    keys = path.split(".")
    return lambda obj: number(obj, *keys)


def count(path: str) -> Callable[[Json], int]:
    """Return a cell: how many objects the list at a path has."""
    keys = path.split(".")
    return lambda obj: len(objects(obj, *keys))


def field(obj: Any, *path: str) -> Any:
    """Return the value at a path of keys; None where a step is missing or no object."""
    for key in path:
        if not isinstance(obj, dict):
            return None
        obj = obj.get(key)
    return obj


def objects(obj: Any, *path: str) -> list[Json]:
    """Return the list of objects at a path; what is no object in it is left out."""
    found = field(obj, *path)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def strings(obj: Any, *path: str) -> list[str]:
    found = field(obj, *path)
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []


def number(obj: Any, *path: str) -> int:
    """Return the whole number at a path, 0 where there is none."""
    found = field(obj, *path)
    return found if isinstance(found, int) else 0


def text(obj: Any, *path: str) -> str:
    found = field(obj, *path)
    return found if isinstance(found, str) else ""


def name_of(obj: Json) -> str:
    return text(obj, "metadata", "name")


def age(obj: Json, now_s: float) -> str:
    """Return how long ago the object was created."""
    return since(field(obj, "metadata", "creationTimestamp"), now_s)


def since(time: Any, now_s: float) -> str:
    """Return how long ago an RFC 3339 time was; `<unknown>` for none."""
    if not isinstance(time, str) or not time:
        return UNKNOWN
    try:
        return duration(now_s - clock.parse_rfc3339(time))
    except ValueError:
        return UNKNOWN


def duration(seconds: float) -> str:
    """Return a duration as kubectl prints it: two units at most, coarser as it grows.

    Source: k8s.io/apimachinery, util/duration.HumanDuration.
    """
    whole_s = int(seconds)
    if whole_s < -1:
        return "<invalid>"
    if whole_s < 120:
        return f"{max(whole_s, 0)}s"
    minutes, hours, days = whole_s // 60, whole_s // 3600, whole_s // 86400
    if minutes < 10:
        return _two(minutes, "m", whole_s % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    if days < 365 * 8:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(big: int, big_unit: str, small: int, small_unit: str) -> str:
    return f"{big}{big_unit}{small}{small_unit}" if small else f"{big}{big_unit}"


def join(words: Iterable[str], empty: str = NONE) -> str:
    return ",".join(words) or empty


def labels_text(labels: Any) -> str:
    """`a=b,c=d` in order of keys."""
    return (
        join(f"{key}={value}" for key, value in sorted(labels.items())) if isinstance(labels, dict) else NONE
    )


def selector_text(selector: Any) -> str:
    """Return a LabelSelector in the syntax of `-l`."""
    if not isinstance(selector, dict):
        return NONE
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for rule in objects(selector, "matchExpressions"):
        key, values = text(rule, "key"), ",".join(strings(rule, "values"))
        form = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}
        parts.append(form.get(text(rule, "operator"), f"!{key}"))
    return join(parts)


def capped(words: list[str], empty: str = NONE) -> str:
    """Return the first three words and how many more there are."""
    if len(words) > 3:
        return f"{','.join(words[:3])} + {len(words) - 3} more..."
    return join(words, empty)


NAMED: Column = (NAME, name_of)
AGED: Column = (AGE, OverTime(age))
