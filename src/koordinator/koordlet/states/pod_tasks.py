"""Threads of containers, for strategies that place threads one by one. Source: spec 10, section 7.2."""

from collections.abc import Iterable, Mapping

from koordinator.host import cgroup_layout
from koordinator.host.cgroup_layout import ContainerID, Driver
from koordinator.host.cgroups import Cgroups
from koordinator.host.errors import HostError
from koordinator.koordlet.node_pods import PodRecord

Threads = Mapping[str, tuple[int, ...]]
"""Ids of threads by the group of a container or sandbox."""


def threads(cgroups: Cgroups, driver: Driver, pods: Iterable[PodRecord]) -> dict[str, Threads]:
    """Threads by pod UID, of pods that have not finished; groups that are gone are left out."""
    return {pod.uid: _of_pod(cgroups, driver, pod) for pod in pods if pod.is_active}


def _of_pod(cgroups: Cgroups, driver: Driver, pod: PodRecord) -> Threads:
    found: dict[str, tuple[int, ...]] = {}
    groups = [container.group for container in pod.containers if container.is_running]
    sandbox = sandbox_group(cgroups, driver, pod)
    for group in [*groups, sandbox] if sandbox else groups:
        if (tasks := cgroups.tasks(group)) is not None:
            found[group] = tuple(tasks)
    return found


def sandbox_group(cgroups: Cgroups, driver: Driver, pod: PodRecord) -> str:
    """Group of the pause container, empty where it cannot be told from others."""
    children = cgroups.children(pod.group, "cpuset")
    if children is None or not pod.containers:
        return ""
    known = [cgroup_layout.parse_container_id(each.id) for each in pod.containers]
    try:
        found = cgroup_layout.sandbox_id(driver, [each.rpartition("/")[2] for each in children], known)
    except HostError:
        return ""
    if not found:
        return ""
    container: ContainerID = cgroup_layout.parse_container_id(found)
    return cgroup_layout.container_dir(driver, pod.group, container)
