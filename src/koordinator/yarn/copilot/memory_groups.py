"""Memory groups beside the CPU groups of YARN's containers, for Hadoop 2, whose NodeManager makes only the latter; and
the weight of all of them together. Source: behaviour/yarn 8.7.
"""

import contextlib
import logging
import os
from collections.abc import Iterable

from koordinator.api.copilot import is_yarn_id
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.files import FileFailure, FileProblem
from koordinator.host.host import Host
from koordinator.yarn import eviction
from koordinator.yarn.amounts import MEBIBYTE
from koordinator.yarn.eviction import NMContainer

log = logging.getLogger(__name__)

SHARES_MIN = 2
"""The kernel's least: what a group without containers is worth."""
_CPU, _MEMORY = "cpu", "memory"
_MOVE_CHARGE, _MOVE_ALL = "memory.move_charge_at_immigrate", "3"
_LIMIT = "memory.limit_in_bytes"
_BASE_MODE = 0o777


class MemoryGroups:
    """Keeps memory groups equal to the CPU groups. For cgroup v1 only: v2 has one group for both."""

    def __init__(self, host: Host, path: str, interval_s: float) -> None:
        self._host = host
        self._path = path
        self._interval_s = interval_s
        self._problem = ""
        self._empty: frozenset[str] = frozenset()
        """Containers unknown to the NodeManager, without processes in the last round."""

    @property
    def is_needed(self) -> bool:
        """Return whether this host has groups of memory apart from those of CPU."""
        return self._host.cgroups.version == V1

    def sync(self, containers: Iterable[NMContainer]) -> float:
        """Make, limit and remove memory groups; the pause until the next look in seconds."""
        listed = {each.id: each for each in containers if not each.is_final}
        problems = [self._make_base(_CPU), self._make_base(_MEMORY)]
        with_cpu, with_memory = self._ids(_CPU), self._ids(_MEMORY)
        left = self._left_behind(with_cpu - listed.keys())
        problems += [self._remove(_CPU, each) for each in left]
        with_cpu -= left
        for each in sorted(with_cpu):
            problems += self._fill(each, listed.get(each), is_new=each not in with_memory)
        for each in sorted(with_memory - with_cpu):
            problems.append(self._remove(_MEMORY, each))
        shares = eviction.parent_shares(list(listed.values()))
        if shares is not None or not listed:  # else their sizes are not known: the NodeManager is away
            path = f"{self._base(_CPU)}/{Knob.CPU_SHARES}"
            problems.append(self._set(path, str(shares or SHARES_MIN)))
        self._tell(problems)
        return self._interval_s

    def _fill(
        self, container_id: str, container: NMContainer | None, *, is_new: bool
    ) -> list[FileProblem | None]:
        """Let a memory group hold the processes of its CPU group, and what YARN gave it."""
        files = self._host.files
        source, directory = (f"{self._base(each)}/{container_id}" for each in (_CPU, _MEMORY))
        problems = []
        if is_new:
            problems = [files.make_directory(directory), self._set(f"{directory}/{_MOVE_CHARGE}", _MOVE_ALL)]
            if files.exists(f"{directory}/memory.oom.group"):
                problems.append(self._set(f"{directory}/memory.oom.group", "1"))
        if container is not None and container.total_memory_needed_mb > 0:
            limit = container.total_memory_needed_mb * MEBIBYTE
            problems.append(self._set(f"{directory}/{_LIMIT}", str(limit)))
        there = set((files.read(f"{directory}/{Knob.PROCS}") or "").split())
        for pid in (files.read(f"{source}/{Knob.PROCS}") or "").split():
            if pid not in there:
                problems.append(files.write(f"{directory}/{Knob.PROCS}", pid))
        return problems

    def _left_behind(self, unknown: set[str]) -> frozenset[str]:
        """Return groups that were empty in two rounds: one that has just been made gets its processes in between."""
        files, base = self._host.files, self._base(_CPU)
        before = self._empty
        self._empty = frozenset(
            each for each in unknown if not (files.read(f"{base}/{each}/{Knob.PROCS}") or "").strip()
        )
        return before & self._empty

    def _remove(self, subsystem: str, container_id: str) -> FileProblem | None:
        return self._host.files.remove_directory(f"{self._base(subsystem)}/{container_id}")

    def _ids(self, subsystem: str) -> set[str]:
        return {
            each for each in self._host.files.directories(self._base(subsystem)) or () if is_yarn_id(each)
        }

    def _base(self, subsystem: str) -> str:
        return self._host.cgroups.directory(self._path, subsystem)

    def _make_base(self, subsystem: str) -> FileProblem | None:
        """Make YARN's own group; a NodeManager that is not root makes groups in it, too."""
        directory = self._base(subsystem)
        if self._host.files.exists(directory):
            return None
        problem = self._host.files.make_directory(directory)
        with contextlib.suppress(FileNotFoundError):
            os.chmod(directory, _BASE_MODE)
        return problem

    def _set(self, path: str, value: str) -> FileProblem | None:
        """Write what a file does not say yet."""
        said = self._host.files.read(path)
        return None if said is not None and said.strip() == value else self._host.files.write(path, value)

    def _tell(self, problems: Iterable[FileProblem | None]) -> None:
        """Log what was wrong, once; containers that ended meanwhile are no problem."""
        found = [each for each in problems if each is not None and each.failure is not FileFailure.GONE]
        first = str(found[0]) if found else ""
        if first and first != self._problem:
            log.warning("memory groups not kept", extra={"problem": first, "problems": len(found)})
        self._problem = first
