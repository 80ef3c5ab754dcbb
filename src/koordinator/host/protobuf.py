"""The wire format of protocol buffers: `fields` for messages that are changed and passed on, `values` for those that
are only read.

Source: protobuf.dev, "Encoding". Raises ContentError for bytes that are no message.
"""

from collections.abc import Iterator

import msgspec

from koordinator.host.errors import ContentError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""

_GROUP_BITS = 7
_MORE = 0x80
_VARINT_BYTES_MAX = 10
_ONE_BYTE = tuple(bytes((each,)) for each in range(_MORE))
_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
_MASK_64 = (1 << 64) - 1
CUT_OFF = "unexpected EOF"
"""Reason of errors about messages that end too early."""


class ProtobufField(msgspec.Struct, frozen=True):
    """A field with its number, its type, its content (bytes; the number of a varint) and all of it as it came."""

    number: int
    wire_type: int
    content: bytes
    whole: bytes


def fields(message: bytes) -> Iterator[ProtobufField]:
    """Yield the fields of a message, in their order. Raises: ContentError."""
    at, total = 0, len(message)
    while at < total:
        number, wire_type, start, end = field_at(message, at)
        yield ProtobufField(number, wire_type, message[start:end], message[at:end])
        at = end


def field_at(message: bytes, at: int) -> tuple[int, int, int, int]:
    """Return the field that begins there: number, type, and where its content begins and ends. Raises: ContentError."""
    # Nearly all tags and lengths are one byte; a call for each of them was a third of the time.
    total, tag, start = len(message), message[at], at + 1
    if tag >= _MORE:
        tag, start = varint_at(message, at)
    wire_type = tag & 7
    if wire_type == BYTES:
        if start < total and (size := message[start]) < _MORE:
            start += 1
        else:
            size, start = varint_at(message, start)
        end = start + size
    elif wire_type == VARINT:
        if start < total and message[start] < _MORE:
            end = start + 1
        else:
            _, end = varint_at(message, start)
    elif wire_type in _FIXED_SIZES:
        end = start + _FIXED_SIZES[wire_type]
    else:
        raise ContentError("protobuf", f"wire type {wire_type} at byte {at}")
    if end > total:
        raise ContentError("protobuf", f"field {tag >> 3} ends after the message")
    return tag >> 3, wire_type, start, end


def text(content: bytes) -> str:
    """Return a string field. Raises: ContentError."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ContentError("protobuf", f"no text: {error}") from error


def field(number: int, content: bytes | str) -> bytes:
    """Return a field of bytes, text or a message."""
    raw = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | BYTES) + varint(len(raw)) + raw


def varint(number: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first."""
    if number < _MORE:
        return _ONE_BYTE[number]
    groups = []
    while number >= _MORE:
        groups.append(number % _MORE | _MORE)
        number >>= _GROUP_BITS
    return bytes([*groups, number])


def varint_at(message: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins there, and where it ends. Raises: ContentError."""
    if at < len(message) and (first := message[at]) < _MORE:
        return first, at + 1
    number = 0
    for index, byte in enumerate(message[at : at + _VARINT_BYTES_MAX]):
        number |= (byte & ~_MORE) << _GROUP_BITS * index
        if byte < _MORE:
            return number, at + index + 1
    raise ContentError("protobuf", CUT_OFF if len(message) - at < _VARINT_BYTES_MAX else "integer overflow")


def values(message: bytes) -> list[tuple[int, int | bytes]]:
    """Return number and value of the fields, in their order: numbers as 64 unsigned bits, everything else as bytes.

    Raises: ContentError.
    """
    found: list[tuple[int, int | bytes]] = []
    at, total = 0, len(message)
    while at < total:
        tag, at = message[at], at + 1
        if tag >= _MORE:
            tag, at = varint_at(message, at - 1)
        wire_type = tag & 7
        if tag <= 7:
            raise ContentError("protobuf", "illegal tag 0")
        if wire_type == VARINT:
            number, at = varint_at(message, at)
            found.append((tag >> 3, number & _MASK_64))
            continue
        if wire_type == BYTES:
            if at < total and (size := message[at]) < _MORE:
                at += 1
            else:
                size, at = varint_at(message, at)
        elif wire_type in _FIXED_SIZES:
            size = _FIXED_SIZES[wire_type]
        else:
            raise ContentError("protobuf", f"illegal wireType {wire_type}")
        end = at + size
        if end > total:
            raise ContentError("protobuf", CUT_OFF)
        found.append((tag >> 3, message[at:end]))
        at = end
    return found


def delimited_at(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes behind the length that begins there, and where they end. Raises: ContentError."""
    size, at = varint_at(data, at)
    if at + size > len(data):
        raise ContentError("protobuf", CUT_OFF)
    return data[at : at + size], at + size


def signed(number: int) -> int:
    """Return 64 unsigned bits as the int32 or int64 that they stand for."""
    return number - (1 << 64) if number >= 1 << 63 else number
