"""The contract between the runtime proxy and hook servers: package `runtime.v1alpha1`. Source: behaviour/koordlet-act
23.5."""

from collections.abc import Mapping
from typing import Annotated

from koordinator.host.cri_messages import LinuxContainerResources, PodSandboxMetadata
from koordinator.host.protobuf_messages import Entries, Message

HOOK_SERVICE = "runtime.v1alpha1.RuntimeHookService"


class HookContainerMetadata(Message, frozen=True):
    """A container; it has no id before it was made."""

    name: Annotated[str, 1] = ""
    attempt: Annotated[int, 2] = 0
    id: Annotated[str, 3] = ""


class PodSandboxHookRequest(Message, frozen=True):
    """A sandbox that is about to run, or has stopped."""

    pod_meta: Annotated[PodSandboxMetadata | None, 1] = None
    runtime_handler: Annotated[str, 2] = ""
    labels: Annotated[Mapping[str, str], 3] = {}
    annotations: Annotated[Mapping[str, str], 4] = {}
    cgroup_parent: Annotated[str, 5] = ""
    overhead: Annotated[LinuxContainerResources | None, 6] = None
    resources: Annotated[LinuxContainerResources | None, 7] = None


class PodSandboxHookResponse(Message, frozen=True):
    """The sandbox as it should be instead."""

    labels: Annotated[Entries, 1] = ()
    annotations: Annotated[Entries, 2] = ()
    cgroup_parent: Annotated[str, 3] = ""
    resources: Annotated[LinuxContainerResources | None, 4] = None


class ContainerResourceHookRequest(Message, frozen=True):
    """A container at one of its stages."""

    pod_meta: Annotated[PodSandboxMetadata | None, 1] = None
    container_meta: Annotated[HookContainerMetadata | None, 2] = None
    container_annotations: Annotated[Entries, 3] = ()
    container_resources: Annotated[LinuxContainerResources | None, 4] = None
    pod_resources: Annotated[LinuxContainerResources | None, 5] = None
    pod_annotations: Annotated[Mapping[str, str], 6] = {}
    pod_labels: Annotated[Mapping[str, str], 7] = {}
    pod_cgroup_parent: Annotated[str, 8] = ""
    container_envs: Annotated[Entries, 9] = ()


class ContainerResourceHookResponse(Message, frozen=True):
    """The container as it should be instead."""

    container_annotations: Annotated[Entries, 1] = ()
    container_resources: Annotated[LinuxContainerResources | None, 2] = None
    pod_cgroup_parent: Annotated[str, 3] = ""
    container_envs: Annotated[Entries, 4] = ()
