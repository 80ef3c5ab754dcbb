"""One intercepted call: what its hooks are told, what their answer makes of it, what is remembered of it.

Pure: the proxy finds what a call is about, asks the hooks and the runtime, and calls these functions in between. Fields
that are not known here reach the runtime as they came. Source: behaviour/koordlet-act 23.3.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from koordinator.host import protobuf_messages
from koordinator.host.cri_messages import (
    ContainerConfig,
    ContainerIDMessage,
    CreateContainerRequest,
    KeyValue,
    LinuxContainerConfig,
    LinuxContainerResources,
    LinuxPodSandboxConfig,
    PodSandboxConfig,
    PodSandboxMetadata,
    RunPodSandboxRequest,
    RunPodSandboxResponse,
    UpdateContainerResourcesRequest,
)
from koordinator.host.hook_messages import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    HookContainerMetadata,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)
from koordinator.host.protobuf_messages import Message
from koordinator.runtime_proxy import merge
from koordinator.runtime_proxy.checkpoints import Checkpoints, ContainerInfo, SandboxInfo

_replace = msgspec.structs.replace


class Interception(Protocol):
    """A call between kubelet and runtime. Errors of `with_answer` and `store`: ContentError, for damaged messages."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the labels of the pod."""
        ...

    def hook_request(self) -> Message:
        """Return what hooks are told."""
        ...

    def with_answer(self, answer: bytes) -> "Interception":
        """Return the call as a hook's answer wants it."""
        ...

    def request(self) -> bytes:
        """Return the request for the runtime."""
        ...

    def store(self, response: bytes, checkpoints: Checkpoints) -> None:
        """Remember the call, which succeeded."""
        ...

    def delete(self, checkpoints: Checkpoints) -> None:
        """Forget what the call was about."""
        ...


class AboutSandbox:
    """A call about one sandbox."""

    __slots__ = ()
    info: SandboxInfo

    @property
    def labels(self) -> Mapping[str, str]:
        return self.info.labels

    def hook_request(self) -> Message:
        return of_sandbox(self.info)

    def delete(self, checkpoints: Checkpoints) -> None:
        """Nothing: what the call was about goes on."""


class AboutContainer:
    """A call about one container."""

    __slots__ = ()
    info: ContainerInfo

    @property
    def labels(self) -> Mapping[str, str]:
        return self.info.sandbox.labels

    def hook_request(self) -> Message:
        return of_container(self.info)

    def delete(self, checkpoints: Checkpoints) -> None:
        """Nothing: what the call was about goes on."""


class RunSandbox(AboutSandbox, msgspec.Struct, frozen=True):
    """RunPodSandbox."""

    raw: RunPodSandboxRequest
    info: SandboxInfo

    def with_answer(self, answer: bytes) -> "RunSandbox":
        """Return it with labels, annotations and cgroup parent of an answer, whose resources no runtime is given."""
        found = protobuf_messages.decode(PodSandboxHookResponse, answer)
        config = self.raw.config or PodSandboxConfig()
        info = _replace(
            self.info,
            labels=merge.merged(config.labels, found.labels),
            annotations=merge.merged(config.annotations, found.annotations),
            cgroup_parent=found.cgroup_parent or self.info.cgroup_parent,
        )
        config = _replace(
            config,
            labels=info.labels,
            annotations=info.annotations,
            linux=_with_parent(config.linux, info.cgroup_parent),
        )
        return RunSandbox(_replace(self.raw, config=config), info)

    def request(self) -> bytes:
        return protobuf_messages.encode(self.raw)

    def store(self, response: bytes, checkpoints: Checkpoints) -> None:
        made = protobuf_messages.decode(RunPodSandboxResponse, response)
        checkpoints.sandboxes.put(made.pod_sandbox_id, self.info)


class OfSandbox(AboutSandbox, msgspec.Struct, frozen=True):
    """StopPodSandbox: a call that only names its sandbox."""

    raw: bytes
    id: str
    info: SandboxInfo

    def with_answer(self, answer: bytes) -> "OfSandbox":
        """Return it unchanged: there is nothing in it to change."""
        return self

    def request(self) -> bytes:
        return self.raw

    def store(self, response: bytes, checkpoints: Checkpoints) -> None:
        """Nothing: it makes nothing."""

    def delete(self, checkpoints: Checkpoints) -> None:
        checkpoints.sandboxes.drop(self.id)


class CreateContainer(AboutContainer, msgspec.Struct, frozen=True):
    """CreateContainer."""

    raw: CreateContainerRequest
    info: ContainerInfo

    def with_answer(self, answer: bytes) -> "CreateContainer":
        """Return it with annotations, resources, environment and cgroup parent of an answer."""
        found = protobuf_messages.decode(ContainerResourceHookResponse, answer)
        config = self.raw.config or ContainerConfig()
        info = _answered(self.info, found)
        config = _replace(config, annotations=info.annotations, envs=_variables(config, found.container_envs))
        if info.resources is not None:
            config = _replace(
                config, linux=_replace(config.linux or LinuxContainerConfig(), resources=info.resources)
            )
        raw = _replace(self.raw, config=config)
        if found.pod_cgroup_parent and raw.sandbox_config is not None:
            linux = _with_parent(raw.sandbox_config.linux, found.pod_cgroup_parent)
            raw = _replace(raw, sandbox_config=_replace(raw.sandbox_config, linux=linux))
        return CreateContainer(raw, info)

    def request(self) -> bytes:
        return protobuf_messages.encode(self.raw)

    def store(self, response: bytes, checkpoints: Checkpoints) -> None:
        made = protobuf_messages.decode(ContainerIDMessage, response)
        checkpoints.containers.put(made.container_id, _replace(self.info, id=made.container_id))


class OfContainer(AboutContainer, msgspec.Struct, frozen=True):
    """StartContainer and StopContainer: calls that only name their container."""

    raw: bytes
    info: ContainerInfo

    def with_answer(self, answer: bytes) -> "OfContainer":
        """Return it unchanged: there is nothing in it to change."""
        return self

    def request(self) -> bytes:
        return self.raw

    def store(self, response: bytes, checkpoints: Checkpoints) -> None:
        """Nothing: it makes nothing."""

    def delete(self, checkpoints: Checkpoints) -> None:
        checkpoints.containers.drop(self.info.id)


class UpdateContainer(AboutContainer, msgspec.Struct, frozen=True):
    """UpdateContainerResources. `info` is the container with the request's resources already in it."""

    raw: UpdateContainerResourcesRequest
    info: ContainerInfo

    @classmethod
    def of(cls, raw: UpdateContainerResourcesRequest, known: ContainerInfo) -> "UpdateContainer":
        """Return the call about a container that is known."""
        before = known.resources or LinuxContainerResources()
        return cls(raw, _replace(known, resources=merge.with_update(before, raw.linux)))

    def with_answer(self, answer: bytes) -> "UpdateContainer":
        """Return it with all that is known of the container's resources, as an answer wants them."""
        found = protobuf_messages.decode(ContainerResourceHookResponse, answer)
        info = _answered(self.info, found)
        annotations = merge.merged(self.raw.annotations, found.container_annotations)
        return UpdateContainer(_replace(self.raw, linux=info.resources, annotations=annotations), info)

    def request(self) -> bytes:
        return protobuf_messages.encode(self.raw)

    def store(self, response: bytes, checkpoints: Checkpoints) -> None:
        checkpoints.containers.put(self.info.id, self.info)


def of_sandbox(info: SandboxInfo) -> PodSandboxHookRequest:
    """Return what hooks are told of a sandbox."""
    return PodSandboxHookRequest(
        info.metadata,
        info.runtime_handler,
        info.labels,
        info.annotations,
        info.cgroup_parent,
        info.overhead,
        info.resources,
    )


def of_container(info: ContainerInfo) -> ContainerResourceHookRequest:
    """Return what hooks are told of a container."""
    sandbox, meta = info.sandbox, info.metadata
    return ContainerResourceHookRequest(
        pod_meta=sandbox.metadata if sandbox.metadata != PodSandboxMetadata() else None,
        container_meta=HookContainerMetadata(meta.name, meta.attempt, info.id),
        container_annotations=info.annotations,
        container_resources=info.resources,
        pod_resources=sandbox.resources,
        pod_annotations=sandbox.annotations,
        pod_labels=sandbox.labels,
        pod_cgroup_parent=sandbox.cgroup_parent,
        container_envs=info.environment,
    )


def _answered(info: ContainerInfo, answer: ContainerResourceHookResponse) -> ContainerInfo:
    return _replace(
        info,
        annotations=merge.merged(info.annotations, answer.container_annotations),
        resources=merge.with_answer(info.resources, answer.container_resources),
        environment=answer.container_envs or info.environment,
        sandbox=_replace(info.sandbox, cgroup_parent=answer.pod_cgroup_parent or info.sandbox.cgroup_parent),
    )


def _variables(config: ContainerConfig, wanted: Mapping[str, str]) -> tuple[KeyValue, ...]:
    """Return the environment that an answer has, if it has one: known variables first, in their order."""
    if not wanted:
        return config.envs
    known = [each.key for each in config.envs if each.key in wanted]
    return tuple(KeyValue(name, wanted[name]) for name in dict.fromkeys((*known, *wanted)))


def _with_parent(linux: LinuxPodSandboxConfig | None, cgroup_parent: str) -> LinuxPodSandboxConfig | None:
    if not cgroup_parent:
        return linux
    return _replace(linux or LinuxPodSandboxConfig(), cgroup_parent=cgroup_parent)
