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


def columns(*names: str | PrintedColumn) -> tuple[PrintedColumn, ...]:
    """Return columns of text, where not more is said than a name."""
    return tuple(PrintedColumn(name) if isinstance(name, str) else name for name in names)


Cell = str | Callable[[Json], Any]
"""A cell: how it is made of an object, or the path of the text that it shows, keys with dots between."""


def aged(*cells: tuple[str | PrintedColumn, Cell]) -> Printer:
    """Return the printer of most kinds: name, these columns with their cells, age."""
    makers = [_at(cell) if isinstance(cell, str) else cell for _, cell in cells]

    def row(obj: Json, now_s: float) -> list[Any]:
        return [name_of(obj), *(make(obj) for make in makers), age(obj, now_s)]

    return Printer((NAME, *columns(*(name for name, _ in cells)), AGE), row)


def _at(path: str) -> Callable[[Json], str]:
    keys = path.split(".")
    return lambda obj: text(obj, *keys)


def count(*path: str) -> Callable[[Json], int]:
    """Return a cell: how many objects the list at a path has."""
    return lambda obj: len(objects(obj, *path))


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


def containers_text(pod_spec: Any) -> tuple[str, str]:
    """Return names and images of the containers, comma-separated (`-o wide` of workloads)."""
    containers = objects(pod_spec, "containers")
    return (
        join((text(item, "name") for item in containers), ""),
        join((text(item, "image") for item in containers), ""),
    )


def capped(words: list[str], empty: str = NONE) -> str:
    """Return the first three words and how many more there are."""
    if len(words) > 3:
        return f"{','.join(words[:3])} + {len(words) - 3} more..."
    return join(words, empty)
