"""A directory whose files all change at once, for whoever reads them.

The files are in a directory of their own, to which the link `..data` leads; names in the directory are links through
`..data`. A change makes another such directory and renames a new link over `..data`, so that a reader sees the files of
before or those of after. Source: pkg/volume/util/atomic_writer.go of kubernetes/kubernetes.
"""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from koordinator.local.processes.payloads import File, FileOwner, Payload

_DATA, _UNFINISHED = "..data", "..data_tmp"
_FOLDER_MODE, _GROUP_FOLDER, _GROUP_FILE = 0o755, 0o550 | stat.S_ISGID, 0o440
"""A volume's group may read what is in it."""


def write(folder: Path, payload: Payload, owner: FileOwner) -> bool:
    """Make the directory hold exactly these files; whether anything changed. Raises: OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    before = _current(folder)
    if before is not None and _content(before) == _wanted(payload, owner):
        return False
    made = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    try:
        _fill(made, payload, owner)
        with contextlib.suppress(FileNotFoundError):
            (folder / _UNFINISHED).unlink()
        (folder / _UNFINISHED).symlink_to(made.name)
        (folder / _UNFINISHED).rename(folder / _DATA)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        raise
    names = {path.partition("/")[0] for path in payload}
    for name in names:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"{_DATA}/{name}")
    for path in folder.iterdir():
        if path.is_symlink() and path.name != _DATA and path.name not in names:
            path.unlink()
        elif path.is_dir() and not path.is_symlink() and path != made:
            shutil.rmtree(path)
    return True


def _current(folder: Path) -> Path | None:
    try:
        return folder / os.readlink(folder / _DATA)
    except FileNotFoundError:
        return None


def _wanted(payload: Payload, owner: FileOwner) -> dict[str, File]:
    return {path: File(file.data, _mode(file, owner)) for path, file in payload.items()}


def _mode(file: File, owner: FileOwner) -> int:
    return file.mode if owner.group is None else file.mode | _GROUP_FILE


def _content(folder: Path) -> dict[str, File]:
    return {
        str(path.relative_to(folder)): File(path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        for path in _files(folder)
    }


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _fill(folder: Path, payload: Payload, owner: FileOwner) -> None:
    for name, file in _wanted(payload, owner).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        path.write_bytes(file.data)
        _give(path, owner)
        path.chmod(file.mode)
    for path in (folder, *(each for each in folder.rglob("*") if each.is_dir())):
        _give(path, owner)
        path.chmod(_FOLDER_MODE if owner.group is None else _FOLDER_MODE | _GROUP_FOLDER)


def _give(path: Path, owner: FileOwner) -> None:
    if owner != FileOwner():
        os.chown(path, -1 if owner.user is None else owner.user, -1 if owner.group is None else owner.group)
