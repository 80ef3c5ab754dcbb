"""The plugins of the queue: PrioritySort (higher priority first, then who waits longer) and SchedulingGates (a pod with
gates stays out). Source: behaviour/scheduler B1 and B5.
"""

from typing import Any

from koordinator.scheduler.plugin.events import ClusterEvent
from koordinator.scheduler.plugin.framework import PreEnqueuePlugin, QueueSortPlugin
from koordinator.scheduler.plugin.status import SUCCESS, Status, unresolvable
from koordinator.scheduler.table.pod_info import PodInfo


class PrioritySort(QueueSortPlugin[None]):
    name = "PrioritySort"

    def sort_key(self, pod: PodInfo, queued_s: float) -> tuple[Any, ...]:
        return priority_key(pod.priority, queued_s)


def priority_key(priority: int, queued_s: float) -> tuple[int, float]:
    """Sorts the more important first, then who was queued first (seconds of the queue's clock)."""
    return -priority, queued_s


class SchedulingGates(PreEnqueuePlugin[None]):
    name = "SchedulingGates"
    wakes_on = (ClusterEvent.POD_UPDATED,)

    def pre_enqueue(self, pod: PodInfo) -> Status:
        gates = [gate.name for gate in pod.pod.spec.scheduling_gates]
        if not gates:
            return SUCCESS
        return unresolvable(f"waiting for scheduling gates: [{' '.join(gates)}]")
