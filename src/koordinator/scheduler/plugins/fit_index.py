"""Find which of many sleeping pods fit onto one node, compared with all of them at once."""

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.events import QueueingEvent
from koordinator.scheduler.plugin.framework import Mask, QueueingHintIndex
from koordinator.scheduler.table.columns import tally
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

Requests = tuple[tuple[int, int], ...]
"""Columns and amounts that are checked of a pod."""


class FitIndex(QueueingHintIndex):
    """Requests of sleeping pods as (resources, slots), compared with what one node has left."""

    def __init__(self, table: NodeTable, checked: Callable[[PodInfo], Requests]) -> None:
        self._table = table
        self._checked = checked
        self._wanted: I64 = np.zeros((0, 0), np.int64)
        self._is_used: Mask = np.zeros(0, np.bool_)
        self._users: Counter[int] = Counter()
        """Number of slots that want something of a resource: the others need not be looked at."""

    def put(self, slot: int, pod: PodInfo) -> None:
        checked = self._checked(pod)
        self._reserve(slot, 1 + max((column for column, _ in checked), default=0))
        for column, amount in checked:
            self._wanted[column, slot] = amount
            self._users[column] += 1
        self._is_used[slot] = True

    def clear(self, slot: int) -> None:
        for column in np.flatnonzero(self._wanted[:, slot]).tolist():
            tally(self._users, column, -1)
        self._wanted[:, slot] = 0
        self._is_used[slot] = False

    def may_wake(self, event: QueueingEvent, slot_count: int) -> Mask:
        return self._is_used[:slot_count] if event.row is None else self.fits(event.row, slot_count, {}, 0)

    def fits(self, row: int, slot_count: int, held: Mapping[int, int], pod_count: int) -> Mask:
        """(slot_count,): pods that fit onto a row if so many pods, which hold `held` by column, were gone."""
        table = self._table
        if table.node_at(row) is None or table.pod_count[row] - pod_count + 1 > table.pods_max[row]:
            return np.zeros(slot_count, np.bool_)
        fits = self._is_used[:slot_count].copy()
        for column in self._users:
            wanted = self._wanted[column, :slot_count]
            free = table.allocatable[column, row] - table.requested[column, row] + held.get(column, 0)
            fits &= (wanted <= free) | (wanted == 0)
        return fits

    def _reserve(self, slot: int, width: int) -> None:
        rows, slots = self._wanted.shape
        if slot < slots and width <= rows:
            return
        wanted = np.zeros((max(rows, width), max(slots, 2 * slot + 1)), np.int64)
        wanted[:rows, :slots] = self._wanted
        is_used = np.zeros(wanted.shape[1], np.bool_)
        is_used[:slots] = self._is_used
        self._wanted, self._is_used = wanted, is_used
