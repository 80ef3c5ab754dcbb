"""SchedulingGates: a pod with gates stays out of the queue. Source: behaviour/scheduler B1."""

from koordinator.scheduler.plugin.events import ClusterEvent
from koordinator.scheduler.plugin.framework import PreEnqueuePlugin
from koordinator.scheduler.plugin.status import SUCCESS, Status, unresolvable
from koordinator.scheduler.table.pod_info import PodInfo


class SchedulingGates(PreEnqueuePlugin[None]):
    name = "SchedulingGates"
    wakes_on = (ClusterEvent.POD_UPDATED,)

    def pre_enqueue(self, pod: PodInfo) -> Status:
        gates = [gate.name for gate in pod.pod.spec.scheduling_gates]
        if not gates:
            return SUCCESS
        return unresolvable(f"waiting for scheduling gates: [{' '.join(gates)}]")
