"""Pods as the runtime proxy tells of them, read once: each call about a pod or one of its containers repeats all of it.

The messages are those of `host.hook_messages`, with the part that tells of the pod as it came: it has the same bytes in
both kinds, so that a container finds what its sandbox brought. Source: behaviour/koordlet-act 13.4 and 23.5.
"""

from collections import OrderedDict
from typing import Annotated

import msgspec

from koordinator.host import protobuf_messages
from koordinator.host.cri_messages import LinuxContainerResources, PodSandboxMetadata
from koordinator.host.hook_messages import HookContainerMetadata
from koordinator.host.protobuf_messages import Entries, Message
from koordinator.koordlet.hooks import runtime_calls
from koordinator.koordlet.hooks.contexts import GroupResources, PodContext
from koordinator.koordlet.view import NodeView

PODS_MAX = 512
"""Some more than a kubelet allows."""


class PodPart(msgspec.Struct, frozen=True):
    """The part of a call that tells of its pod. Messages that come in pieces are their sum."""

    metadata: tuple[bytes, ...]
    labels: Entries
    annotations: Entries
    cgroup_parent: str
    resources: tuple[bytes, ...]


class PodCall(Message, frozen=True):
    """PodSandboxHookRequest."""

    pod_meta: Annotated[tuple[bytes, ...], 1] = ()
    runtime_handler: Annotated[str, 2] = ""
    labels: Annotated[Entries, 3] = ()
    annotations: Annotated[Entries, 4] = ()
    cgroup_parent: Annotated[str, 5] = ""
    resources: Annotated[tuple[bytes, ...], 7] = ()

    @property
    def pod(self) -> PodPart:
        """Return what it tells of the pod."""
        return PodPart(self.pod_meta, self.labels, self.annotations, self.cgroup_parent, self.resources)


class ContainerCall(Message, frozen=True):
    """ContainerResourceHookRequest."""

    pod_meta: Annotated[tuple[bytes, ...], 1] = ()
    container_meta: Annotated[HookContainerMetadata | None, 2] = None
    container_annotations: Annotated[Entries, 3] = ()
    container_resources: Annotated[LinuxContainerResources | None, 4] = None
    pod_resources: Annotated[tuple[bytes, ...], 5] = ()
    pod_annotations: Annotated[Entries, 6] = ()
    pod_labels: Annotated[Entries, 7] = ()
    pod_cgroup_parent: Annotated[str, 8] = ""
    container_envs: Annotated[Entries, 9] = ()

    @property
    def pod(self) -> PodPart:
        """Return what it tells of the pod."""
        return PodPart(
            self.pod_meta, self.pod_labels, self.pod_annotations, self.pod_cgroup_parent, self.pod_resources
        )


class CalledPods:
    """Contexts of the pods that calls told of lately."""

    def __init__(self, view: NodeView) -> None:
        self._view = view
        self._known: OrderedDict[PodPart, PodContext] = OrderedDict()

    def of(self, part: PodPart, runtime_class: str = "") -> PodContext:
        """Return the context of a pod. Raises: ContentError."""
        known = self._known.get(part)
        if known is not None:
            return known
        metadata = protobuf_messages.decode(PodSandboxMetadata, b"".join(part.metadata))
        resources = protobuf_messages.decode(LinuxContainerResources, b"".join(part.resources))
        found = runtime_calls.pod_context(
            namespace=metadata.namespace,
            name=metadata.name,
            uid=metadata.uid,
            labels=protobuf_messages.texts(part.labels),
            annotations=protobuf_messages.texts(part.annotations),
            cgroup_parent=part.cgroup_parent or self._group_of(metadata.uid),
            runtime_class=runtime_class,
            current=current(resources),
        )
        if part.cgroup_parent:  # else the kubelet may tell of its group later
            self._known[part] = found
            if len(self._known) > PODS_MAX:
                self._known.popitem(last=False)
        return found

    def _group_of(self, uid: str) -> str:
        """Return the group of a pod that was made before the proxy began; empty when the kubelet has not told of it."""
        record = self._view.pods.get(uid)
        return record.group if record is not None else ""


def current(resources: LinuxContainerResources) -> GroupResources:
    """Return the resources of a call."""
    return runtime_calls.resources(resources.cpu_shares, resources.cpu_quota, resources.memory_limit_in_bytes)
