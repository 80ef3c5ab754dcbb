"""Plain facts about pods and nodes that several decisions ask for, and which pod to evict first. Pure.
Source: behaviour/descheduler 4, 5 and 6.9 (point 2)."""

from koordinator import clock
from koordinator.api import labels, pod_labels, priority, qos
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.labels import parse_plain_int32, read
from koordinator.api.meta import Object, is_condition_true
from koordinator.api.priority import PriorityClass
from koordinator.api.qos import KubeQoS, QoSClass

NEVER_EVICT_COST = pod_labels.EVICTION_COST_NEVER


def is_active(pod: Pod) -> bool:
    """Return whether the pod still takes room: it has not ended."""
    return not pod_labels.is_terminated(pod)


def has_evict_annotation(pod: Pod) -> bool:
    """Return whether a user asked for the pod to be evicted; only the presence counts."""
    return labels.DESCHEDULER_EVICT in pod.metadata.annotations


def created_s(obj: Object) -> float:
    """Creation time in seconds since the epoch, 0 when the object has none."""
    return clock.parse_rfc3339_or(obj.metadata.creation_timestamp, 0.0)


def is_ready(pod: Pod) -> bool:
    return is_condition_true(pod.status.conditions, "Ready")


def eviction_cost(pod: Pod) -> int:
    """Return what users say it costs to evict the pod; 0 when absent or malformed."""
    return _cost(pod, labels.EVICTION_COST)


def deletion_cost(pod: Pod) -> int:
    """Return what users say it costs to delete the pod on scale-down; 0 when absent or malformed."""
    return _cost(pod, labels.POD_DELETION_COST)


def _cost(pod: Pod, key: str) -> int:
    try:
        return read(pod.metadata.annotations, key, parse_plain_int32, 0)
    except ProtocolError:  # the reference's defined answer to malformed text
        return 0


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
        deletion_cost(pod),
        eviction_cost(pod),
    )


def arbitration_key(pod: Pod) -> tuple[Importance, float]:
    """Sort key without usage: importance, then the newest first."""
    return importance(pod), -created_s(pod)


def usage_key(pod: Pod, score: float | None) -> tuple[Importance, bool, float, float, str]:
    """Sort key with the usage score (None: no usage is known): the highest first, unknown last.

    Namespace and name break ties, so that the order does not depend on that of a list.
    """
    return importance(pod), score is None, -(score or 0.0), -created_s(pod), pod.key
