"""Decide whether a hollow node can give a pod other amounts than it has, as a kubelet decides it. Pure.

Source: KEP-1287 as the kubelet of 1.35 follows it.
"""

from typing import NamedTuple

from koordinator.api import pod_resize
from koordinator.api.core import PodSpec, ResourceRequirements
from koordinator.local.nodes.pod_shape import HollowPodShape

IN_PROGRESS = "PodResizeInProgress"
DEFERRED = "Deferred"
RETRY_S = 10.0
ACTUATE_S = 1.0


class ResizeRefusal(NamedTuple):
    """The reason why the new amounts are not given (now)."""

    reason: str
    message: str


class ResizeHeadroom(NamedTuple):
    """CPU in milli-cores and memory in bytes: what pods may have of a node, and what the others have."""

    allocatable_milli: float
    allocatable_bytes: float
    others_milli: float
    others_bytes: float


def differs(old: PodSpec, new: PodSpec) -> bool:
    """Return whether a container has other amounts than before."""
    return _amounts(old) != _amounts(new)


def refusal(wanted: HollowPodShape, room: ResizeHeadroom) -> ResizeRefusal | None:
    """None when the node has room."""
    for name, asked, allocatable, others in (
        ("cpu", wanted.request_milli, room.allocatable_milli, room.others_milli),
        ("memory", wanted.request_bytes, room.allocatable_bytes, room.others_bytes),
    ):
        if asked > allocatable:
            text = f"Node didn't have enough capacity: {name}, requested: {int(asked)}, capacity: {int(allocatable)}"
            return ResizeRefusal(pod_resize.INFEASIBLE, text)
        if asked + others > allocatable:
            return ResizeRefusal(DEFERRED, f"Node didn't have enough resource: {name}")
    return None


def _amounts(spec: PodSpec) -> list[tuple[str, ResourceRequirements]]:
    return [(one.name, one.resources) for one in (*spec.containers, *spec.init_containers)]
