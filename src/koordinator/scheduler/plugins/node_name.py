"""NodeName: a pod that names its node runs there or nowhere. Source: behaviour/scheduler B1."""

import numpy as np

from koordinator.scheduler.plugin.events import ClusterEvent
from koordinator.scheduler.plugin.framework import FilterPlugin, ReasonCodes, passes
from koordinator.scheduler.plugin.status import SUCCESS, Reason, unresolvable
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import NODE_NAME, PodInfo


class NodeNameReason(Reason):
    OK = 0, SUCCESS
    OTHER_NODE = 1, unresolvable("node(s) didn't match the requested node name")


class NodeName(FilterPlugin[str]):
    name = "NodeName"
    keyed_by = (NODE_NAME,)
    reasons = NodeNameReason
    wakes_on = (ClusterEvent.NODE_ADDED,)

    def prepare(self, pod: PodInfo) -> str:
        return pod.node_name

    def filter(self, state: str, rows: Rows) -> ReasonCodes:
        if not state:
            return passes(rows)
        wanted = self.handle.table.row_of(state)
        return np.where(rows == wanted, NodeNameReason.OK, NodeNameReason.OTHER_NODE).astype(np.uint16)
