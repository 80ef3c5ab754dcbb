"""Batch tasks that run, one column per fact: they come, get CPU, and end when their work is done."""

import numpy as np

from koordinator.local.nodes.usage import F64, Index, Mask, per_node
from koordinator.simulate.whatif.demand import BatchTasks

_COLUMNS = ("used_milli", "used_bytes", "work", "job", "consumed", "granted", "placed_s", "node", "kind")


DONE_MILLI_S = 1.0
"""Work so small is rounding."""
START_S = 11.0
"""Until the container of a placed task runs: the mean of what the demo's take (`scenario.hollow_config`)."""


class RunningTasks:
    """All columns are (tasks,): `node`, `kind` and `job` say where and what; CPU counts milli-cores, work
    milli-core-seconds.

    `granted` is what each had in the last round, `consumed` what it had of its `work` since it began.
    """

    node: Index
    kind: Index
    job: Index
    used_milli: F64
    used_bytes: F64
    work: F64
    consumed: F64
    granted: F64
    placed_s: F64

    def __init__(self) -> None:
        for name in _COLUMNS:
            setattr(self, name, np.zeros(0, np.int64 if name in ("node", "kind", "job") else np.float64))

    @property
    def count(self) -> int:
        """Return how many run."""
        return self.node.size

    def start(self, rows: Index, kind: int, tasks: BatchTasks, now_s: float) -> None:
        """Let tasks of a kind begin on nodes, (n,)."""
        count, zeros = rows.size, np.zeros(rows.size)
        added = (
            tasks.used_milli, tasks.used_bytes, tasks.work_milli_s, tasks.job, zeros, zeros,
            np.full(count, now_s), rows, np.full(count, kind),
        )  # fmt: skip
        for name, column in zip(_COLUMNS, added, strict=True):
            setattr(self, name, np.concatenate((getattr(self, name), column)))

    def keep(self, stays: Mask) -> None:
        """Let all others go."""
        for name in _COLUMNS:
            setattr(self, name, getattr(self, name)[stays])

    def of(self, chosen: Mask) -> BatchTasks:
        """Return some as they were before they began."""
        return BatchTasks(
            self.used_milli[chosen], self.used_bytes[chosen], self.work[chosen], self.job[chosen]
        )

    def wants(self, now_s: float, elapsed_s: float) -> F64:
        """Return the CPU that each wants on average from now on for a while, (tasks,): nothing before it has started,
        and nothing after its work is done."""
        left_s = np.where(self.placed_s >= now_s, max(elapsed_s - START_S, 0.0), elapsed_s)
        wants: F64 = np.minimum(self.used_milli * left_s, self.work - self.consumed) / elapsed_s
        return wants

    def progress(self, granted: F64, elapsed_s: float) -> Index:
        """Work with what everybody got for a while; tasks whose work is done end. Return the jobs of these,
        (ended,)."""
        self.granted = granted
        self.consumed += granted * elapsed_s
        stays = self.consumed < self.work - DONE_MILLI_S
        ended: Index = self.job[~stays]
        if ended.size:
            self.keep(stays)
        return ended

    def on_nodes(self, amounts: F64, nodes: int) -> F64:
        """Return sums of `amounts` (tasks,) on each node, (nodes,)."""
        return per_node(self.node, amounts, nodes)
