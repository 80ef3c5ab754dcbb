"""Read how long requests took from a pod's own access log: a file in an emptyDir volume, or a socket there that takes
datagrams.

The pod may put anything into its volume, so no link is followed, only regular files are read, and what is read each
second is bounded. A file is read from its end on, and from the start of the next one when it is rotated.
"""

import asyncio
import contextlib
import json
import os
import socket
import stat
from collections.abc import Iterable

from koordinator.api.annotations.koordlet import LATENCY_UNITS_S, AccessLogSource

READ_BYTES_MAX = 1 << 20
"""Bytes read of a file each second; of more, the oldest is skipped."""
DATAGRAMS_MAX = 5_000
"""Datagrams that are taken each second; the rest stays in the kernel's queue, which refuses what does not fit."""
_DATAGRAM_BYTES = 8_192
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def directory_of(kubelet: str, uid: str, source: AccessLogSource) -> str:
    """Return where the kubelet has the pod's volume."""
    return f"{kubelet}/pods/{uid}/volumes/kubernetes.io~empty-dir/{source.volume}"


def durations(lines: Iterable[bytes], source: AccessLogSource) -> list[float]:
    """Return how long requests took, in seconds; lines that do not tell are left out."""
    unit_s = LATENCY_UNITS_S[source.unit]
    found = []
    for line in lines:
        try:
            value = float(json.loads(line)[source.field] if source.field else line.rsplit(None, 1)[-1])
        except (ValueError, TypeError, KeyError, IndexError, RecursionError):
            continue
        if 0 <= value < float("inf"):
            found.append(value * unit_s)
    return found


class LogFile:
    """A file that grows; `close` it."""

    def __init__(self, directory: str, source: AccessLogSource) -> None:
        self._directory = directory
        self._source = source
        self._fd = -1
        self._inode: tuple[int, int] | None = None
        self._offset = 0
        self._rest = b""

    def read(self) -> list[float]:
        """Return what came since the last reading, in seconds. Raises: OSError when there is no such file."""
        fd = _open_beneath(self._directory, self._source.path)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(f"{self._source.path} is no regular file")
        except OSError:
            os.close(fd)
            raise
        is_first, is_other = self._inode is None, self._inode != (found.st_dev, found.st_ino)
        data = b"" if is_first or not is_other else self._take()  # the end of the one that was rotated
        if is_other or found.st_size < self._offset:
            self._offset, self._rest = (found.st_size if is_first else 0), b""
        self.close()
        self._fd, self._inode = fd, (found.st_dev, found.st_ino)
        self._offset = max(self._offset, found.st_size - READ_BYTES_MAX)
        return durations((data + self._take()).splitlines(), self._source)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _take(self) -> bytes:
        """Return whole lines from where the last reading ended."""
        if self._fd < 0:
            return b""
        data = os.pread(self._fd, READ_BYTES_MAX, self._offset)
        self._offset += len(data)
        whole, cut, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest[-_DATAGRAM_BYTES:]
        return whole + cut


class LogSocket:
    """A socket of our own in the pod's volume; `close` removes it."""

    def __init__(self, directory: str, source: AccessLogSource) -> None:
        self._source = source
        self._lines: list[bytes] = []
        self._left = DATAGRAMS_MAX
        parent, _, self._name = source.path.rpartition("/")
        self._parent = _open_beneath(directory, parent, os.O_DIRECTORY) if parent else _open(directory)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._bind()
            asyncio.get_running_loop().add_reader(self._socket, self._on_datagram)
        except OSError:
            self.close()
            raise

    def read(self) -> list[float]:
        """Return what came since the last reading, in seconds."""
        lines, self._lines = self._lines, []
        if self._left <= 0:
            asyncio.get_running_loop().add_reader(self._socket, self._on_datagram)
        self._left = DATAGRAMS_MAX
        return durations(lines, self._source)

    def close(self) -> None:
        """Remove the socket."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        if self._parent >= 0:
            self._remove()
            os.close(self._parent)
            self._parent = -1

    def _bind(self) -> None:
        self._remove()  # of an earlier run
        path = (
            f"/proc/self/fd/{self._parent}/{self._name}"  # a path of its own may be too long for an address
        )
        self._socket.bind(path)
        os.chmod(path, 0o666)

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.stat(self._name, dir_fd=self._parent, follow_symlinks=False).st_mode):
                os.unlink(self._name, dir_fd=self._parent)

    def _on_datagram(self) -> None:
        while self._left > 0:
            try:
                self._lines.append(self._socket.recv(_DATAGRAM_BYTES))
            except OSError:
                return
            self._left -= 1
        asyncio.get_running_loop().remove_reader(self._socket)


def opened(directory: str, source: AccessLogSource) -> LogFile | LogSocket:
    """Return what reads the log. Raises: OSError when there is no such volume."""
    return LogSocket(directory, source) if source.socket else LogFile(directory, source)


def _open(directory: str) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _open_beneath(directory: str, path: str, flags: int = 0) -> int:
    """Return a descriptor of what is below a directory, without following a link. Raises: OSError."""
    *parents, name = path.split("/")
    at = _open(directory)
    try:
        for parent in parents:
            below = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | _FLAGS, dir_fd=at)
            os.close(at)
            at = below
        return os.open(name, os.O_RDONLY | flags | _FLAGS, dir_fd=at)
    finally:
        os.close(at)
