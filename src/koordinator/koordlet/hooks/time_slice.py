"""Give threads of best-effort pods long time slices, so that a thread of a service that wakes up runs at once.

EEVDF lets the chosen thread run until its slice ends, unless one that wakes up asks for a shorter slice. Idle pods do
not change that: their class, which is not idle, is what competes with the services (docs/decisions/0015).
"""

import functools
import math
from collections.abc import Collection, Iterable, Iterator

import msgspec

from koordinator.host.files import FileFailure, FileProblem
from koordinator.host.syscalls import DEFAULT_SLICE_NS, LONGEST_SLICE_NS
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.writing.file_writer import TASKS_AUDIT_LEVEL

DEPTH_MAX = 4
"""Levels below a pod that are looked at: containers, and what these may make."""
LOOK_AGAIN_S = 60.0
"""Threads of a group without new containers are read so often: those that a runtime started in a container (`exec`)."""
_GROUPS_AT_ONCE = 8
"""Groups in one go: half a millisecond where nothing is new."""


class _Given(msgspec.Struct):
    """The threads of a group that have long slices, and the groups directly below it, when they were read last."""

    threads: frozenset[int] = frozenset()
    children: tuple[str, ...] = ()
    read_s: float = -math.inf


class TimeSlices:
    """Slices by group. Threads start with the slice of who made them, so only what runtimes start is new."""

    name = "TimeSlice"

    def __init__(self, shared: Shared, reason: str) -> None:
        """`reason` is that of changes in the audit log."""
        self._shared = shared
        self._reason = reason
        self._given = {record.group: _Given() for record in shared.executor.changed_by(self.name)}
        """By group, those of a former run of the agent included."""
        self._newest: Collection[str] = ()
        """The groups that were named last."""

    def give(self, groups: Collection[str]) -> Iterator[None]:
        """Let threads in and below these groups have long slices, and those of other groups the kernel's own again.

        Where this yields, others may have their turn.
        """
        if not (groups or self._given) or not self._shared.host.slices.support().is_supported:
            return
        self._newest = groups
        for group in self._given.keys() - set(groups):
            self._take_back(group)
        for number, group in enumerate(groups, 1):
            self._give(group)
            if number % _GROUPS_AT_ONCE == 0:
                yield
                if self._newest is not groups:
                    return  # other ones were named meanwhile

    def _give(self, group: str) -> None:
        now_s, known = self._shared.clock.now(), self._given.get(group, _Given())
        children = tuple(sorted(self._shared.host.cgroups.children(group) or ()))
        if children == known.children and 0 <= now_s - known.read_s < LOOK_AGAIN_S:
            return
        threads = self._threads(group)
        if new := threads - known.threads:
            self._note(group)
            if self._set(group, new, LONGEST_SLICE_NS) is not None:
                return
        # A group comes before its first thread does: new ones are read once more.
        is_new = children != known.children
        self._given[group] = _Given(threads, children, -math.inf if is_new else now_s)

    def _take_back(self, group: str) -> None:
        if self._shared.host.cgroups.exists(group):
            if self._set(group, self._threads(group), DEFAULT_SLICE_NS) is not None:
                return
            self._shared.executor.unnote(self._shared.host.cgroups.directory(group), owner=self.name)
        del self._given[group]

    def _note(self, group: str) -> None:
        """Write ahead, for after a kill, that the group has slices of ours."""
        if group not in self._given:
            path = self._shared.host.cgroups.directory(group)
            self._shared.executor.note(path, "long", owner=self.name, group=group)

    def _set(self, group: str, threads: Iterable[int], slice_ns: int) -> FileProblem | None:
        what = "default" if slice_ns == DEFAULT_SLICE_NS else f"{slice_ns // 1_000_000} ms"
        return self._shared.executor.perform(
            f"time slices of {group}",
            what,
            functools.partial(self._set_all, threads, slice_ns),
            self.name,
            self._reason,
            TASKS_AUDIT_LEVEL,
            group=group,
        )

    def _set_all(self, threads: Iterable[int], slice_ns: int) -> FileProblem | None:
        problems = (self._shared.host.slices.give(thread, slice_ns) for thread in threads)
        found = [each for each in problems if each is not None and each.failure is not FileFailure.GONE]
        return found[0] if found else None

    def _threads(self, group: str) -> frozenset[int]:
        cgroups = self._shared.host.cgroups
        return frozenset(
            thread
            for each in cgroups.walk(group, DEPTH_MAX)
            for thread in cgroups.tasks(each) or ()
            if thread > 0
        )
