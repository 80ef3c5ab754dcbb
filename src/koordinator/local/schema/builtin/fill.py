"""Copy-on-write helpers for defaults: an object that lacks nothing is returned as it is."""

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
Default = Callable[[Json], Json]


def fill(value: Json, **defaults: Any) -> Json:
    """`value` with the members that it lacks."""
    missing = {key: default for key, default in defaults.items() if key not in value}
    return {**value, **missing} if missing else value


def change(value: Json, key: str, default: Default) -> Json:
    """`value` with an object member run through `default`; a missing member stays missing."""
    old = value.get(key)
    if not isinstance(old, dict):
        return value
    new = default(old)
    return value if new is old else {**value, key: new}


def change_each(value: Json, key: str, default: Default) -> Json:
    """`value` with every element of a list member run through `default`."""
    old = value.get(key)
    if not old:
        return value
    new = [default(item) for item in old]
    return value if all(a is b for a, b in zip(new, old, strict=True)) else {**value, key: new}


__all__ = ["Default", "Json", "change", "change_each", "fill"]
