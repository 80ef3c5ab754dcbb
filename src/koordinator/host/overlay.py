"""Show a host as it would be if what somebody decides were done: reads go to the real files, writes stay in memory.

Each write reads back as the kernel would show it (`host.TreeFiles` has the rules), so a strategy that goes by what
it wrote before decides in every round as if it had been written. Nothing below is ever changed.
"""

import os
from collections.abc import Iterable

from koordinator.host.files import FileProblem, Files, Identity
from koordinator.host.host import Host, TreeFiles
from koordinator.host.syscalls import NoSyscalls


def overlay_host(real: Host) -> Host:
    """Return a host over a real one; system calls that would change something are not supported."""
    return Host(real.roots, OverlayFiles(real.files), NoSyscalls())


class OverlayFiles(TreeFiles):
    """Lays files over others. A write counts as long as the file below is the same one."""

    def __init__(self, real: Files) -> None:
        super().__init__()
        self._real = real
        self._texts: dict[str, tuple[str, Identity | None]] = {}
        self._made: set[str] = set()

    # Reading

    def read_bytes(self, path: str) -> bytes | None:
        text = self._text(path)
        if text is not None:
            return text.encode()
        return None if self._is_made(path) else self._real.read_bytes(path)

    def hot_many(self, paths: Iterable[str]) -> list[bytes | None]:
        wanted = list(paths)
        if not self._texts and not self._made:
            return self._real.hot_many(wanted)
        below = iter(self._real.hot_many([path for path in wanted if not self._is_here(path)]))
        return [self.read_bytes(path) if self._is_here(path) else next(below) for path in wanted]

    def why(self, path: str) -> FileProblem | None:
        return self._real.why(path)

    def identity(self, path: str) -> Identity | None:
        return self._real.identity(path)

    def exists(self, path: str) -> bool:
        return path in self._made or self._text(path) is not None or self._real.exists(path)

    def names(self, path: str) -> list[str] | None:
        return self._with_made(path, self._real.names(path))

    def directories(self, path: str) -> list[str] | None:
        return self._with_made(path, self._real.directories(path))

    def link(self, path: str) -> str | None:
        return self._real.link(path)

    # Writing

    def make_directory(self, path: str) -> FileProblem | None:
        if not self._real.exists(path):
            self._made.add(path)
        return None

    def remove_directory(self, path: str) -> FileProblem | None:
        self._made.discard(path)
        self.forget(path)
        return None

    def forget(self, *directories: str) -> None:
        prefixes = tuple(directory.rstrip("/") + "/" for directory in directories)
        self._texts = {path: kept for path, kept in self._texts.items() if not path.startswith(prefixes)}

    def sweep(self) -> int:
        """Forget what was written to files that are gone; the files below are swept by their owner."""
        gone = [path for path in self._texts if self._text(path) is None]
        for path in gone:
            del self._texts[path]
        return len(gone)

    def close(self) -> None:
        """Close nothing: the files below belong to somebody else."""

    def _writable(self, path: str) -> str | None:
        content = self.read(path)
        return "" if content is None and self._is_made(path) else content

    def _put(self, path: str, text: str) -> FileProblem | None:
        self._texts[path] = (text + "\n" if text else "", self._real.identity(path))
        return None

    def _text(self, path: str) -> str | None:
        kept = self._texts.get(path)
        if kept is None or (not self._is_made(path) and kept[1] != self._real.identity(path)):
            return None
        return kept[0]

    def _is_here(self, path: str) -> bool:
        return self._is_made(path) or self._text(path) is not None

    def _is_made(self, path: str) -> bool:
        return os.path.dirname(path) in self._made

    def _with_made(self, path: str, found: list[str] | None) -> list[str] | None:
        made = [os.path.basename(each) for each in self._made if os.path.dirname(each) == path]
        return sorted({*(found or ()), *made}) if found is not None or made else None
