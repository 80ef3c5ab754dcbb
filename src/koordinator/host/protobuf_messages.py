"""Protocol buffer messages as structs: the annotation of each attribute says its number, its type says the encoding.

```python
class LinuxCPU(Message):
    shares: Annotated[int | None, 1] = None  # a message that wraps one number, absent or given
    cpus: Annotated[str, 6] = ""
```

| type | on the wire |
| --- | --- |
| `int`, `bool` | varint; negative numbers in two's complement |
| `str`, `bytes` | length and bytes |
| `Message` or None | a message; None is absent |
| `int`, `bool`, `str` or None | a wrapper: a message whose field 1 is the value, as `OptionalInt64` of NRI is |
| tuple of messages, `str`, `bytes` or `int` | repeated; numbers packed or not |
| `Mapping[str, str]`, `Mapping[str, Message]` | map |
| `Entries` | map of texts, read by `texts` |

Fields that a struct does not name are kept as they came and encoded last, so that a message can be changed by who knows
only a part of it. Zero values are not encoded, as proto3 does. Source: protobuf.dev,
"Encoding".
"""

import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from koordinator.host import protobuf
from koordinator.host.errors import ContentError
from koordinator.host.protobuf import BYTES, VARINT

DEPTH_MAX = 32
"""Messages inside of messages; what nests deeper comes from nobody who speaks the protocol."""

_SIGN, _WRAP = 1 << 63, 1 << 64
_VARINT_KINDS = (int, bool)
_KEY, _VALUE, _WRAPPED = 1, 2, 1
_UNKNOWN = "unknown"
_KEY_TAG, _VALUE_TAG = _KEY << 3 | BYTES, _VALUE << 3 | BYTES
_ONE_BYTE = 0x80
"""Lengths below it take one byte."""


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A message; subclasses annotate each attribute with its number and give it proto3's zero as default."""

    unknown: bytes = b""
    """Fields that have no attribute, one after the other."""


M = TypeVar("M", bound=Message)
Entries = tuple[bytes, ...]
"""A map of texts whose entries are as they came: who only hands it on need not read it."""
Decode = Callable[[Any, int], Any]
"""From content (the number of a varint, else bytes) and depth."""
Encode = Callable[[Any], bytes]


class _Plan(msgspec.Struct, frozen=True):
    """The way in which one attribute is read and written."""

    attribute: str
    wire_type: int
    decode: Decode
    encode: Encode
    """Value → all of the field, tag included."""
    is_optional: bool = False
    """None is absent; all other values are encoded, zero too."""
    is_repeated: bool = False
    is_map: bool = False


def decode(kind: type[M], message: bytes, depth: int = 0) -> M:
    """Return a message. Raises: ContentError, also for fields of another type than the struct's."""
    if depth > DEPTH_MAX:
        raise ContentError("protobuf", f"messages nest deeper than {DEPTH_MAX}")
    by_tag, by_number = _by_tag(kind), _plans(kind)
    found: dict[str, Any] = {}
    unknown: list[bytes] = []
    content: bytes | int
    at, total = 0, len(message)
    while at < total:
        begin, tag, at = at, message[at], at + 1
        if tag >= _ONE_BYTE:
            tag, at = protobuf.varint_at(message, begin)
        plan, wire_type = by_tag.get(tag), tag & 7
        if wire_type == BYTES:
            if at < total and (size := message[at]) < _ONE_BYTE:
                at += 1
            else:
                size, at = protobuf.varint_at(message, at)
            start, at = at, at + size
            if at > total:
                raise ContentError("protobuf", f"field {tag >> 3} ends after the message")
            content = message[start:at] if plan is not None else b""
        elif wire_type == VARINT:
            content, at = protobuf.varint_at(message, at)
        else:
            at = protobuf.field_at(message, begin)[3]
        if plan is None:
            if (other := by_number.get(tag >> 3)) is None:
                unknown.append(message[begin:at])
            elif other.is_repeated and other.wire_type == VARINT and wire_type == BYTES:
                found.setdefault(other.attribute, []).extend(_packed(message[start:at]))
            else:
                raise ContentError("protobuf", f"{kind.__name__}.{other.attribute} has wire type {wire_type}")
        elif plan.is_repeated:
            found.setdefault(plan.attribute, []).append(plan.decode(content, depth))
        elif plan.is_map:
            key, value = plan.decode(content, depth)
            found.setdefault(plan.attribute, {})[key] = value
        else:
            found[plan.attribute] = plan.decode(content, depth)
    for attribute, value in found.items():
        if type(value) is list:
            found[attribute] = tuple(value)
    if unknown:
        found[_UNKNOWN] = b"".join(unknown)
    return kind(**found)


def encode(message: Message) -> bytes:
    """Return the bytes of a message, fields by number, then those that it does not know."""
    parts: list[bytes] = []
    for plan in _plans(type(message)).values():
        value = getattr(message, plan.attribute)
        if value is None or (not value and not plan.is_optional):
            continue
        if plan.is_map:
            parts += map(plan.encode, value.items())
        elif plan.is_repeated:
            parts += map(plan.encode, value)
        else:
            parts.append(plan.encode(value))
    parts.append(message.unknown)
    return b"".join(parts)


def texts(entries: Entries) -> dict[str, str]:
    """Return what entries say; of entries with one key the last counts. Raises: ContentError."""
    return dict(_ENTRY_OF_TEXTS(entry, 0) for entry in entries)


def entries(texts: Mapping[str, str]) -> Entries:
    """Return the entries of a map."""
    return tuple(protobuf.field(_KEY, key) + protobuf.field(_VALUE, value) for key, value in texts.items())


@functools.cache
def _plans(kind: type[Message]) -> Mapping[int, _Plan]:
    """Return the plans of a struct by number, ascending."""
    found = {}
    for attribute, hint in typing.get_type_hints(kind, include_extras=True).items():
        if attribute == _UNKNOWN:
            continue
        annotated, number = get_args(hint)
        found[number] = _plan(attribute, number, annotated)
    return dict(sorted(found.items()))


@functools.cache
def _by_tag(kind: type[Message]) -> Mapping[int, _Plan]:
    """Return the plans of a struct by number and wire type, as tags have them."""
    return {number << 3 | plan.wire_type: plan for number, plan in _plans(kind).items()}


def _plan(attribute: str, number: int, hint: Any) -> _Plan:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        # No item is left out of a list, not even an empty one.
        return msgspec.structs.replace(_plan_of_value(attribute, number, arguments[0]), is_repeated=True)
    if origin is not None and issubclass(origin, Mapping):
        return _Plan(attribute, BYTES, *_entry(number, arguments[1]), is_map=True)
    if origin in (types.UnionType, typing.Union):
        kind = next(each for each in arguments if each is not type(None))
        decode_value, encode_value = _item(kind) if issubclass(kind, Message) else _wrapper(kind)
        return _Plan(attribute, BYTES, decode_value, _field(number, BYTES, encode_value), is_optional=True)
    return _plan_of_value(attribute, number, hint)


def _plan_of_value(attribute: str, number: int, kind: Any) -> _Plan:
    decode_value, encode_value = _item(kind)
    wire_type = VARINT if kind in _VARINT_KINDS else BYTES
    return _Plan(attribute, wire_type, decode_value, _field(number, wire_type, encode_value))


def _field(number: int, wire_type: int, encode_value: Encode) -> Encode:
    """Return how a value becomes a field with its tag."""
    tag = protobuf.varint(number << 3 | wire_type)
    if wire_type == VARINT:
        return lambda value: tag + protobuf.varint(value % _WRAP)

    def of_bytes(value: Any) -> bytes:
        content = encode_value(value)
        return tag + protobuf.varint(len(content)) + content

    return of_bytes


def _item(kind: Any) -> tuple[Decode, Encode]:
    """Return how one value of a type is read and written, without its tag."""
    if kind is bool:
        return lambda number, depth: number != 0, lambda value: protobuf.varint(int(value))
    if issubclass(kind, int):
        return _number, lambda value: protobuf.varint(value % _WRAP)
    if kind is str:
        return _text, str.encode
    if kind is bytes:
        return lambda content, depth: content, lambda value: value
    return lambda content, depth: decode(kind, content, depth + 1), encode


def _wrapper(kind: Any) -> tuple[Decode, Encode]:
    decode_value, encode_value = _item(kind)
    wire_type = VARINT if kind in _VARINT_KINDS else BYTES
    put = _field(_WRAPPED, wire_type, encode_value)

    def read(content: bytes, depth: int) -> Any:
        value = kind()
        for field in protobuf.fields(content):
            if field.number == _WRAPPED and field.wire_type == wire_type:
                is_number = wire_type == VARINT
                inner = protobuf.varint_at(field.content, 0)[0] if is_number else field.content
                value = decode_value(inner, depth)
        return value

    return read, lambda value: put(value) if value else b""


def _entry(number: int, kind: Any) -> tuple[Decode, Encode]:
    decode_value, encode_value = _item(kind)
    put = _field(number, BYTES, lambda entry: entry)

    def read(content: bytes, depth: int) -> tuple[str, Any]:
        key, value = "", kind()
        for field in protobuf.fields(content):
            if field.wire_type == BYTES and field.number == _KEY:
                key = protobuf.text(field.content)
            elif field.wire_type == BYTES and field.number == _VALUE:
                value = decode_value(field.content, depth)
        return key, value

    def write(item: tuple[str, Any]) -> bytes:
        key, value = item
        return put(protobuf.field(_KEY, key) + protobuf.field(_VALUE, encode_value(value)))

    if kind is str:
        return lambda content, depth: _halves(content) or read(content, depth), write
    return read, write


def _halves(content: bytes) -> tuple[str, str] | None:
    """Return key and value of an entry as nearly all are: two short texts and nothing else; None for others."""
    total = len(content)
    if (
        total < 4
        or content[0] != _KEY_TAG
        or (at := 2 + content[1]) + 1 >= total
        or content[at] != _VALUE_TAG
    ):
        return None
    size = content[at + 1]
    if at >= 2 + _ONE_BYTE or size >= _ONE_BYTE or at + 2 + size != total:
        return None
    return protobuf.text(content[2:at]), protobuf.text(content[at + 2 :])


def _text(content: bytes, depth: int) -> str:
    return protobuf.text(content)


def _number(number: int, depth: int) -> int:
    """Return a varint's number, as the signed one of 64 bits that it stands for."""
    return number if number < _SIGN else protobuf.signed(number % _WRAP)


def _packed(content: bytes) -> list[int]:
    found, at = [], 0
    while at < len(content):
        number, at = protobuf.varint_at(content, at)
        found.append(_number(number, 0))
    return found


_ENTRY_OF_TEXTS: Decode = _entry(1, str)[0]
