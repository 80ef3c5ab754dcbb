"""One intercepted call: what its hooks are told, what their answer makes of it, what is remembered of it.

Pure: the proxy finds what a call is about, asks the hooks and the runtime, and calls these functions in between. Fields
that are not known here reach the runtime as they came. Source: behaviour/koordlet-act 23.3.
"""

from collections.abc import Mapping
from typing import Protocol, Self

import msgspec

from koordinator.host import protobuf, protobuf_messages
from koordinator.host.cri_messages import (
    LinuxContainerResources,
    LinuxPodSandboxConfig,
    PodSandboxConfig,
    RunPodSandboxRequest,
    RunPodSandboxResponse,
    UpdateContainerResourcesRequest,
)
from koordinator.host.hook_messages import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)
from koordinator.runtime_proxy import merge
from koordinator.runtime_proxy.checkpoints import Checkpoints, ContainerInfo, SandboxInfo

_replace = msgspec.structs.replace
_META, _ID = 2, 3
"""Fields of ContainerResourceHookRequest and HookContainerMetadata, which begins as CRI's ContainerMetadata."""


class Interception(Protocol):
    """A call between kubelet and runtime. Errors of `with_answer` and `store`: ContentError, for damaged messages."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the labels of the pod."""
        ...

    def hook_request(self) -> bytes:
        """Return what hooks are told."""
        ...

    def prepare(self) -> None:
        """Do what an answer will need, while it is waited for."""
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


class _About:
    """A call about something that is known, and that goes on."""

    __slots__ = ()

    def prepare(self) -> None:
        """Nothing: it is all there."""

    def store(self, response: bytes, checkpoints: Checkpoints) -> None:
        """Nothing: it makes nothing."""

    def delete(self, checkpoints: Checkpoints) -> None:
        """Nothing: what the call was about goes on."""


class AboutSandbox(_About):
    """A call about one sandbox."""

    __slots__ = ()
    info: SandboxInfo

    @property
    def labels(self) -> Mapping[str, str]:
        return self.info.labels

    def hook_request(self) -> bytes:
        return of_sandbox(self.info)


class AboutContainer(_About):
    """A call about one container."""

    __slots__ = ()
    info: ContainerInfo

    @property
    def labels(self) -> Mapping[str, str]:
        return self.info.sandbox.labels

    def hook_request(self) -> bytes:
        return of_container(self.info)


class _AsItCame:
    """A call that only names what it is about: there is nothing in it to change."""

    __slots__ = ()
    raw: bytes

    def with_answer(self, answer: bytes) -> Self:
        return self

    def request(self) -> bytes:
        return self.raw


class RunSandbox(AboutSandbox, msgspec.Struct, frozen=True):
    """RunPodSandbox."""

    raw: RunPodSandboxRequest
    info: SandboxInfo

    def with_answer(self, answer: bytes) -> "RunSandbox":
        """Return it with labels, annotations and cgroup parent of an answer, whose resources no runtime is given."""
        found = protobuf_messages.decode(PodSandboxHookResponse, answer)
        added, noted = protobuf_messages.texts(found.labels), protobuf_messages.texts(found.annotations)
        config = self.raw.config or PodSandboxConfig()
        info = _replace(
            self.info,
            labels=merge.merged(config.labels, added),
            annotations=merge.merged(config.annotations, noted),
            cgroup_parent=found.cgroup_parent or self.info.cgroup_parent,
        )
        config = _replace(
            config,
            labels=info.labels,
            annotations=info.annotations,
            linux=with_parent(config.linux, info.cgroup_parent),
        )
        return RunSandbox(_replace(self.raw, config=config), info)

    def request(self) -> bytes:
        return protobuf_messages.encode(self.raw)

    def store(self, response: bytes, checkpoints: Checkpoints) -> None:
        made = protobuf_messages.decode(RunPodSandboxResponse, response)
        checkpoints.sandboxes.put(made.pod_sandbox_id, self.info)
        _ = self.info.told  # its first container waits for that no more


class OfSandbox(_AsItCame, AboutSandbox, msgspec.Struct, frozen=True):
    """StopPodSandbox."""

    raw: bytes
    id: str
    info: SandboxInfo

    def delete(self, checkpoints: Checkpoints) -> None:
        checkpoints.sandboxes.drop(self.id)


class OfContainer(_AsItCame, AboutContainer, msgspec.Struct, frozen=True):
    """StartContainer and StopContainer."""

    raw: bytes
    info: ContainerInfo

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
        answered = protobuf_messages.texts(found.container_annotations)
        annotations = merge.merged(self.raw.annotations, answered)
        return UpdateContainer(_replace(self.raw, linux=info.resources, annotations=annotations), info)

    def request(self) -> bytes:
        return protobuf_messages.encode(self.raw)

    def store(self, response: bytes, checkpoints: Checkpoints) -> None:
        checkpoints.containers.put(self.info.id, self.info)


def of_sandbox(info: SandboxInfo) -> bytes:
    """Return what hooks are told of a sandbox."""
    return protobuf_messages.encode(
        PodSandboxHookRequest(
            info.metadata,
            info.runtime_handler,
            info.labels,
            info.annotations,
            info.cgroup_parent,
            info.overhead,
            info.resources,
        )
    )


def of_container(info: ContainerInfo) -> bytes:
    """Return what hooks are told of a container."""
    own_id = protobuf.field(_ID, info.id) if info.id else b""
    meta = protobuf.field(_META, info.metadata + own_id)
    return (
        info.sandbox.told
        + meta
        + protobuf_messages.encode(
            ContainerResourceHookRequest(
                container_annotations=info.annotations,
                container_resources=info.resources,
                container_envs=info.environment,
            )
        )
    )


def _answered(info: ContainerInfo, answer: ContainerResourceHookResponse) -> ContainerInfo:
    return _replace(
        info,
        annotations=merge.entries_merged(info.annotations, answer.container_annotations),
        resources=merge.with_answer(info.resources, answer.container_resources),
        environment=answer.container_envs or info.environment,
        sandbox=_replace(info.sandbox, cgroup_parent=answer.pod_cgroup_parent or info.sandbox.cgroup_parent),
    )


def with_parent(linux: LinuxPodSandboxConfig | None, cgroup_parent: str) -> LinuxPodSandboxConfig | None:
    """Return a sandbox with another cgroup parent, if one is given."""
    if not cgroup_parent:
        return linux
    return _replace(linux or LinuxPodSandboxConfig(), cgroup_parent=cgroup_parent)
