"""Define the context and the answer of a hook: the same for the reconciler and for whatever a container runtime
calls.

A hook is a function from a context to a `HookResponse`. Nothing set in it means "leave alone".
Source: behaviour/koordlet-act 13.3 and 13.4.
"""

import enum
from collections.abc import Iterable, Mapping

import msgspec

from koordinator.api.annotations.koordlet import ContainerResources
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.host.cgroup_knobs import Knob

KATA = "kata"
"""Runtime class of pods whose containers have no groups of their own on the host."""


class HookStage(enum.StrEnum):
    """The moment when a container runtime asks."""

    PRE_RUN_POD_SANDBOX = "PreRunPodSandbox"
    POST_STOP_POD_SANDBOX = "PostStopPodSandbox"
    PRE_CREATE_CONTAINER = "PreCreateContainer"
    PRE_START_CONTAINER = "PreStartContainer"
    POST_START_CONTAINER = "PostStartContainer"
    PRE_UPDATE_CONTAINER_RESOURCES = "PreUpdateContainerResources"
    POST_STOP_CONTAINER = "PostStopContainer"
    PRE_REMOVE_RUN_POD_SANDBOX = "PreRemoveRunPodSandbox"
    """NRI only."""


class GroupResources(msgspec.Struct, frozen=True):
    """The resources that a group has now, or that the pod's spec asks for; None is unknown, `UNLIMITED` no limit."""

    shares: int | None = None
    quota_us: int | None = None
    memory_bytes: int | None = None


UNKNOWN = GroupResources()


class PodContext(msgspec.Struct, frozen=True):
    """A pod."""

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    group: str
    kube_qos: KubeQoS
    current: GroupResources = UNKNOWN
    extended: Mapping[str, ContainerResources] | None = None
    """Batch resources by container; None when nobody told."""
    container_names: tuple[str, ...] = ()
    """Containers that count for the pod's limits; empty where only annotations are seen."""
    runtime_class: str = ""

    @property
    def obj(self) -> str:
        """The pod's name in errors."""
        return f"Pod {self.namespace}/{self.name}"


class ContainerContext(msgspec.Struct, frozen=True):
    """A container, or the sandbox of a pod (then it has no name)."""

    pod: PodContext
    name: str
    id: str
    group: str
    current: GroupResources = UNKNOWN
    extended: ContainerResources | None = None
    is_sandbox: bool = False
    environment: Mapping[str, str] = {}

    @property
    def obj(self) -> str:
        """The container's name in errors."""
        return f"{self.pod.obj}: {'sandbox' if self.is_sandbox else 'container ' + self.name}"


class ClassContext(msgspec.Struct, frozen=True):
    """The group of a Kubernetes QoS class."""

    kube_qos: KubeQoS
    group: str

    @property
    def obj(self) -> str:
        """Its name in errors."""
        return f"group {self.group}"


class HostApplicationContext(msgspec.Struct, frozen=True):
    """An application outside of pods."""

    name: str
    qos: QoSClass
    group: str

    @property
    def obj(self) -> str:
        """Its name in errors."""
        return f"host application {self.name}"


Context = PodContext | ContainerContext | ClassContext | HostApplicationContext


class BindMount(msgspec.Struct, frozen=True):
    """A bind mount for a container."""

    source: str
    destination: str
    options: tuple[str, ...] = ("rbind", "rw")


class DeviceNode(msgspec.Struct, frozen=True):
    """A character device for a container."""

    path: str
    major: int
    minor: int
    mode: int = 0o666


class CoreGroup(msgspec.Struct, frozen=True):
    """Core scheduling: pods of the same name share one cookie, when enabled."""

    is_enabled: bool
    name: str


class ResctrlGroup(msgspec.Struct, frozen=True):
    """A resctrl group of a pod: its directory, and the text of its schemata; empty text writes nothing."""

    name: str
    schemata: str


class HookResponse(msgspec.Struct, frozen=True):
    """The values for a group or container, in v1 terms."""

    shares: int | None = None
    quota_us: int | None = None
    quota_us_max: int | None = None
    """So far another strategy may have raised the quota that we gave."""
    cpuset: str | None = None
    """Empty text clears the list, where the runtime is asked; the reconciler leaves it alone."""
    memory_bytes: int | None = None
    bvt: int | None = None
    cpu_idle: int | None = None
    resctrl: ResctrlGroup | None = None
    core_group: CoreGroup | None = None
    oom_score_adj: int | None = None
    files: Mapping[Knob, str] = {}
    """Other files of the group."""
    environment: Mapping[str, str] = {}
    mounts: tuple[BindMount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    directories: tuple[str, ...] = ()
    """Directories of the host to be made afresh (mode 0777) before the container starts."""


NOTHING = HookResponse()
_JOINED = ("mounts", "devices", "directories")
_MERGED = ("environment", "files")


def merged(responses: Iterable[HookResponse]) -> HookResponse:
    """Return all answers as one: a later hook wins, lists and environments grow."""
    said: dict[str, object] = {}
    for response in responses:
        for name in response.__struct_fields__:
            value = getattr(response, name)
            if value is None or value in ((), {}):
                continue
            if name in _JOINED:
                value = (*said.get(name, ()), *value)  # type: ignore[misc]
            elif name in _MERGED:
                value = {**said.get(name, {}), **value}  # type: ignore[dict-item]
            said[name] = value
    return HookResponse(**said)  # type: ignore[arg-type]
