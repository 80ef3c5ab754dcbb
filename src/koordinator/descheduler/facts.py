"""Plain facts about pods and nodes that several decisions ask for. Pure. Source: behaviour/descheduler 4 and 5."""

from koordinator import clock
from koordinator.api import labels, pod_labels, quantity, resources
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.labels import parse_plain_int32, read
from koordinator.api.meta import OwnerReference
from koordinator.api.quantity import RawQuantity

NEVER_EVICT_COST = pod_labels.EVICTION_COST_NEVER


def is_active(pod: Pod) -> bool:
    """Return whether the pod still takes room: it has not ended."""
    return not pod_labels.is_terminated(pod)


def has_evict_annotation(pod: Pod) -> bool:
    """Return whether a user asked for the pod to be evicted; only the presence counts."""
    return labels.DESCHEDULER_EVICT in pod.metadata.annotations


def created_s(pod: Pod) -> float:
    """Creation time in seconds since the epoch, 0 when the pod has none."""
    text = pod.metadata.creation_timestamp
    return clock.parse_rfc3339(text) if text else 0.0


def controller_of(pod: Pod) -> OwnerReference | None:
    """Return the managing owner, if the pod has one."""
    return next((owner for owner in pod.metadata.owner_references if owner.controller), None)


def condition_status(pod: Pod, kind: str) -> str:
    """Status of a condition, empty when the pod does not have it."""
    return next((c.status for c in pod.status.conditions if c.type == kind), "")


def is_ready(pod: Pod) -> bool:
    return condition_status(pod, "Ready") == "True"


def eviction_cost(pod: Pod) -> int:
    """Return what users say it costs to evict the pod; 0 when absent or malformed."""
    return _cost(pod, labels.EVICTION_COST)


def deletion_cost(pod: Pod) -> int:
    """Return what users say it costs to delete the pod on scale-down; 0 when absent or malformed."""
    return _cost(pod, labels.POD_DELETION_COST)


def amount(name: str, raw: RawQuantity) -> int:
    """Return the integer that comparisons go by: thousandths of cpu, whole units of all else, rounded up."""
    return quantity.milli(raw) if name == resources.CPU else quantity.value(raw)


def _cost(pod: Pod, key: str) -> int:
    try:
        return read(pod.metadata.annotations, key, parse_plain_int32, 0)
    except ProtocolError:  # the reference's defined answer to malformed text
        return 0
