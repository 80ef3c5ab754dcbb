"""Batch tasks that run, one column per fact: they come, get CPU, and end when their work is done."""

import numpy as np

from koordinator.local.nodes.usage import F64, Index, Mask, per_node
from koordinator.simulate.whatif.demand import BatchTasks

_COLUMNS = ("used_milli", "used_bytes", "work_left", "consumed", "granted", "placed_s")


class RunningTasks:
    """All columns are (tasks,): `node` and `kind` say where and what; CPU counts milli-cores, work milli-core-seconds.

    `granted` is what each had in the last round, `consumed` what it had since it began.
    """

    node: Index
    kind: Index
    used_milli: F64
    used_bytes: F64
    work_left: F64
    consumed: F64
    granted: F64
    placed_s: F64

    def __init__(self) -> None:
        self.node = np.zeros(0, np.int64)
        self.kind = np.zeros(0, np.int64)
        for name in _COLUMNS:
            setattr(self, name, np.zeros(0))

    @property
    def count(self) -> int:
        """Return how many run."""
        return self.node.size

    def start(self, rows: Index, kind: int, tasks: BatchTasks, now_s: float) -> None:
        """Let tasks of a kind begin on nodes, (n,)."""
        zeros = np.zeros(rows.size)
        self.node = np.concatenate((self.node, rows))
        self.kind = np.concatenate((self.kind, np.full(rows.size, kind)))
        added = (
            tasks.used_milli, tasks.used_bytes, tasks.work_milli_s, zeros, zeros, np.full(rows.size, now_s)
        )  # fmt: skip
        for name, column in zip(_COLUMNS, added, strict=True):
            setattr(self, name, np.concatenate((getattr(self, name), column)))

    def keep(self, stays: Mask) -> None:
        """Let all others go."""
        self.node, self.kind = self.node[stays], self.kind[stays]
        for name in _COLUMNS:
            setattr(self, name, getattr(self, name)[stays])

    def progress(self, granted: F64, elapsed_s: float) -> int:
        """Work with what everybody got for a while; tasks whose work is done end. Return how many did."""
        self.granted = granted
        done = granted * elapsed_s
        self.work_left -= done
        self.consumed += done
        stays = self.work_left > 0
        ended = self.count - int(np.count_nonzero(stays))
        if ended:
            self.keep(stays)
        return ended

    def on_nodes(self, amounts: F64, nodes: int) -> F64:
        """Return sums of `amounts` (tasks,) on each node, (nodes,)."""
        return per_node(self.node, amounts, nodes)
