"""The JSON patch (RFC 6902) that turns one JSON value into another."""

from typing import Any

_MISSING = object()


def diff(old: Any, new: Any, path: str = "") -> list[dict[str, Any]]:
    """Operations in order; empty when the values are equal.

    Objects are compared member by member (those without a common member are replaced), arrays of equal length
    element by element; arrays that changed their length are replaced, which keeps the patch correct under any
    reordering. What both values share (the same object in memory) is not looked into, so the cost follows the
    change, not the size.
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
    if old.keys().isdisjoint(new):
        return [{"op": "replace", "path": path, "value": new}] if old or new else []
    operations: list[dict[str, Any]] = []
    for key, before in old.items():
        after = new.get(key, _MISSING)
        if after is before:
            continue
        if after is _MISSING:
            operations.append({"op": "remove", "path": f"{path}/{_escape(key)}"})
        else:
            operations += diff(before, after, f"{path}/{_escape(key)}")
    for key, after in new.items():
        if key not in old:
            operations.append({"op": "add", "path": f"{path}/{_escape(key)}", "value": after})
    return operations


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
