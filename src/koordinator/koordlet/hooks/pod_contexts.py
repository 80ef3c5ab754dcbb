"""Contexts of the pods that the kubelet tells of, as the reconciler needs them. Source: behaviour/koordlet-act 13.4."""

from collections.abc import Iterable, Mapping

from koordinator.api import resources
from koordinator.api.annotations.koordlet import EXTENDED_RESOURCE_SPEC, ContainerResources
from koordinator.api.core import Container, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import ResourceList, milli, value
from koordinator.host import cgroup_knobs, cgroup_layout
from koordinator.host.cgroup_knobs import UNLIMITED
from koordinator.host.cgroup_layout import Driver
from koordinator.host.cgroups import Cgroups
from koordinator.host.errors import LayoutError
from koordinator.koordlet.hooks.contexts import ContainerContext, GroupResources, PodContext
from koordinator.koordlet.node_pods import PodRecord

_ALWAYS = "Always"


def of_pod(record: PodRecord) -> PodContext:
    """Return the pod with what its spec asks for. Side-cars count as containers: they run beside them."""
    pod = record.pod
    running = running_together(pod)
    return PodContext(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=record.uid,
        labels=pod.metadata.labels,
        annotations=pod.metadata.annotations,
        group=record.group,
        kube_qos=record.kube_qos,
        current=_of_containers(
            [each.resources.requests for each in running], [each.resources.limits for each in running]
        ),
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
            _of_containers([spec.resources.requests], [spec.resources.limits])
            if spec is not None
            else GroupResources()
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
    unclear.
    """
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


def running_together(pod: Pod) -> list[Container]:
    """Return the containers and side-cars of a pod: what runs beside each other."""
    side_cars = [each for each in pod.spec.init_containers if each.restart_policy == _ALWAYS]
    return [*pod.spec.containers, *side_cars]


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
    if found:
        return found
    try:
        told = EXTENDED_RESOURCE_SPEC.read(pod.metadata.annotations)
    except ProtocolError:
        return None  # told by the webhook that wrote it; nothing known means left alone
    return told.containers or None if told is not None else None


def _batch(amounts: ResourceList) -> ResourceList:
    return {name: amounts[name] for name in resources.BATCH_RESOURCES if name in amounts}
