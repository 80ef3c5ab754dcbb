"""Walk JSON values: copy them only where they change, tell unknown fields by path."""

from collections.abc import Callable
from typing import Any

Step = Callable[[Any, list[str]], Any]
"""Value and the list that collects the paths of unknown fields → the value as it should be."""


def through_list(values: list[Any], step: Step, unknown: list[str], null: Any) -> list[Any]:
    """Return the list with each item as `step` makes it and `null` for null; `values` itself when nothing changed."""
    result: list[Any] | None = None
    mark = len(unknown)
    for index, item in enumerate(values):
        new = null if item is None else step(item, unknown)
        if len(unknown) > mark:
            put_below(unknown, mark, f"[{index}]")
            mark = len(unknown)
        if new is not item:
            result = list(values) if result is None else result
            result[index] = new
    return values if result is None else result


def put_below(unknown: list[str], mark: int, key: str) -> None:
    """Paths from `mark` on were found below `key`, a field's name or `[index]`."""
    for index in range(mark, len(unknown)):
        tail = unknown[index]
        unknown[index] = f"{key}{tail}" if tail.startswith("[") else f"{key}.{tail}"
