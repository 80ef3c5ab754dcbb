"""The part of the Container Runtime Interface that is read or changed here; all else survives as unknown fields.

Source: k8s.io/cri-api, `runtime.v1`. Durations in seconds, CPU periods and quotas in µs, timestamps in ns.
"""

import enum
from collections.abc import Mapping
from typing import Annotated

from koordinator.host.protobuf_messages import Message

RUNTIME_SERVICE = "runtime.v1.RuntimeService"
IMAGE_SERVICE = "runtime.v1.ImageService"


class HugepageLimit(Message, frozen=True):
    """The limit of one page size, such as `2MB`, in bytes."""

    page_size: Annotated[str, 1] = ""
    limit: Annotated[int, 2] = 0


class LinuxContainerResources(Message, frozen=True):
    """Resources of a container; a quota of −1 is no limit. The hook contract has the same message."""

    cpu_period: Annotated[int, 1] = 0
    cpu_quota: Annotated[int, 2] = 0
    cpu_shares: Annotated[int, 3] = 0
    memory_limit_in_bytes: Annotated[int, 4] = 0
    oom_score_adj: Annotated[int, 5] = 0
    cpuset_cpus: Annotated[str, 6] = ""
    cpuset_mems: Annotated[str, 7] = ""
    hugepage_limits: Annotated[tuple[HugepageLimit, ...], 8] = ()
    unified: Annotated[Mapping[str, str], 9] = {}
    memory_swap_limit_in_bytes: Annotated[int, 10] = 0


class PodSandboxMetadata(Message, frozen=True):
    """The pod of a sandbox."""

    name: Annotated[str, 1] = ""
    uid: Annotated[str, 2] = ""
    namespace: Annotated[str, 3] = ""
    attempt: Annotated[int, 4] = 0


class LinuxPodSandboxConfig(Message, frozen=True):
    """A sandbox on Linux."""

    cgroup_parent: Annotated[str, 1] = ""
    overhead: Annotated[LinuxContainerResources | None, 4] = None
    resources: Annotated[LinuxContainerResources | None, 5] = None


class PodSandboxConfig(Message, frozen=True):
    """The wanted sandbox."""

    metadata: Annotated[PodSandboxMetadata | None, 1] = None
    log_directory: Annotated[str, 3] = ""
    labels: Annotated[Mapping[str, str], 6] = {}
    annotations: Annotated[Mapping[str, str], 7] = {}
    linux: Annotated[LinuxPodSandboxConfig | None, 8] = None


class RunPodSandboxRequest(Message, frozen=True):
    """Make and start a sandbox."""

    config: Annotated[PodSandboxConfig | None, 1] = None
    runtime_handler: Annotated[str, 2] = ""


class RunPodSandboxResponse(Message, frozen=True):
    """The sandbox that was made."""

    pod_sandbox_id: Annotated[str, 1] = ""


class PodSandboxRequest(Message, frozen=True):
    """StopPodSandbox and RemovePodSandbox."""

    pod_sandbox_id: Annotated[str, 1] = ""


class PodSandboxStatusRequest(Message, frozen=True):
    """Ask for one sandbox; `verbose` adds what the runtime keeps of its configuration."""

    pod_sandbox_id: Annotated[str, 1] = ""
    verbose: Annotated[bool, 2] = False


class PodSandboxState(enum.IntEnum):
    """The state of a sandbox."""

    READY = 0
    NOT_READY = 1


class PodSandboxStatus(Message, frozen=True):
    """A sandbox as it is."""

    id: Annotated[str, 1] = ""
    metadata: Annotated[PodSandboxMetadata | None, 2] = None
    state: Annotated[int, 3] = 0
    created_at: Annotated[int, 4] = 0
    labels: Annotated[Mapping[str, str], 7] = {}
    annotations: Annotated[Mapping[str, str], 8] = {}
    runtime_handler: Annotated[str, 9] = ""


class PodSandboxStatusResponse(Message, frozen=True):
    """The answer; `info` is JSON by name, for people and for us where nothing else tells."""

    status: Annotated[PodSandboxStatus | None, 1] = None
    info: Annotated[Mapping[str, str], 2] = {}


class PodSandbox(Message, frozen=True):
    """A sandbox in a list."""

    id: Annotated[str, 1] = ""
    metadata: Annotated[PodSandboxMetadata | None, 2] = None
    state: Annotated[int, 3] = 0
    created_at: Annotated[int, 4] = 0
    labels: Annotated[Mapping[str, str], 5] = {}
    annotations: Annotated[Mapping[str, str], 6] = {}
    runtime_handler: Annotated[str, 7] = ""


class ListPodSandboxResponse(Message, frozen=True):
    """All sandboxes."""

    items: Annotated[tuple[PodSandbox, ...], 1] = ()


class ContainerMetadata(Message, frozen=True):
    """A container's name, and how often it was started before."""

    name: Annotated[str, 1] = ""
    attempt: Annotated[int, 2] = 0


class ImageSpec(Message, frozen=True):
    """An image."""

    image: Annotated[str, 1] = ""


class KeyValue(Message, frozen=True):
    """A variable of the environment."""

    key: Annotated[str, 1] = ""
    value: Annotated[str, 2] = ""


class LinuxContainerConfig(Message, frozen=True):
    """A container on Linux."""

    resources: Annotated[LinuxContainerResources | None, 1] = None


class ContainerConfig(Message, frozen=True):
    """The wanted container."""

    metadata: Annotated[ContainerMetadata | None, 1] = None
    image: Annotated[ImageSpec | None, 2] = None
    command: Annotated[tuple[str, ...], 3] = ()
    args: Annotated[tuple[str, ...], 4] = ()
    working_dir: Annotated[str, 5] = ""
    envs: Annotated[tuple[KeyValue, ...], 6] = ()
    labels: Annotated[Mapping[str, str], 9] = {}
    annotations: Annotated[Mapping[str, str], 10] = {}
    log_path: Annotated[str, 11] = ""
    linux: Annotated[LinuxContainerConfig | None, 15] = None


class CreateContainerRequest(Message, frozen=True):
    """Make a container in a sandbox."""

    pod_sandbox_id: Annotated[str, 1] = ""
    config: Annotated[ContainerConfig | None, 2] = None
    sandbox_config: Annotated[PodSandboxConfig | None, 3] = None


class ContainerIDMessage(Message, frozen=True):
    """CreateContainer's answer, StartContainer and RemoveContainer: a container by its id."""

    container_id: Annotated[str, 1] = ""


class StopContainerRequest(Message, frozen=True):
    """Stop a container, killing it after `timeout`; 0 kills at once."""

    container_id: Annotated[str, 1] = ""
    timeout: Annotated[int, 2] = 0


class UpdateContainerResourcesRequest(Message, frozen=True):
    """Change what a container gets."""

    container_id: Annotated[str, 1] = ""
    linux: Annotated[LinuxContainerResources | None, 2] = None
    annotations: Annotated[Mapping[str, str], 4] = {}


class ContainerState(enum.IntEnum):
    """The state of a container."""

    CREATED = 0
    RUNNING = 1
    EXITED = 2
    UNKNOWN = 3


class Container(Message, frozen=True):
    """A container in a list."""

    id: Annotated[str, 1] = ""
    pod_sandbox_id: Annotated[str, 2] = ""
    metadata: Annotated[ContainerMetadata | None, 3] = None
    image: Annotated[ImageSpec | None, 4] = None
    image_ref: Annotated[str, 5] = ""
    state: Annotated[int, 6] = 0
    created_at: Annotated[int, 7] = 0
    labels: Annotated[Mapping[str, str], 8] = {}
    annotations: Annotated[Mapping[str, str], 9] = {}


class ListContainersResponse(Message, frozen=True):
    """All containers."""

    containers: Annotated[tuple[Container, ...], 1] = ()


class ContainerResources(Message, frozen=True):
    """Resources in a container's status."""

    linux: Annotated[LinuxContainerResources | None, 1] = None


class ContainerStatus(Message, frozen=True):
    """A container as it is."""

    id: Annotated[str, 1] = ""
    metadata: Annotated[ContainerMetadata | None, 2] = None
    state: Annotated[int, 3] = 0
    created_at: Annotated[int, 4] = 0
    started_at: Annotated[int, 5] = 0
    finished_at: Annotated[int, 6] = 0
    exit_code: Annotated[int, 7] = 0
    image: Annotated[ImageSpec | None, 8] = None
    reason: Annotated[str, 10] = ""
    labels: Annotated[Mapping[str, str], 12] = {}
    annotations: Annotated[Mapping[str, str], 13] = {}
    log_path: Annotated[str, 15] = ""
    resources: Annotated[ContainerResources | None, 16] = None


class ContainerStatusResponse(Message, frozen=True):
    """The answer about one container."""

    status: Annotated[ContainerStatus | None, 1] = None


class IDFilter(Message, frozen=True):
    """A filter of a list by id; empty lets everything through."""

    id: Annotated[str, 1] = ""


class ListByID(Message, frozen=True):
    """ListContainers and ListPodSandbox: everything, or what has one id."""

    filter: Annotated[IDFilter | None, 1] = None


class VersionResponse(Message, frozen=True):
    """The name and versions of a runtime."""

    version: Annotated[str, 1] = "0.1.0"
    runtime_name: Annotated[str, 2] = ""
    runtime_version: Annotated[str, 3] = ""
    runtime_api_version: Annotated[str, 4] = "v1"


class RuntimeCondition(Message, frozen=True):
    """A condition of a runtime: `RuntimeReady` or `NetworkReady`."""

    type: Annotated[str, 1] = ""
    status: Annotated[bool, 2] = False


class RuntimeStatus(Message, frozen=True):
    """The conditions of a runtime."""

    conditions: Annotated[tuple[RuntimeCondition, ...], 1] = ()


class StatusResponse(Message, frozen=True):
    """The answer to Status."""

    status: Annotated[RuntimeStatus | None, 1] = None


class ExecSyncRequest(Message, frozen=True):
    """A command in a container, whose end is waited for; `timeout` in seconds, 0 for none."""

    container_id: Annotated[str, 1] = ""
    cmd: Annotated[tuple[str, ...], 2] = ()
    timeout: Annotated[int, 3] = 0


class ExecSyncResponse(Message, frozen=True):
    """The output of a command, and how it ended."""

    stdout: Annotated[bytes, 1] = b""
    stderr: Annotated[bytes, 2] = b""
    exit_code: Annotated[int, 3] = 0


class ContainerAttributes(Message, frozen=True):
    """The container that statistics are of."""

    id: Annotated[str, 1] = ""
    metadata: Annotated[ContainerMetadata | None, 2] = None
    labels: Annotated[Mapping[str, str], 3] = {}
    annotations: Annotated[Mapping[str, str], 4] = {}


class CPUUsage(Message, frozen=True):
    """CPU time so far in ns, at a time in ns."""

    timestamp: Annotated[int, 1] = 0
    usage_core_nano_seconds: Annotated[int | None, 2] = None


class MemoryUsage(Message, frozen=True):
    """Memory in bytes, at a time in ns."""

    timestamp: Annotated[int, 1] = 0
    working_set_bytes: Annotated[int | None, 2] = None
    rss_bytes: Annotated[int | None, 5] = None


class ContainerStats(Message, frozen=True):
    """The use of one container."""

    attributes: Annotated[ContainerAttributes | None, 1] = None
    cpu: Annotated[CPUUsage | None, 2] = None
    memory: Annotated[MemoryUsage | None, 3] = None


class ContainerStatsResponse(Message, frozen=True):
    """The use of one container."""

    stats: Annotated[ContainerStats | None, 1] = None


class ListContainerStatsResponse(Message, frozen=True):
    """The use of all containers."""

    stats: Annotated[tuple[ContainerStats, ...], 1] = ()


class PodSandboxAttributes(Message, frozen=True):
    """The sandbox that statistics are of."""

    id: Annotated[str, 1] = ""
    metadata: Annotated[PodSandboxMetadata | None, 2] = None


class LinuxPodSandboxStats(Message, frozen=True):
    """The use of a sandbox with all of its containers, and that of each."""

    cpu: Annotated[CPUUsage | None, 1] = None
    memory: Annotated[MemoryUsage | None, 2] = None
    containers: Annotated[tuple[ContainerStats, ...], 5] = ()


class PodSandboxStats(Message, frozen=True):
    """The use of one sandbox."""

    attributes: Annotated[PodSandboxAttributes | None, 1] = None
    linux: Annotated[LinuxPodSandboxStats | None, 2] = None


class ListPodSandboxStatsResponse(Message, frozen=True):
    """The use of all sandboxes."""

    stats: Annotated[tuple[PodSandboxStats, ...], 1] = ()


class Image(Message, frozen=True):
    """An image; `size` in bytes."""

    id: Annotated[str, 1] = ""
    repo_tags: Annotated[tuple[str, ...], 2] = ()
    repo_digests: Annotated[tuple[str, ...], 3] = ()
    size: Annotated[int, 4] = 0


class ListImagesResponse(Message, frozen=True):
    """All images."""

    images: Annotated[tuple[Image, ...], 1] = ()
