"""NodeUnschedulable: cordoned nodes take pods only that tolerate it. Source: behaviour/scheduler B1 and B9."""

import numpy as np

from koordinator.api import tolerations
from koordinator.api.core import Taint
from koordinator.scheduler.plugin.events import ClusterEvent
from koordinator.scheduler.plugin.framework import FilterPlugin, ReasonCodes, passes
from koordinator.scheduler.plugin.status import SUCCESS, Reason, unresolvable
from koordinator.scheduler.table import pod_info
from koordinator.scheduler.table.columns import Rows, at
from koordinator.scheduler.table.pod_info import PodInfo

UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect=tolerations.NO_SCHEDULE)


class UnschedulableReason(Reason):
    OK = 0, SUCCESS
    UNSCHEDULABLE = 1, unresolvable("node(s) were unschedulable")


class NodeUnschedulable(FilterPlugin[bool]):
    """The state says whether the pod tolerates cordoned nodes."""

    name = "NodeUnschedulable"
    keyed_by = (pod_info.tolerations,)
    reasons = UnschedulableReason
    wakes_on = (ClusterEvent.NODE_ADDED, ClusterEvent.NODE_TAINTS, ClusterEvent.POD_UPDATED)

    def prepare(self, pod: PodInfo) -> bool:
        return tolerations.is_tolerated(pod.pod.spec.tolerations, UNSCHEDULABLE_TAINT)

    def filter(self, state: bool, rows: Rows) -> ReasonCodes:
        if state:
            return passes(rows)
        is_unschedulable = at(self.handle.table.is_unschedulable, rows)
        return is_unschedulable.astype(np.uint16) if is_unschedulable.any() else passes(rows)
