"""The JSON patch (RFC 6902) that turns one JSON value into another."""

from typing import Any

_MISSING = object()


def diff(old: Any, new: Any, path: str = "") -> list[dict[str, Any]]:
    """Operations in order; empty when the values are equal.

    Objects are compared member by member, arrays of equal length element by element; arrays that changed
    their length are replaced, which keeps the patch correct under any reordering. What both values share
    (the same object in memory) is not looked into, so the cost follows the change, not the size.
    """
    if old is new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return _diff_objects(old, new, path)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        operations = []
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            operations += diff(before, after, f"{path}/{index}")
        return operations
    if type(old) is type(new) and old == new:
        return []
    return [{"op": "replace", "path": path, "value": new}]


def _diff_objects(old: dict[str, Any], new: dict[str, Any], path: str) -> list[dict[str, Any]]:
    operations: list[dict[str, Any]] = []
    same = [key for key, value in new.items() if old.get(key, _MISSING) is value]
    for key in sorted((old.keys() | new.keys()).difference(same)):
        at = f"{path}/{_escape(key)}"
        if key not in new:
            operations.append({"op": "remove", "path": at})
        elif key not in old:
            operations.append({"op": "add", "path": at, "value": new[key]})
        else:
            operations += diff(old[key], new[key], at)
    return operations


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
