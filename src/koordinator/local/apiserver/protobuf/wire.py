"""Numbers, lengths and tags of the wire format, and the envelope around an object.

Sources: protobuf.dev, "Encoding"; k8s.io/apimachinery/pkg/runtime/serializer/protobuf.
"""

from koordinator.host.protobuf import field, varint

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
WATCH_TYPE = MEDIA_TYPE + ";stream=watch"
MAGIC = b"k8s\x00"
"""What the envelope of an object begins with."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""How a field is sent."""

_VARINT_BYTES_MAX = 10
_MASK_64 = (1 << 64) - 1


class Malformed(ValueError):
    """The bytes are no message of the kind that they claim to be."""


class JsonOnly(ValueError):
    """The message is of a kind that this server knows in JSON only."""


def integer(number: int) -> bytes:
    """Return an int32, int64 or boolean, a negative one as its two's complement of 64 bits."""
    return varint(number & _MASK_64)


_SIZES = [varint(size) for size in range(4096)]


def size_of(content: bytes) -> bytes:
    """Return the length that stands before texts and messages."""
    size = len(content)
    return _SIZES[size] if size < 4096 else varint(size)


def tag(number: int, how: int) -> bytes:
    """Return the tag that stands before a field."""
    return varint(number << 3 | how)


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at a place, as 64 unsigned bits, and where the next thing begins.

    Raises: Malformed.
    """
    value = 0
    for shift in range(_VARINT_BYTES_MAX):
        if at >= len(raw):
            raise Malformed("unexpected EOF")
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value & _MASK_64, at
    raise Malformed("proto: integer overflow")


def fields(raw: bytes) -> list[tuple[int, int, int | bytes]]:
    """Return the fields of a message as they stand on the wire: number, how it was sent, and its content.

    Raises: Malformed.
    """
    found: list[tuple[int, int, int | bytes]] = []
    at, end = 0, len(raw)
    while at < end:
        head = raw[at]
        if head < 0x80:
            at += 1
        else:
            head, at = read_varint(raw, at)
        number, how = head >> 3, head & 7
        if number == 0:
            raise Malformed("proto: illegal tag 0")
        if how == VARINT:
            value, at = read_varint(raw, at)
            found.append((number, how, value))
            continue
        if how == BYTES:
            size, at = read_varint(raw, at)
        elif how == FIXED64:
            size = 8
        elif how == FIXED32:
            size = 4
        else:
            raise Malformed(f"proto: illegal wireType {how}")
        if at + size > end:
            raise Malformed("unexpected EOF")
        found.append((number, how, raw[at : at + size]))
        at += size
    return found


def signed(value: int) -> int:
    """Return a number of 64 unsigned bits as int32 or int64."""
    return value - (1 << 64) if value >= 1 << 63 else value


def wrapped(api_version: str, kind: str, message: bytes) -> bytes:
    """Return a message in the envelope that says what it is."""
    type_meta = field(1, api_version.encode()) + field(2, kind.encode())
    return b"%b%b%b%b%b" % (MAGIC, field(1, type_meta), field(2, message), field(3, b""), field(4, b""))


def unwrapped(body: bytes) -> tuple[str, str, bytes]:
    """API version, kind and message of an envelope.

    Raises: Malformed.
    """
    if not body.startswith(MAGIC):
        raise Malformed(
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
        )
    api_version = kind = ""
    message = b""
    for number, _, content in fields(body[len(MAGIC) :]):
        if number == 1:
            for part, _, text in fields(bytes_of(content)):
                if part == 1:
                    api_version = text_of(text)
                elif part == 2:
                    kind = text_of(text)
        elif number == 2:
            message = bytes_of(content)
    return api_version, kind, message


def bytes_of(content: int | bytes) -> bytes:
    """Return the content of a field that has a length. Raises: Malformed."""
    if isinstance(content, int):
        raise Malformed("proto: wrong wireType for a message or text")
    return content


def number_of(content: int | bytes) -> int:
    """Return the content of a field that is a number. Raises: Malformed."""
    if not isinstance(content, int):
        raise Malformed("proto: wrong wireType for a number")
    return content


def text_of(content: int | bytes) -> str:
    """Return the content of a text. Raises: Malformed."""
    try:
        return bytes_of(content).decode()
    except UnicodeDecodeError:
        raise Malformed("proto: a text is not UTF-8") from None
