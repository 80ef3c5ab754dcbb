"""All pods on nodes as columns: who is less important than a preemptor, and what would be free without them."""

import numpy as np
import numpy.typing as npt

from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugins.preemption.victims import start_of
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo

NOWHERE = -1
_SLOTS_INITIAL = 1_024


class Residents(RowKeeper):
    """A slot per pod. `rows`, `priorities` and `starts_s` are (slots,), `amounts` is (resources, slots).

    A row of `NOWHERE` marks a free slot; a start of NaN a pod that has not started.
    """

    in_trials = False  # trials ask what would be if pods were gone: the answer is worked out from here

    def __init__(self, table: NodeTable) -> None:
        self.rows: npt.NDArray[np.int64] = np.full(_SLOTS_INITIAL, NOWHERE, np.int64)
        self.priorities: I64 = np.zeros(_SLOTS_INITIAL, np.int64)
        self.starts_s: npt.NDArray[np.float64] = np.full(_SLOTS_INITIAL, np.nan)
        self.amounts: I64 = np.zeros((len(table.registry), _SLOTS_INITIAL), np.int64)
        self._table = table
        self._slot_of: dict[str, int] = {}
        self._free: list[int] = []

    def slot_of(self, uid: str) -> int:
        return self._slot_of[uid]

    def amounts_of(self, columns: list[int], slots: Rows) -> I64:
        """(columns, slots): what pods request of some resources."""
        found = np.zeros((len(columns), slots.size), np.int64)
        for index, column in enumerate(columns):
            if column < self.amounts.shape[0]:  # else nobody on a node asks for it
                found[index] = self.amounts[column, slots]
        return found

    def freed(self, priority: int, columns: list[int]) -> tuple[I64, I64]:
        """Return what pods below a priority hold: (columns, table rows) of resources, and (table rows,) pods."""
        slots = np.flatnonzero((self.rows != NOWHERE) & (self.priorities < priority))
        rows = self.rows[slots]
        counts = np.bincount(rows, minlength=self._table.capacity)
        held = np.zeros((len(columns), self._table.capacity), np.int64)
        for each, amounts in zip(held, self.amounts_of(columns, slots), strict=True):
            np.add.at(each, rows, amounts)
        return held, counts

    # Who is where

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        slot = self._free.pop() if self._free else len(self._slot_of)
        if slot == self.rows.size:
            self._grow()
        self._slot_of[pod.uid] = slot
        self.rows[slot] = row
        self._describe(slot, pod)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        slot = self._slot_of.pop(pod.uid)
        self.rows[slot] = NOWHERE
        self.amounts[:, slot] = 0
        self._free.append(slot)

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        slot = self._slot_of[new.uid]
        self.amounts[:, slot] = 0
        self._describe(slot, new)

    def _describe(self, slot: int, pod: PodInfo) -> None:
        width = len(self._table.registry)
        if width > self.amounts.shape[0]:
            missing = np.zeros((width - self.amounts.shape[0], self.rows.size), np.int64)
            self.amounts = np.concatenate([self.amounts, missing])
        self.priorities[slot] = pod.priority
        for column, amount in pod.requests:
            self.amounts[column, slot] = amount
        started_s = start_of(pod)
        self.starts_s[slot] = np.nan if started_s is None else started_s

    def _grow(self) -> None:
        size = self.rows.size
        self.rows = np.concatenate([self.rows, np.full(size, NOWHERE, np.int64)])
        self.priorities = np.concatenate([self.priorities, np.zeros(size, np.int64)])
        self.starts_s = np.concatenate([self.starts_s, np.full(size, np.nan)])
        self.amounts = np.concatenate([self.amounts, np.zeros_like(self.amounts)], axis=1)
