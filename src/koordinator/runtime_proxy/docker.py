"""Translate between Docker and CRI: calls, names, cgroup parents, labels, environment, resources.

Pure. Source: behaviour/koordlet-act 23.4.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec

from koordinator.host import cgroup_layout
from koordinator.host.cri_messages import ContainerMetadata, LinuxContainerResources, PodSandboxMetadata
from koordinator.host.errors import ContentError

TYPE_LABEL, SANDBOX_TYPE = "io.kubernetes.docker.type", "podsandbox"
SANDBOX_ID_LABEL = "io.kubernetes.sandbox.id"

SYSTEMD = "systemd"
ANNOTATION_PREFIX = "annotation."

_SLICE = ".slice"


class SplitLabels(msgspec.Struct, frozen=True):
    """Docker has labels only; dockershim kept annotations among them, under a prefix."""

    labels: dict[str, str]
    annotations: dict[str, str]


def to_cri_path(driver: str, cgroup_parent: str) -> str:
    """Return the whole cgroup path of a Docker cgroup parent, as hooks expect it.

    systemd nests slices by the dashes of their names: `a-b.slice` lies in `/a.slice` (systemd.slice(5)).
    """
    if driver != SYSTEMD:
        return cgroup_parent
    name = cgroup_parent.rstrip("/").rpartition("/")[2]
    return f"/{cgroup_layout.expanded_slice(name)}" if name.endswith(_SLICE) else cgroup_parent


def to_docker_parent(driver: str, cgroup_parent: str) -> str:
    """Return the cgroup parent that Docker wants for a path: with systemd, only its last component."""
    return cgroup_parent.rstrip("/").rpartition("/")[2] if driver == SYSTEMD else cgroup_parent


def split_labels(labels: Mapping[str, str]) -> SplitLabels:
    """Return which Docker labels are labels of the pod or container, and which its annotations."""
    split = SplitLabels({}, {})
    for key, value in labels.items():
        if key.startswith(ANNOTATION_PREFIX):
            split.annotations[key.removeprefix(ANNOTATION_PREFIX)] = value
        else:
            split.labels[key] = value
    return split


def environment(variables: Iterable[str]) -> dict[str, str]:
    """`NAME=value` lines as a map; a line without `=` only inherits and is left out."""
    pairs = (variable.partition("=") for variable in variables)
    return {name: value for name, equals, value in pairs if equals}


class DockerCall(NamedTuple):
    """A call that hooks may belong to: `create`, `start`, `stop` or `update`, with the container's id or name."""

    verb: str
    name: str


_CALL = re.compile(r"(?:/v[0-9]+\.[0-9]+)?/containers/(?:(create)|([^/]+)/(start|stop|update))", re.ASCII)


def call_of(method: str, target: str) -> DockerCall | None:
    """Return which call a request line is; None for all that go to Docker as they are."""
    path, _, query = target.partition("?")
    found = _CALL.fullmatch(path) if method == "POST" else None
    if found is None:
        return None
    if found[1]:
        return DockerCall(found[1], (parse_qs(query).get("name") or [""])[0])
    return DockerCall(found[3], found[2])


class KubeletName(NamedTuple):
    """The parts of a name that a kubelet gives: `k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT`."""

    container: str
    pod: str
    namespace: str
    uid: str
    attempt: int

    @classmethod
    def of(cls, name: str) -> "KubeletName":
        """Return the parts of a name, with or without Docker's slash. Raises: ContentError."""
        parts = name.removeprefix("/").split("_")
        if len(parts) != _NAME_PARTS or not (parts[-1].isascii() and parts[-1].isdigit()):
            raise ContentError("docker", f"the name {name!r} is not k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT")
        _, container, pod, namespace, uid, attempt = parts
        return cls(container, pod, namespace, uid, int(attempt))

    @property
    def sandbox(self) -> PodSandboxMetadata:
        """Return the pod of it."""
        return PodSandboxMetadata(self.pod, self.uid, self.namespace, self.attempt)

    @property
    def metadata(self) -> ContainerMetadata:
        """Return the container of it."""
        return ContainerMetadata(self.container, self.attempt)


_NAME_PARTS = 6
_HOST_CONFIG = {
    "cpu_period": "CpuPeriod",
    "cpu_quota": "CpuQuota",
    "cpu_shares": "CpuShares",
    "memory_limit_in_bytes": "Memory",
    "oom_score_adj": "OomScoreAdj",
    "cpuset_cpus": "CpusetCpus",
    "cpuset_mems": "CpusetMems",
    "memory_swap_limit_in_bytes": "MemorySwap",
}
"""Fields of CRI → of Docker's HostConfig."""
_NOT_UPDATED = "OomScoreAdj"
"""Docker sets it once."""


def resources(host_config: Mapping[str, Any]) -> LinuxContainerResources:
    """Return the resources in a HostConfig or an update. Raises: ContentError."""
    given: dict[str, Any] = {}
    for ours, theirs in _HOST_CONFIG.items():
        value = host_config.get(theirs)
        if value:
            if type(value) is not (str if ours.startswith("cpuset") else int):
                raise ContentError("docker", f"{theirs} is {value!r}")
            given[ours] = value
    return LinuxContainerResources(**given)


def host_config_of(found: LinuxContainerResources, *, is_update: bool = False) -> dict[str, Any]:
    """Return the fields of HostConfig that resources are."""
    fields = {theirs: getattr(found, ours) for ours, theirs in _HOST_CONFIG.items()}
    if is_update:
        del fields[_NOT_UPDATED]
    return fields
