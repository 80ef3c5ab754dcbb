"""Read the Hadoop configuration folder: what is in it, and whether it has changed. Source: behaviour/yarn 3.2."""

import os
from collections.abc import Iterator
from pathlib import Path

from koordinator.api import user_files
from koordinator.api.errors import KoordinatorError

FILES_MAX = 1_000
"""Four per cluster."""
_SUFFIX = ".xml"

Stamp = tuple[tuple[str, int, int], ...]
"""(path, nanoseconds of the last change, bytes) of each file."""


class FolderError(KoordinatorError):
    """The folder cannot be read."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder, self.reason = folder, reason

    def __str__(self) -> str:
        return f"HADOOP_CONF_DIR {self.folder or '(not set)'}: {self.reason}"


def stamp(folder: Path) -> Stamp:
    """Return what tells one state of the folder from another. Raises: FolderError."""
    try:
        return tuple(
            (str(path), (found := path.stat()).st_mtime_ns, found.st_size) for path in _files(folder)
        )
    except OSError as error:
        raise FolderError(str(folder), str(error)) from error


def read(folder: Path) -> dict[str, str]:
    """Return the text of all XML files by their path in the folder. Raises: FolderError."""
    try:
        return {path.relative_to(folder).as_posix(): user_files.read_text(path) for path in _files(folder)}
    except (OSError, user_files.FileError) as error:
        raise FolderError(str(folder), str(error)) from error


def _files(folder: Path) -> Iterator[Path]:
    """All XML files, but for folders such as `..data`, in which a mounted ConfigMap keeps them a second time."""
    if not folder.is_dir():
        raise FolderError(str(folder), "it is not a folder")
    count = 0
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith(".."))
        for name in sorted(names):
            if name.endswith(_SUFFIX):
                count += 1
                if count > FILES_MAX:
                    raise FolderError(str(folder), f"it has more than {FILES_MAX} XML files")
                yield Path(root) / name
