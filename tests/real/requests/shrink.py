"""The smallest case that still shows a difference: steps and parts of bodies are left out as long as it is there."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from tests.real.requests.sides import Json

Steps = list[Json]


def smallest(steps: Steps, differs: Callable[[Steps], bool]) -> Steps:
    """The steps without all that can go; each try gets names of its own by the caller."""
    found = steps
    while (smaller := next(filter(differs, _smaller(found)), None)) is not None:
        found = smaller
    return found


def _smaller(steps: Steps) -> Iterator[Steps]:
    for index in range(len(steps) - 1, 1, -1):  # the first two make the namespace
        yield steps[:index] + steps[index + 1 :]
    for index, step in enumerate(steps):
        for part in ("query", "headers", "body", "seen"):
            for path in _paths(step.get(part), (part,)):
                smaller = copy.deepcopy(steps)
                parent: Any = smaller[index]
                for key in path[:-1]:
                    parent = parent[key]
                del parent[path[-1]]
                yield smaller


_KEPT = (
    "name",
    "kind",
    "apiVersion",
    "metadata",
    "else",
    "changes",
    "path",
    "value",
    "Content-Type",
    "fieldManager",
)


def _paths(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Larger parts first."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list) and path[-1] != "path":
        items = list(enumerate(value))
    for key, _ in items:
        if key not in _KEPT:
            yield (*path, key)
    for key, item in items:
        if key != "else":
            yield from _paths(item, (*path, key))
