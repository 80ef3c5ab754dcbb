"""PrioritySort: higher priority first, then who waits longer. Source: behaviour/scheduler B5."""

from typing import Any

from koordinator.scheduler.plugin.framework import QueueSortPlugin
from koordinator.scheduler.table.pod_info import PodInfo


class PrioritySort(QueueSortPlugin[None]):
    name = "PrioritySort"

    def sort_key(self, pod: PodInfo, queued_s: float) -> tuple[Any, ...]:
        return priority_key(pod.priority, queued_s)


def priority_key(priority: int, queued_s: float) -> tuple[int, float]:
    """Sorts the more important first, then who was queued first (seconds of the queue's clock)."""
    return -priority, queued_s
