"""The wire format of protocol buffers, as far as Hadoop RPC needs it: written by hand, decoded by walking.

https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator

from koordinator.api.errors import KoordinatorError

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5

_VARINT_BYTES_MAX = 10
_MASK_64 = (1 << 64) - 1


class WireError(KoordinatorError, ValueError):
    """Bytes that are no message."""


def varint(number: int) -> bytes:
    """Return a number of up to 64 bits; a negative one as its two's complement (int32, int64)."""
    rest = number & _MASK_64
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def number_field(field: int, value: int) -> bytes:
    """Return an int32, int64, uint32, uint64 or enum field."""
    return varint(field << 3 | VARINT) + varint(value)


def signed_field(field: int, value: int) -> bytes:
    """Return an sint32 or sint64 field (zigzag)."""
    return number_field(field, value * 2 if value >= 0 else -value * 2 - 1)


def bytes_field(field: int, value: bytes) -> bytes:
    """Return a bytes, string or message field."""
    return varint(field << 3 | DELIMITED) + delimited(value)


def text_field(field: int, value: str) -> bytes:
    return bytes_field(field, value.encode())


def delimited(message: bytes) -> bytes:
    """Return a message with its length before it."""
    return varint(len(message)) + message


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at` as 64 unsigned bits, and where the next thing starts.

    Raises: WireError.
    """
    number = 0
    for count in range(_VARINT_BYTES_MAX):
        if at + count >= len(data):
            raise WireError("a number is cut off")
        byte = data[at + count]
        number |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return number & _MASK_64, at + count + 1
    raise WireError(f"a number is longer than {_VARINT_BYTES_MAX} bytes")


def read_delimited(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes behind the length at `at`, and where the next thing starts.

    Raises: WireError.
    """
    length, at = read_varint(data, at)
    if at + length > len(data):
        raise WireError(f"{length} bytes are announced, {len(data) - at} are there")
    return data[at : at + length], at + length


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) in order; fixed-width values as bytes.

    Raises: WireError.
    """
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        value: int | bytes
        match tag & 7:
            case 0:
                value, at = read_varint(message, at)
            case 2:
                value, at = read_delimited(message, at)
            case 1 | 5 as kind:
                end = at + (8 if kind == FIXED64 else 4)
                if end > len(message):
                    raise WireError("a fixed-width value is cut off")
                value, at = message[at:end], end
            case kind:
                raise WireError(f"wire type {kind} is not known")
        yield tag >> 3, value


def signed(value: int) -> int:
    """Return a 64-bit varint as int32 or int64."""
    return value - (1 << 64) if value >= 1 << 63 else value
