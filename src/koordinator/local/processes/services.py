"""The services that pods of the process node share."""

import hashlib
from pathlib import Path

import aiohttp
import msgspec

from koordinator.api.quantity import ResourceList
from koordinator.clock import Clock
from koordinator.cluster.events import EventRecorder, EventSeverity, reference
from koordinator.cluster.protocol import Cluster
from koordinator.host.cgroup_layout import ContainerID, Runtime
from koordinator.host.machine import Processes
from koordinator.local.processes.groups import PodGroups
from koordinator.local.processes.pod_spec import KubeletPod


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """The node around its pods. `folder` holds their logs, volumes and working directories."""

    cluster: Cluster
    clock: Clock
    groups: PodGroups
    processes: Processes
    events: EventRecorder
    node_name: str
    host_ip: str
    folder: Path
    allocatable: ResourceList
    memory_bytes: int
    session: aiohttp.ClientSession
    """For requests to containers."""

    def new_id(self, pod: KubeletPod, name: str, run: int) -> ContainerID:
        """Return an id that no other run has: of 64 hexadecimal digits, as containerd's."""
        text = f"{pod.uid}/{name}/{run}/{self.clock.now()!r}"
        return ContainerID(Runtime.CONTAINERD, hashlib.sha256(text.encode()).hexdigest())

    def tell(
        self, pod: KubeletPod, reason: str, message: str, *, container: str = "", field: str = "containers"
    ) -> None:
        """A normal event about a pod or one of its containers."""
        self._event(pod, EventSeverity.NORMAL, reason, message, container, field)

    def warn(
        self, pod: KubeletPod, reason: str, message: str, *, container: str = "", field: str = "containers"
    ) -> None:
        """A warning about a pod or one of its containers."""
        self._event(pod, EventSeverity.WARNING, reason, message, container, field)

    def _event(
        self, pod: KubeletPod, severity: EventSeverity, reason: str, message: str, container: str, field: str
    ) -> None:
        about = reference(pod.view)
        if container:
            about = msgspec.structs.replace(about, field_path=f"spec.{field}{{{container}}}")
        self.events.event(about, severity, reason, message)
