"""Work out environment, command and arguments of a container (pure: what they refer to is looked up before), with the
services that pods of the process node share."""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from koordinator.api import quantity
from koordinator.api.meta import reference
from koordinator.api.quantity import RawQuantity, ResourceList
from koordinator.clock import Clock
from koordinator.cluster.events import EventRecorder, EventSeverity
from koordinator.cluster.protocol import Cluster
from koordinator.host.cgroup_layout import ContainerID, Runtime
from koordinator.host.errors import HostError
from koordinator.host.machine import Processes
from koordinator.local.processes.groups import PodGroups
from koordinator.local.processes.launch import DEFAULT_PATH, Identity
from koordinator.local.processes.pod_spec import Container, KubeletPod

_REFERENCE = re.compile(r"\$(\$|\([^)]*\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


class ContainerConfigError(HostError):
    """A container's configuration refers to something that is not there, or contradicts itself
    (CreateContainerConfigError)."""


class NoCommand(HostError):
    """Neither the container nor our table says what to run."""

    def __init__(self, image: str) -> None:
        super().__init__(image)
        self.image = image

    def __str__(self) -> str:
        return (
            f'image "{self.image}" is not known here: this node pulls no images, it runs commands of this machine; '
            "give the container a command"
        )


class EnvironmentSources(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that a container's environment may refer to, besides its pod. Absent objects are None."""

    node_name: str
    host_ip: str
    pod_ip: str
    allocatable: Mapping[str, RawQuantity]
    config_maps: Mapping[str, Mapping[str, str] | None] = {}
    secrets: Mapping[str, Mapping[str, str] | None] = {}


class _Image(msgspec.Struct, frozen=True):
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


_SHELL = _Image(command=("sh",))
_IMAGES = {
    "pause": _Image(entrypoint=("sleep", "infinity")),
    "busybox": _SHELL,
    "alpine": _SHELL,
    "debian": _Image(command=("bash",)),
    "ubuntu": _Image(command=("bash",)),
    "python": _Image(command=("python3",)),
}


def command_line(container: Container, environment: Mapping[str, str]) -> list[str]:
    """Return the program and its arguments, references expanded. Raises: NoCommand."""
    command = [expand(word, environment) for word in container.command]
    arguments = [expand(word, environment) for word in container.args]
    if command:
        return command + arguments
    image = _IMAGES.get(_basename(container.image))
    if image is None:
        raise NoCommand(container.image)
    return [*image.entrypoint, *(arguments or image.command)]


def identity(pod: KubeletPod, container: Container, own_user: int) -> Identity:
    """Return the user and group of a container; without a word about them it runs as `own_user`, as we do.

    Raises: ContainerConfigError when that is root, and the pod does not want it.
    """
    wanted = pod.security_of(container)
    user = own_user if wanted.run_as_user is None else wanted.run_as_user
    if wanted.run_as_non_root and user == 0:
        meta = pod.raw.metadata
        why = "container has runAsNonRoot and image will run as root"
        if wanted.run_as_user is not None:
            why = "container's runAsUser breaks non-root policy"
        whose = f'pod: "{meta.name}_{meta.namespace}({meta.uid})", container: {container.name}'
        raise ContainerConfigError(f"{why} ({whose})")
    return Identity(wanted.run_as_user, wanted.run_as_group)


def of_container(pod: KubeletPod, container: Container, around: EnvironmentSources) -> dict[str, str]:
    """Return all variables, later ones over earlier ones. Raises: ContainerConfigError."""
    variables = {"PATH": DEFAULT_PATH, "HOSTNAME": pod.spec.hostname or pod.raw.metadata.name}
    for source in container.env_from:
        variables.update(_all_of(source, around))
    for variable in container.env:
        if variable.value_from is None:
            variables[variable.name] = expand(variable.value, variables)
        else:
            value = _value_of(variable.value_from, pod, container, around)
            if value is not None:
                variables[variable.name] = value
    return variables


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` replaced where there is such a variable, `$$` as `$`."""

    def replaced(found: re.Match[str]) -> str:
        inner = found[1]
        return "$" if inner == "$" else variables.get(inner[1:-1], found[0])

    return _REFERENCE.sub(replaced, text)


def references(container: Container) -> tuple[set[str], set[str]]:
    """Return names of the ConfigMaps and of the Secrets that a container's environment refers to."""
    config_maps: set[str] = set()
    secrets: set[str] = set()
    for source in container.env_from:
        config_maps.add((source.get("configMapRef") or {}).get("name", ""))
        secrets.add((source.get("secretRef") or {}).get("name", ""))
    for variable in container.env:
        source = variable.value_from or {}
        config_maps.add((source.get("configMapKeyRef") or {}).get("name", ""))
        secrets.add((source.get("secretKeyRef") or {}).get("name", ""))
    return config_maps - {""}, secrets - {""}


def decoded(data: Mapping[str, str]) -> dict[str, str]:
    """Return the data of a Secret as text; values that are no base64 or no text are left out, as no variable can hold
    them."""
    texts: dict[str, str] = {}
    for key, value in data.items():
        try:
            texts[key] = base64.b64decode(value, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue
    return texts


def field(pod: KubeletPod, path: str, around: EnvironmentSources) -> str:
    """Return what a fieldRef stands for. Raises: ContainerConfigError."""
    meta = pod.raw.metadata
    subscript = _SUBSCRIPT.fullmatch(path)
    if subscript is not None:
        return (meta.labels if subscript[1] == "labels" else meta.annotations).get(subscript[2], "")
    values = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "spec.nodeName": around.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": around.host_ip,
        "status.hostIPs": around.host_ip,
        "status.podIP": around.pod_ip,
        "status.podIPs": around.pod_ip,
    }
    if path not in values:
        raise ContainerConfigError(f"unsupported fieldPath: {path}")
    return values[path]


def resource_field(
    container: Container, resource: str, divisor: RawQuantity, around: EnvironmentSources
) -> str:
    """Return what a resourceFieldRef stands for: whole divisors, rounded up; without a limit what the node has.

    Raises: ContainerConfigError.
    """
    part, _, name = resource.partition(".")
    if part not in ("limits", "requests") or not name:
        raise ContainerConfigError(f"unsupported container resource: {resource}")
    amounts = container.resources.limits if part == "limits" else container.resources.requests
    raw = amounts.get(name)
    if raw is None and part == "limits":
        raw = around.allocatable.get(name)
    amount, unit = quantity.of(raw or 0).nanos, quantity.of(divisor).nanos
    if unit <= 0:
        unit = quantity.of(1).nanos
    return str(-(-amount // unit))


def amount_of(
    pod: KubeletPod, container: str, resource: str, divisor: RawQuantity, around: EnvironmentSources
) -> str:
    """Return the same of a container by name. Raises: ContainerConfigError."""
    named = next((c for c in (*pod.spec.containers, *pod.spec.init_containers) if c.name == container), None)
    if named is None:
        raise ContainerConfigError(f"container {container} not found")
    return resource_field(named, resource, divisor, around)


def _value_of(
    source: Mapping[str, Any], pod: KubeletPod, container: Container, around: EnvironmentSources
) -> str | None:
    if ref := source.get("fieldRef"):
        return field(pod, ref.get("fieldPath", ""), around)
    if ref := source.get("resourceFieldRef"):
        owner = ref.get("containerName") or container.name
        return amount_of(pod, owner, ref.get("resource", ""), ref.get("divisor") or 1, around)
    if ref := source.get("configMapKeyRef"):
        return _key_of(ref, "configmap", around.config_maps, pod)
    if ref := source.get("secretKeyRef"):
        return _key_of(ref, "secret", around.secrets, pod)
    raise ContainerConfigError(f"unsupported source of a variable: {', '.join(source) or 'none'}")


def _key_of(
    ref: Mapping[str, Any], kind: str, objects: Mapping[str, Mapping[str, str] | None], pod: KubeletPod
) -> str | None:
    name, key = ref.get("name", ""), ref.get("key", "")
    data = objects.get(name)
    if data is not None and key in data:
        return data[key]
    if ref.get("optional"):
        return None
    if data is None:
        raise ContainerConfigError(f'{kind} "{name}" not found')
    title = "ConfigMap" if kind == "configmap" else "Secret"
    raise ContainerConfigError(f"couldn't find key {key} in {title} {pod.raw.metadata.namespace}/{name}")


def _all_of(source: Mapping[str, Any], around: EnvironmentSources) -> dict[str, str]:
    for ref_name, kind, objects in (
        ("configMapRef", "configmap", around.config_maps),
        ("secretRef", "secret", around.secrets),
    ):
        if ref := source.get(ref_name):
            data = objects.get(ref.get("name", ""))
            if data is None and not ref.get("optional"):
                raise ContainerConfigError(f'{kind} "{ref.get("name", "")}" not found')
            prefix = source.get("prefix", "")
            return {prefix + key: text for key, text in (data or {}).items() if _NAME.fullmatch(prefix + key)}
    return {}


def _basename(image: str) -> str:
    """`registry:5000/library/busybox:1.36@sha256:…` is busybox."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """The node around its pods. `folder` holds their logs, volumes and working directories."""

    cluster: Cluster
    clock: Clock
    groups: PodGroups
    processes: Processes
    events: EventRecorder
    node_name: str
    host_ip: str
    folder: Path
    allocatable: ResourceList
    memory_bytes: int
    session: aiohttp.ClientSession
    """For requests to containers."""

    def new_id(self, pod: KubeletPod, name: str, run: int) -> ContainerID:
        """Return an id that no other run has: of 64 hexadecimal digits, as containerd's."""
        text = f"{pod.uid}/{name}/{run}/{self.clock.now()!r}"
        return ContainerID(Runtime.CONTAINERD, hashlib.sha256(text.encode()).hexdigest())

    def record_event(
        self, pod: KubeletPod, reason: str, message: str, *, container: str = "", field: str = "containers"
    ) -> None:
        """Record a normal event about a pod or one of its containers."""
        self._event(pod, EventSeverity.NORMAL, reason, message, container, field)

    def warn(
        self, pod: KubeletPod, reason: str, message: str, *, container: str = "", field: str = "containers"
    ) -> None:
        """Record a warning about a pod or one of its containers."""
        self._event(pod, EventSeverity.WARNING, reason, message, container, field)

    def _event(
        self, pod: KubeletPod, severity: EventSeverity, reason: str, message: str, container: str, field: str
    ) -> None:
        about = reference(pod.view)
        if container:
            about = msgspec.structs.replace(about, field_path=f"spec.{field}{{{container}}}")
        self.events.event(about, severity, reason, message)
