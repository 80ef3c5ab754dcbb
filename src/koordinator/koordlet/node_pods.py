"""Pods of this node as the parts of the agent see them: the object, its groups, its containers.

Source: behaviour/koordlet-observe 7.2.
Records are made once per pod list, so that loops which run each second do not work out names again.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from koordinator.api import copilot, labels, pod_resize, priority, qos, quantity, resources
from koordinator.api.copilot import ContainerInfo
from koordinator.api.core import Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import ObjectMeta
from koordinator.api.priority import PriorityClass
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.api.quantity import Family, QuantityError, ResourceList
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_layout import Driver
from koordinator.host.errors import LayoutError


class NodeContainer(msgspec.Struct, frozen=True):
    """One container that has an id."""

    name: str
    id: str
    """`<runtime>://<id>`."""
    group: str
    is_running: bool
    is_init: bool


class PodRecord(msgspec.Struct, frozen=True):
    """One pod of this node."""

    pod: Pod
    driver: Driver
    """Naming of its groups."""
    uid: str
    group: str
    qos: QoSClass
    """QoS class of the label; NONE without one."""
    kube_qos: KubeQoS
    is_active: bool
    """Pending or Running."""
    containers: tuple[NodeContainer, ...]
    """Normal ones in the order of the status, then init containers; without those that have no id yet."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"


def is_service(record: PodRecord) -> bool:
    """Return whether a pod is to be protected: it runs for somebody who waits. All others may have to give way."""
    return qos.default(record.pod) is not QoSClass.BE and priority.default(record.pod) is PriorityClass.PROD


def record(pod: Pod, driver: Driver) -> PodRecord:
    """Return what loops need to know of a pod. Containers whose id cannot be read are left out: they are not there
    yet.

    Raises: LayoutError when the UID names no group.
    """
    kube = qos.kube(pod)
    group = cgroup_layout.pod_dir(driver, kube, pod.metadata.uid)
    status = pod.status
    return PodRecord(
        pod=pod,
        driver=driver,
        uid=pod.metadata.uid,
        group=group,
        qos=qos.raw(pod),
        kube_qos=kube,
        is_active=status.phase in ("Pending", "Running"),
        containers=(
            *_containers(status.container_statuses, driver, group, is_init=False),
            *_containers(status.init_container_statuses, driver, group, is_init=True),
        ),
    )


class ForeignContainer(msgspec.Struct, frozen=True):
    """A container of another runtime on this node (YARN), told of as a pod is.

    `socket` is that of the runtime's agent; empty while it is away and the container is known by its group.
    """

    record: PodRecord
    socket: str


def foreign(container: ContainerInfo, driver: Driver, group: str, socket: str) -> ForeignContainer:
    """Return a container of another runtime that has this group, as a running best-effort pod of the batch class.

    Raises: ProtocolError naming the container when an amount is no quantity.
    """
    given = {
        labels.QOS_CLASS: QoSClass.BE.value,
        labels.PRIORITY_CLASS: PriorityClass.BATCH.value,
        labels.EVICTION_ENABLED: "true",
        labels.PRIORITY: str(
            copilot.sub_priority(is_opportunistic=False, is_master=copilot.is_master(container.name))
        ),
    }
    amounts = container.resources.requests
    try:
        requests: ResourceList = {
            resources.BATCH_CPU: quantity.text_of_value(quantity.milli(amounts.get("cpu", "0"))),
            resources.BATCH_MEMORY: quantity.text_of_value(
                quantity.value(amounts.get("memory", "0")), Family.BINARY
            ),
        }
    except QuantityError as error:
        raise ProtocolError(f"container {container.name}", "resources.requests", str(error)) from error
    pod = Pod(
        metadata=ObjectMeta(
            name=container.name,
            namespace=container.namespace,
            uid=container.uid,
            labels=given | (container.labels or {}) | {copilot.LABEL: "true"},
            annotations=container.annotations or {},
            creation_timestamp=None
            if container.create_timestamp == copilot.UNSET
            else container.create_timestamp,
        ),
        spec=PodSpec(
            priority=container.priority,
            host_network=container.host_network,
            containers=[Container(name=container.name, resources=ResourceRequirements(requests=requests))],
        ),
        status=PodStatus(phase="Running"),
    )
    record = PodRecord(
        pod=pod,
        driver=driver,
        uid=container.uid,
        group=group,
        qos=qos.raw(pod),
        kube_qos=KubeQoS.BEST_EFFORT,
        is_active=True,
        containers=(),
    )
    return ForeignContainer(record, socket)


def as_granted(pod: Pod) -> Pod:
    """Return the pod with the amounts that the kubelet has granted: groups must not get what it refuses or puts off."""
    spec = pod_resize.granted_spec(pod)
    return pod if spec is pod.spec else msgspec.structs.replace(pod, spec=spec)


def readable(pod: Pod) -> tuple[Pod, list[str]]:
    """Return the pod without amounts that are no quantities, and what was wrong: whoever adds up amounts of all pods
    must not fail because of one. A pod without such amounts is answered as it is."""
    problems: list[str] = []
    spec = msgspec.structs.replace(
        pod.spec,
        containers=[_readable_container(each, "containers", problems) for each in pod.spec.containers],
        init_containers=[
            _readable_container(each, "initContainers", problems) for each in pod.spec.init_containers
        ],
        overhead=_readable_amounts(pod.spec.overhead, "spec.overhead", problems),
    )
    status = msgspec.structs.replace(
        pod.status,
        container_statuses=[_readable_status(each, problems) for each in pod.status.container_statuses],
        init_container_statuses=[
            _readable_status(each, problems) for each in pod.status.init_container_statuses
        ],
    )
    return (msgspec.structs.replace(pod, spec=spec, status=status) if problems else pod), problems


def _readable_status(reported: ContainerStatus, problems: list[str]) -> ContainerStatus:
    where = f"status of container {reported.name}"
    allocated = _readable_amounts(reported.allocated_resources, f"{where}.allocatedResources", problems)
    applied = reported.resources and _readable_requirements(
        reported.resources, f"{where}.resources", problems
    )
    return msgspec.structs.replace(reported, allocated_resources=allocated, resources=applied)


def _readable_container(container: Container, kind: str, problems: list[str]) -> Container:
    cleaned = _readable_requirements(
        container.resources, f"spec.{kind}[{container.name}].resources", problems
    )
    if cleaned is container.resources:
        return container
    return msgspec.structs.replace(container, resources=cleaned)


def _readable_requirements(
    old: ResourceRequirements, where: str, problems: list[str]
) -> ResourceRequirements:
    requests = _readable_amounts(old.requests, f"{where}.requests", problems)
    limits = _readable_amounts(old.limits, f"{where}.limits", problems)
    if requests is old.requests and limits is old.limits:
        return old
    return msgspec.structs.replace(old, requests=requests, limits=limits)


def _readable_amounts(amounts: ResourceList, where: str, problems: list[str]) -> ResourceList:
    bad = set()
    for name, raw in amounts.items():
        try:
            quantity.of(raw)
        except QuantityError as error:
            bad.add(name)
            problems.append(f"{where}.{name}: {error}")
    return {name: raw for name, raw in amounts.items() if name not in bad} if bad else amounts


def _containers(
    statuses: Iterable[ContainerStatus], driver: Driver, group: str, *, is_init: bool
) -> Iterable[NodeContainer]:
    for status in statuses:
        try:
            container = cgroup_layout.parse_container_id(status.container_id)
            of_container = cgroup_layout.container_dir(driver, group, container)
        except LayoutError:
            continue
        yield NodeContainer(
            name=status.name,
            id=status.container_id,
            group=of_container,
            is_running=status.state.running is not None,
            is_init=is_init,
        )


class GroupOwner(msgspec.Struct, frozen=True):
    """A pod, or one of its containers."""

    namespace: str
    name: str
    container: str = ""


class GroupOwners:
    """Looks groups up among those of the pods that the kubelet listed last; `pods` returns these by UID."""

    def __init__(self, pods: Callable[[], Mapping[str, PodRecord]]) -> None:
        self._pods = pods
        self._listed: Mapping[str, PodRecord] | None = None
        self._by_group: dict[str, GroupOwner] = {}

    def of(self, group: str) -> GroupOwner | None:
        """Return the pod or container whose group this is, or lies in; None for that of a class, or of nobody known."""
        pods = self._pods()
        if self._listed is not pods:
            self._listed = pods
            self._by_group = dict(pair for record in pods.values() for pair in _groups(record))
        while group:
            found = self._by_group.get(group)
            if found is not None:
                return found
            group = group.rpartition("/")[0]
        return None


def _groups(record: PodRecord) -> list[tuple[str, GroupOwner]]:
    meta = record.pod.metadata
    of_containers = [
        (each.group, GroupOwner(meta.namespace, meta.name, each.name)) for each in record.containers
    ]
    return [(record.group, GroupOwner(meta.namespace, meta.name)), *of_containers]
