"""Decide which pod to evict first. Pure. Source: behaviour/descheduler 6.9, point 2."""

from koordinator.api import priority, qos
from koordinator.api.core import Pod
from koordinator.api.priority import PriorityClass
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.descheduler import facts

_CLASS_RANK = {
    PriorityClass.FREE: 0,
    PriorityClass.BATCH: 1,
    PriorityClass.MID: 2,
    PriorityClass.PROD: 3,
    PriorityClass.NONE: 4,
}
KUBE_QOS_RANK = {KubeQoS.BEST_EFFORT: 0, KubeQoS.BURSTABLE: 1, KubeQoS.GUARANTEED: 2}
_QOS_RANK = {
    QoSClass.BE: 0,
    QoSClass.LS: 1,
    QoSClass.LSR: 2,
    QoSClass.LSE: 3,
    QoSClass.SYSTEM: 3,
    QoSClass.NONE: 4,
}

Importance = tuple[int, int, int, int, int, int]


def importance(pod: Pod) -> Importance:
    """Lower goes first: class, priority, both kinds of QoS, deletion cost, eviction cost."""
    return (
        _CLASS_RANK[priority.default(pod)],
        pod.spec.priority or 0,
        KUBE_QOS_RANK[qos.kube(pod)],
        _QOS_RANK[qos.default(pod)],
        facts.deletion_cost(pod),
        facts.eviction_cost(pod),
    )


def arbitration_key(pod: Pod) -> tuple[Importance, float]:
    """Sort key without usage: importance, then the newest first."""
    return importance(pod), -facts.created_s(pod)


def usage_key(pod: Pod, score: float | None) -> tuple[Importance, bool, float, float, str]:
    """Sort key with the usage score (None: no usage is known): the highest first, unknown last.

    Namespace and name break ties, so that the order does not depend on that of a list.
    """
    return importance(pod), score is None, -(score or 0.0), -facts.created_s(pod), pod.key
