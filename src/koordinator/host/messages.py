"""Messages of protocol buffers as frozen structs; fields that we do not know come back out as they came in.

A subclass of `Message` gives each field its number: `name: Annotated[str, At(1)] = ""`. Types: `str`, `bytes`, `int`
(any integer type of the wire that is a varint and not zigzag), `bool`, another message or None, tuples of text, numbers or
messages, and `dict[str, str]`. Of a field that should come once, the last one counts. Source: protobuf.dev, "Encoding".
"""

import enum
import functools
import types
import typing
from typing import Any, NamedTuple, TypeVar

import msgspec

from koordinator.host import protobuf
from koordinator.host.protobuf import BYTES, VARINT, ProtobufField

_UINT64 = 1 << 64
_INT64_MAX = (1 << 63) - 1


class At(msgspec.Struct, frozen=True):
    """The number of a field."""

    number: int


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of all messages."""

    unknown: bytes = b""
    """Fields that have no name here, one after the other, as they came."""


M = TypeVar("M", bound=Message)


class _Kind(enum.Enum):
    """The form of a value."""

    TEXT = "string"
    RAW = "bytes"
    NUMBER = "number"
    SWITCH = "bool"
    MESSAGE = "message"
    MAP = "map"


_KINDS: dict[Any, _Kind] = {str: _Kind.TEXT, bytes: _Kind.RAW, int: _Kind.NUMBER, bool: _Kind.SWITCH}
_VARINTS = frozenset((_Kind.NUMBER, _Kind.SWITCH))


class _Field(NamedTuple):
    """A field of a message type; `of` is the type of nested messages."""

    number: int
    name: str
    kind: _Kind
    is_repeated: bool
    of: Any


def decode(data: bytes, kind: type[M]) -> M:
    """Return the message. Raises: ContentError for bytes that are no message of this kind."""
    by_number = _by_number(kind)
    values: dict[str, Any] = {}
    unknown = []
    for each in protobuf.fields(data):
        known = by_number.get(each.number)
        if known is None or not _take(known, each, values):
            unknown.append(each.whole)
    repeated = {name: tuple(value) for name, value in values.items() if type(value) is list}
    return kind(**{**values, **repeated}, unknown=b"".join(unknown))


def encode(message: Message) -> bytes:
    """Return its bytes: known fields by their order in the type, then those that we do not know."""
    parts: list[bytes] = []
    for each in _table(type(message)):
        value = getattr(message, each.name)
        if each.kind is _Kind.MAP:
            parts += [protobuf.field(each.number, _entry(*item)) for item in value.items()]
        elif each.is_repeated:
            parts += _repeated(each, value)
        elif value is not None and (value or each.kind is _Kind.MESSAGE):
            parts.append(_one(each, value))
    return b"".join((*parts, message.unknown))


def _take(known: _Field, found: ProtobufField, values: dict[str, Any]) -> bool:
    """Put a field's value into `values`; False when it has another type than it should."""
    if found.wire_type == VARINT and known.kind in _VARINTS:
        value = _value(known, found.content)
    elif found.wire_type == BYTES and known.kind is _Kind.MAP:
        key, text = _item(found.content)
        values.setdefault(known.name, {})[key] = text
        return True
    elif found.wire_type == BYTES and known.kind in _VARINTS and known.is_repeated:
        values.setdefault(known.name, []).extend(_signed(each) for each in protobuf.numbers(found.content))
        return True
    elif found.wire_type == BYTES and known.kind not in _VARINTS:
        value = _value(known, found.content)
    else:
        return False
    if known.is_repeated:
        values.setdefault(known.name, []).append(value)
    else:
        values[known.name] = value
    return True


def _value(known: _Field, content: bytes) -> Any:
    match known.kind:
        case _Kind.TEXT:
            return protobuf.text(content)
        case _Kind.RAW:
            return content
        case _Kind.MESSAGE:
            return decode(content, known.of)
        case _Kind.SWITCH:
            return next(protobuf.numbers(content)) != 0
        case _:
            return _signed(next(protobuf.numbers(content)))


def _one(each: _Field, value: Any) -> bytes:
    match each.kind:
        case _Kind.TEXT | _Kind.RAW:
            return protobuf.field(each.number, value)
        case _Kind.MESSAGE:
            return protobuf.field(each.number, encode(value))
        case _:
            return protobuf.varint(each.number << 3 | VARINT) + protobuf.varint(int(value) % _UINT64)


def _repeated(each: _Field, values: tuple[Any, ...]) -> list[bytes]:
    """Return all values of a field; numbers are packed, as proto3 has them."""
    if each.kind in _VARINTS and values:
        packed = b"".join(protobuf.varint(int(value) % _UINT64) for value in values)
        return [protobuf.field(each.number, packed)]
    return [_one(each, value) for value in values]


def _signed(number: int) -> int:
    number %= _UINT64
    return number if number <= _INT64_MAX else number - _UINT64


def _entry(key: str, value: str) -> bytes:
    """Return an entry of a map: a message with the key as field 1 and the value as field 2."""
    return protobuf.field(1, key) + protobuf.field(2, value)


def _item(entry: bytes) -> tuple[str, str]:
    parts = {each.number: each.content for each in protobuf.fields(entry) if each.wire_type == BYTES}
    return protobuf.text(parts.get(1, b"")), protobuf.text(parts.get(2, b""))


@functools.cache
def _by_number(kind: type[Message]) -> dict[int, _Field]:
    return {each.number: each for each in _table(kind)}


@functools.cache
def _table(kind: type[Message]) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(_field_of(name, hint) for name, hint in hints.items() if name != "unknown")


def _field_of(name: str, hint: Any) -> _Field:
    of, at = typing.get_args(hint)
    origin, inner = typing.get_origin(of), typing.get_args(of)
    if origin is dict:
        assert inner == (str, str), (name, of)
        return _Field(at.number, name, _Kind.MAP, True, None)
    if origin in (types.UnionType, typing.Union, tuple):  # `Other | None`, `tuple[Other, ...]`
        of = inner[0]
    return _Field(at.number, name, _KINDS.get(of, _Kind.MESSAGE), origin is tuple, of)


