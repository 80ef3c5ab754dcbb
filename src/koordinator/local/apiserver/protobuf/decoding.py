"""Messages to JSON objects, as a Go client that speaks JSON would have sent them.

A message is compiled once to a table of readers by field number. Fields that nobody knows are left out and named,
as unknown fields of JSON are.
"""

import base64
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api import duration
from koordinator.host.errors import ContentError
from koordinator.host.protobuf import CUT_OFF, signed, values
from koordinator.local.apiserver import bodies
from koordinator.local.apiserver.protobuf import wire
from koordinator.local.apiserver.protobuf.wire import JsonOnly, Malformed, MessageField, facts

_EPOCH_S_MIN, _EPOCH_S_MAX = -62_135_596_800, 253_402_300_799  # the years 1 to 9999
_ZEROS: tuple[Any, ...] = ("", 0, False)


class DecodingState:
    """The state while one body is read: how deep we are, and the fields that nobody knows."""

    __slots__ = ("depth", "unknown")

    def __init__(self) -> None:
        self.depth = 0
        self.unknown: list[str] = []


Read = Callable[[int | bytes, DecodingState], Any]


class FieldReader(msgspec.Struct, frozen=True):
    """The reader of one field, and the place of its value."""

    name: str
    read: Read
    is_list: bool
    is_map: bool
    is_inline: bool
    keeps_zero: bool


def decode(body: bytes) -> tuple[dict[str, Any], list[str]]:
    """Return the object in an envelope, with its `apiVersion` and `kind`, and the fields that nobody knows.

    Raises: Malformed, JsonOnly.
    """
    try:
        return _decoded(body)
    except ContentError as error:
        raise Malformed(error.reason if error.reason == CUT_OFF else f"proto: {error.reason}") from None


def _decoded(body: bytes) -> tuple[dict[str, Any], list[str]]:
    api_version, kind, raw = wire.unwrapped(body)
    message = facts().message_of(api_version, kind)
    if message is None:
        raise JsonOnly(f"{api_version} {kind or 'an object'} cannot be read from protobuf here")
    state = DecodingState()
    obj = _read_message(message, raw, state)
    return {"apiVersion": api_version, "kind": kind, **obj}, state.unknown


def _read_message(message: str, raw: bytes, state: DecodingState) -> dict[str, Any]:
    readers = _readers(message)
    state.depth += 1
    if state.depth > bodies.DEPTH_MAX:
        raise Malformed("proto: exceeded max depth")
    found: dict[str, Any] = {}
    for number, content in values(raw):
        reader = readers.get(number)
        if reader is None:
            state.unknown.append(f"{message.rpartition('.')[2]}.{number}")
        elif reader.is_list:
            found.setdefault(reader.name, []).append(reader.read(content, state))
        elif reader.is_map:
            key, item = _entry(wire.bytes_of(content), reader, state)
            found.setdefault(reader.name, {})[key] = item
        else:
            value = reader.read(content, state)
            if reader.is_inline:
                found.update(value)
            elif value is not None and (reader.keeps_zero or value not in _ZEROS):
                found[reader.name] = value
    state.depth -= 1
    return found


def _entry(raw: bytes, reader: FieldReader, state: DecodingState) -> tuple[str, Any]:
    """Key and value of one entry of a map."""
    key: str = ""
    content: int | bytes = b""
    for number, part in values(raw):
        if number == 1:
            key = wire.text_of(part)
        elif number == 2:
            content = part
    return key, reader.read(content, state)


@cache
def _readers(message: str) -> dict[int, FieldReader]:
    return {member.number: _reader(member) for member in facts().members(message)}


def _reader(member: MessageField) -> FieldReader:
    is_struct = "." in member.type
    return FieldReader(
        name=member.name,
        read=_READ.get(member.type) or _message_reader(member.type),
        is_list=member.is_list,
        is_map=member.is_map,
        is_inline=member.name == "@",
        keeps_zero=member.is_pointer or member.keeps_zero or is_struct,
    )


def _message_reader(message: str) -> Read:
    def read(content: int | bytes, state: DecodingState) -> dict[str, Any]:
        return _read_message(message, wire.bytes_of(content), state)

    return read


def _text(content: int | bytes, state: DecodingState) -> str:
    return wire.text_of(content)


def _integer(content: int | bytes, state: DecodingState) -> int:
    return signed(wire.number_of(content))


def _boolean(content: int | bytes, state: DecodingState) -> bool:
    return wire.number_of(content) != 0


def _double(content: int | bytes, state: DecodingState) -> float:
    raw = wire.bytes_of(content)
    if len(raw) != 8:
        raise Malformed("proto: wrong wireType for a floating-point number")
    number: float = struct.unpack("<d", raw)[0]
    if number - number != 0:  # infinite or not a number: JSON has no word for it
        raise Malformed("proto: a number is not finite")
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _bytes(content: int | bytes, state: DecodingState) -> str:
    return base64.b64encode(wire.bytes_of(content)).decode()


def _moment(content: int | bytes) -> float | None:
    seconds = nanos = 0
    parts = values(wire.bytes_of(content))
    for number, part in parts:
        if number == 1:
            seconds = signed(wire.number_of(part))
        elif number == 2:
            nanos = signed(wire.number_of(part))
    if not parts:
        return None
    if not _EPOCH_S_MIN <= seconds <= _EPOCH_S_MAX or not 0 <= nanos < 1_000_000_000:
        raise Malformed("a time lies outside the years 1 to 9999")
    return None if seconds == _EPOCH_S_MIN and nanos == 0 else seconds + nanos / 1e9


def _time(content: int | bytes, state: DecodingState) -> str | None:
    moment = _moment(content)
    return None if moment is None else clock.rfc3339(moment)


def _micro_time(content: int | bytes, state: DecodingState) -> str | None:
    moment = _moment(content)
    return None if moment is None else clock.rfc3339_micro(moment)


def _duration(content: int | bytes, state: DecodingState) -> str:
    ns = next((wire.number_of(part) for number, part in values(wire.bytes_of(content)) if number == 1), 0)
    return duration.text_of(signed(ns) / 1e9)


def _quantity(content: int | bytes, state: DecodingState) -> str:
    parts = values(wire.bytes_of(content))
    return next((wire.text_of(part) for number, part in parts if number == 1), "") or "0"


def _int_or_string(content: int | bytes, state: DecodingState) -> int | str:
    parts = dict(values(wire.bytes_of(content)))
    if wire.number_of(parts.get(1, 0)) == 1:
        return wire.text_of(parts.get(3, b""))
    return signed(wire.number_of(parts.get(2, 0)))


def _json(content: int | bytes, state: DecodingState) -> Any:
    raw = next((part for number, part in values(wire.bytes_of(content)) if number == 1), b"")
    text = wire.bytes_of(raw)
    try:
        return bodies.decode_json(text) if text else None
    except bodies.MalformedBody as error:
        raise Malformed(str(error)) from None


def _strings(content: int | bytes, state: DecodingState) -> list[str]:
    return [wire.text_of(part) for number, part in values(wire.bytes_of(content)) if number == 1]


_SCHEMA = "apiextensions/v1.JSONSchemaProps"


def _schema_or(content: int | bytes, state: DecodingState, items: Callable[[bytes], Any]) -> Any:
    """Return a schema (the first field), or the values of the other one."""
    others = []
    for number, part in values(wire.bytes_of(content)):
        if number == 1:
            return _read_message(_SCHEMA, wire.bytes_of(part), state)
        others.append(items(wire.bytes_of(part)))
    return others


def _schema_or_bool(content: int | bytes, state: DecodingState) -> Any:
    allows = False
    for number, part in values(wire.bytes_of(content)):
        if number == 2:
            return _read_message(_SCHEMA, wire.bytes_of(part), state)
        allows = wire.number_of(part) != 0
    return allows


_READ: dict[str, Read] = {
    "s": _text,
    "i": _integer,
    "b": _boolean,
    "d": _double,
    "y": _bytes,
    "time": _time,
    "microtime": _micro_time,
    "duration": _duration,
    "quantity": _quantity,
    "intorstring": _int_or_string,
    "json": _json,
    "strings": _strings,
    "schemaorbool": _schema_or_bool,
    "schemaorarray": lambda content, state: _schema_or(
        content, state, lambda raw: _read_message(_SCHEMA, raw, state)
    ),
    "schemaorstrings": lambda content, state: _schema_or(content, state, wire.text_of),
}
