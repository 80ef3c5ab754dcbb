"""System calls that Python does not have, behind an interface, so that a tree can stand for a host without them.

The time slice of a thread (since Linux 6.12) is what it may run before EEVDF chooses anew, but for threads that wake up
and ask for less: these need not wait. Source: sched_setattr(2), kernel/sched/fair.c (PREEMPT_SHORT).

Cookies of core scheduling let threads of one physical core run at the same time only when they are equal. A cookie can
only be handed on through the calling thread. That happens here between two calls, without anything else running in
between, and our own thread has no cookie afterwards. Source: behaviour/koordlet-act 18; prctl(2), PR_SCHED_CORE.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Mapping
from typing import Protocol

from koordinator.host.cgroups import KernelSupport
from koordinator.host.files import FileFailure, FileProblem, problem_of

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274, "ppc64le": 355, "s390x": 345}
_SCHED_GETATTR = {machine: number + 1 for machine, number in _SCHED_SETATTR.items()}
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")
"""Size, policy, flags, nice, priority, runtime, deadline, period (SCHED_ATTR_SIZE_VER0)."""


class Syscalls(Protocol):
    """Each call raises OSError as the kernel answers."""

    def prctl(self, option: int, arg2: int, arg3: int, arg4: int, arg5: int) -> int:
        """`prctl(2)`; addresses are given as numbers."""
        ...

    def perf_event_open(self, attributes: bytes, pid: int, cpu: int, group_fd: int, flags: int) -> int:
        """`perf_event_open(2)`; returns a descriptor that the caller closes."""
        ...

    def sched_getattr(self, tid: int) -> bytes:
        """Return the first version of `struct sched_attr` of a thread."""
        ...

    def sched_setattr(self, tid: int, attributes: bytes) -> None:
        """`sched_setattr(2)` without flags."""
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
        arguments = (attributes, pid, cpu, group_fd, flags)
        return self._call("perf_event_open", _PERF_EVENT_OPEN, *arguments)

    def sched_getattr(self, tid: int) -> bytes:
        found = ctypes.create_string_buffer(_SCHED_ATTR.size)
        self._call("sched_getattr", _SCHED_GETATTR, tid, found, _SCHED_ATTR.size, 0)
        return found.raw

    def sched_setattr(self, tid: int, attributes: bytes) -> None:
        self._call("sched_setattr", _SCHED_SETATTR, tid, attributes, 0)

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

    def _call(
        self, name: str, numbers: Mapping[str, int], *arguments: int | bytes | ctypes.Array[ctypes.c_char]
    ) -> int:
        """A system call that the C library has no function for, by its number."""
        machine = os.uname().machine
        if machine not in numbers:
            raise OSError(errno.ENOSYS, f"{name} is not known on {machine}")
        registers = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
        return self._checked(self._libc.syscall(ctypes.c_long(numbers[machine]), *registers), name)

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

    def sched_getattr(self, tid: int) -> bytes:
        raise _absent()

    def sched_setattr(self, tid: int, attributes: bytes) -> None:
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


LONGEST_SLICE_NS = 100_000_000
"""The longest that the kernel grants."""
DEFAULT_SLICE_NS = 0
_FAIR = (0, 3)
"""SCHED_OTHER and SCHED_BATCH; others have no slice, or their `runtime` is something else."""


class ThreadSlices:
    """Reads and changes time slices of threads; their children start with the same. Problems are values."""

    def __init__(self, syscalls: Syscalls) -> None:
        self._syscalls = syscalls

    def support(self) -> KernelSupport:
        """Return whether threads can have slices of their own here."""
        try:
            if self.slice_ns(0):
                return KernelSupport(True)
        except OSError as error:
            return KernelSupport(False, f"sched_getattr: {error.strerror}")
        return KernelSupport(False, "threads have no time slices of their own before Linux 6.12")

    def slice_ns(self, tid: int) -> int:
        """Return the slice of a thread, 0 where it has none. Raises: OSError."""
        _, policy, _, _, _, runtime_ns, _, _ = _SCHED_ATTR.unpack(self._syscalls.sched_getattr(tid))
        return int(runtime_ns) if policy in _FAIR else 0

    def give(self, tid: int, slice_ns: int) -> FileProblem | None:
        """Give a thread a slice, its policy and nice value as they are; threads of other policies are left alone."""
        try:
            _, policy, flags, nice, *_ = _SCHED_ATTR.unpack(self._syscalls.sched_getattr(tid))
            if policy in _FAIR:
                wanted = _SCHED_ATTR.pack(_SCHED_ATTR.size, policy, flags, nice, 0, slice_ns, 0, 0)
                self._syscalls.sched_setattr(tid, wanted)
        except OSError as error:
            return problem_of(f"thread {tid}", error)
        return None


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
