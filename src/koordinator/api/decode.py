"""Decoding JSON into views as the API server's own clients do: a `null` means that the field is not set.

Views say `list[X] = []` and `dict[str, X] = {}`, not `list[X] | None`, so that readers need no case for an
absent list. Servers and other clients do send `null` there now and then (`status: null`,
`containerStatuses: null`). That is rare, so the fast decoder runs first, and only when it refuses are the
nulls taken out and the object converted again.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")

_Cleaner = Callable[[Any], Any]

# One entry per view that was ever decoded; views are classes, so there are some dozens.
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_cleaners: dict[Any, _Cleaner] = {}


def from_json(data: bytes | str, view: type[T]) -> T:
    """JSON text as `view`: a view, or a struct around views such as a list of objects.

    Raises: msgspec.DecodeError when the text is no JSON; msgspec.ValidationError, naming the path, when it
    does not fit.
    """
    try:
        return _decoder(view).decode(data)
    except msgspec.ValidationError:
        return msgspec.convert(without_nulls(msgspec.json.decode(data), view), view)


def from_builtins(obj: Any, view: type[T]) -> T:
    """Return a decoded JSON value as `view`; `obj` stays as it was.

    Raises: msgspec.ValidationError, naming the path, when it does not fit.
    """
    try:
        return msgspec.convert(obj, view)
    except msgspec.ValidationError:
        return msgspec.convert(without_nulls(obj, view), view)


def without_nulls(obj: Any, view: type[Any]) -> Any:
    """Return a copy of `obj` without the nulls that `view` does not foresee; nulls in free-form parts stay."""
    return _cleaner(view)(obj)


def _decoder(view: type[T]) -> msgspec.json.Decoder[T]:
    decoder = _decoders.get(view)
    if decoder is None:
        decoder = _decoders[view] = msgspec.json.Decoder(view)
    return decoder


def _cleaner(view: type[Any]) -> _Cleaner:
    cleaner = _cleaners.get(view)
    if cleaner is None:
        cleaner = _cleaners[view] = _clean_type(inspect.type_info(view))
    return cleaner


def _clean_type(info: inspect.Type) -> _Cleaner:
    match info:
        case inspect.Metadata():
            return _clean_type(info.type)
        case inspect.StructType():
            return _clean_struct(info)
        case inspect.ListType():
            return _clean_list(_clean_type(info.item_type))
        case inspect.DictType():
            return _clean_dict(_clean_type(info.value_type), _is_nullable(info.value_type))
        case inspect.UnionType():
            return _clean_union(info)
    return _same


def _clean_struct(info: inspect.StructType) -> _Cleaner:
    fields = {field.encode_name: (_clean_type(field.type), _is_nullable(field.type)) for field in info.fields}

    def clean(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kept = {}
        for name, member in value.items():
            known = fields.get(name)
            if known is not None and (member is not None or known[1]):
                kept[name] = known[0](member)
        return kept

    return clean


def _clean_list(clean_item: _Cleaner) -> _Cleaner:
    def clean(value: Any) -> Any:
        return [clean_item(item) for item in value] if isinstance(value, list) else value

    return clean


def _clean_dict(clean_value: _Cleaner, nullable: bool) -> _Cleaner:
    def clean(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: clean_value(member) for key, member in value.items() if member is not None or nullable}

    return clean


def _clean_union(info: inspect.UnionType) -> _Cleaner:
    """Unions of views are one struct, list or map next to scalars: that one is cleaned."""
    compound = [_clean_type(member) for member in info.types]
    cleaners = [cleaner for cleaner in compound if cleaner is not _same]
    return cleaners[0] if cleaners else _same


def _is_nullable(info: inspect.Type) -> bool:
    match info:
        case inspect.Metadata():
            return _is_nullable(info.type)
        case inspect.AnyType() | inspect.NoneType():
            return True
        case inspect.UnionType():
            return info.includes_none
    return False


def _same(value: Any) -> Any:
    return value
