"""Directories of a pod: logs, volumes, and a working directory for each container.

Containers share this machine's file system, so a volume is not mounted at its path: it is found at that path below
the container's working directory (`mountPath: /data` is `./data`).

The files of a projected volume all change at once, for whoever reads them: they are in a directory of their own,
to which the link `..data` leads; names in the directory are links through `..data`. A change makes another such
directory and renames a new link over `..data`, so that a reader sees the files of before or those of after. Source:
pkg/volume/util/atomic_writer.go of kubernetes/kubernetes.
"""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from koordinator.local.processes.pod_spec import Container, KubeletPod
from koordinator.local.processes.volumes import File, FileOwner, MountError, Payload, owner


class PodFiles:
    """The folder of one pod below that of the node."""

    def __init__(self, node_folder: Path, pod: KubeletPod) -> None:
        meta = pod.raw.metadata
        self.folder = node_folder / "pods" / f"{meta.namespace}_{meta.name}_{meta.uid}"

    def log(self, container: str, run: int) -> Path:
        """Log of one run of a container."""
        return self.folder / "logs" / container / f"{run}.log"

    def drop_log(self, container: str, run: int) -> None:
        """Forget the log of an earlier run."""
        for path in (self.log(container, run), self.log(container, run).with_suffix(".log.1")):
            path.unlink(missing_ok=True)

    def working(self, container: Container) -> Path:
        """Return where a container's processes start: its `workingDir` on this machine, else a directory of its
        own.
        """
        return Path(container.working_dir) if container.working_dir else self.home(container.name)

    def home(self, container: str) -> Path:
        """Return the container's own directory, in which its volumes are."""
        return self.folder / "containers" / container

    def make(self, containers: list[Container]) -> None:
        """Directories of containers. Raises: OSError."""
        for container in containers:
            self.home(container.name).mkdir(parents=True, exist_ok=True)

    def give(self, container: str, user: int | None, group: int | None) -> None:
        """Make the container's own directory belong to whom it runs as."""
        if user is not None or group is not None:
            os.chown(self.home(container), -1 if user is None else user, -1 if group is None else group)

    def mount(self, pod: KubeletPod, payloads: Mapping[str, Payload]) -> None:
        """Make the volumes and show them to the containers.

        `payloads` are the files of volumes that are made of what the API knows. Raises: MountError, OSError.
        """
        places: dict[str, Path] = {}
        whose = owner(pod)
        for volume in pod.spec.volumes:
            place = places[volume.name] = self._place(volume.name)
            if volume.host_path is not None:
                places[volume.name] = Path(volume.host_path.path)
            elif volume.empty_dir is not None:
                place.mkdir(parents=True, exist_ok=True)
                place.chmod(0o777 if whose.group is None else 0o2777)
                if whose.group is not None:
                    os.chown(place, -1, whose.group)
            elif volume.name not in payloads:
                reason = "this node has emptyDir, hostPath, configMap, secret, downwardAPI and projected volumes only"
                raise MountError(volume.name, reason)
        self.refresh(pod, payloads)
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            for mount in container.volume_mounts:
                if mount.name in places:
                    self._show(container.name, mount.mount_path, places[mount.name] / mount.sub_path)

    def refresh(self, pod: KubeletPod, payloads: Mapping[str, Payload]) -> None:
        """Let volumes that are made of what the API knows hold these files. Raises: OSError."""
        whose = owner(pod)
        for name, payload in payloads.items():
            replace_files(self._place(name), payload, whose)

    def _place(self, volume: str) -> Path:
        return self.folder / "volumes" / volume

    def remove(self) -> None:
        """Remove everything of the pod."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _show(self, container: str, mount_path: str, place: Path) -> None:
        home = self.home(container)
        link = Path(os.path.normpath(f"{home}/{mount_path.lstrip('/')}"))
        if not link.is_relative_to(home) or link == home:
            raise MountError(place.name, f"mountPath {mount_path} leads out of the container's directory")
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink():
            link.unlink()
        elif link.is_dir():
            raise MountError(place.name, f"mountPath {mount_path} holds another volume")
        link.symlink_to(place)


_DATA, _UNFINISHED = "..data", "..data_tmp"
_FOLDER_MODE, _GROUP_FOLDER, _GROUP_FILE = 0o755, 0o550 | stat.S_ISGID, 0o440
"""A volume's group may read what is in it."""


def replace_files(folder: Path, payload: Payload, owner: FileOwner) -> bool:
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
