"""Define the context and the answer of a hook: the same for the reconciler and for whatever a container runtime calls.

A hook is a function from a context to a `HookResponse`. Nothing set in it means "leave alone". Source:
behaviour/koordlet-act 13.3 and 13.4.

Contexts of the pods that the kubelet tells of are made as the reconciler needs them.
"""

import enum
from collections.abc import Iterable, Mapping

import msgspec

from koordinator.api import pod_resources, resources
from koordinator.api.annotations.koordlet import EXTENDED_RESOURCE_SPEC, ContainerResources
from koordinator.api.core import Container, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.api.quantity import ResourceList, milli, value
from koordinator.host import cgroup_knobs, cgroup_layout
from koordinator.host.cgroup_knobs import UNLIMITED, Knob
from koordinator.host.cgroup_layout import Driver
from koordinator.host.cgroups import Cgroups
from koordinator.host.errors import LayoutError
from koordinator.koordlet.node_pods import PodRecord

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
        """Return the pod's name in errors."""
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

    @property
    def obj(self) -> str:
        """Return the container's name in errors."""
        return f"{self.pod.obj}: {'sandbox' if self.is_sandbox else 'container ' + self.name}"


class ClassContext(msgspec.Struct, frozen=True):
    """The group of a Kubernetes QoS class."""

    kube_qos: KubeQoS
    group: str

    @property
    def obj(self) -> str:
        """Return its name in errors."""
        return f"group {self.group}"


class HostApplicationContext(msgspec.Struct, frozen=True):
    """An application outside of pods."""

    name: str
    qos: QoSClass
    group: str

    @property
    def obj(self) -> str:
        """Return its name in errors."""
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
    answers = [each for each in responses if each != NOTHING]
    if len(answers) == 1:
        return answers[0]
    said: dict[str, object] = {}
    for response in answers:
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


def of_pod(record: PodRecord) -> PodContext:
    """Return the pod with what its spec asks for. Side-cars count as containers: they run beside them."""
    pod = record.pod
    running = pod_resources.running_together(pod.spec)
    current = _of_containers(
        [each.resources.requests for each in running], [each.resources.limits for each in running]
    )
    # As the kubelet and CPU burst count it: init containers run within the pod's quota, too.
    quota_us = cgroup_knobs.quota_of_milli(pod_resources.cpu_limit_milli(pod))
    return PodContext(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=record.uid,
        labels=pod.metadata.labels,
        annotations=pod.metadata.annotations,
        group=record.group,
        kube_qos=record.kube_qos,
        current=msgspec.structs.replace(current, quota_us=quota_us),
        extended=batch_resources_of(pod, running),
        container_names=tuple(each.name for each in running),
        runtime_class=pod.spec.runtime_class_name or "",
    )


def of_containers(pod: PodContext, record: PodRecord) -> list[ContainerContext]:
    """Return the containers of a pod that have an id, normal ones before init containers."""
    specs = {each.name: each for each in (*record.pod.spec.init_containers, *record.pod.spec.containers)}
    extended = pod.extended or {}
    found = []
    for container in record.containers:
        spec = specs.get(container.name)
        current = (
            UNKNOWN if spec is None else _of_containers([spec.resources.requests], [spec.resources.limits])
        )
        found.append(
            ContainerContext(
                pod=pod,
                name=container.name,
                id=container.id,
                group=container.group,
                current=current,
                extended=extended.get(container.name),
            )
        )
    return found


def of_sandbox(
    pod: PodContext, record: PodRecord, cgroups: Cgroups, driver: Driver
) -> ContainerContext | None:
    """Return the pause container: the one group of the pod that is none of its containers; None when that is
    unclear."""
    known = [cgroup_layout.parse_container_id(each.id) for each in record.containers]
    children = cgroups.children(pod.group, "cpuset")
    if not known or not children:
        return None
    names = [each.rpartition("/")[2] for each in children]
    try:
        found = cgroup_layout.sandbox_id(driver, names, known)
    except LayoutError:
        return None  # runtimes without sandboxes, and pods in the middle of a restart
    group = cgroup_layout.container_dir(driver, pod.group, cgroup_layout.parse_container_id(found))
    return ContainerContext(pod=pod, name="", id=found, group=group, is_sandbox=True)


def _of_containers(requests: list[ResourceList], limits: list[ResourceList]) -> GroupResources:
    """Sums as the kubelet takes them: one container without limit makes all unlimited."""
    cpu_limits = [milli(each.get(resources.CPU, 0)) for each in limits]
    memory_limits = [value(each.get(resources.MEMORY, 0)) for each in limits]
    is_cpu_limited = bool(cpu_limits) and min(cpu_limits) > 0
    is_memory_limited = bool(memory_limits) and min(memory_limits) > 0
    return GroupResources(
        shares=cgroup_knobs.shares_of_milli(sum(milli(each.get(resources.CPU, 0)) for each in requests)),
        quota_us=cgroup_knobs.quota_of_milli(sum(cpu_limits)) if is_cpu_limited else UNLIMITED,
        memory_bytes=sum(memory_limits) if is_memory_limited else UNLIMITED,
    )


def batch_resources_of(pod: Pod, running: Iterable[Container]) -> Mapping[str, ContainerResources] | None:
    """Batch resources by container of the spec, else those of the annotation; None when there are none."""
    found = {}
    for container in running:
        requests, limits = _batch(container.resources.requests), _batch(container.resources.limits)
        if requests or limits:
            found[container.name] = ContainerResources(requests=requests, limits=limits)
    return found or annotated_batch_resources(pod.metadata.annotations)


def annotated_batch_resources(annotations: Mapping[str, str]) -> Mapping[str, ContainerResources] | None:
    """Return batch resources by container as a webhook noted them; None when there are none that can be read."""
    try:
        spec = EXTENDED_RESOURCE_SPEC.read(annotations)
    except ProtocolError:
        return None  # told by the webhook that wrote it; nothing known means left alone
    return spec.containers or None if spec is not None else None


def _batch(amounts: ResourceList) -> ResourceList:
    return {name: amounts[name] for name in resources.BATCH_RESOURCES if name in amounts}
