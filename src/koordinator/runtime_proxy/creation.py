"""CreateContainer between kubelet and runtime, read no further than hooks need: a kubelet waits for it.

Metadata, annotations, variables and resources have the same bytes in CRI and in the hook contract: they are handed on
as they came, and what hooks leave alone goes to the runtime untouched. Pure. Source: behaviour/koordlet-act 23.3.
"""

import contextlib
import functools
from collections.abc import Mapping
from typing import Annotated

import msgspec

from koordinator.host import protobuf, protobuf_messages
from koordinator.host.cri_messages import (
    ContainerIDMessage,
    LinuxContainerResources,
    PodSandboxConfig,
)
from koordinator.host.errors import ContentError
from koordinator.host.hook_messages import ContainerResourceHookResponse
from koordinator.host.protobuf_messages import Entries, Message
from koordinator.runtime_proxy import merge
from koordinator.runtime_proxy.checkpoints import Checkpoints, ContainerInfo, SandboxInfo
from koordinator.runtime_proxy.interception import with_parent

_replace = msgspec.structs.replace
_META, _ANNOTATIONS, _RESOURCES, _VARIABLES = 2, 3, 4, 9
"""Fields of ContainerResourceHookRequest."""


class LinuxPart(Message, frozen=True):
    """The resources of LinuxContainerConfig; a message that comes in pieces is their sum."""

    resources: Annotated[tuple[bytes, ...], 1] = ()


class ConfigPart(Message, frozen=True):
    """The fields of ContainerConfig that hooks are told."""

    metadata: Annotated[tuple[bytes, ...], 1] = ()
    envs: Annotated[Entries, 6] = ()
    annotations: Annotated[Entries, 10] = ()
    linux: Annotated[LinuxPart | None, 15] = None


class CreatePart(Message, frozen=True):
    """The fields of CreateContainerRequest that hooks are told or change."""

    pod_sandbox_id: Annotated[str, 1] = ""
    config: Annotated[ConfigPart | None, 2] = None
    sandbox_config: Annotated[tuple[bytes, ...], 3] = ()


class CreateContainer(msgspec.Struct, frozen=True, dict=True):
    """CreateContainer; `config` is that of the request, `resources` what it has of them, `merged` the same where an
    answer changed them."""

    raw: CreatePart
    config: ConfigPart
    sandbox: SandboxInfo
    resources: bytes | None
    merged: LinuxContainerResources | None = None

    @classmethod
    def of(cls, raw: CreatePart, config: ConfigPart, sandbox: SandboxInfo) -> "CreateContainer":
        """Return the call for a container of a sandbox."""
        parts = config.linux.resources if config.linux is not None else ()
        return cls(raw, config, sandbox, b"".join(parts) if parts else None)

    @property
    def labels(self) -> Mapping[str, str]:
        return self.sandbox.labels

    def hook_request(self) -> bytes:
        config, field = self.config, protobuf.field
        parts = [self.sandbox.told, field(_META, b"".join(config.metadata))]
        parts += [field(_ANNOTATIONS, each) for each in config.annotations]
        if self.resources is not None:
            parts.append(field(_RESOURCES, self.resources))
        parts += [field(_VARIABLES, each) for each in config.envs]
        return b"".join(parts)

    @functools.cached_property
    def _given(self) -> LinuxContainerResources | None:
        if self.resources is None or self.merged is not None:
            return self.merged
        return protobuf_messages.decode(LinuxContainerResources, self.resources)

    def prepare(self) -> None:
        # What cannot be read is told to hooks as it came, and the runtime will see for itself.
        with contextlib.suppress(ContentError):
            _ = self._given

    def with_answer(self, answer: bytes) -> "CreateContainer":
        """Return it with annotations, resources, environment and cgroup parent of an answer."""
        found = protobuf_messages.decode(ContainerResourceHookResponse, answer)
        config = _replace(
            self.config,
            annotations=merge.entries_merged(self.config.annotations, found.container_annotations),
            envs=merge.variables(self.config.envs, found.container_envs),
        )
        resources = self.resources
        merged = merge.with_answer(self._given, found.container_resources)
        if merged is not None and merged != self._given:
            resources = protobuf_messages.encode(merged)
            config = _replace(config, linux=_replace(config.linux or LinuxPart(), resources=(resources,)))
        return CreateContainer(
            _replace(self.raw, config=config, sandbox_config=self._sandbox_config(found.pod_cgroup_parent)),
            config,
            _replace(self.sandbox, cgroup_parent=found.pod_cgroup_parent or self.sandbox.cgroup_parent),
            resources,
            merged,
        )

    def _sandbox_config(self, parent: str) -> tuple[bytes, ...]:
        """Return the request's sandbox with the cgroup parent of an answer: kubelets tell the one they began with."""
        given = self.raw.sandbox_config
        if not given or parent in ("", self.sandbox.kubelet_parent):
            return given
        config = protobuf_messages.decode(PodSandboxConfig, b"".join(given))
        return (protobuf_messages.encode(_replace(config, linux=with_parent(config.linux, parent))),)

    def request(self) -> bytes:
        return protobuf_messages.encode(self.raw)

    def store(self, response: bytes, checkpoints: Checkpoints) -> None:
        own_id = protobuf_messages.decode(ContainerIDMessage, response).container_id
        made = ContainerInfo(
            sandbox=self.sandbox,
            metadata=b"".join(self.config.metadata),
            id=own_id,
            annotations=self.config.annotations,
            resources=self._given,
            environment=self.config.envs,
        )
        checkpoints.containers.put(own_id, made)

    def delete(self, checkpoints: Checkpoints) -> None:
        """Nothing: nothing was made before."""
