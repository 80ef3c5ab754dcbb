"""Fill a pod's volumes with what they are to hold now (objects are looked up, tokens asked for, and kept until their
renewal), compute the files of those made of ConfigMaps, Secrets, fields of the pod and tokens, and keep a pod's
directories: logs, volumes, and a working directory for each container.

Containers share this machine's file system, so a volume is not mounted at its path: it is found at that path below
the container's working directory (`mountPath: /data` is `./data`).

The files of a projected volume all change at once, for whoever reads them: they are in a directory of their own,
to which the link `..data` leads; names in the directory are links through `..data`. A change makes another such
directory and renames a new link over `..data`, so that a reader sees the files of before or those of after. Source:
pkg/volume/{configmap,secret,downwardapi,projected}, pkg/fieldpath and pkg/volume/util/atomic_writer.go of
kubernetes/kubernetes.
"""

import base64
import binascii
import contextlib
import os
import posixpath
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from koordinator.api.core import ConfigMap, Secret
from koordinator.api.meta import Object
from koordinator.clock import parse_rfc3339
from koordinator.cluster.protocol import get_if_there
from koordinator.host.errors import HostError
from koordinator.local.processes import environment
from koordinator.local.processes.environment import ContainerConfigError, EnvironmentSources, Services
from koordinator.local.processes.pod_spec import (
    Container,
    FieldFile,
    FieldFiles,
    KubeletPod,
    ObjectFiles,
    Projected,
    Projection,
    TokenFile,
    Volume,
)

TOKEN_MODE = 0o600
"""Mode of a token that one user or one group only is to read."""
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n"} | {
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


class MountError(HostError):
    """A volume cannot be given to the pod."""

    def __init__(self, volume: str, reason: str) -> None:
        super().__init__(volume, reason)
        self.volume, self.reason = volume, reason

    def __str__(self) -> str:
        return f'MountVolume.SetUp failed for volume "{self.volume}": {self.reason}'


class File(msgspec.Struct, frozen=True):
    """Content and permissions of a file of a volume."""

    data: bytes
    mode: int


Payload = Mapping[str, File]
"""Path below the volume → file."""


class FileOwner(msgspec.Struct, frozen=True):
    """The owner of the files of a pod's volumes; None as they are made."""

    user: int | None = None
    group: int | None = None


class VolumeSources(msgspec.Struct, frozen=True, kw_only=True):
    """The objects in the API that volumes name. Absent objects are None."""

    config_maps: Mapping[str, ConfigMap | None] = {}
    secrets: Mapping[str, Secret | None] = {}
    tokens: Mapping[TokenFile, str] = {}


def owner(pod: KubeletPod) -> FileOwner:
    """Return the user, where all containers run as the same one, and the group of the pod's volumes."""
    shared = pod.spec.security_context
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    users = {pod.security_of(container).run_as_user for container in containers}
    return FileOwner(users.pop() if len(users) == 1 else None, None if shared is None else shared.fs_group)


def references(volumes: Iterable[Volume]) -> tuple[set[str], set[str], set[TokenFile]]:
    """Return names of the ConfigMaps and of the Secrets, and the tokens, that volumes are made of."""
    sources = [source for each in volumes if each.projection for source in each.projection.sources]
    return (
        {source.config_map.name for source in sources if source.config_map},
        {_secret_name(source.secret) for source in sources if source.secret},
        {source.service_account_token for source in sources if source.service_account_token},
    )


def of_volume(volume: Volume, pod: KubeletPod, around: EnvironmentSources, known: VolumeSources) -> Payload:
    """Return all files of a volume, those of later sources over those of earlier ones. Raises: MountError."""
    projection = volume.projection
    assert projection is not None, volume.name
    files: dict[str, File] = {}
    try:
        for source in projection.sources:
            files.update(_of_source(source, projection, pod, around, known))
    except ContainerConfigError as error:
        raise MountError(volume.name, str(error)) from error
    for path in files:
        if path.startswith(("/", "..")) or posixpath.normpath(path) != path:
            raise MountError(volume.name, f"invalid path {path}: relative to the volume, without ..")
    return files


def _of_source(
    source: Projection,
    projection: Projected,
    pod: KubeletPod,
    around: EnvironmentSources,
    known: VolumeSources,
) -> dict[str, File]:
    mode = projection.default_mode
    if source.config_map is not None:
        return _of_config_map(source.config_map, mode, pod, known)
    if source.secret is not None:
        return _of_secret(source.secret, mode, pod, known)
    if source.downward_api is not None:
        return _of_fields(source.downward_api, mode, pod, around)
    if source.service_account_token is not None:
        token = source.service_account_token
        owned_by = owner(pod)
        is_narrow = owned_by.user is not None or owned_by.group is not None
        data = known.tokens[token].encode()
        return {token.path: File(data, TOKEN_MODE if is_narrow else mode)}
    raise ContainerConfigError(
        "this node has projections of configMap, secret, downwardAPI and serviceAccountToken only"
    )


def _of_config_map(source: ObjectFiles, mode: int, pod: KubeletPod, known: VolumeSources) -> dict[str, File]:
    found = known.config_maps.get(source.name)
    if found is None:
        return _absent(source, f'configmap "{source.name}" not found')
    binary = {key: base64.b64decode(text) for key, text in found.binary_data.items()}
    data = {key: text.encode() for key, text in found.data.items()} | binary
    return _chosen(source, data, mode, "configmap references non-existent config key: {}")


def _of_secret(source: ObjectFiles, mode: int, pod: KubeletPod, known: VolumeSources) -> dict[str, File]:
    name = _secret_name(source)
    found = known.secrets.get(name)
    if found is None:
        return _absent(source, f'secret "{name}" not found')
    data = {key: base64.b64decode(text) for key, text in found.data.items()}
    return _chosen(source, data, mode, "references non-existent secret key: {}")


def _secret_name(source: ObjectFiles) -> str:
    return source.secret_name or source.name


def _absent(source: ObjectFiles, why: str) -> dict[str, File]:
    if source.optional:
        return {}
    raise ContainerConfigError(why)


def _chosen(
    source: ObjectFiles, data: Mapping[str, bytes], mode: int, message_missing: str
) -> dict[str, File]:
    """Return the keys that `items` name, or all. Raises: ContainerConfigError for one that is not there."""
    if not source.items:
        return {key: File(content, mode) for key, content in data.items()}
    files = {}
    for item in source.items:
        if item.key in data:
            files[item.path] = File(data[item.key], mode if item.mode is None else item.mode)
        elif not source.optional:
            raise ContainerConfigError(message_missing.format(item.key))
    return files


def _of_fields(source: FieldFiles, mode: int, pod: KubeletPod, around: EnvironmentSources) -> dict[str, File]:
    return {
        item.path: File(_downward_value(item, pod, around).encode(), mode if item.mode is None else item.mode)
        for item in source.items
    }


def _downward_value(item: FieldFile, pod: KubeletPod, around: EnvironmentSources) -> str:
    if item.field_ref is not None:
        meta = pod.raw.metadata
        maps: dict[str, Mapping[str, Any]] = {
            "metadata.labels": meta.labels,
            "metadata.annotations": meta.annotations,
        }
        path = item.field_ref.field_path
        return lines(maps[path]) if path in maps else environment.field(pod, path, around)
    if item.resource_field_ref is not None:
        ref = item.resource_field_ref
        return environment.amount_of(pod, ref.container_name, ref.resource, ref.divisor, around)
    raise ContainerConfigError(f"{item.path}: neither fieldRef nor resourceFieldRef")


def lines(values: Mapping[str, Any]) -> str:
    """`key="value"` a line, sorted, values quoted as Go quotes them."""
    return "\n".join(f"{key}={_quoted(str(value))}" for key, value in sorted(values.items()))


def _quoted(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(char) or _printable(char) for char in text) + '"'


def _printable(char: str) -> str:
    if char.isprintable():
        return char
    number = ord(char)
    return (
        f"\\x{number:02x}"
        if number < 0x80
        else f"\\u{number:04x}"
        if number < 0x10000
        else f"\\U{number:08x}"
    )


T = TypeVar("T", bound=Object)

REFRESH_S = 60.0
"""Interval at which volumes are brought up to date, as the kubelet's sync loop does it."""
_LIFE_USED = 0.8
"""A token is renewed when this share of its life is over ..."""
_AGE_S_MAX = 24 * 3600.0
"""... or it is a day old. Source: pkg/kubelet/token/token_manager.go of kubernetes/kubernetes."""


class _Token(msgspec.Struct, frozen=True):
    text: str
    renew_at_s: float


class Volumes:
    """The volumes of one pod."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tokens: dict[TokenFile, _Token] = {}

    async def payloads(self, pod: KubeletPod, around: EnvironmentSources) -> Mapping[str, Payload]:
        """Volume → its files, for the volumes that are made of what the API knows. Raises: MountError, ApiError."""
        wanted = [volume for volume in pod.spec.volumes if volume.projection is not None]
        namespace, cluster = pod.raw.metadata.namespace, self._services.cluster
        config_maps, secrets, tokens = references(wanted)
        known = VolumeSources(
            config_maps={
                name: await get_if_there(cluster, ConfigMap, name, namespace) for name in sorted(config_maps)
            },
            secrets={name: await get_if_there(cluster, Secret, name, namespace) for name in sorted(secrets)},
            tokens={each: await self._token(pod, each) for each in sorted(tokens, key=repr)},
        )
        found = {}
        for volume in wanted:
            try:
                found[volume.name] = of_volume(volume, pod, around, known)
            except (binascii.Error, ValueError) as error:
                raise MountError(volume.name, f"a value is no base64: {error}") from error
        return found

    async def _token(self, pod: KubeletPod, wanted: TokenFile) -> str:
        now_s = self._services.clock.now()
        kept = self._tokens.get(wanted)
        if kept is None or now_s >= kept.renew_at_s:
            kept = self._tokens[wanted] = await self._new_token(pod, wanted, now_s)
        return kept.text

    async def _new_token(self, pod: KubeletPod, wanted: TokenFile, now_s: float) -> _Token:
        meta = pod.raw.metadata
        account = pod.spec.service_account_name or "default"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [wanted.audience] if wanted.audience else [],
                "expirationSeconds": wanted.expiration_seconds,
                "boundObjectRef": bound,
            },
        }
        path = f"/api/v1/namespaces/{meta.namespace}/serviceaccounts/{account}/token"
        status = (await self._services.cluster.request("POST", path, body))["status"]
        life_s = parse_rfc3339(status["expirationTimestamp"]) - now_s
        return _Token(status["token"], now_s + min(life_s * _LIFE_USED, _AGE_S_MAX))


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
        """Return where a container's processes start: its `workingDir` on this machine, else a directory of its own."""
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
        owned_by = owner(pod)
        for volume in pod.spec.volumes:
            place = places[volume.name] = self._place(volume.name)
            if volume.host_path is not None:
                places[volume.name] = Path(volume.host_path.path)
            elif volume.empty_dir is not None:
                place.mkdir(parents=True, exist_ok=True)
                place.chmod(0o777 if owned_by.group is None else 0o2777)
                if owned_by.group is not None:
                    os.chown(place, -1, owned_by.group)
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
        owned_by = owner(pod)
        for name, payload in payloads.items():
            replace_files(self._place(name), payload, owned_by)

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
