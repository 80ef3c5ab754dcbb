"""Contexts of hooks from NRI's messages, and what hooks answer as adjustments of a container. Pure.

Source: behaviour/koordlet-act 13.4.
"""

from koordinator.koordlet.hooks import runtime_calls
from koordinator.koordlet.hooks.contexts import ContainerContext, GroupResources, HookResponse, PodContext
from koordinator.koordlet.nri.messages import (
    Container,
    ContainerAdjustment,
    ContainerUpdate,
    KeyValue,
    LinuxContainerAdjustment,
    LinuxContainerUpdate,
    LinuxCPU,
    LinuxDevice,
    LinuxMemory,
    LinuxPodSandbox,
    LinuxResources,
    Mount,
    PodSandbox,
)

_BIND = "bind"
_CHARACTER = "c"


def pod_context(pod: PodSandbox) -> PodContext:
    """Return the context of a pod. Raises: LayoutError when its group lies outside of the cgroup root."""
    linux = pod.linux or LinuxPodSandbox()
    return runtime_calls.pod_context(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        labels=pod.labels,
        annotations=pod.annotations,
        cgroup_parent=linux.cgroup_parent,
        runtime_class=pod.runtime_handler,
        current=_current(linux.pod_resources),
    )


def container_context(
    pod: PodContext, container: Container, resources: LinuxResources | None = None
) -> ContainerContext:
    """Return the context of a container, with the resources that it is about to get instead of its own if given."""
    own = container.linux.resources if container.linux is not None else None
    return runtime_calls.container_context(pod, container.name, container.id, _current(resources or own))


def adjustment(response: HookResponse) -> ContainerAdjustment | None:
    """Return the changes of a container that is about to be made; None when there are none."""
    linux = LinuxContainerAdjustment(
        devices=tuple(
            LinuxDevice(each.path, _CHARACTER, each.major, each.minor, each.mode) for each in response.devices
        ),
        resources=_resources(response),
        oom_score_adj=response.oom_score_adj,
    )
    found = ContainerAdjustment(
        mounts=tuple(Mount(each.destination, _BIND, each.source, each.options) for each in response.mounts),
        env=tuple(KeyValue(name, value) for name, value in response.environment.items()),
        linux=linux if linux != LinuxContainerAdjustment() else None,
    )
    return found if found != ContainerAdjustment() else None


def updates(container_id: str, response: HookResponse) -> tuple[ContainerUpdate, ...]:
    """Return the changes of a running container, none or one."""
    resources = _resources(response)
    if resources is None:
        return ()
    return (ContainerUpdate(container_id, LinuxContainerUpdate(resources)),)


def _resources(response: HookResponse) -> LinuxResources | None:
    """Return what NRI can carry; an empty CPU list means "not set" there, so the reconciler clears lists."""
    cpu = LinuxCPU(shares=response.shares, quota=response.quota_us, cpus=response.cpuset or "")
    found = LinuxResources(
        memory=LinuxMemory(response.memory_bytes) if response.memory_bytes is not None else None,
        cpu=cpu if cpu != LinuxCPU() else None,
        rdt_class=response.resctrl.name if response.resctrl is not None else None,
    )
    return found if found != LinuxResources() else None


def _current(resources: LinuxResources | None) -> GroupResources:
    known = resources or LinuxResources()
    cpu, memory = known.cpu or LinuxCPU(), known.memory or LinuxMemory()
    return runtime_calls.resources(cpu.shares or 0, cpu.quota or 0, memory.limit or 0)
