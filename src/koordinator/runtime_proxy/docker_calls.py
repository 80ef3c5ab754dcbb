"""Calls to Docker that hooks belong to: what hooks are told of them, and what their answer makes of them.

Docker knows containers only: a sandbox is one that is labelled so, and annotations are labels with a prefix. Pure.
Source: behaviour/koordlet-act 23.4.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koordinator.host import protobuf_messages
from koordinator.host.errors import ContentError
from koordinator.host.hook_messages import (
    ContainerResourceHookResponse,
    PodSandboxHookResponse,
)
from koordinator.runtime_proxy import docker, merge
from koordinator.runtime_proxy.checkpoints import Checkpoints, ContainerInfo, SandboxInfo
from koordinator.runtime_proxy.docker import KubeletName
from koordinator.runtime_proxy.interception import AboutContainer, AboutSandbox

_replace = msgspec.structs.replace
Body = dict[str, Any]


def read(raw: bytes) -> Body:
    """Return a body of JSON. Raises: ContentError."""
    try:
        return msgspec.json.decode(raw, type=Body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ContentError("docker", f"not a JSON object: {error}") from error


class _WithBody:
    """A call whose request is a body of JSON."""

    __slots__ = ()
    body: Body

    def request(self) -> bytes:
        return msgspec.json.encode(self.body)


class CreateSandbox(_WithBody, AboutSandbox, msgspec.Struct, frozen=True):
    """`create` of a sandbox; `driver` is that of Docker's cgroups."""

    body: Body
    info: SandboxInfo
    driver: str

    def with_answer(self, answer: bytes) -> "CreateSandbox":
        """Return it with labels, annotations and cgroup parent of an answer, whose resources no runtime is given."""
        found = protobuf_messages.decode(PodSandboxHookResponse, answer)
        added, noted = protobuf_messages.texts(found.labels), protobuf_messages.texts(found.annotations)
        labels = {**_part(self.body, "Labels"), **added, **_prefixed(noted)}
        host_config = dict(_part(self.body, "HostConfig"))
        if found.cgroup_parent:
            host_config["CgroupParent"] = docker.to_docker_parent(self.driver, found.cgroup_parent)
        info = _replace(
            self.info,
            labels=merge.merged(self.info.labels, added),
            annotations=merge.merged(self.info.annotations, noted),
            cgroup_parent=found.cgroup_parent or self.info.cgroup_parent,
        )
        return CreateSandbox({**self.body, "Labels": labels, "HostConfig": host_config}, info, self.driver)

    def store(self, response: bytes, checkpoints: Checkpoints) -> None:
        checkpoints.sandboxes.put(_made(response), self.info)


class CreateContainer(_WithBody, AboutContainer, msgspec.Struct, frozen=True):
    """`create` of a container."""

    body: Body
    info: ContainerInfo
    driver: str

    def with_answer(self, answer: bytes) -> "CreateContainer":
        """Return it with resources (as a whole), environment, annotations and cgroup parent of an answer."""
        found = protobuf_messages.decode(ContainerResourceHookResponse, answer)
        host_config, body = dict(_part(self.body, "HostConfig")), dict(self.body)
        info = _answered(self.info, found)
        if found.container_resources is not None:
            host_config |= docker.host_config_of(found.container_resources)
        if found.pod_cgroup_parent:
            host_config["CgroupParent"] = docker.to_docker_parent(self.driver, found.pod_cgroup_parent)
        if found.container_envs:
            variables = protobuf_messages.texts(found.container_envs)
            body["Env"] = _variables(_texts(self.body, "Env"), variables)
        if found.container_annotations:
            annotations = protobuf_messages.texts(found.container_annotations)
            body["Labels"] = {**_part(self.body, "Labels"), **_prefixed(annotations)}
        return CreateContainer({**body, "HostConfig": host_config}, info, self.driver)

    def store(self, response: bytes, checkpoints: Checkpoints) -> None:
        own_id = _made(response)
        checkpoints.containers.put(own_id, _replace(self.info, id=own_id))


class UpdateContainer(_WithBody, AboutContainer, msgspec.Struct, frozen=True):
    """`update`. `info` is the container with the request's resources already in it."""

    body: Body
    info: ContainerInfo

    @classmethod
    def of(cls, body: Body, known: ContainerInfo) -> "UpdateContainer":
        """Return the call about a container that is known. Raises: ContentError."""
        merged = merge.with_docker_update(known.resources, docker.resources(body))
        return cls(body, _replace(known, resources=merged))

    def with_answer(self, answer: bytes) -> "UpdateContainer":
        """Return it with the resources of an answer as a whole."""
        found = protobuf_messages.decode(ContainerResourceHookResponse, answer)
        info = _answered(self.info, found)
        if found.container_resources is None:
            return UpdateContainer(self.body, info)
        wanted = docker.host_config_of(found.container_resources, is_update=True)
        return UpdateContainer({**self.body, **wanted}, info)

    def store(self, response: bytes, checkpoints: Checkpoints) -> None:
        checkpoints.containers.put(self.info.id, self.info)


def create(
    name: str, body: Body, sandbox: SandboxInfo | None, driver: str
) -> CreateSandbox | CreateContainer:
    """Return a `create`; `sandbox` is that of a container. Raises: ContentError where the kubelet did not name it."""
    if is_sandbox(body):
        return CreateSandbox(body, sandbox_info(name, body, driver), driver)
    if sandbox is None:
        raise ContentError("docker", f"the sandbox {sandbox_id(body)!r} of {name} is not known")
    return CreateContainer(body, container_info(name, body, sandbox), driver)


def is_sandbox(config: Body) -> bool:
    """Return whether a container is the sandbox of a pod."""
    return _part(config, "Labels").get(docker.TYPE_LABEL) == docker.SANDBOX_TYPE


def sandbox_id(config: Body) -> str:
    """Return the sandbox that a container belongs to."""
    return str(_part(config, "Labels").get(docker.SANDBOX_ID_LABEL) or "")


def sandbox_info(name: str, config: Body, driver: str) -> SandboxInfo:
    """Return a sandbox by its name, with `Labels` and `HostConfig` of it. Raises: ContentError."""
    split, host_config = docker.split_labels(_texts_of(config, "Labels")), _part(config, "HostConfig")
    return SandboxInfo(
        metadata=KubeletName.of(name).sandbox,
        labels=split.labels,
        annotations=split.annotations,
        cgroup_parent=docker.to_cri_path(driver, str(host_config.get("CgroupParent") or "")),
        resources=docker.resources(host_config),
    )


def container_info(name: str, config: Body, sandbox: SandboxInfo, own_id: str = "") -> ContainerInfo:
    """Return a container by its name, with `Labels`, `Env` and `HostConfig` of it. Raises: ContentError."""
    split = docker.split_labels(_texts_of(config, "Labels"))
    return ContainerInfo(
        sandbox=sandbox,
        metadata=protobuf_messages.encode(KubeletName.of(name).metadata),
        id=own_id,
        annotations=protobuf_messages.entries(split.annotations),
        resources=docker.resources(_part(config, "HostConfig")),
        environment=protobuf_messages.entries(docker.environment(_texts(config, "Env"))),
    )


def _answered(info: ContainerInfo, answer: ContainerResourceHookResponse) -> ContainerInfo:
    return _replace(
        info,
        annotations=merge.entries_merged(info.annotations, answer.container_annotations),
        resources=answer.container_resources or info.resources,
        environment=answer.container_envs or info.environment,
    )


def _variables(given: Sequence[str], wanted: Mapping[str, str]) -> list[str]:
    """Return the environment of an answer: known variables first, in their order; names without value only inherit."""
    names = [line.partition("=")[0] for line in given if "=" in line]
    order = dict.fromkeys((*(name for name in names if name in wanted), *wanted))
    return [*(line for line in given if "=" not in line), *(f"{name}={wanted[name]}" for name in order)]


def _prefixed(annotations: Mapping[str, str]) -> dict[str, str]:
    return {f"{docker.ANNOTATION_PREFIX}{name}": value for name, value in annotations.items()}


def _part(body: Body, name: str) -> Body:
    found = body.get(name)
    if found is not None and not isinstance(found, dict):
        raise ContentError("docker", f"{name} is no object")
    return found or {}


def _texts_of(body: Body, name: str) -> dict[str, str]:
    return {key: str(value) for key, value in _part(body, name).items()}


def _texts(body: Body, name: str) -> list[str]:
    found = body.get(name) or []
    if not isinstance(found, list):
        raise ContentError("docker", f"{name} is no list")
    return [str(each) for each in found]


def _made(response: bytes) -> str:
    return str(read(response).get("Id") or "")
