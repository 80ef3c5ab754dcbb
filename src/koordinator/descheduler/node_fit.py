"""Decide whether a pod could run on a node, as far as moving it there goes. Pure. Source: behaviour/descheduler
4.4.

Pod count, affinity between pods, volumes and ports are not looked at.
"""

from collections.abc import Iterable

import msgspec

from koordinator.api import pod_resources, resource_list, resources
from koordinator.api.core import Node, Pod
from koordinator.api.resource_list import Amounts
from koordinator.descheduler import facts, node_match


class NodeFree(msgspec.Struct, frozen=True):
    """A node and what its active pods leave free (thousandths; below zero when overcommitted)."""

    node: Node
    free_milli: dict[str, int]
    pods: tuple[Pod, ...] = ()


def room_of(node: Node, pods: Iterable[Pod]) -> NodeFree:
    """`pods`: all pods of the node; those that ended take no room."""
    active = tuple(pod for pod in pods if facts.is_active(pod))
    free = {name: _whole_milli(name, q.milli, q.value) for name, q in _of(node).items()}
    for pod in active:
        for name, q in pod_resources.requests(pod).items():
            if name in free:
                free[name] -= _whole_milli(name, q.milli, q.value)
    return NodeFree(node, free, active)


def fits(pod: Pod, room: NodeFree) -> bool:
    """Return whether the pod could move to the node."""
    return (
        not room.node.spec.unschedulable
        and node_match.selects(pod, room.node)
        and node_match.bears_taints(pod, room.node)
        and has_room(pod, room)
    )


def has_room(pod: Pod, room: NodeFree) -> bool:
    """Return whether each request fits what is free; a resource that the node does not know has none."""
    return all(q.milli <= room.free_milli.get(name, 0) for name, q in pod_resources.requests(pod).items())


def fits_any(pod: Pod, rooms: Iterable[NodeFree]) -> bool:
    return any(fits(pod, room) for room in rooms)


def fits_any_other(pod: Pod, rooms: Iterable[NodeFree]) -> bool:
    """Return whether the pod fits a node other than the one it runs on."""
    return fits_any(pod, (room for room in rooms if room.node.metadata.name != pod.spec.node_name))


def _of(node: Node) -> Amounts:
    return resource_list.of(node.status.allocatable)


def _whole_milli(name: str, milli: int, value: int) -> int:
    """Sums are kept in milli-cores of cpu and whole units of all else; both as thousandths."""
    return milli if name == resources.CPU else value * 1000
