"""A process that is killed at a chosen change of the host, and what it left behind."""

from collections.abc import Callable, Iterator
from pathlib import Path

from koordinator.host.files import FileProblem, HostRoots
from koordinator.host.host import Host, TreeFiles
from koordinator.host.syscalls import NoSyscalls


class Killed(BaseException):
    """The process ends here; nothing below may catch it."""


class MortalFiles(TreeFiles):
    """Ends the process at its change number `at` (from 1), before or after it takes effect; 0 never."""

    def __init__(self, at: int = 0, *, after: bool = False) -> None:
        super().__init__()
        self.at, self.after = at, after
        self.changes = 0
        self._is_inside = False

    def write(self, path: str, text: str) -> FileProblem | None:
        return self._change(lambda: super(MortalFiles, self).write(path, text))

    def make_directory(self, path: str) -> FileProblem | None:
        return self._change(lambda: super(MortalFiles, self).make_directory(path))

    def remove_directory(self, path: str) -> FileProblem | None:
        return self._change(lambda: super(MortalFiles, self).remove_directory(path))

    def _change(self, act: Callable[[], FileProblem | None]) -> FileProblem | None:
        if self._is_inside:  # what the kernel does by itself is not a step of the process
            return act()
        self.changes += 1
        if self.changes == self.at and not self.after:
            raise Killed
        self._is_inside = True
        try:
            problem = act()
        finally:
            self._is_inside = False
        if self.changes == self.at and self.after:
            raise Killed
        return problem


def mortal_host(root: Path, at: int = 0, *, after: bool = False) -> Host:
    """A tree as a host whose process dies at that change."""
    return Host(HostRoots.below(str(root)), MortalFiles(at, after=after), NoSyscalls())


def deaths(changes: int) -> Iterator[tuple[int, bool]]:
    """All moments at which a process that makes so many changes can die."""
    for at in range(1, changes + 1):
        yield at, False
        yield at, True


def snapshot(root: Path, *parts: str) -> dict[str, str]:
    """Contents of all files below directories of a tree, directories included."""
    found = {}
    for part in parts:
        for path in sorted((root / part).rglob("*")):
            found[str(path.relative_to(root))] = path.read_text() if path.is_file() else "/"
    return found
