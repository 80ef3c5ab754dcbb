"""Laying one layer of configuration over another (behaviour/manager 3.1): only what the upper one says counts."""

from typing import Any, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def overlay(base: S, upper: msgspec.Struct, *, empty_text_counts: frozenset[str] = frozenset()) -> S:
    """`base` with the members that `upper` sets; members that only one of the two types has are left alone.

    Structs merge recursively, maps per key, lists are replaced. Empty text does not count, except in the
    fields named; empty lists and maps never do. `False` and `0` do.
    """
    known = set(base.__struct_fields__)
    changes: dict[str, Any] = {}
    for name in upper.__struct_fields__:
        value = getattr(upper, name)
        if name not in known or value is None or (value == "" and name not in empty_text_counts):
            continue
        have = getattr(base, name)
        if isinstance(value, msgspec.Struct) and isinstance(have, msgspec.Struct):
            changes[name] = overlay(have, value, empty_text_counts=empty_text_counts)
        elif isinstance(value, dict):
            if value:
                changes[name] = {**(have or {}), **value}
        elif value != []:
            changes[name] = value
    return msgspec.structs.replace(base, **changes)
