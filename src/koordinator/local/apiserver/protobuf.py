"""Protobuf request bodies of Go clients, read into JSON objects.

kubectl sends `create`, `drain` and `auth` requests in protobuf and does not fall back. What is not in
`proto_messages` is refused with 415 rather than dropped in silence. Answers are always JSON.
"""

import base64
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from koordinator import clock
from koordinator.local.apiserver.proto_messages import MESSAGES

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10
_EPOCH_S_MAX = 253_402_300_799  # the year 9999


class Malformed(ValueError):
    """The bytes are no message of the kind that they claim to be."""


class Unreadable(ValueError):
    """The message is well formed, but of a kind or with a field that this server knows in JSON only."""


class Member(msgspec.Struct, frozen=True):
    """A field: its name in JSON ("@": its own fields stand in the outer object), type, and how it is sent."""

    name: str
    type: str
    repeated: bool
    pointer: bool


def decode(body: bytes) -> dict[str, Any]:
    """The object in a Kubernetes protobuf envelope, with its `apiVersion` and `kind`.

    Raises: Malformed, Unreadable.
    """
    if not body.startswith(_MAGIC):
        raise Malformed(
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
        )
    api_version = kind = ""
    raw = b""
    for number, value in _fields(body[len(_MAGIC) :]):
        if number == 1:
            for part, text in _fields(_bytes(value)):
                if part == 1:
                    api_version = _text(text)
                elif part == 2:
                    kind = _text(text)
        elif number == 2:
            raw = _bytes(value)
    versioned = f"{api_version}/{kind}"  # where versions number their fields differently
    name = versioned if versioned in _kinds() else kind
    if name not in _kinds():
        raise Unreadable(f"{kind or 'the object'} cannot be read from protobuf here")
    return {"apiVersion": api_version, "kind": kind, **_message(raw, name)}


def _message(raw: bytes, name: str) -> dict[str, Any]:
    members = _messages()[name]
    found: dict[str, Any] = {}
    for number, value in _fields(raw):
        member = members.get(number)
        if member is None:
            if _is_zero(value):
                continue
            raise Unreadable(f"field {number} of {name} cannot be read from protobuf here")
        if member.type in _MAPS:
            key, item = _entry(_bytes(value), _MAPS[member.type])
            found.setdefault(member.name, {})[key] = item
        elif member.repeated:
            found.setdefault(member.name, []).append(_value(value, member.type))
        elif member.name == "@":
            found.update(_message(_bytes(value), member.type))
        else:
            decoded = _value(value, member.type)
            # Fields that are no pointers in Go are always sent; a zero there is what JSON leaves out.
            if member.pointer or decoded not in ("", 0, False, None):
                found[member.name] = decoded
    return found


def _value(value: int | bytes, type_: str) -> Any:
    if type_ == "s":
        return _text(value)
    if type_ == "i":
        return _signed(_number(value))
    if type_ == "b":
        return bool(_number(value))
    raw = _bytes(value)
    if type_ == "y":
        return base64.b64encode(raw).decode()
    if type_ in ("t", "u"):
        return _time(raw, micro=type_ == "u")
    if type_ == "q":
        return next((_text(part) for number, part in _fields(raw) if number == 1), "0")
    if type_ == "x":
        return _int_or_string(raw)
    return _message(raw, type_)


def _time(raw: bytes, *, micro: bool) -> str | None:
    parts = dict(_fields(raw))
    seconds, nanos = _signed(_number(parts.get(1, 0))), _signed(_number(parts.get(2, 0)))
    if not parts:
        return None
    if not 0 <= seconds <= _EPOCH_S_MAX or not 0 <= nanos < 1_000_000_000:
        raise Malformed("a time lies outside the years 1970 to 9999")
    return clock.rfc3339_micro(seconds + nanos / 1e9) if micro else clock.rfc3339(seconds)


def _int_or_string(raw: bytes) -> int | str:
    parts = dict(_fields(raw))
    if _number(parts.get(1, 0)) == 1:
        return _text(parts.get(3, b""))
    return _signed(_number(parts.get(2, 0)))


def _entry(raw: bytes, type_: str) -> tuple[str, Any]:
    """Key and value of one entry of a map."""
    parts = dict(_fields(raw))
    return _text(parts.get(1, b"")), _value(parts.get(2, b""), type_)


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values as they stand on the wire.

    Raises: Malformed.
    """
    position, end = 0, len(raw)
    while position < end:
        tag, position = _varint(raw, position)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, position = _varint(raw, position)
            yield number, value
            continue
        if wire == _BYTES:
            size, position = _varint(raw, position)
        elif wire == _FIXED64:
            size = 8
        elif wire == _FIXED32:
            size = 4
        else:
            raise Malformed(f"proto: illegal wireType {wire}")
        if number == 0 or position + size > end:
            raise Malformed("unexpected EOF")
        yield number, raw[position : position + size]
        position += size


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(_VARINT_BYTES_MAX):
        if position >= len(raw):
            raise Malformed("unexpected EOF")
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position
    raise Malformed("proto: integer overflow")


def _signed(value: int) -> int:
    return struct.unpack("<q", struct.pack("<Q", value & (2**64 - 1)))[0]  # type: ignore[no-any-return]


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise Malformed("proto: wrong wireType for a number")
    return value


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise Malformed("proto: wrong wireType for a message or text")
    return value


def _text(value: int | bytes) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError:
        raise Malformed("proto: a text is not UTF-8") from None


def _is_zero(value: int | bytes) -> bool:
    return value in (0, b"")


_MAPS = {"m": "s", "Q": "q", "Y": "y"}


@cache
def _messages() -> dict[str, dict[int, Member]]:
    lines = (line.split() for line in MESSAGES.splitlines() if line.strip())
    return {name: _members(words) for name, *words in lines}


@cache
def _kinds() -> frozenset[str]:
    return frozenset(
        name for name, members in _messages().items() if 1 in members and members[1].type == "ObjectMeta"
    ) | {"DeleteOptions"}


def _members(words: list[str]) -> dict[int, Member]:
    members = {}
    number = 0
    for word in words:
        number += 1
        if word == "-":
            continue
        head, _, type_ = word.removesuffix("*").partition(":")
        name, _, explicit = head.partition("=")
        number = int(explicit) if explicit else number
        repeated = type_.startswith("[")
        members[number] = Member(name, type_.strip("[]") or "s", repeated, word.endswith("*"))
    return members
