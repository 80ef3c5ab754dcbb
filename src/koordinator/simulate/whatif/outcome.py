"""The sums of a what-if run: over time for the pictures, by node and workload for the tables."""

import msgspec
import numpy as np

from koordinator.local.nodes.usage import F64, Index
from koordinator.manager.noderesource.batch import CPU
from koordinator.simulate.whatif.lending import TERMS, LentTerms

HOT_PERCENT = 55.0
"""Above this share of a node's CPU batch should not be added any more (`scenario.LOAD_AWARE_ARGS`)."""
RISK_RATIO = 1.05
"""A service whose p99 is above this multiple of its own without batch counts as slowed down."""


class OutcomeSeries(msgspec.Struct, rename="camel"):
    """One value per step: cores, GiB, counts, and p99 with batch over p99 without, weighted by requests."""

    hour: list[float] = []
    services: list[float] = []
    batch: list[float] = []
    system: list[float] = []
    lent: list[float] = []
    lent_terms: dict[str, list[float]] = msgspec.field(default_factory=lambda: {term: [] for term in TERMS})
    """The cores of each term of what is lent, signed: they sum to `lent`."""
    batch_requested: list[float] = []
    batch_wanted: list[float] = []
    waiting: list[int] = []
    hot_nodes: list[int] = []
    hot_nodes_before: list[int] = []
    memory_before: list[float] = []
    memory: list[float] = []
    p99_ms: list[float] = []
    p99_alone_ms: list[float] = []
    evictions: list[int] = []


class StepFigures(msgspec.Struct, frozen=True, eq=False):
    """A step as it was. (nodes,) each: CPU in milli-cores as means over the step, `lent` as decided at its beginning,
    memory used at its end; `evicted` counts tasks."""

    services: F64
    system: F64
    batch: F64
    lent: LentTerms
    requested: F64
    wanted: F64
    services_bytes: F64
    batch_bytes: F64
    evicted: F64
    lost_milli_s: float
    waiting: int


class LatencyFigures(msgspec.Struct, frozen=True, eq=False):
    """Response times at the end of a step, (services,) each in milliseconds, and requests per second as the weight.

    `low` and `high` bound `p99` by how sure the measured interference is.
    """

    p99: F64
    low: F64
    high: F64
    alone: F64
    requests: F64


class NodeOutcome(msgspec.Struct, frozen=True, eq=False):
    """Each node over the whole time, (nodes,): core-hours lent and used by batch, shares of time above `HOT_PERCENT`
    without and with batch, tasks evicted, p99 over p99 without batch."""

    lent_core_hours: F64
    batch_core_hours: F64
    hot_before: F64
    hot: F64
    evictions: F64
    p99_growth: F64


class WorkloadOutcome(msgspec.Struct, frozen=True, eq=False):
    """Each workload over the whole time, (workloads,): p99 over p99 without batch (1: no change) with its interval,
    its largest value at any moment, the share of time above `RISK_RATIO`, and how many pods it has."""

    growth: F64
    growth_low: F64
    growth_high: F64
    worst: F64
    risk_share: F64
    replicas: F64


class Adder:
    """Adds steps up. `workload` and `node` say of each service pod what it belongs to."""

    def __init__(
        self, cpu_milli: F64, workload: Index, workloads: int, node: Index, system_bytes: F64
    ) -> None:
        nodes = cpu_milli.size
        self.series = OutcomeSeries()
        self.seconds = 0.0
        self.lost_milli_s = 0.0
        self._capacity = cpu_milli
        self._node, self._workload = node, workload
        self._system_bytes = system_bytes
        self._nodes = np.zeros((5, nodes))  # lent, batch, hot before, hot, evictions
        self._nodes_p99 = np.zeros((2, nodes))
        self._terms = np.zeros((nodes, len(TERMS), 2))
        self._workloads = np.zeros((5, workloads))  # p99, low, high, alone, requests
        self._worst = np.ones(workloads)
        self._risk_s = np.zeros(workloads)
        self._latency_s = 0.0

    def step(self, hour: float, step: StepFigures, elapsed_s: float) -> None:
        """Count a step."""
        self.seconds += elapsed_s
        self.lost_milli_s += step.lost_milli_s
        before = step.services + step.system
        used = before + step.batch
        limit = self._capacity * (HOT_PERCENT / 100)
        hot_before, hot = before > limit, used > limit
        self._nodes += elapsed_s * np.stack(
            [step.lent.amounts[CPU], step.batch, hot_before, hot, step.evicted / elapsed_s]
        )
        series = self.series
        series.hour.append(round(hour, 4))
        for column, values in (
            (series.services, step.services),
            (series.batch, step.batch),
            (series.system, step.system),
            (series.lent, step.lent.amounts[CPU]),
            (series.batch_requested, step.requested),
            (series.batch_wanted, step.wanted),
        ):
            column.append(round(float(values.sum()) / 1000, 3))
        self._terms += elapsed_s * step.lent.terms
        for name, milli in zip(TERMS, step.lent.terms[:, :, CPU].sum(axis=0).tolist(), strict=True):
            series.lent_terms[name].append(round(milli / 1000, 3))
        own_bytes = step.services_bytes + self._system_bytes
        series.memory_before.append(_gib(own_bytes))
        series.memory.append(_gib(own_bytes + step.batch_bytes))
        series.waiting.append(step.waiting)
        series.hot_nodes_before.append(int(np.count_nonzero(hot_before)))
        series.hot_nodes.append(int(np.count_nonzero(hot)))
        series.evictions.append(int(step.evicted.sum()))

    def latency(self, found: LatencyFigures, elapsed_s: float) -> None:
        """Count response times that stand for `elapsed_s`."""
        self._latency_s += elapsed_s
        weight = found.requests
        count = self._worst.size
        columns = (found.p99, found.low, found.high, found.alone)
        now = np.stack(
            [np.bincount(self._workload, each * weight, minlength=count) for each in columns]
            + [np.bincount(self._workload, weight, minlength=count)]
        )
        self._workloads += elapsed_s * now
        growth = _ratio(now[0], now[3])
        self._worst = np.maximum(self._worst, growth)
        self._risk_s += elapsed_s * (growth > RISK_RATIO)
        nodes = self._capacity.size
        self._nodes_p99 += elapsed_s * np.stack(
            [np.bincount(self._node, each * weight, minlength=nodes) for each in (found.p99, found.alone)]
        )
        total = max(float(now[4].sum()), 1e-9)
        self.series.p99_ms.append(round(float(now[0].sum()) / total, 4))
        self.series.p99_alone_ms.append(round(float(now[3].sum()) / total, 4))

    def nodes(self) -> NodeOutcome:
        """Return the nodes over the whole time."""
        lent, batch, hot_before, hot, evictions = self._nodes
        hours = 1 / 3.6e6
        return NodeOutcome(
            lent * hours,
            batch * hours,
            hot_before / self.seconds,
            hot / self.seconds,
            evictions,
            _ratio(self._nodes_p99[0], self._nodes_p99[1]),
        )

    @property
    def lent_terms(self) -> F64:
        """Return the means of the terms of what each node lends, (nodes, terms, 2): milli-cores and bytes."""
        return self._terms / max(self.seconds, 1e-9)

    @property
    def nodes_p99(self) -> F64:
        """Return the sums of p99 of each node's requests, with batch and without, (2, nodes)."""
        return self._nodes_p99

    def growth(self) -> tuple[float, float, float]:
        """Return p99 of all requests over p99 without batch, and its interval."""
        p99, low, high, alone, _ = self._workloads.sum(axis=1).tolist()
        return (p99 / alone, low / alone, high / alone) if alone else (1.0, 1.0, 1.0)

    def workloads(self) -> WorkloadOutcome:
        """Return the workloads over the whole time."""
        p99, low, high, alone, _ = self._workloads
        return WorkloadOutcome(
            _ratio(p99, alone),
            _ratio(low, alone),
            _ratio(high, alone),
            self._worst,
            self._risk_s / max(self._latency_s, 1e-9),
            np.bincount(self._workload, minlength=self._worst.size).astype(np.float64),
        )


def _ratio(above: F64, below: F64) -> F64:
    found: F64 = np.divide(above, below, out=np.ones(above.shape), where=below > 0)
    return found


def _gib(amount: F64) -> float:
    return round(float(amount.sum()) / 2**30, 2)
