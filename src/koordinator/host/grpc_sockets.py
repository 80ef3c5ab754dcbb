"""gRPC over unix sockets: whom we trust, limits, and sockets of our own."""

import os
import socket
import stat

from koordinator.api.errors import SubjectError
from koordinator.host.errors import HostError

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""Limit of the kubelet's own clients."""
BACKLOG = 128
_UMASK = 0o117
"""Sockets of ours have the mode 0660, as those of containerd and CRI-O."""


class SocketError(SubjectError, HostError):
    """A socket cannot be used."""


def path_of(endpoint: str) -> str:
    """Return the path of an endpoint, given as path or as `unix://` URL."""
    return endpoint.removeprefix("unix://")


def distrust(path: str, status: os.stat_result) -> str:
    """Return why a file or socket is not to be trusted, empty when it is: others could have put it there."""
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to user {status.st_uid}, not to root"
    if status.st_mode & stat.S_IWOTH:
        return f"{path} can be written by everybody (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def problem_of_socket(path: str) -> str:
    """Return why a socket is not to be called, empty when it may be."""
    try:
        status = os.stat(path)
    except OSError as error:
        return f"{path}: {(error.strerror or str(error)).lower()}"
    if not stat.S_ISSOCK(status.st_mode):
        return f"{path} is no socket"
    return distrust(path, status)


def listening(path: str) -> socket.socket:
    """Return a socket of ours that listens; a stale one there is replaced.

    Raises: SocketError where something else than a socket is, or the socket cannot be made.
    """
    _make_room(path)
    made = socket.socket(socket.AF_UNIX)
    before = os.umask(_UMASK)
    try:
        made.bind(path)
    except OSError as error:
        made.close()
        raise SocketError(path, (error.strerror or str(error)).lower()) from error
    finally:
        os.umask(before)
    made.listen(BACKLOG)
    return made


def _make_room(path: str) -> None:
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        _remove_stale(path)
    except OSError as error:
        raise SocketError(path, (error.strerror or str(error)).lower()) from error


def _remove_stale(path: str) -> None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise SocketError(path, "is there already and no socket; nothing was touched")
    os.unlink(path)
