"""Work out how far a pod is, as workload controllers see it, and which pods go first when there are too many. Pure.

Sources: k8s.io/kubectl's pod utilities; `ActivePodsWithRanks` of kube-controller-manager: unassigned, pending, not
ready, cheap to delete, crowded, young (on a logarithmic scale, so that equals are chosen evenly), often restarted.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from koordinator import clock
from koordinator.api.core import Pod
from koordinator.api.meta import find_condition, is_condition_true
from koordinator.api.pod_labels import is_terminated

log = logging.getLogger(__name__)

SUCCEEDED, FAILED = "Succeeded", "Failed"


def is_active(pod: Pod) -> bool:
    """Neither ended nor being deleted."""
    return not is_terminated(pod) and pod.metadata.deletion_timestamp is None


def is_terminating(pod: Pod) -> bool:
    """Deleted, but not ended yet."""
    return pod.metadata.deletion_timestamp is not None and not is_terminated(pod)


def ready_since_s(pod: Pod) -> float | None:
    """Return when the pod became ready (seconds since 1970, 0 when nobody noted it); None when it is not ready."""
    ready = find_condition(pod.status.conditions, "Ready")
    if ready is None or ready.status != "True":
        return None
    return clock.parse_rfc3339(ready.last_transition_time) if ready.last_transition_time else 0.0


def is_ready(pod: Pod) -> bool:
    return is_condition_true(pod.status.conditions, "Ready")


def available_in_s(pod: Pod, min_ready_s: int, now_s: float) -> float | None:
    """Return seconds until the pod counts as available, 0 when it does; None while it is not ready."""
    if not min_ready_s:
        return 0.0 if is_ready(pod) else None
    since_s = ready_since_s(pod)
    return None if since_s is None else max(since_s + min_ready_s - now_s, 0.0)


def is_available(pod: Pod, min_ready_s: int, now_s: float) -> bool:
    """Ready, for at least `min_ready_s`."""
    return available_in_s(pod, min_ready_s, now_s) == 0.0


def restart_count(pod: Pod) -> int:
    """Restarts of the container that restarted most."""
    return max((status.restart_count for status in pod.status.container_statuses), default=0)


DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASES = {"Pending": 0, "Unknown": 1}


def first_to_go(pods: Iterable[Pod], count: int, related: Iterable[Pod], now_s: float) -> list[Pod]:
    """`count` of `pods`, the first to be deleted; `related` are pods that serve the same purpose."""
    pods_per_node = Counter(pod.spec.node_name for pod in related if is_active(pod))
    return sorted(pods, key=lambda pod: _rank(pod, pods_per_node[pod.spec.node_name], now_s))[:count]


def _rank(pod: Pod, pods_per_node: int, now_s: float) -> tuple[Any, ...]:
    since_s = ready_since_s(pod)
    created = pod.metadata.creation_timestamp
    return (
        bool(pod.spec.node_name),
        _PHASES.get(pod.status.phase, 2),
        since_s is not None,
        deletion_cost(pod),
        -pods_per_node,
        _magnitude(now_s - since_s) if since_s is not None else 0,
        -restart_count(pod),
        _magnitude(now_s - clock.parse_rfc3339(created)) if created else 0,
        pod.metadata.uid,
    )


def deletion_cost(pod: Pod) -> int:
    """Return the annotation's number; 0 when it is absent or no 32-bit number."""
    text = pod.metadata.annotations.get(DELETION_COST, "")
    if not text:
        return 0
    try:
        cost = int(text)
    except ValueError:
        cost = 1 << 32
    if not -(1 << 31) <= cost < 1 << 31 or text.startswith("+") or text != text.strip():
        log.debug("pod-deletion-cost ignored", extra={"pod": pod.key, "value": text})
        return 0
    return cost


def _magnitude(age_s: float) -> int:
    """Return the power of two of an age in nanoseconds."""
    return math.floor(math.log2(age_s * 1e9)) if age_s > 0 else -1
