"""System calls that Python does not have, behind an interface, so that a tree can stand for a host without them."""

import ctypes
import errno
import os
from typing import Protocol

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}


class Syscalls(Protocol):
    """Each call raises OSError as the kernel answers."""

    def prctl(self, option: int, arg2: int, arg3: int, arg4: int, arg5: int) -> int:
        """`prctl(2)`; addresses are given as numbers."""
        ...

    def perf_event_open(self, attributes: bytes, pid: int, cpu: int, group_fd: int, flags: int) -> int:
        """`perf_event_open(2)`; returns a descriptor that the caller closes."""
        ...

    def mount(self, source: str, target: str, fs_type: str) -> None:
        """`mount(2)` without flags and data."""
        ...

    def inotify_init(self) -> int:
        """Return a descriptor that does not block; the caller closes it."""
        ...

    def inotify_add_watch(self, fd: int, path: str, mask: int) -> int:
        """Return number of the watch."""
        ...

    def inotify_rm_watch(self, fd: int, watch: int) -> None:
        """Ends a watch."""
        ...


class LinuxSyscalls:
    """The kernel that we run on."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def prctl(self, option: int, arg2: int, arg3: int, arg4: int, arg5: int) -> int:
        arguments = [ctypes.c_ulong(each) for each in (arg2, arg3, arg4, arg5)]
        return self._checked(self._libc.prctl(ctypes.c_int(option), *arguments), "prctl")

    def perf_event_open(self, attributes: bytes, pid: int, cpu: int, group_fd: int, flags: int) -> int:
        """Call `perf_event_open(2)` and return the descriptor. Raises: OSError."""
        number = _PERF_EVENT_OPEN.get(os.uname().machine)
        if number is None:
            raise OSError(errno.ENOSYS, f"perf_event_open is not known on {os.uname().machine}")
        found = self._libc.syscall(
            ctypes.c_long(number),
            ctypes.c_char_p(attributes),
            ctypes.c_int(pid),
            ctypes.c_int(cpu),
            ctypes.c_int(group_fd),
            ctypes.c_ulong(flags),
        )
        return self._checked(found, "perf_event_open")

    def mount(self, source: str, target: str, fs_type: str) -> None:
        words = [ctypes.c_char_p(os.fsencode(each)) for each in (source, target, fs_type)]
        self._checked(self._libc.mount(*words, ctypes.c_ulong(0), None), target)

    def inotify_init(self) -> int:
        return self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")

    def inotify_add_watch(self, fd: int, path: str, mask: int) -> int:
        found = self._libc.inotify_add_watch(fd, ctypes.c_char_p(os.fsencode(path)), ctypes.c_uint32(mask))
        return self._checked(found, path)

    def inotify_rm_watch(self, fd: int, watch: int) -> None:
        self._checked(self._libc.inotify_rm_watch(fd, watch), "inotify_rm_watch")

    def _checked(self, result: int, what: str) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), what)
        return int(result)


class NoSyscalls:
    """A host that is only files: the kernel answers that it does not know the call."""

    def prctl(self, option: int, arg2: int, arg3: int, arg4: int, arg5: int) -> int:
        raise _absent()

    def perf_event_open(self, attributes: bytes, pid: int, cpu: int, group_fd: int, flags: int) -> int:
        raise _absent()

    def mount(self, source: str, target: str, fs_type: str) -> None:
        raise _absent()

    def inotify_init(self) -> int:
        raise _absent()

    def inotify_add_watch(self, fd: int, path: str, mask: int) -> int:
        raise _absent()

    def inotify_rm_watch(self, fd: int, watch: int) -> None:
        raise _absent()


def _absent() -> OSError:
    return OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
