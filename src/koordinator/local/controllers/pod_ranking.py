"""Find which pods go first when there are too many. Pure.

Source: `ActivePodsWithRanks` of kube-controller-manager: unassigned, pending, not ready, cheap to delete,
crowded, young (on a logarithmic scale, so that equals are chosen evenly), often restarted.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from koordinator import clock
from koordinator.api.core import Pod
from koordinator.local.controllers import pod_health

log = logging.getLogger(__name__)

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASES = {"Pending": 0, "Unknown": 1}


def first_to_go(pods: Iterable[Pod], count: int, related: Iterable[Pod], now_s: float) -> list[Pod]:
    """`count` of `pods`, the first to be deleted; `related` are pods that serve the same purpose."""
    crowd = Counter(pod.spec.node_name for pod in related if pod_health.is_active(pod))
    return sorted(pods, key=lambda pod: _rank(pod, crowd[pod.spec.node_name], now_s))[:count]


def _rank(pod: Pod, crowd: int, now_s: float) -> tuple[Any, ...]:
    since_s = pod_health.ready_since_s(pod)
    created = pod.metadata.creation_timestamp
    return (
        bool(pod.spec.node_name),
        _PHASES.get(pod.status.phase, 2),
        since_s is not None,
        deletion_cost(pod),
        -crowd,
        _magnitude(now_s - since_s) if since_s is not None else 0,
        -pod_health.restart_count(pod),
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
