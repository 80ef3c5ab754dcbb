"""Frames of HTTP/2 as they lie on the wire, and gRPC messages in them. Source: RFC 9113, 4 and 6; RFC 7541, 6.2.2; gRPC
over HTTP/2."""

import struct
from collections.abc import Iterable, Iterator
from urllib.parse import quote

import hpack
import msgspec

from koordinator.host.errors import ContentError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
"""Flags."""
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 1, 2, 3, 4
"""Settings."""
WINDOW_BYTES = 65_535
"""Window of a connection, and of its streams until a setting says otherwise."""
CHUNK_BYTES = 16_384
"""A frame that everybody must take."""
FRAME_BYTES_MAX = (1 << 24) - 1
REFUSED_STREAM, CANCEL = 7, 8
"""Error codes of a stream that nobody has looked at, and of one that is not needed any more."""

_HEAD, _PREFIX_BYTES = struct.Struct(">HBBBI"), 5
"""Length (its low byte by itself), kind, flags and stream of a frame."""
_PRIORITY_BYTES = 5
_STREAM_BITS = 0x7FFF_FFFF
_SETTING = struct.Struct(">HI")
_REASON_BYTES_MAX = 4_000
"""Quoted, each is three bytes at most."""
_BLOCKS_MAX, _BLOCK_BYTES_MAX = 16, 1024
"""Number and size of the header blocks that are remembered."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A frame, and all of it as it came."""

    kind: int
    flags: int
    stream: int
    whole: bytes

    @property
    def size(self) -> int:
        """Return the number of bytes of the payload."""
        return len(self.whole) - _HEAD.size

    @property
    def payload(self) -> bytes:
        """Return what follows the head."""
        return self.whole[_HEAD.size :]


class FrameReader:
    """Cuts what comes into frames, with payloads of at most `bytes_max`."""

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete now. Raises: ContentError."""
        data = self._rest + data if self._rest else data
        at = 0
        while len(data) - at >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
            size = high << 8 | low
            if size > self._bytes_max:
                raise ContentError("http2", f"a frame of {size} bytes")
            end = at + _HEAD.size + size
            if end > len(data):
                break
            yield Frame(kind, flags, stream & _STREAM_BITS, data[at:end])
            at = end
        self._rest = data[at:]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame."""
    return _HEAD.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def window_update(stream: int, size: int) -> bytes:
    """Return the frame that lets the other side send more."""
    return frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


def increment(update: Frame) -> int:
    """Return how much more may be sent. Raises: ContentError."""
    if update.size != 4:
        raise ContentError("http2", f"WINDOW_UPDATE of {update.size} bytes")
    return int.from_bytes(update.payload, "big") & _STREAM_BITS


def error_code(reset: Frame) -> int:
    """Return why a stream was reset. Raises: ContentError."""
    if reset.size != 4:
        raise ContentError("http2", f"RST_STREAM of {reset.size} bytes")
    return int.from_bytes(reset.payload, "big")


def last_stream(goaway: Frame) -> int:
    """Return the last stream that the other side may answer. Raises: ContentError."""
    if goaway.size < 8:
        raise ContentError("http2", f"GOAWAY of {goaway.size} bytes")
    return int.from_bytes(goaway.payload[:4], "big") & _STREAM_BITS


def settings(found: Frame) -> dict[int, int]:
    """Return the settings of a frame. Raises: ContentError."""
    if found.size % _SETTING.size:
        raise ContentError("http2", f"SETTINGS of {found.size} bytes")
    return dict(_SETTING.iter_unpack(found.payload))


def setting(name: int, value: int) -> bytes:
    """Return one setting of a SETTINGS frame."""
    return _SETTING.pack(name, value)


def content(found: Frame) -> bytes:
    """Return the payload of DATA or HEADERS without padding and priority. Raises: ContentError."""
    payload, padding = found.payload, 0
    if found.flags & PADDED:
        if not payload:
            raise ContentError("http2", "padding is missing")
        padding, payload = payload[0], payload[1:]
    if found.kind == HEADERS and found.flags & PRIORITY:
        payload = payload[_PRIORITY_BYTES:]
    if padding > len(payload):
        raise ContentError("http2", "more padding than payload")
    return payload[: len(payload) - padding]


class HeaderReader:
    """Reads the headers that one side of a connection sends: all of them, as each may add to the table that later ones
    refer to."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` is the most that one block of headers may take, compressed."""
        self._bytes_max = bytes_max
        self._decoder = hpack.Decoder()
        self._block = b""
        self._read: dict[bytes, dict[bytes, bytes]] = {}
        """Blocks that changed nothing in the table, and what they say while it is as it is."""

    def allow_table(self, size: int) -> None:
        """Let the sender use a table of so many bytes, where that is more than it could."""
        self._decoder.max_allowed_table_size = max(size, self._decoder.max_allowed_table_size)

    def read(self, found: Frame) -> dict[bytes, bytes] | None:
        """Return the headers that end with this HEADERS or CONTINUATION frame; None while more of them follow.

        Raises: ContentError.
        """
        self._block += content(found) if found.kind == HEADERS else found.payload
        if len(self._block) > self._bytes_max:
            raise ContentError("http2", "headers are too long")
        if not found.flags & END_HEADERS:
            return None
        block, self._block = self._block, b""
        headers = self._read.get(block)
        return self._decoded(block) if headers is None else headers

    def _decoded(self, block: bytes) -> dict[bytes, bytes]:
        table = self._decoder.header_table
        before = (table.maxsize, *table.dynamic_entries)
        try:
            headers = dict(self._decoder.decode(block, raw=True))
        except hpack.HPACKError as error:
            raise ContentError("http2", f"headers: {error}") from error
        if before != (table.maxsize, *table.dynamic_entries) or len(self._read) >= _BLOCKS_MAX:
            self._read.clear()
        elif len(block) <= _BLOCK_BYTES_MAX:
            self._read[block] = headers
        return headers


def literals(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return headers as literals that leave the dynamic table alone; `:status` is 200, the first of them."""
    return b"\x88" + _literals(headers)


def refusal(code: int, reason: str) -> bytes:
    """Return the headers of a gRPC answer that is an error, in a block that fits into one frame."""
    said = ("grpc-message", quote(reason.encode()[:_REASON_BYTES_MAX], safe=" /:,()'{}[]="))
    return literals((("content-type", "application/grpc"), ("grpc-status", str(code)), said))


def request_headers(path: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the headers of a POST as literals that leave the dynamic table alone."""
    authority, of_path = b"\x01" + _text("localhost"), b"\x04" + _text(path)  # names by their index
    return b"\x83\x86" + of_path + authority + _literals(headers)


def _literals(headers: Iterable[tuple[str, str]]) -> bytes:
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in headers)


def _text(text: str) -> bytes:
    """Return a string of a header, its length in a prefix of seven bits (RFC 7541, 5.1)."""
    raw = text.encode()
    if len(raw) < 127:
        return bytes((len(raw),)) + raw
    rest, length = len(raw) - 127, bytearray((127,))
    while rest >= 128:
        length.append(rest % 128 | 128)
        rest //= 128
    length.append(rest)
    return bytes(length) + raw


def grpc_message(message: bytes) -> bytes:
    """Return a message of gRPC, not compressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def of_grpc(body: bytes) -> bytes | None:
    """Return the message of a unary call's body; None when it is compressed, or not exactly one."""
    if len(body) < _PREFIX_BYTES or body[0] or int.from_bytes(body[1:5], "big") != len(body) - _PREFIX_BYTES:
        return None
    return body[_PREFIX_BYTES:]
