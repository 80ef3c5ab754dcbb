"""Decide which nodes a pod may be on (node selector, required affinity, taints), and whether it could run on one,
as far as moving it there goes. Pure. Source: behaviour/descheduler 4.4.

Pod count, affinity between pods, volumes and ports are not looked at.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from koordinator.api import node_affinity, pod_resources, quantity, resource_list, resources
from koordinator.api.affinity import PodAffinityTerm, Taint
from koordinator.api.core import Node, Pod
from koordinator.api.label_selector import compile_selector
from koordinator.api.quantity import Quantity
from koordinator.api.tolerations import is_tolerated, keeps_out
from koordinator.descheduler import facts
from koordinator.descheduler.measurements import ByNode


class NodeFree(msgspec.Struct, frozen=True):
    """A node and what its active pods leave free (thousandths; below zero when overcommitted)."""

    node: Node
    free_milli: dict[str, int]
    pods: tuple[Pod, ...] = ()


def room_of(node: Node, pods: Iterable[Pod]) -> NodeFree:
    """`pods`: all pods of the node; those that ended take no room."""
    active = tuple(pod for pod in pods if facts.is_active(pod))
    free = {
        name: _whole_milli(name, amount) for name, amount in resource_list.of(node.status.allocatable).items()
    }
    for pod in active:
        for name, amount in pod_resources.requests(pod).items():
            if name in free:
                free[name] -= _whole_milli(name, amount)
    return NodeFree(node, free, active)


def fits(pod: Pod, room: NodeFree) -> bool:
    """Return whether the pod could move to the node."""
    return (
        not room.node.spec.unschedulable
        and node_affinity.selects(pod.spec, room.node)
        and bears_taints(pod, room.node)
        and has_room(pod, room)
    )


def has_room(pod: Pod, room: NodeFree) -> bool:
    """Return whether each request fits what is free; a resource that the node does not know has none."""
    return all(q.milli <= room.free_milli.get(name, 0) for name, q in pod_resources.requests(pod).items())


class Rooms(ByNode[NodeFree]):
    """The free room of some nodes, worked out when it is first asked for."""

    def __init__(self, nodes: Iterable[Node], pods_of: Mapping[str, Sequence[Pod]]) -> None:
        known = {node.metadata.name: node for node in nodes}
        super().__init__(known, lambda name: room_of(known[name], pods_of.get(name, ())))


def fits_as_upstream(pod: Pod, room: NodeFree) -> bool:
    """Return whether the pod could be on the node as the stock strategies see it: there must be room for one more pod,
    too, and none that it wants to be away from. Its requests are not looked at on the node where it runs already.
    Source: behaviour/descheduler 12.0. Raises: ProtocolError for a selector that cannot be read."""
    if pod.spec.node_name != room.node.metadata.name:
        most = quantity.of(room.node.status.allocatable.get(resources.PODS)).value
        if not has_room(pod, room) or len(room.pods) >= most:
            return False
    may_be_here = not room.node.spec.unschedulable and node_affinity.selects(pod.spec, room.node)
    return may_be_here and bears_taints(pod, room.node) and not _keeps_away(pod, room)


def fits_elsewhere(pod: Pod, rooms: Mapping[str, NodeFree]) -> bool:
    """Return whether the pod fits a node other than its own, as the stock strategies see it."""
    return any(name != pod.spec.node_name and fits_as_upstream(pod, rooms[name]) for name in rooms)


def required_anti_affinity(pod: Pod) -> list[PodAffinityTerm]:
    """Return what the pod insists on being away from."""
    affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity is not None else None
    return affinity.required_during_scheduling_ignored_during_execution if affinity is not None else []


def term_matcher(pod: Pod, term: PodAffinityTerm) -> Callable[[Pod], bool]:
    """Return which pods a term of `pod` is about: without namespaces those of its own, without a selector none.
    Raises: ProtocolError."""
    if term.label_selector is None:
        return lambda _: False
    matches = compile_selector(term.label_selector)
    namespaces = frozenset(term.namespaces or [pod.metadata.namespace])
    return lambda other: other.metadata.namespace in namespaces and matches(other.metadata.labels)


def _keeps_away(pod: Pod, room: NodeFree) -> bool:
    terms = [one for one in required_anti_affinity(pod) if one.topology_key in room.node.metadata.labels]
    others = [one for one in room.pods if one.metadata.name != pod.metadata.name]
    return any(any(map(term_matcher(pod, term), others)) for term in terms)


def fits_any_other(pod: Pod, rooms: Iterable[NodeFree]) -> bool:
    """Return whether the pod fits a node other than the one it runs on."""
    return any(fits(pod, room) for room in rooms if room.node.metadata.name != pod.spec.node_name)


def _whole_milli(name: str, amount: Quantity) -> int:
    """Sums are kept in milli-cores of cpu and whole units of all else; both as thousandths."""
    return amount.milli if name == resources.CPU else amount.value * 1000


def tolerates_all(pod: Pod, taints: Iterable[Taint]) -> bool:
    """Return whether the pod bears each of the taints, whatever their effect."""
    return all(is_tolerated(pod.spec.tolerations, taint) for taint in taints)


def bears_taints(pod: Pod, node: Node) -> bool:
    """Return whether no taint of the node forbids the pod; PreferNoSchedule forbids nothing."""
    return not keeps_out(tuple(pod.spec.tolerations), node.spec.taints)
