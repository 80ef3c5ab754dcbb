"""The smallest case that still shows a difference: parts are left out as long as it is there."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]

KEPT = {
    *("config", "pod", "nodes", "pods", "nominated", "objects", "early", "preempt"),
    *("apiVersion", "kind", "metadata", "name", "namespace", "uid", "spec", "containers", "nodeName"),
}


def smallest(case: Json, differs: Callable[[Json], bool]) -> Json:
    found = case
    while (smaller := next(filter(differs, _smaller(found)), None)) is not None:
        found = smaller
    return found


def _smaller(case: Json) -> Iterator[Json]:
    """The case without each of its parts; a node goes with its pods."""
    for path in _paths(case, ()):
        smaller = copy.deepcopy(case)
        parent: Any = smaller
        for part in path[:-1]:
            parent = parent[part]
        del parent[path[-1]]
        nodes = {each["metadata"]["name"] for each in smaller["nodes"]}
        smaller["pods"] = [each for each in smaller["pods"] if each["spec"]["nodeName"] in nodes]
        yield smaller


def _paths(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Larger parts first."""
    parts = list(
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, _ in parts:
        if key not in KEPT:
            yield (*path, key)
    for key, part in parts:
        if key != "config":
            yield from _paths(part, (*path, key))
