"""Fill a pod's volumes with what they are to hold now (objects are looked up, tokens asked for, and kept until their
renewal), and compute the files of those made of ConfigMaps, Secrets, fields of the pod and tokens.

Source: pkg/volume/{configmap,secret,downwardapi,projected} and pkg/fieldpath of kubernetes/kubernetes.
"""

import base64
import binascii
import posixpath
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from koordinator.api.core import ConfigMap, Secret
from koordinator.api.meta import Object
from koordinator.clock import parse_rfc3339
from koordinator.cluster import errors
from koordinator.host.errors import HostError
from koordinator.local.processes import environment
from koordinator.local.processes.environment import ContainerConfigError, EnvironmentSources, Services
from koordinator.local.processes.pod_spec import (
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
"""Of a token that one user or one group only is to read."""
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
    users = set()
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        own = container.security_context
        of_pod = None if shared is None else shared.run_as_user
        users.add(of_pod if own is None or own.run_as_user is None else own.run_as_user)
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
        whose = owner(pod)
        is_narrow = whose.user is not None or whose.group is not None
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


def _chosen(source: ObjectFiles, data: Mapping[str, bytes], mode: int, lacking: str) -> dict[str, File]:
    """Return the keys that `items` name, or all. Raises: ContainerConfigError for one that is not there."""
    if not source.items:
        return {key: File(content, mode) for key, content in data.items()}
    files = {}
    for item in source.items:
        if item.key in data:
            files[item.path] = File(data[item.key], mode if item.mode is None else item.mode)
        elif not source.optional:
            raise ContainerConfigError(lacking.format(item.key))
    return files


def _of_fields(source: FieldFiles, mode: int, pod: KubeletPod, around: EnvironmentSources) -> dict[str, File]:
    return {
        item.path: File(_told(item, pod, around).encode(), mode if item.mode is None else item.mode)
        for item in source.items
    }


def _told(item: FieldFile, pod: KubeletPod, around: EnvironmentSources) -> str:
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
"""How often volumes are brought up to date, as the kubelet's sync loop does it."""
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
        """Volume → its files, for the volumes that are made of what the API knows.

        Raises: MountError, ApiError.
        """
        wanted = [volume for volume in pod.spec.volumes if volume.projection is not None]
        namespace = pod.raw.metadata.namespace
        config_maps, secrets, tokens = references(wanted)
        known = VolumeSources(
            config_maps={name: await self._found(ConfigMap, name, namespace) for name in sorted(config_maps)},
            secrets={name: await self._found(Secret, name, namespace) for name in sorted(secrets)},
            tokens={each: await self._token(pod, each) for each in sorted(tokens, key=repr)},
        )
        found = {}
        for volume in wanted:
            try:
                found[volume.name] = of_volume(volume, pod, around, known)
            except (binascii.Error, ValueError) as error:
                raise MountError(volume.name, f"a value is no base64: {error}") from error
        return found

    async def _found(self, kind: type[T], name: str, namespace: str) -> T | None:
        try:
            return await self._services.cluster.get(kind, name, namespace)
        except errors.NotFound:
            return None

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
