"""Kubernetes objects in protobuf, as Go clients send and read built-in kinds.

Own code instead of the protobuf package: objects are JSON here, and turning them into what that package wants (texts in
messages, fields of inner objects) walks them just as writing the bytes does.
"""

from koordinator.api.meta import Resource
from koordinator.host.protobuf import field
from koordinator.local.apiserver.protobuf.decoding import decode
from koordinator.local.apiserver.protobuf.encoding import encode, message_of, message_writer
from koordinator.local.apiserver.protobuf.wire import (
    MEDIA_TYPE,
    WATCH_TYPE,
    JsonOnly,
    Malformed,
    facts,
    wrapped,
)


def has(resource: Resource) -> bool:
    """Return whether objects of a resource have a form in protobuf: those of built-in kinds."""
    return facts().message_of(resource.api_version, resource.kind) is not None


def watch_frame(event: str, envelope: bytes) -> bytes:
    """Return one event of a watch: its length in four bytes, then type and object."""
    message = field(1, event) + field(2, field(1, envelope))
    return len(message).to_bytes(4, "big") + message


__all__ = [
    "MEDIA_TYPE",
    "WATCH_TYPE",
    "JsonOnly",
    "Malformed",
    "decode",
    "encode",
    "field",
    "has",
    "message_of",
    "message_writer",
    "watch_frame",
    "wrapped",
]
