"""Find which of many sleeping pods would have room on one node if less important pods were gone from it."""

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np

from koordinator.api import pod_labels
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.events import QueueingEvent
from koordinator.scheduler.plugin.framework import Mask
from koordinator.scheduler.plugins.fit_index import FitIndex, Requests
from koordinator.scheduler.plugins.preemption.victims import may_ever_go
from koordinator.scheduler.table.columns import grown, tally
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

_NOBODY = np.iinfo(np.int64).min
"""The priority of slots whose pods evict nobody."""


class EvictionIndex(FitIndex):
    """The same comparison as `FitIndex`, for each level of priority that pods of the node have."""

    def __init__(self, table: NodeTable, requests: Callable[[PodInfo], Requests]) -> None:
        super().__init__(table, requests)
        self._priorities: I64 = np.zeros(0, np.int64)
        self._levels: Counter[int] = Counter()
        """Slots by priority, of pods that may evict."""

    def put(self, slot: int, pod: PodInfo) -> None:
        super().put(slot, pod)
        if slot >= self._priorities.size:
            self._priorities = grown(self._priorities, 2 * slot + 1, _NOBODY)
        spec, is_reserve_pod = pod.pod.spec, pod_labels.is_reserve_pod(pod.pod.metadata.annotations)
        if spec.preemption_policy != "Never" and not is_reserve_pod:
            self._priorities[slot] = pod.priority
            self._levels[pod.priority] += 1

    def clear(self, slot: int) -> None:
        super().clear(slot)
        if (priority := int(self._priorities[slot])) != _NOBODY:
            self._priorities[slot] = _NOBODY
            tally(self._levels, priority, -1)

    def may_wake(self, event: QueueingEvent, slot_count: int) -> Mask:
        """(slot_count,): pods that would fit onto the node of the event without pods that they may evict there."""
        found, row = np.zeros(slot_count, np.bool_), event.row
        if row is None or not self._levels:
            return found
        highest, priorities = max(self._levels), self._priorities[:slot_count]
        less = [pod for pod in self._table.pods_at(row).values() if pod.priority < highest]
        if not less:
            return found
        there = sorted(filter(may_ever_go, less), key=_priority)
        held: Counter[int] = Counter()
        count = 0
        for priority, pods in itertools.groupby(there, _priority):
            for pod in pods:
                count += 1
                for column, amount in pod.requests:
                    held[column] += amount
            found |= (priorities > priority) & self.fits(row, slot_count, held, count)
        return found


def _priority(pod: PodInfo) -> int:
    return pod.priority
