"""Work out how far a pod is, as workload controllers see it. Pure. Source: k8s.io/kubectl's pod utilities."""

from koordinator import clock
from koordinator.api.core import Pod

SUCCEEDED, FAILED = "Succeeded", "Failed"


def is_active(pod: Pod) -> bool:
    """Neither ended nor being deleted."""
    return pod.status.phase not in (SUCCEEDED, FAILED) and pod.metadata.deletion_timestamp is None


def ready_since_s(pod: Pod) -> float | None:
    """When the pod became ready (seconds since 1970, 0 when nobody noted it); None when it is not ready."""
    for condition in pod.status.conditions:
        if condition.type == "Ready":
            if condition.status != "True":
                return None
            when = condition.last_transition_time
            return clock.parse_rfc3339(when) if when else 0.0
    return None


def is_ready(pod: Pod) -> bool:
    for condition in pod.status.conditions:  # a loop, as this is asked of every pod at every change
        if condition.type == "Ready":
            return condition.status == "True"
    return False


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
