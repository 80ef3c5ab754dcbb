"""Taints of nodes as a column: nodes with the same taints have the same number."""

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from koordinator.api import tolerations
from koordinator.api.core import Node, Taint
from koordinator.api.tolerations import Tolerations
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.nodes import RowKeeper


class TaintColumns(RowKeeper):
    """`version` grows with each change. Never shrinks: clusters have dozens of distinct sets."""

    def __init__(self) -> None:
        self.version = 0
        self._numbers: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        self._sets: list[tuple[Taint, ...]] = [()]
        self._ids: dict[Hashable, int] = {(): 0}

    def node_changed(self, row: int, node: Node) -> None:
        key = tuple((taint.key, taint.value, taint.effect) for taint in node.spec.taints)
        number = self._ids.get(key)
        if number is None:
            number = self._ids[key] = len(self._sets)
            self._sets.append(tuple(node.spec.taints))
        if row >= self._numbers.size:
            missing = max(row + 1, 2 * self._numbers.size) - self._numbers.size
            self._numbers = np.concatenate([self._numbers, np.zeros(missing, np.int32)])
        if self._numbers[row] != number:
            self._numbers[row] = number
            self.version += 1

    def keep_out(self, bears: Tolerations, rows: Rows) -> npt.NDArray[np.bool_]:
        """Rows of nodes with a taint that forbids pods with these tolerations."""
        verdicts = np.array([tolerations.keeps_out(bears, taints) for taints in self._sets], np.bool_)
        return verdicts[self._numbers[rows]]
