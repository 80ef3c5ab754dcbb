"""The past of each pod, as a monitoring system remembers it, laid onto the pods that are there now.

Pods come and go, workloads stay: what a pod used that is gone counts for those of its workload of which nothing is
known at that time.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from koordinator.local.nodes.usage import DAY_S, F64, Index, per_node
from koordinator.simulate.whatif.cluster import WhatIfCluster, WhatIfError
from koordinator.simulate.whatif.history import StepUse
from koordinator.simulate.whatif.series import PodSeries

BLOCK_STEPS = 16
"""Steps that are unpacked at a time: a column of a table that is kept by rows costs a cache miss per pod."""
_SUFFIXES = (
    re.compile(r"-[a-f0-9]{8,10}-[a-z0-9]{5}$"),  # of a Deployment
    re.compile(r"-[a-z0-9]{5}$"),  # of a DaemonSet or ReplicaSet
    re.compile(r"-\d+$"),  # of a StatefulSet
)


class PodHistory:
    """CPU (cores) of pods by name, and memory (bytes) where it is known; what is not counts as it is now.

    `memory` may have fewer values: each stands for as many steps more. Raises: WhatIfError where it has more.
    """

    def __init__(
        self,
        cluster: WhatIfCluster,
        cpu: PodSeries,
        memory: PodSeries | None,
        step_s: float,
        warnings: Sequence[str] = (),
    ) -> None:
        if memory is not None and memory.steps > cpu.steps:
            raise WhatIfError(
                f"the memory history has {memory.steps:,} values a line and that of CPU {cpu.steps:,}: both are of "
                "the same time, so memory may have fewer, not more"
            )
        self.step_s, self.steps = step_s, cpu.steps
        self._now = cluster.services.usage
        self._workload = cluster.services.workload
        self._cpu = _Matched(cluster, cpu)
        self._memory = None if memory is None else _Matched(cluster, memory)
        self._memory_every = 1 if memory is None else max(cpu.steps // max(memory.steps, 1), 1)
        days = cpu.steps * step_s / DAY_S
        self.source = (
            f"CPU{'' if memory is None else ' and memory'} of {len(cpu.names):,} pods over {days:.1f} days"
        )
        self.notes = (*self._cpu.notes(), *warnings)

    def at(self, step: int) -> StepUse:
        """See `UsageHistory`."""
        cpu = self._cpu.at(step) * 1000
        memory = self._now[:, 1]
        if self._memory is not None:
            known = self._memory.at(min(step // self._memory_every, self._memory.steps - 1))
            memory = np.where(np.isnan(known), memory, known)
        return StepUse(np.where(np.isnan(cpu), self._now[:, 0], cpu), memory)


class _Matched:
    """The lines of a table that are pods of the cluster, and the sums of those that are gone, by workload."""

    def __init__(self, cluster: WhatIfCluster, series: PodSeries) -> None:
        services = cluster.services
        self.steps = series.steps
        self._series = series
        rows = {name: row for row, name in enumerate(series.names)}
        self._row: Index = np.array([rows.get(key, -1) for key in services.keys], np.int64)
        self._workload, self._workloads = services.workload, len(services.workloads)
        present = set(services.keys)
        position = {name: at for at, name in enumerate(services.workloads)}
        gone = [(row, name) for name, row in rows.items() if name not in present]
        found = [(row, _workload_of(name, position)) for row, name in gone]
        self._gone = np.array([row for row, at in found if at is not None], np.int64)
        self._gone_workload = np.array([at for _, at in found if at is not None], np.int64)
        self._lost = len(gone) - self._gone.size
        self._first, self._block = -1, np.zeros((0, 0))

    def notes(self) -> tuple[str, ...]:
        """Return what is to be known of how lines and pods fit together."""
        found = []
        if missing := int(np.count_nonzero(self._row < 0)):
            found.append(
                f"{missing:,} of {self._row.size:,} service pods have no history: they count as they are now"
            )
        if self._lost:
            found.append(
                f"{self._lost:,} pods of the history are batch, or gone with all of their workload: left out"
            )
        return tuple(found)

    def at(self, step: int) -> F64:
        """Return what each pod used, (pods,), NaN where nothing is known."""
        first = step - step % BLOCK_STEPS
        if first != self._first:
            self._first, self._block = first, self._series.between(first, first + BLOCK_STEPS)
        line = self._block[step - first]
        used = (
            np.where(self._row >= 0, line[self._row], np.nan)
            if line.size
            else np.full(self._row.size, np.nan)
        )
        return self._with_gone(used, line)

    def _with_gone(self, used: F64, line: F64) -> F64:
        gone = np.nan_to_num(line[self._gone])
        if not gone.any():
            return used
        left = per_node(self._gone_workload, gone, self._workloads)
        unknown = np.isnan(used) & (left[self._workload] > 0)
        count = np.bincount(self._workload[unknown], minlength=self._workloads)
        found: F64 = np.where(unknown, left[self._workload] / np.maximum(count[self._workload], 1), used)
        return found


def _workload_of(pod: str, position: Mapping[str, int]) -> int | None:
    """Return the workload that a pod of that name belonged to, None when there is none of that name any more."""
    for suffix in _SUFFIXES:
        name = suffix.sub("", pod)
        if name != pod and name in position:
            return position[name]
    return position.get(pod)
