"""Cookies of core scheduling: threads of one physical core run at the same time only with equal cookies.

A cookie can only be handed on through the calling thread. That happens here between two calls, without anything else
running in between, and our own thread has no cookie afterwards. Source: behaviour/koordlet-act 18; prctl(2),
PR_SCHED_CORE.
"""

import ctypes
from collections.abc import Iterable

from koordinator.host.cgroups import KernelSupport
from koordinator.host.files import FileFailure, FileProblem, problem_of
from koordinator.host.syscalls import Syscalls

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
