"""Which events can help a pod that InterPodAffinity refused. Source: behaviour/scheduler B5.

Pods with the same wishes are asked about as one, whatever their labels: where these would matter (terms of
other pods that mean the refused one), the answer is yes.
"""

from koordinator.api.core import Namespace, Node
from koordinator.scheduler.plugin.events import ClusterEvent, Happening
from koordinator.scheduler.plugins.inter_pod_affinity.terms import Term, Wishes
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.pod_terms import NamespaceLabels


def of_namespace(namespace: Namespace, wishes: Wishes, pod: PodInfo) -> bool:
    """Other labels of a namespace change whom terms mean: own ones there, those of others in the pod's own."""
    if namespace.metadata.name == pod.pod.metadata.namespace:
        return True
    return any(term.pods.in_namespace is not None for term in (*wishes.together, *wishes.apart))


def of_labels(old: Node, new: Node, keys: frozenset[str]) -> bool:
    """Whether a node moved to another domain of one of the keys."""
    before, after = old.metadata.labels, new.metadata.labels
    return any(before.get(key) != after.get(key) for key in keys)


def of_pod(happening: Happening, wishes: Wishes, theirs: Wishes, namespaces: NamespaceLabels) -> bool:
    """A pod on a node came, changed or went; `theirs` are its own wishes.

    Company helps by coming, and by going when the refused pod then is the first of its group; who is unwanted
    helps by going; so does one that wants to be alone.
    """
    before = _near(happening.old, wishes, namespaces)
    after = _near(happening.new, wishes, namespaces)
    if happening.event is ClusterEvent.ASSIGNED_POD_DELETED and theirs.apart:
        return True
    if before != after:
        return True
    unwanted = (_means(term, happening.old, happening.new, namespaces) for term in wishes.apart)
    return any(was and not still for was, still in unwanted)


def _near(pod: object, wishes: Wishes, namespaces: NamespaceLabels) -> bool:
    """Whether a pod is company: it matches all required terms at once."""
    if not wishes.together or not isinstance(pod, PodInfo):
        return False
    return all(term.pods.matches(pod.pod, namespaces) for term in wishes.together)


def _means(term: Term, old: object, new: object, namespaces: NamespaceLabels) -> tuple[bool, bool]:
    """Whether a term means a pod before and after the event."""
    return (
        isinstance(old, PodInfo) and term.pods.matches(old.pod, namespaces),
        isinstance(new, PodInfo) and term.pods.matches(new.pod, namespaces),
    )
