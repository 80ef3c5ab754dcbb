"""Cookies of core scheduling by group of pods: which container has which, and how another one gets the same.

Nothing here waits: the kernel hands a cookie on through the calling thread, between two calls.
Source: behaviour/koordlet-act 18.
"""

from collections.abc import Iterable

from koordinator.host.core_sched import NO_COOKIE, CoreSchedCookies
from koordinator.host.files import FileFailure, FileProblem

KEPT_S = 300.0
"""A group or container that nobody refreshed for so long is forgotten."""


class _Group:
    """A cookie and the processes that were given it, by container."""

    __slots__ = ("cookie", "pids_by_container", "seen_s")

    def __init__(self, cookie: int, now_s: float) -> None:
        self.cookie = cookie
        self.seen_s = now_s
        self.pids_by_container: dict[str, list[int]] = {}


class Cookies:
    """The cookies that we know of. A cookie lives as long as a process has it, so each is asked for before it is
    used.
    """

    def __init__(self, kernel: CoreSchedCookies) -> None:
        self._kernel = kernel
        self._groups: dict[str, _Group] = {}
        self._containers: dict[str, tuple[str, float]] = {}
        """Container → its group, when last seen."""

    def group_of(self, container: str) -> str | None:
        """Return the group that a container has a cookie of."""
        found = self._containers.get(container)
        return None if found is None else found[0]

    def cookie_of(self, group: str) -> int:
        """Return the cookie of a group, `NO_COOKIE` without."""
        found = self._groups.get(group)
        return NO_COOKIE if found is None else found.cookie

    def adopt(self, container: str, group: str, pids: Iterable[int], now_s: float) -> bool:
        """Take over what the kernel says of a container; whether any of its processes could be asked.

        The first cookie found of a group counts for it.
        """
        is_readable = False
        for pid in pids:
            cookie = self._kernel.cookie(pid)
            if isinstance(cookie, FileProblem):
                continue
            is_readable = True
            if cookie == NO_COOKIE:
                continue
            known = self._groups.setdefault(group, _Group(cookie, now_s))
            self._containers[container] = (group, now_s)
            if known.cookie == cookie:
                known.pids_by_container.setdefault(container, []).append(pid)
        return is_readable

    def wants(self, container: str, group: str, pids: list[int], now_s: float) -> bool:
        """Look at the processes again and return whether one lacks the group's cookie."""
        known = self._groups.get(group)
        if self.group_of(container) == group:
            self._containers[container] = (group, now_s)
        if known is None:
            return bool(pids)
        known.seen_s = now_s
        return any(self._kernel.cookie(pid) != known.cookie for pid in pids)

    def give(self, container: str, group: str, pids: list[int], now_s: float) -> FileProblem | None:
        """Let all processes of a container have the group's cookie, a new one where nobody has it any more."""
        known = self._groups.get(group)
        source = self._holder(known) if known is not None else None
        if known is None or source is None:
            created = self._created(pids)
            if isinstance(created, FileProblem):
                return created
            source, cookie = created
            known = self._groups[group] = _Group(cookie, now_s)
        cookie = known.cookie
        lacking = [pid for pid in pids if pid != source and self._kernel.cookie(pid) != cookie]
        problems = self._kernel.assign(source, lacking) if lacking else {}
        self._leave(container, group)
        known.pids_by_container[container] = list(pids)
        known.seen_s = now_s
        self._containers[container] = (group, now_s)
        return next((each for each in problems.values() if each.failure is not FileFailure.GONE), None)

    def clear(self, container: str, pids: Iterable[int]) -> FileProblem | None:
        """Take the cookies of a container's processes away."""
        holders = [pid for pid in pids if self._kernel.cookie(pid) != NO_COOKIE]
        problems = self._kernel.clear(holders) if holders else {}
        self._leave(container, "")
        self._containers.pop(container, None)
        return next((each for each in problems.values() if each.failure is not FileFailure.GONE), None)

    def expire(self, now_s: float) -> None:
        """Forget what was not seen for a while; a clock that went back makes everything new."""
        for name in [name for name, each in self._groups.items() if not 0 <= now_s - each.seen_s <= KEPT_S]:
            del self._groups[name]
        gone = [name for name, (_, seen_s) in self._containers.items() if not 0 <= now_s - seen_s <= KEPT_S]
        for name in gone:
            self._leave(name, "")
            del self._containers[name]

    def _holder(self, group: _Group) -> int | None:
        """Return a process that still has the group's cookie."""
        for pids in group.pids_by_container.values():
            for pid in pids:
                if self._kernel.cookie(pid) == group.cookie:
                    return pid
        return None

    def _created(self, pids: list[int]) -> tuple[int, int] | FileProblem:
        """Return a process with a new cookie of its own, the first one that is still there."""
        problem = FileProblem("container", FileFailure.GONE)
        for pid in pids:
            made = self._kernel.create(pid)
            cookie = self._kernel.cookie(pid) if made is None else made
            if not isinstance(cookie, FileProblem):
                return pid, cookie
            problem = cookie
            if problem.failure is not FileFailure.GONE:
                break
        return problem

    def _leave(self, container: str, group: str) -> None:
        """A container is no member of its old group any more."""
        old = self.group_of(container)
        if old is not None and old != group and old in self._groups:
            self._groups[old].pids_by_container.pop(container, None)
