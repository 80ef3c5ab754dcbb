"""Functions of lists: the libraries of Kubernetes and of cel-go (version 3), and sets."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

from koordinator.cel.values import (
    LENGTH_MAX,
    NONE,
    EvaluationError,
    Function,
    OptionalValue,
    equal,
    is_ordered_with,
    kind_of,
    no_overload,
)


def join(items: list[Any], by: Any = "") -> str:
    """Return texts in a row. Raises: EvaluationError."""
    if not isinstance(by, str) or not all(isinstance(item, str) for item in items):
        raise no_overload("join", items, by)
    return by.join(items)


def sum_of(items: list[Any], add: Callable[[Any, Any], Any]) -> Any:
    """Return the sum, 0 of nothing. Raises: EvaluationError."""
    if any(isinstance(item, str | bytes | list | bool | dict) or item is None for item in items):
        raise no_overload("sum", items)
    return functools.reduce(add, items) if items else 0


def _extreme(name: str, sign: int) -> Function:
    def apply(items: list[Any]) -> Any:
        if not items:
            raise EvaluationError(f"{name} called on empty list")
        best = items[0]
        for item in items:
            if not is_ordered_with(best, item):
                raise no_overload(name, best, item)
            if (item > best) - (item < best) == sign:
                best = item
        return best

    return apply


def _is_sorted(items: list[Any]) -> bool:
    for a, b in itertools.pairwise(items):
        if not is_ordered_with(a, b):
            raise no_overload("isSorted", a, b)
        if a > b:
            return False
    return True


def index_of(items: Any, item: Any) -> int:
    """Return the first place of an item, -1 where there is none."""
    return next((at for at, each in enumerate(items) if equal(each, item)), -1)


def last_index_of(items: Any, item: Any) -> int:
    """Return the last place of an item, -1 where there is none."""
    return len(items) - 1 - at if (at := index_of(items[::-1], item)) >= 0 else -1


def _slice(items: list[Any], start: Any, end: Any) -> list[Any]:
    if type(start) is not int or type(end) is not int:
        raise no_overload("slice", items, start, end)
    where = f"cannot slice({start}, {end})"
    if start < 0 or end < 0:
        raise EvaluationError(f"{where}, negative indexes not supported")
    if start > end:
        raise EvaluationError(f"{where}, start index must be less than or equal to end index")
    if len(items) < end:
        raise EvaluationError(f"{where}, list is length {len(items)}")
    return list(items[start:end])


def _flatten(items: list[Any], depth: Any = 1) -> list[Any]:
    if type(depth) is not int:
        raise no_overload("flatten", items, depth)
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    found: list[Any] = []
    for item in items:
        found += _flatten(item, depth - 1) if isinstance(item, list) and depth else [item]
    return found


def _distinct(items: list[Any]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if not any(equal(item, each) for each in found):
            found.append(item)
    return found


def sorted_by(items: list[Any], keys: list[Any]) -> list[Any]:
    """Return the items in the order of their keys. Raises: EvaluationError."""
    if keys and not is_ordered_with(keys[0], keys[0]):
        raise EvaluationError("list elements must be comparable")
    if any(kind_of(key) != kind_of(keys[0]) for key in keys):
        raise EvaluationError("list elements must have the same type")
    pairs = sorted(zip(keys, items, strict=True), key=lambda pair: pair[0])
    return [item for _, item in pairs]


def range_to(count: Any) -> list[int]:
    """Return the numbers from 0 below `count`. Raises: EvaluationError."""
    if type(count) is not int:
        raise no_overload("lists.range", count)
    if count > LENGTH_MAX:
        raise EvaluationError("the list becomes too long")
    return list(range(count))


def unwrapped(items: Any) -> list[Any]:
    """Return what optional values hold, without those that hold nothing. Raises: EvaluationError."""
    if not isinstance(items, list) or not all(isinstance(item, OptionalValue) for item in items):
        raise no_overload("optional.unwrap", items)
    return [item.content for item in items if item.has_value]


def is_subset(part: Any, whole: Any) -> bool:
    """Return whether all items of one list are in another. Raises: EvaluationError."""
    if not isinstance(part, list) or not isinstance(whole, list):
        raise no_overload("sets.contains", part, whole)
    return all(any(equal(item, each) for each in whole) for item in part)


FUNCTIONS: dict[str, Function] = {
    "lists.range": range_to,
    "optional.unwrap": unwrapped,
    "sets.contains": lambda a, b: is_subset(b, a),
    "sets.equivalent": lambda a, b: is_subset(a, b) and is_subset(b, a),
    "sets.intersects": lambda a, b: any(is_subset([item], b) for item in a),
}

METHODS: dict[str, Function] = {
    "size": len,
    "join": join,
    "min": _extreme("min", -1),
    "max": _extreme("max", 1),
    "isSorted": _is_sorted,
    "indexOf": index_of,
    "lastIndexOf": last_index_of,
    "slice": _slice,
    "flatten": _flatten,
    "distinct": _distinct,
    "reverse": lambda items: items[::-1],
    "sort": lambda items: sorted_by(items, items),
    "first": lambda items: OptionalValue(True, items[0]) if items else NONE,
    "last": lambda items: OptionalValue(True, items[-1]) if items else NONE,
    "unwrapOpt": unwrapped,
}
"""Methods of lists, by name."""
