"""Contexts of hooks from what a container runtime tells of a pod or container, by the runtime proxy or by NRI.

Source: behaviour/koordlet-act 13.4.
"""

from collections.abc import Mapping

from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import UNLIMITED
from koordinator.koordlet.hooks import contexts
from koordinator.koordlet.hooks.contexts import ContainerContext, GroupResources, PodContext


def resources(shares: int, quota_us: int, memory_bytes: int) -> GroupResources:
    """Return what a runtime's message says: 0 is absent, a negative number no limit."""
    return GroupResources(
        shares=shares or None,
        quota_us=_limit(quota_us),
        memory_bytes=_limit(memory_bytes),
    )


def _limit(number: int) -> int | None:
    return UNLIMITED if number < 0 else number or None


def pod_context(
    *,
    namespace: str,
    name: str,
    uid: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    cgroup_parent: str,
    runtime_class: str,
    current: GroupResources,
) -> PodContext:
    """Return the context of a pod as a runtime knows it; batch resources are those of its annotation.

    `cgroup_parent` is what the kubelet gave, a path or the last slice of one; empty where nobody told.
    Raises: LayoutError when that leads out of the cgroup root.
    """
    group = cgroup_layout.of_cgroup_parent(cgroup_parent)
    return PodContext(
        namespace=namespace,
        name=name,
        uid=uid,
        labels=labels,
        annotations=annotations,
        group=group,
        kube_qos=cgroup_layout.kube_qos_of_dir(group),
        current=current,
        extended=contexts.annotated_batch_resources(annotations),
        runtime_class=runtime_class,
    )


def container_context(
    pod: PodContext, name: str, container_id: str, current: GroupResources
) -> ContainerContext:
    """Return the context of a container; its group is that of the pod, for it has none of its own yet."""
    return ContainerContext(
        pod=pod,
        name=name,
        id=container_id,
        group=pod.group,
        current=current,
        extended=(pod.extended or {}).get(name),
    )
