"""Processes of the host. A process may end at any time: None tells so."""

from collections.abc import Iterable

from koordinator.host import procfs
from koordinator.host.errors import ContentError
from koordinator.host.files import FileProblem, Files


class Processes:
    """Processes below a proc file system."""

    def __init__(self, files: Files, proc: str) -> None:
        self._files = files
        self._proc = proc

    def pids(self) -> list[int]:
        """Ids of all processes, ascending."""
        return sorted(int(name) for name in self._files.names(self._proc) or () if name.isdigit())

    def stat(self, pid: int) -> str | None:
        """Return text of `/proc/<pid>/stat`."""
        return self._files.read(f"{self._proc}/{pid}/stat")

    def start_ticks(self, pid: int) -> int | None:
        """When a process started: ids are used again, the pair of both is not."""
        text = self.stat(pid)
        try:
            return None if text is None else procfs.start_ticks(text)
        except ContentError:
            return None

    def command(self, pid: int) -> list[str] | None:
        """Return the command line in words; empty for threads of the kernel."""
        text = self._files.read(f"{self._proc}/{pid}/cmdline")
        return None if text is None else text.rstrip("\0").split("\0") if text else []

    def name(self, pid: int) -> str | None:
        """Return the short name of a process."""
        text = self._files.read(f"{self._proc}/{pid}/comm")
        return None if text is None else text.rstrip("\n")

    def cgroups(self, pid: int) -> dict[str, str] | None:
        """Group by subsystem; that of v2 stands under the empty name."""
        text = self._files.read(f"{self._proc}/{pid}/cgroup")
        return None if text is None else procfs.cgroups_of(text)

    def leaders(self, pids: Iterable[int]) -> list[int]:
        """Process groups of these processes (`procfs.process_groups`)."""
        members = list(pids)
        stats = {pid: text for pid in members if (text := self.stat(pid)) is not None}
        return procfs.process_groups(members, stats)

    def oom_score_adj(self, pid: int) -> int | None:
        """Return the process's `oom_score_adj`, -1000 to 1000; the larger it is, the sooner the kernel kills the
        process.
        """
        text = self._files.read(self.oom_score_adj_path(pid))
        try:
            return None if text is None else int(text)
        except ValueError:
            return None

    def oom_score_adj_path(self, pid: int) -> str:
        """Return the file of the same, to be written by the executor."""
        return f"{self._proc}/{pid}/oom_score_adj"

    def set_oom_score_adj(self, pid: int, score: int) -> FileProblem | None:
        """Write the same at once."""
        return self._files.write(self.oom_score_adj_path(pid), str(score))
