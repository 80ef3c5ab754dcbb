"""System calls that Python does not have, behind an interface, so that a tree can stand for a host without them.

Cookies of core scheduling let threads of one physical core run at the same time only when they are equal. A cookie can
only be handed on through the calling thread. That happens here between two calls, without anything else running in
between, and our own thread has no cookie afterwards. Source: behaviour/koordlet-act 18; prctl(2), PR_SCHED_CORE.
"""

import ctypes
import errno
import os
from collections.abc import Iterable
from typing import Protocol

from koordinator.host.cgroups import KernelSupport
from koordinator.host.files import FileFailure, FileProblem, problem_of

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


_PR_SCHED_CORE = 62
_GET, _CREATE, _SHARE_TO, _SHARE_FROM = 0, 1, 2, 3
_THREAD, _PROCESS = 0, 1
_WITHOUT_COOKIE = 2
"""`kthreadd`: a thread of the kernel, which never has a cookie."""
NO_COOKIE = 0


class CoreSchedCookies:
    """Reads and changes cookies of processes; problems are values."""

    def __init__(self, syscalls: Syscalls) -> None:
        self._syscalls = syscalls

    def support(self) -> KernelSupport:
        """Return whether this kernel and CPU have core scheduling."""
        try:
            self._get(0)
        except OSError as error:
            return KernelSupport(
                False, f"prctl(PR_SCHED_CORE): {error.strerror}: no core scheduling, or one thread per core"
            )
        return KernelSupport(True)

    def cookie(self, pid: int) -> int | FileProblem:
        """Return the cookie of a thread, `NO_COOKIE` without."""
        try:
            return self._get(pid)
        except OSError as error:
            return problem_of(f"pid {pid}", error)

    def create(self, pid: int) -> FileProblem | None:
        """Give a process (all its threads) a new cookie."""
        return self._try(_CREATE, pid, _PROCESS)

    def assign(self, source: int, targets: Iterable[int]) -> dict[int, FileProblem]:
        """Give processes the cookie of a thread; problems by process, those of `source` under its own id.

        Source 0 stands for no cookie at all: that of our own thread. Where ours cannot get rid of a cookie again, that
        is a problem under `source`, too.
        """
        if source and (problem := self._try(_SHARE_FROM, source, _THREAD)) is not None:
            return {source: problem}
        problems = {}
        try:
            for pid in targets:
                if (problem := self._try(_SHARE_TO, pid, _PROCESS)) is not None:
                    problems[pid] = problem
        finally:
            if source and (problem := self._without_cookie()) is not None:
                problems[source] = problem
        return problems

    def clear(self, pids: Iterable[int]) -> dict[int, FileProblem]:
        """Take the cookies of processes away."""
        return self.assign(0, pids)

    def _without_cookie(self) -> FileProblem | None:
        """Free our own thread of the cookie that it handed on."""
        if (problem := self._try(_SHARE_FROM, _WITHOUT_COOKIE, _THREAD)) is not None:
            return problem
        own = self.cookie(0)
        return None if own == NO_COOKIE else FileProblem("own thread", FileFailure.OTHER)

    def _get(self, pid: int) -> int:
        cookie = ctypes.c_ulong(0)
        self._syscalls.prctl(_PR_SCHED_CORE, _GET, pid, _THREAD, ctypes.addressof(cookie))
        return int(cookie.value)

    def _try(self, command: int, pid: int, scope: int) -> FileProblem | None:
        try:
            self._syscalls.prctl(_PR_SCHED_CORE, command, pid, scope, 0)
        except OSError as error:
            return problem_of(f"pid {pid}", error)
        return None
