"""Decide which nodes a pod may be on (node selector, required affinity, taints), and whether it could run on one,
as far as moving it there goes. Pure. Source: behaviour/descheduler 4.4.

Pod count, affinity between pods, volumes and ports are not looked at.
"""

from collections.abc import Iterable

import msgspec

from koordinator.api import pod_resources, resource_list, resources
from koordinator.api.affinity import NodeSelector, NodeSelectorTerm, Taint, term_holds
from koordinator.api.core import Node, Pod
from koordinator.api.resource_list import Amounts
from koordinator.api.tolerations import is_tolerated, keeps_out
from koordinator.descheduler import facts


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
        and selects(pod, room.node)
        and bears_taints(pod, room.node)
        and has_room(pod, room)
    )


def has_room(pod: Pod, room: NodeFree) -> bool:
    """Return whether each request fits what is free; a resource that the node does not know has none."""
    return all(q.milli <= room.free_milli.get(name, 0) for name, q in pod_resources.requests(pod).items())


def fits_any_other(pod: Pod, rooms: Iterable[NodeFree]) -> bool:
    """Return whether the pod fits a node other than the one it runs on."""
    return any(fits(pod, room) for room in rooms if room.node.metadata.name != pod.spec.node_name)


def _of(node: Node) -> Amounts:
    return resource_list.of(node.status.allocatable)


def _whole_milli(name: str, milli: int, value: int) -> int:
    """Sums are kept in milli-cores of cpu and whole units of all else; both as thousandths."""
    return milli if name == resources.CPU else value * 1000


def required_affinity(pod: Pod) -> NodeSelector | None:
    """Return the node affinity that the pod insists on."""
    affinity = pod.spec.affinity
    if affinity is None or affinity.node_affinity is None:
        return None
    return affinity.node_affinity.required_during_scheduling_ignored_during_execution


def selects(pod: Pod, node: Node) -> bool:
    """Return whether node selector and required affinity of the pod hold on the node."""
    node_labels = node.metadata.labels
    if any(node_labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    required = required_affinity(pod)
    return required is None or any(term_matches(term, node) for term in required.node_selector_terms)


def term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    """Return whether all conditions of the term hold on the node."""
    return term_holds(term, node.metadata.labels, node.metadata.name)


def tolerates_all(pod: Pod, taints: Iterable[Taint]) -> bool:
    """Return whether the pod bears each of the taints, whatever their effect."""
    return all(is_tolerated(pod.spec.tolerations, taint) for taint in taints)


def bears_taints(pod: Pod, node: Node) -> bool:
    """Return whether no taint of the node forbids the pod; PreferNoSchedule forbids nothing."""
    return not keeps_out(tuple(pod.spec.tolerations), node.spec.taints)
