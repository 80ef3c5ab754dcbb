"""Directories that are created and deleted, by inotify on the event loop, without threads.

The kernel does not tell that a watched group itself has gone, so a directory is watched no more when its parent,
being watched too, tells so; a group watched alone must be unwatched by whoever knows. Events are hints: after
`OVERFLOW` some were lost, and the reader must look for itself. Source: behaviour/koordlet-observe 12.
"""

import asyncio
import contextlib
import enum
import errno
import os
import struct
from collections import deque
from typing import Self

import msgspec

from koordinator.host.files import FileProblem, problem_of
from koordinator.host.syscalls import Syscalls

EVENTS_MAX = 4_096
"""Length of the event queue; further events are lost and reported as an overflow."""

_HEAD = struct.Struct("=iIII")
_READ_BYTES = 64 * 1024
_CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x100, 0x200, 0x400, 0x800
_MOVED_FROM, _MOVED_TO = 0x40, 0x80
_OVERFLOW, _IGNORED, _IS_DIR, _ONLY_DIR = 0x4000, 0x8000, 0x4000_0000, 0x0100_0000
_MASK = _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _MOVED_FROM | _MOVED_TO | _ONLY_DIR


class GroupChange(enum.Enum):
    """A change in a watched directory."""

    CREATED = "an entry came"
    REMOVED = "an entry went"
    ENDED = "the watched directory itself went; it is watched no more"
    OVERFLOW = "events were lost"


class DirectoryEvent(msgspec.Struct, frozen=True):
    """One change in a watched directory; both texts are empty for an overflow."""

    change: GroupChange
    directory: str = ""
    name: str = ""
    is_directory: bool = False


class Inotify:
    """Watches directories. Made within the loop that reads; close it, best with `with`. Raises: OSError."""

    def __init__(self, syscalls: Syscalls) -> None:
        self._syscalls = syscalls
        self._fd = syscalls.inotify_init()
        self._paths: dict[int, str] = {}
        self._watches: dict[str, int] = {}
        self._waiting: deque[DirectoryEvent] = deque()
        self._has_some = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._read)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def directories(self) -> frozenset[str]:
        """Return what is watched now."""
        return frozenset(self._watches)

    def watch(self, directory: str) -> FileProblem | None:
        """Watch a directory; existing entries are not reported."""
        try:
            watch = self._syscalls.inotify_add_watch(self._fd, directory, _MASK)
        except OSError as error:
            return problem_of(directory, error)
        old = self._paths.get(watch)
        if old is not None:
            self._watches.pop(old, None)  # the same directory under another name
        self._paths[watch] = directory
        self._watches[directory] = watch
        return None

    def unwatch(self, directory: str) -> None:
        """Watch a directory no more."""
        watch = self._watches.pop(directory, None)
        if watch is not None:
            self._paths.pop(watch, None)
            with contextlib.suppress(OSError):  # it has ended by itself
                self._syscalls.inotify_rm_watch(self._fd, watch)

    async def next(self) -> list[DirectoryEvent]:
        """Return all events that wait, at least one."""
        while not self._waiting:
            self._has_some.clear()
            await self._has_some.wait()
        events = list(self._waiting)
        self._waiting.clear()
        return events

    def close(self) -> None:
        """End all watches."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._paths.clear()
            self._watches.clear()

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return
            raise
        at = 0
        while at + _HEAD.size <= len(data):
            watch, mask, _, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            self._take(watch, mask, os.fsdecode(data[at : at + length].rstrip(b"\0")))
            at += length
        self._has_some.set()

    def _take(self, watch: int, mask: int, name: str) -> None:
        event = self._event(watch, mask, name)
        if event is None:
            return
        if len(self._waiting) >= EVENTS_MAX:
            self._waiting[-1] = DirectoryEvent(GroupChange.OVERFLOW)
        else:
            self._waiting.append(event)

    def _event(self, watch: int, mask: int, name: str) -> DirectoryEvent | None:
        if mask & _OVERFLOW:
            return DirectoryEvent(GroupChange.OVERFLOW)
        directory = self._paths.get(watch)
        if directory is None:
            return None
        if mask & (_IGNORED | _DELETE_SELF | _MOVE_SELF):
            del self._paths[watch]
            self._watches.pop(directory, None)
            return DirectoryEvent(GroupChange.ENDED, directory)
        is_directory = bool(mask & _IS_DIR)
        if mask & (_CREATE | _MOVED_TO):
            return DirectoryEvent(GroupChange.CREATED, directory, name, is_directory)
        if is_directory:
            self.unwatch(f"{directory}/{name}")
        return DirectoryEvent(GroupChange.REMOVED, directory, name, is_directory)
