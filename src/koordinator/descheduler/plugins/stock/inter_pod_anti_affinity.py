"""RemovePodsViolatingInterPodAntiAffinity: evicts pods next to those they want to be away from.

Pure. Source: behaviour/descheduler 12. Only a pod's own required terms count.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from koordinator.api.affinity import PodAffinityTerm
from koordinator.api.core import Node, Pod
from koordinator.api.label_selector import compile_selector
from koordinator.descheduler import facts
from koordinator.descheduler.actions import EvictAction, Evictions
from koordinator.descheduler.plugins.stock import common
from koordinator.descheduler.plugins.stock.common import CommonArgs, MayEvict


def required_terms(pod: Pod) -> list[PodAffinityTerm]:
    """Return what the pod insists on being away from."""
    affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity is not None else None
    return affinity.required_during_scheduling_ignored_during_execution if affinity is not None else []


def evictions(
    args: CommonArgs,
    nodes: Sequence[Node],
    pods_of: Mapping[str, Sequence[Pod]],
    may_evict: MayEvict,
) -> Evictions[list[EvictAction]]:
    """Evict violating pods; one that is gone no longer counts, so one of a pair stays.

    Raises: ProtocolError for a selector that cannot be read.
    """
    selected = common.selection(args, lambda _: True)
    by_name = {node.metadata.name: node for node in nodes}
    present: dict[str, Pod] = {
        pod.key: pod
        for name in by_name
        for pod in pods_of.get(name, ())
        if facts.is_active(pod) and selected(pod)
    }
    evicted: list[EvictAction] = []
    for name in by_name:
        own = [pod for pod in pods_of.get(name, ()) if pod.key in present and required_terms(pod)]
        for pod in sorted(own, key=common.priority_key):
            wanted = EvictAction(pod)
            if violates(pod, present.values(), by_name) and may_evict(pod) and (yield wanted):
                del present[pod.key]
                evicted.append(wanted)
    return evicted


def violates(pod: Pod, others: Iterable[Pod], nodes: Mapping[str, Node]) -> bool:
    """Return whether a term of the pod matches another pod in the same topology domain. Raises: ProtocolError."""
    here = nodes[pod.spec.node_name].metadata.labels
    checks = [
        (_matcher(pod, term), term.topology_key) for term in required_terms(pod) if term.topology_key in here
    ]
    for other in others:
        node = nodes.get(other.spec.node_name)
        if node is None or other.metadata.name == pod.metadata.name:
            continue
        there = node.metadata.labels
        if any(there.get(key) == here[key] and matches(other) for matches, key in checks):
            return True
    return False


def _matcher(pod: Pod, term: PodAffinityTerm) -> Callable[[Pod], bool]:
    """Without namespaces the pod's own is meant; without a selector nothing is."""
    if term.label_selector is None:
        return lambda _: False
    matches = compile_selector(term.label_selector)
    namespaces = frozenset(term.namespaces or [pod.metadata.namespace])
    return lambda other: other.metadata.namespace in namespaces and matches(other.metadata.labels)
