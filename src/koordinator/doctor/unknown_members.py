"""Members of a JSON text that nobody reads: mostly names that were mistyped.

Configurations of the protocol ignore what they do not know (behaviour/manager 3.1), so nothing else tells.
"""

import difflib
import json
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Union

import msgspec


def unknown_members(text: str, payload: type[Any]) -> list[str]:
    """Paths of members that the type does not have, with the name that was probably meant.

    Names count case-insensitively; a text that is no JSON has none, as whoever decodes it says so.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return list(_walk(value, payload, ""))


def _walk(value: Any, kind: Any, path: str) -> Iterator[str]:
    kind = _plain(kind)
    origin = typing.get_origin(kind)
    if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        known = {each.encode_name.lower(): each for each in msgspec.structs.fields(kind)}
        for name, member in value.items():
            where = f"{path}.{name}" if path else str(name)
            field = known.get(str(name).lower())
            if field is None:
                yield where + _meant(str(name), [each.encode_name for each in known.values()])
            else:
                yield from _walk(member, field.type, where)
    elif isinstance(value, dict) and origin is dict:
        item = typing.get_args(kind)[1]
        for name, member in value.items():
            yield from _walk(member, item, f"{path}.{name}")
    elif isinstance(value, list) and origin is list:
        (item,) = typing.get_args(kind)
        for index, member in enumerate(value):
            yield from _walk(member, item, f"{path}[{index}]")


def _plain(kind: Any) -> Any:
    """The type without annotations and without None."""
    while True:
        origin = typing.get_origin(kind)
        if origin is Annotated:
            kind = typing.get_args(kind)[0]
        elif origin in (Union, types.UnionType):
            members = [each for each in typing.get_args(kind) if each is not types.NoneType]
            if len(members) != 1:
                return Any
            kind = members[0]
        else:
            return kind


def _meant(name: str, known: list[str]) -> str:
    alike = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {alike[0]}?)" if alike else ""
