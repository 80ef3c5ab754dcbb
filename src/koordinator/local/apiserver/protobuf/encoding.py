"""JSON objects to messages. Members that are not there are not sent: Go reads that as zero.

A message is compiled once to a table of writers by JSON name, so that an object costs what is in it.
"""

import base64
import struct
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api import duration
from koordinator.host.protobuf import BYTES, FIXED64, VARINT, field
from koordinator.local.apiserver.protobuf import wire
from koordinator.local.apiserver.protobuf.wire import JsonOnly, MessageField, facts, integer, size_of, tag

Content = Callable[[Any], bytes]
"""A value → the content of its field, without tag and length."""

Write = Callable[[Any, list[bytes]], None]
"""A value, and where to put its fields."""


def encode(obj: dict[str, Any]) -> bytes:
    """Return an object, or a list with its items, in its envelope. Raises: JsonOnly for a kind that has no message."""
    api_version, kind = obj.get("apiVersion", ""), obj.get("kind", "")
    return wire.wrapped(api_version, kind, message_writer(message_of(api_version, kind))(obj))


def message_of(api_version: str, kind: str) -> str:
    """Return the message of a kind. Raises: JsonOnly."""
    message = facts().message_of(api_version, kind)
    if message is None:
        raise JsonOnly(f"{api_version} {kind} cannot be written in protobuf here")
    return message


@cache
def message_writer(message: str) -> Content:
    """Return the compiled writer of a message."""
    writers: dict[str, Write] | None = None
    inlined: list[tuple[bytes, Content]] = []

    def write(obj: Any) -> bytes:
        nonlocal writers
        if writers is None:  # compiled on first use: messages may contain themselves
            members = facts().members(message)
            inlined.extend(
                (tag(member.number, BYTES), message_writer(member.type))
                for member in members
                if member.name == "@"
            )
            writers = {member.name: _writer(member) for member in members if member.name != "@"}
        parts: list[bytes] = []
        for name, value in obj.items():
            writer = writers.get(name)
            if writer is not None and value is not None:
                writer(value, parts)
        for head, content in inlined:
            inner = content(obj)
            if inner:
                parts += (head, size_of(inner), inner)
        return b"".join(parts)

    return write


def _writer(member: MessageField) -> Write:
    if member.is_list:
        return _list_writer(_single(member))
    if member.is_map:
        return _map_writer(member)
    return _single(member)


def _single(member: MessageField) -> Write:
    if member.type in ("i", "b"):
        head = tag(member.number, VARINT)

        def write_number(value: Any, parts: list[bytes]) -> None:
            parts += (head, integer(value))

        return write_number
    if member.type == "d":
        head = tag(member.number, FIXED64)

        def write_double(value: Any, parts: list[bytes]) -> None:
            parts += (head, struct.pack("<d", value))

        return write_double
    head = tag(member.number, BYTES)
    content = _content(member.type)

    def write(value: Any, parts: list[bytes]) -> None:
        raw = b"" if value is None else content(value)  # nothing in a list or map: Go's zero
        parts += (head, size_of(raw), raw)

    return write


def _list_writer(write: Write) -> Write:
    def write_all(values: Any, parts: list[bytes]) -> None:
        for value in values:
            write(value, parts)

    return write_all


def _map_writer(member: MessageField) -> Write:
    head = tag(member.number, BYTES)
    key_head = tag(1, BYTES)
    write_value = _single(MessageField(2, "", member.type, False, False, False, False))

    def write(values: Any, parts: list[bytes]) -> None:
        for key, value in values.items():
            name = key.encode()
            inner = [key_head, size_of(name), name]
            write_value(value, inner)
            entry = b"".join(inner)
            parts += (head, size_of(entry), entry)

    return write


def _content(type_: str) -> Content:
    return _CONTENTS.get(type_) or message_writer(type_)


@lru_cache(maxsize=4096)
def _time(text: str) -> bytes:
    return field_of_seconds(clock.parse_rfc3339(text))


def field_of_seconds(moment: float) -> bytes:
    """Return a Timestamp: whole seconds, and what is beyond them in nanoseconds (our times have microseconds)."""
    micros = round(moment * 1e6)
    seconds, rest = divmod(micros, 1_000_000)
    return tag(1, VARINT) + integer(seconds) + tag(2, VARINT) + integer(rest * 1000)


@lru_cache(maxsize=4096)
def _quantity(text: str) -> bytes:
    return field(1, text)


def _int_or_string(value: int | str) -> bytes:
    if isinstance(value, str):
        return tag(1, VARINT) + integer(1) + field(3, value)
    return tag(1, VARINT) + integer(0) + tag(2, VARINT) + integer(value)


def _duration(text: str) -> bytes:
    return tag(1, VARINT) + integer(duration.parse_ns(text))


def _json(value: Any) -> bytes:
    return field(1, msgspec.json.encode(value))


def _strings(values: list[str]) -> bytes:
    return b"".join(field(1, value) for value in values)


def _schema(value: Any) -> bytes:
    return message_writer("apiextensions/v1.JSONSchemaProps")(value)


def _schema_or_bool(value: Any) -> bytes:
    allows = tag(1, VARINT) + integer(1 if isinstance(value, dict) else value)
    return allows + field(2, _schema(value)) if isinstance(value, dict) else allows


def _schema_or_array(value: Any) -> bytes:
    if isinstance(value, dict):
        return field(1, _schema(value))
    return b"".join(field(2, _schema(item)) for item in value)


def _schema_or_strings(value: Any) -> bytes:
    if isinstance(value, dict):
        return field(1, _schema(value))
    return b"".join(field(2, item) for item in value)


_CONTENTS: dict[str, Content] = {
    "s": str.encode,
    "y": base64.b64decode,
    "time": _time,
    "microtime": _time,
    "duration": _duration,
    "quantity": _quantity,
    "intorstring": _int_or_string,
    "json": _json,
    "strings": _strings,
    "schemaorbool": _schema_or_bool,
    "schemaorarray": _schema_or_array,
    "schemaorstrings": _schema_or_strings,
}
