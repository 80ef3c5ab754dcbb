"""Channels and servers of grpcio on unix sockets: the other side of our own gRPC in tests."""

import os
from pathlib import Path
from typing import Any

import grpc.aio

from koordinator.host.grpc_sockets import MESSAGE_BYTES_MAX

_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
)


def channel(path: str) -> Any:
    """Return a channel to a socket, which connects by itself, again and again, with short pauses."""
    pauses = (("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 500))
    options = (*_OPTIONS, *pauses, ("grpc.use_local_subchannel_pool", 1))
    return grpc.aio.insecure_channel(f"unix://{path}", options=options)


def server(path: str, handlers: Any) -> Any:
    """Return a server on a socket that only its user and group may call, not started yet."""
    Path(path).unlink(missing_ok=True)
    found = grpc.aio.server(options=(*_OPTIONS, ("grpc.max_concurrent_streams", 1_000)))
    found.add_generic_rpc_handlers((handlers,))
    before = os.umask(0o117)
    try:
        found.add_insecure_port(f"unix://{path}")
    finally:
        os.umask(before)
    return found
