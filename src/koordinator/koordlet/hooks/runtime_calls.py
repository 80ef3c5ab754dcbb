"""Contexts of hooks from what a container runtime tells of a pod or container, by the runtime proxy or by NRI.

Source: behaviour/koordlet-act 13.4.
"""

from collections.abc import Mapping

import msgspec

from koordinator.api.annotations.koordlet import EXTENDED_RESOURCE_SPEC
from koordinator.api.errors import ProtocolError
from koordinator.host import cgroup_layout
from koordinator.host.cgroup_knobs import UNLIMITED
from koordinator.koordlet.hooks.contexts import ContainerContext, GroupResources, PodContext


class RuntimePod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod as a runtime knows it. `group` is empty where nobody told."""

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    group: str = ""
    """The cgroup parent, as the kubelet gave it: a path, or the last slice of one."""
    runtime_class: str = ""
    current: GroupResources = GroupResources()


def resources(shares: int, quota_us: int, memory_bytes: int) -> GroupResources:
    """Return what a runtime's message says: 0 is absent, a negative number no limit."""
    return GroupResources(
        shares=shares or None,
        quota_us=_limit(quota_us),
        memory_bytes=_limit(memory_bytes),
    )


def _limit(number: int) -> int | None:
    return UNLIMITED if number < 0 else number or None


def pod_context(pod: RuntimePod) -> PodContext:
    """Return the context of a pod; batch resources are those of its annotation, none where that is malformed."""
    group = cgroup_layout.of_cgroup_parent(pod.group)
    try:
        spec = EXTENDED_RESOURCE_SPEC.read(pod.annotations)
    except ProtocolError:
        spec = None  # told by the webhook that wrote it; nothing known means left alone
    return PodContext(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        labels=pod.labels,
        annotations=pod.annotations,
        group=group,
        kube_qos=cgroup_layout.kube_qos_of_dir(group),
        current=pod.current,
        extended=spec.containers or None if spec is not None else None,
        runtime_class=pod.runtime_class,
    )


def container_context(
    pod: PodContext,
    name: str,
    container_id: str = "",
    *,
    current: GroupResources,
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
