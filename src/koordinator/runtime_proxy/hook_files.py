"""The files that say which hook servers there are. Source: behaviour/koordlet-act 13.5 and 23.2.

The first server that asked for a stage gets it, by the order of the files' names (the reference's order is undefined).
"""

import contextlib
import os
from collections.abc import Iterable, Mapping

import msgspec

from koordinator.api.errors import SubjectError
from koordinator.host import grpc_sockets
from koordinator.host.errors import HostError
from koordinator.runtime_proxy.dispatch import FailurePolicy

SUFFIX = ".json"
FILE_BYTES_MAX = 64 * 1024
"""A list of seven stages takes some hundred bytes."""


class HookFileError(SubjectError, HostError):
    """A file of a hook server cannot be used."""


class _HookFile(msgspec.Struct, rename="kebab"):
    """The file as it is written."""

    remote_endpoint: str
    failure_policy: str | None = None
    runtime_hooks: list[str] | None = None


class HookServer(msgspec.Struct, frozen=True):
    """A hook server: its socket, the stages that it asked for, and what its failures mean."""

    name: str
    socket: str
    stages: frozenset[str]
    policy: FailurePolicy


def parse(path: str, content: bytes) -> HookServer:
    """Return the server that a file tells of. Raises: HookFileError."""
    try:
        found = msgspec.json.decode(content, type=_HookFile)
    except msgspec.MsgspecError as error:
        raise HookFileError(path, str(error)) from error
    socket = grpc_sockets.path_of(found.remote_endpoint)
    if not os.path.isabs(socket):
        raise HookFileError(path, f"remote-endpoint {found.remote_endpoint!r} is no path of a socket")
    return HookServer(
        os.path.basename(path),
        socket,
        frozenset(found.runtime_hooks or ()),
        FailurePolicy.of(found.failure_policy or ""),
    )


def read(path: str) -> HookServer:
    """Return the server that a file tells of, where nobody but root could have written it. Raises: HookFileError."""
    try:
        with open(path, "rb") as file:
            distrust = grpc_sockets.distrust(path, os.fstat(file.fileno()))
            if distrust:
                raise HookFileError(path, distrust)
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise HookFileError(path, (error.strerror or str(error)).lower()) from error
    if len(content) > FILE_BYTES_MAX:
        raise HookFileError(path, f"has more than {FILE_BYTES_MAX} bytes")
    return parse(path, content)


def modified(directory: str) -> dict[str, int]:
    """Return the files of a directory with the time (ns) of their last change. Raises: OSError."""
    found = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX) and entry.is_file():
                with contextlib.suppress(FileNotFoundError):  # one that goes just now takes no other along
                    found[entry.path] = entry.stat().st_mtime_ns
    return found


def by_stage(servers: Iterable[HookServer]) -> Mapping[str, HookServer]:
    """Return the server of each stage: the first by name that asked for it."""
    found: dict[str, HookServer] = {}
    for server in sorted(servers, key=lambda each: each.name):
        for stage in server.stages:
            found.setdefault(stage, server)
    return found
