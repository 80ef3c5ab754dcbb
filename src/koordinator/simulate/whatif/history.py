"""The use of services over time: the load that a what-if run meets, one step after the other."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from koordinator.local.nodes.fleet import FleetPolicy
from koordinator.local.nodes.usage import DAY_S, F64, TRACE_STEP_S, Trace, per_node
from koordinator.simulate.whatif.cluster import WhatIfCluster, WhatIfError

MOMENT_HOURS = 24.0
"""So long a single moment is held: batch needs hours until as much ends as begins."""


class StepUse(msgspec.Struct, frozen=True, eq=False):
    """The CPU (milli-cores) and memory (bytes) that each service pod wants during a step, (pods,) each."""

    cpu_milli: F64
    memory_bytes: F64


class UsageHistory(Protocol):
    """The use of all service pods, cut into equal steps."""

    step_s: float
    steps: int
    source: str
    """Its origin, in words, for the report."""
    notes: tuple[str, ...]
    """Caveats for readers of the report."""

    def at(self, step: int) -> StepUse:
        """Return the use during a step, (pods,)."""
        ...


class MomentHistory:
    """The present use as the nodes report it, held all day: no peaks, no nights."""

    def __init__(self, cluster: WhatIfCluster) -> None:
        self.step_s = TRACE_STEP_S
        self.steps = int(MOMENT_HOURS * 3600 / TRACE_STEP_S)
        self.source = "a single moment, held: no peak and no night is in it"
        self.notes: tuple[str, ...] = ()
        usage = cluster.services.usage
        self._use = StepUse(usage[:, 0].copy(), usage[:, 1].copy())

    def at(self, step: int) -> StepUse:
        """See `UsageHistory`."""
        return self._use


class NodeHistory:
    """The CPU use of whole nodes, split among their services in proportion to what they use now; memory stays as it is.

    `ratio` is (nodes, steps), 0–1 of each node; `system_milli` (nodes,) of it are not the services'.
    """

    def __init__(
        self, cluster: WhatIfCluster, ratio: F64, step_s: float, system_milli: F64, source: str
    ) -> None:
        assert ratio.shape[0] == len(cluster.nodes.objects), ratio.shape
        self.step_s, self.steps, self.source = step_s, ratio.shape[1], source
        self.notes: tuple[str, ...] = ("memory counts as it is now: the history has none",)
        services, nodes = cluster.services, len(cluster.nodes.objects)
        self._node = services.node
        self._ratio = ratio
        self._capacity = cluster.nodes.cpu_milli
        self._system = system_milli
        mean = np.maximum(services.usage[:, 0], 1.0)  # who uses nothing now has a small part, too
        self._share = mean / per_node(self._node, mean, nodes)[self._node]
        self._memory = services.usage[:, 1].copy()

    def at(self, step: int) -> StepUse:
        """See `UsageHistory`."""
        wanted = np.maximum(self._ratio[:, step] * self._capacity - self._system, 0.0)
        return StepUse(self._share * wanted[self._node], self._memory)


def system_milli(cluster: WhatIfCluster) -> F64:
    """Return what systems use beside pods, (nodes,): as reported, else as the model has it."""
    told: F64 = cluster.nodes.system[:, 0]
    return np.where(np.isnan(told), FleetPolicy().system_base_milli, told)


def of_nodes(cluster: WhatIfCluster, trace: Trace, step_s: float, system_milli: F64) -> NodeHistory:
    """Return the history in a file with a line for each node; `system_milli` is (nodes,). Raises:
    WhatIfError when a node is missing."""
    rows = {name: row for row, name in enumerate(trace.names)}
    missing = [name for name in cluster.nodes.names if name not in rows]
    if missing:
        raise WhatIfError(
            f"the history has no line for {len(missing):,} of {len(cluster.nodes.objects):,} nodes "
            f"({_some(missing)}); with --trace each node follows some line of the file instead"
        )
    order = [rows[name] for name in cluster.nodes.names]
    source = _span(f"CPU use of {len(order):,} nodes", trace.ratio.shape[1] * step_s)
    return NodeHistory(cluster, trace.ratio[order], step_s, system_milli, source)


def of_trace(
    cluster: WhatIfCluster, trace: Trace, step_s: float, system_milli: F64, seed: int
) -> NodeHistory:
    """Return a history in which each node follows a machine drawn from the trace; `system_milli` is (nodes,)."""
    drawn = trace.sample(len(cluster.nodes.objects), np.random.default_rng(seed))
    source = _span(f"CPU use of {len(trace.names):,} other machines", trace.ratio.shape[1] * step_s)
    return NodeHistory(cluster, drawn.ratio, step_s, system_milli, source)


def _span(what: str, seconds: float) -> str:
    return (
        f"{what} over {seconds / DAY_S:.1f} days"
        if seconds >= DAY_S
        else f"{what} over {seconds / 3600:.1f} h"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
