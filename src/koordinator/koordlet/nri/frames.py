"""The frames of an NRI socket, as pure functions of bytes: two connections in one (mux), and calls in each (ttrpc).

```
mux:    connection (4) length (4) content            connection 1: the runtime calls the plugin, 2: the other way
ttrpc:  length (4) stream (4) type (1) flags (1) content; all numbers big-endian
```
A reader keeps at most one message that is not whole yet. Source: github.com/containerd/nri, pkg/net/multiplex;
github.com/containerd/ttrpc, PROTOCOL.md.
"""

import enum
import struct
from collections.abc import Iterator

import msgspec

from koordinator.api.errors import KoordinatorError

MESSAGE_BYTES_MAX = 4 << 20
"""Limit of ttrpc."""
CHUNK_BYTES_MAX = 4096
"""The runtime reads mux frames into a buffer of this size and gives up the connection when one does not fit."""
PLUGIN_CONNECTION, RUNTIME_CONNECTION = 1, 2

_MUX, _CALL = struct.Struct(">II"), struct.Struct(">IIBB")
_MUX_BYTES_MAX = MESSAGE_BYTES_MAX + _CALL.size


class FrameError(KoordinatorError, ValueError):
    """The other side does not speak the protocol; the connection is given up."""


class MessageType(enum.IntEnum):
    """The type of a ttrpc message. Data belongs to streams, which NRI does not use."""

    REQUEST = 1
    RESPONSE = 2
    DATA = 3


class Frame(msgspec.Struct, frozen=True):
    """A whole ttrpc message on one of the two connections."""

    connection: int
    stream: int
    type: int
    content: bytes


class FrameReader:
    """Takes bytes as they come, gives whole messages."""

    def __init__(self) -> None:
        self._trunk = bytearray()
        self._parts: dict[int, bytearray] = {
            PLUGIN_CONNECTION: bytearray(),
            RUNTIME_CONNECTION: bytearray(),
        }

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the messages that are whole now. Raises: FrameError; nothing can be read any more then."""
        self._trunk += data
        while len(self._trunk) >= _MUX.size:
            connection, length = _MUX.unpack_from(self._trunk)
            if length > _MUX_BYTES_MAX:
                raise FrameError(f"a frame of {length} bytes; {_MUX_BYTES_MAX} are allowed")
            if connection not in self._parts:
                raise FrameError(f"a frame for connection {connection}")
            end = _MUX.size + length
            if len(self._trunk) < end:
                return
            self._parts[connection] += self._trunk[_MUX.size : end]
            del self._trunk[:end]
            yield from self._messages(connection)

    def _messages(self, connection: int) -> Iterator[Frame]:
        part = self._parts[connection]
        while len(part) >= _CALL.size:
            length, stream, kind, _ = _CALL.unpack_from(part)
            if length > MESSAGE_BYTES_MAX:
                raise FrameError(f"a message of {length} bytes; {MESSAGE_BYTES_MAX} are allowed")
            end = _CALL.size + length
            if len(part) < end:
                return
            content = bytes(part[_CALL.size : end])
            del part[:end]
            yield Frame(connection, stream, kind, content)


def written(frame: Frame) -> bytes:
    """Return a message as bytes of the socket, in chunks that the runtime can read. Raises: FrameError."""
    if len(frame.content) > MESSAGE_BYTES_MAX:
        raise FrameError(f"an answer of {len(frame.content)} bytes; {MESSAGE_BYTES_MAX} are allowed")
    message = _CALL.pack(len(frame.content), frame.stream, frame.type, 0) + frame.content
    chunks = [message[at : at + CHUNK_BYTES_MAX] for at in range(0, len(message), CHUNK_BYTES_MAX)]
    return b"".join(_MUX.pack(frame.connection, len(chunk)) + chunk for chunk in chunks)
