"""Files of the host, read and written as the kernel wants it: no exception for what comes and goes.

A group of processes may vanish between any two lines, so reading answers None and `why` tells the reason; writing
answers the problem, or None. Only kernel files (cgroupfs, procfs, sysfs) may be read as hot files: there an open
descriptor of something that is gone fails, while that of an ordinary file would go on showing old content.

`HostRoots` says where the host's file systems are, as this process sees them (behaviour/koordlet-observe 2.1).
"""

import contextlib
import enum
import errno
import os
import resource
from collections.abc import Iterable
from typing import Self

import msgspec

HOST_MODE = "hostMode"
"""Value of the environment variable `agent_mode` for an agent outside of a container."""


class HostRoots(msgspec.Struct, frozen=True, kw_only=True):
    """Directories below which everything is found; the defaults are those of the DaemonSet."""

    cgroup: str = "/host-cgroup"
    proc: str = "/proc"
    sys: str = "/host-sys"
    sys_fs: str = "/host-sys-fs"
    var_run: str = "/host-var-run"
    run: str = "/host-run"
    kubelet: str = "/var/lib/kubelet"
    kubepods_below: str = ""
    """Group below which the kubelet makes its groups (its `cgroupRoot`), empty for the root. All groups are named
    from there."""

    @classmethod
    def of_mode(cls, agent_mode: str) -> Self:
        """Return the directories of host mode, or of the DaemonSet for any other text."""
        return cls.below("") if agent_mode == HOST_MODE else cls()

    @classmethod
    def below(cls, root: str) -> Self:
        """Return a whole host below one directory: a mounted host, or a tree made for a test."""
        root = root.rstrip("/")
        return cls(
            cgroup=f"{root}/sys/fs/cgroup",
            proc=f"{root}/proc",
            sys=f"{root}/sys",
            sys_fs=f"{root}/sys/fs",
            var_run=f"{root}/var/run",
            run=f"{root}/run",
            kubelet=f"{root}/var/lib/kubelet",
        )


DESCRIPTORS_MAX = 8_192
"""Hot files that are kept open at once: 400 containers with 16 files each, and some."""
DESCRIPTORS_SPARED = 256
"""Descriptors left to sockets, logs and everything else when the process may open only few."""
PROBLEMS_MAX = 4_096
"""Paths whose last problem is remembered."""

_CHUNK_BYTES = 4_096  # most files of a group fit; longer ones take more reads
_PART_BYTES = _CHUNK_BYTES // 2  # files of many records come in parts of less than a page
_TOO_LONG_BYTES = 64 * 1024 * 1024  # no file of the kernel is so long: something else is mounted there


class FileFailure(enum.Enum):
    """The reason why a file could not be read or written."""

    GONE = "it does not exist (any more)"
    INVALID = "the kernel refuses the value"
    BUSY = "the kernel is busy with it"
    DENIED = "not permitted"
    UNSUPPORTED = "this kernel does not support it"
    FULL = "no space or no CPUs and memory nodes to run on"
    OTHER = "unexpected error"


_FAILURES = {
    errno.ENOENT: FileFailure.GONE,
    errno.ENODEV: FileFailure.GONE,
    errno.ESRCH: FileFailure.GONE,
    errno.ENOTDIR: FileFailure.GONE,
    errno.EINVAL: FileFailure.INVALID,
    errno.ERANGE: FileFailure.INVALID,
    errno.EBUSY: FileFailure.BUSY,
    errno.EAGAIN: FileFailure.BUSY,
    errno.EINTR: FileFailure.BUSY,
    errno.EACCES: FileFailure.DENIED,
    errno.EPERM: FileFailure.DENIED,
    errno.EROFS: FileFailure.DENIED,
    errno.EOPNOTSUPP: FileFailure.UNSUPPORTED,
    errno.ENOSYS: FileFailure.UNSUPPORTED,
    errno.ENOSPC: FileFailure.FULL,
    errno.EDQUOT: FileFailure.FULL,
}

Identity = tuple[int, int]
"""Device and inode: what makes a file or group the same one, since paths are used again."""


class FileProblem(msgspec.Struct, frozen=True):
    """The failure at a path."""

    path: str
    failure: FileFailure
    errno: int = 0

    def __str__(self) -> str:
        detail = f" ({os.strerror(self.errno)})" if self.errno else ""
        return f"{self.path}: {self.failure.value}{detail}"


def problem_of(path: str, error: OSError) -> FileProblem:
    """Return the problem that an exception of the operating system tells."""
    number = error.errno or 0
    return FileProblem(path, _FAILURES.get(number, FileFailure.OTHER), number)


def raise_open_files_limit(wanted: int) -> int:
    """Let this process open that many files, as far as its hard limit goes; returns how many it may open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class _Kept:
    """An open hot file."""

    __slots__ = ("fd", "identity", "used")

    def __init__(self, fd: int, identity: Identity, used: int) -> None:
        self.fd, self.identity, self.used = fd, identity, used


class Files:
    """Absolute paths. `descriptors_max` bounds the hot files kept open, 0 keeps none."""

    def __init__(self, descriptors_max: int = DESCRIPTORS_MAX) -> None:
        self._descriptors_max = descriptors_max
        self._kept: dict[str, _Kept] = {}
        self._problems: dict[str, FileProblem] = {}
        self._sweeps = 0

    # Reading

    def read(self, path: str) -> str | None:
        """Return all text of a file, opened and closed; None when it cannot be read (see `why`)."""
        data = self.read_bytes(path)
        return None if data is None else data.decode(errors="replace")

    def read_bytes(self, path: str) -> bytes | None:
        """Return the same, undecoded."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self._failed(path, error)
            return None
        try:
            return _all(fd, b"")
        except OSError as error:
            self._failed(path, error)
            return None
        finally:
            os.close(fd)

    def hot(self, path: str) -> bytes | None:
        """Return the content of a kernel file that is read again and again: its descriptor stays open."""
        return self.hot_many((path,))[0]

    def hot_many(self, paths: Iterable[str]) -> list[bytes | None]:
        """Contents of many hot files, in order; None where one cannot be read (see `why`)."""
        find, sweeps, pread, chunk_bytes = self._kept.get, self._sweeps, os.pread, _CHUNK_BYTES
        contents: list[bytes | None] = []
        for path in paths:
            kept = find(path)
            if kept is None:
                contents.append(self._open_hot(path))
                continue
            try:
                data = pread(kept.fd, chunk_bytes, 0)
                if len(data) >= _PART_BYTES:
                    data = _all(kept.fd, data)
            except OSError:
                self._close(path)
                data_again = self._open_hot(path)  # a group of the same name may have come in its place
                contents.append(data_again)
                continue
            kept.used = sweeps
            contents.append(data)
        return contents

    def why(self, path: str) -> FileProblem | None:
        """Return what was wrong when the path was last read in vain; forgotten when it is read again."""
        return self._problems.get(path)

    def identity(self, path: str) -> Identity | None:
        """Return what tells a file or directory from a later one of the same name; None when it is gone.

        For a hot file that of the open descriptor, so that it belongs to the content read last.
        """
        kept = self._kept.get(path)
        if kept is not None:
            return kept.identity
        try:
            status = os.stat(path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def exists(self, path: str) -> bool:
        """Return whether there is such a file or directory."""
        return os.path.exists(path)

    def names(self, path: str) -> list[str] | None:
        """Entries of a directory, sorted; None when it cannot be read."""
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            self._failed(path, error)
            return None

    def directories(self, path: str) -> list[str] | None:
        """Return names of the directories within a directory (links not followed), sorted; None when it cannot be
        read."""
        try:
            with os.scandir(path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError as error:
            self._failed(path, error)
            return None

    def link(self, path: str) -> str | None:
        """Return the path that a link leads to in the end; None when there is nothing."""
        try:
            return os.path.realpath(path, strict=True)
        except OSError as error:
            self._failed(path, error)
            return None

    # Writing

    def write(self, path: str, text: str) -> FileProblem | None:
        """Write to an existing file, in one call as the kernel wants it; files are never made."""
        try:
            fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        except OSError as error:
            return problem_of(path, error)
        try:
            os.write(fd, (text or "\n").encode())  # the kernel does not hear of an empty write
        except OSError as error:
            return problem_of(path, error)
        finally:
            os.close(fd)
        return None

    def make_directory(self, path: str) -> FileProblem | None:
        """Make a directory (a group, where the kernel sees one in it); one that exists is fine."""
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            return None
        except OSError as error:
            return problem_of(path, error)
        return None

    def remove_directory(self, path: str) -> FileProblem | None:
        """Remove an empty directory or group; one that is gone is fine."""
        self.forget(path)
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            return problem_of(path, error)
        return None

    # Descriptors

    @property
    def kept_count(self) -> int:
        """Hot files that are open now."""
        return len(self._kept)

    def forget(self, *directories: str) -> None:
        """Close what is open below directories: an open file keeps a removed group in the kernel's memory."""
        prefixes = tuple(directory.rstrip("/") + "/" for directory in directories)
        for path in [path for path in self._kept if path.startswith(prefixes)]:
            self._close(path)

    def sweep(self) -> int:
        """Close hot files that nobody has read since the sweep before the last; returns how many.

        To be called from time to time (a minute, say): what is read more seldom is not hot. Problems are forgotten,
        too: who wants to know of one asks right after reading, and most are of groups that have ended.
        """
        self._sweeps += 1
        self._problems.clear()
        idle = [path for path, kept in self._kept.items() if kept.used < self._sweeps - 1]
        for path in idle:
            self._close(path)
        return len(idle)

    def close(self) -> None:
        """Close all hot files."""
        for path in list(self._kept):
            self._close(path)

    def _open_hot(self, path: str) -> bytes | None:
        if self._descriptors_max <= 0:
            return self.read_bytes(path)
        if len(self._kept) >= self._descriptors_max:
            self._make_room()
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._kept:
                self._descriptors_max = max(len(self._kept) - DESCRIPTORS_SPARED, 0)
                self._make_room()
                return self.read_bytes(path)
            self._failed(path, error)
            return None
        try:
            status = os.fstat(fd)
            data = _all(fd, b"")
        except OSError as error:
            os.close(fd)
            self._failed(path, error)
            return None
        self._kept[path] = _Kept(fd, (status.st_dev, status.st_ino), self._sweeps)
        self._problems.pop(path, None)
        return data

    def _make_room(self) -> None:
        """Close the least recently used eighth, or what is above the limit."""
        count = max(len(self._kept) - self._descriptors_max, self._descriptors_max // 8, 1)
        for path in sorted(self._kept, key=lambda each: self._kept[each].used)[:count]:
            self._close(path)

    def _close(self, path: str) -> None:
        kept = self._kept.pop(path, None)
        if kept is not None:
            with contextlib.suppress(OSError):
                os.close(kept.fd)

    def _failed(self, path: str, error: OSError) -> None:
        if len(self._problems) >= PROBLEMS_MAX:
            self._problems.clear()
        self._problems[path] = problem_of(path, error)


def _all(fd: int, start: bytes) -> bytes:
    """Return the rest of a file after its start; files with many records end only where nothing more comes."""
    parts = [start] if start else []
    size = len(start)
    while data := os.pread(fd, _CHUNK_BYTES * 4, size):
        parts.append(data)
        size += len(data)
        if size > _TOO_LONG_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return b"".join(parts)
