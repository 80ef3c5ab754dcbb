"""Remembers sandboxes and containers that were made through the proxy: calls about them name only their ids.

The runtime is asked for the rest when it is needed: made before the proxy began, or dropped because so much else came
since. Source: behaviour/koordlet-act 23.2 and 23.3.
"""

import functools
from collections import OrderedDict
from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from koordinator.host import protobuf_messages
from koordinator.host.cri_messages import (
    Container,
    ContainerMetadata,
    LinuxContainerResources,
    LinuxPodSandboxConfig,
    PodSandbox,
    PodSandboxConfig,
    PodSandboxMetadata,
)
from koordinator.host.hook_messages import ContainerResourceHookRequest
from koordinator.host.protobuf_messages import Entries

ENTRIES_MAX = 8_192
"""Some times the containers that a kubelet allows; who ends without being stopped must not stay for ever."""


class SandboxInfo(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A sandbox as hooks are told of it; `cgroup_parent` is empty where the runtime does not tell."""

    metadata: PodSandboxMetadata
    runtime_handler: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    cgroup_parent: str = ""
    kubelet_parent: str = ""
    """The cgroup parent in the kubelet's calls, which a hook may have changed."""
    overhead: LinuxContainerResources | None = None
    resources: LinuxContainerResources | None = None

    @classmethod
    def of_config(cls, config: PodSandboxConfig, runtime_handler: str = "") -> "SandboxInfo":
        """Return the sandbox that a kubelet asks for."""
        linux = config.linux or LinuxPodSandboxConfig()
        return cls(
            metadata=config.metadata or PodSandboxMetadata(),
            runtime_handler=runtime_handler,
            labels=config.labels,
            annotations=config.annotations,
            cgroup_parent=linux.cgroup_parent,
            kubelet_parent=linux.cgroup_parent,
            overhead=linux.overhead,
            resources=linux.resources,
        )

    @classmethod
    def of_listed(cls, sandbox: PodSandbox) -> "SandboxInfo":
        """Return the sandbox that a runtime lists."""
        return cls(
            metadata=sandbox.metadata or PodSandboxMetadata(),
            runtime_handler=sandbox.runtime_handler,
            labels=sandbox.labels,
            annotations=sandbox.annotations,
        )

    @functools.cached_property
    def told(self) -> bytes:
        """Return the part of a hook request about a container that tells of its sandbox."""
        return protobuf_messages.encode(
            ContainerResourceHookRequest(
                pod_meta=self.metadata if self.metadata != PodSandboxMetadata() else None,
                pod_resources=self.resources,
                pod_annotations=self.annotations,
                pod_labels=self.labels,
                pod_cgroup_parent=self.cgroup_parent,
            )
        )


class ContainerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A container as hooks are told of it, with its sandbox; no id before it was made."""

    sandbox: SandboxInfo
    metadata: bytes
    """ContainerMetadata, as it came."""
    id: str = ""
    annotations: Entries = ()
    resources: LinuxContainerResources | None = None
    environment: Entries = ()

    @classmethod
    def of_listed(
        cls, container: Container, sandbox: SandboxInfo, resources: LinuxContainerResources | None
    ) -> "ContainerInfo":
        """Return the container that a runtime lists, with the resources of its status."""
        return cls(
            sandbox=sandbox,
            metadata=protobuf_messages.encode(container.metadata or ContainerMetadata()),
            id=container.id,
            annotations=protobuf_messages.entries(container.annotations),
            resources=resources,
        )


T = TypeVar("T")


class Recent(Generic[T]):
    """Things by id, so many at most; the one that was used least lately goes first."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._kept: OrderedDict[str, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: str) -> T | None:
        """Return a thing; None when it is not known."""
        found = self._kept.get(name)
        if found is not None:
            self._kept.move_to_end(name)
        return found

    def put(self, name: str, thing: T) -> None:
        """Remember a thing in place of what had its id."""
        self._kept[name] = thing
        self._kept.move_to_end(name)
        while len(self._kept) > self._entries_max:
            self._kept.popitem(last=False)

    def drop(self, name: str) -> None:
        """Forget a thing."""
        self._kept.pop(name, None)


class Checkpoints:
    """All that is remembered."""

    def __init__(self) -> None:
        self.sandboxes: Recent[SandboxInfo] = Recent()
        self.containers: Recent[ContainerInfo] = Recent()
