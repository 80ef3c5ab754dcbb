"""Figures of what-if runs: what the table, the JSON document and the page say of each strategy."""

from collections.abc import Sequence

import msgspec
import numpy as np

from koordinator.api.readable import percent
from koordinator.simulate.whatif import advice
from koordinator.simulate.whatif.advice import LedgerLine, PoolLine
from koordinator.simulate.whatif.batch_queue import BatchQueue
from koordinator.simulate.whatif.cluster import WhatIfCluster
from koordinator.simulate.whatif.history import UsageHistory
from koordinator.simulate.whatif.outcome import HOT_PERCENT, RISK_RATIO, Adder, OutcomeSeries, WorkloadOutcome
from koordinator.simulate.whatif.run import WhatIfRun
from koordinator.simulate.whatif.strategy import WhatIfStrategy

LISTED_MAX = 2_000
"""Nodes and workloads of the JSON document: those that matter most come first."""


class WhatIfFigures(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The means of a run. Ratios are of all CPUs and all memory of the cluster, growth is p99 with batch over p99
    without, less 1."""

    cpu_use_before: float
    cpu_use: float
    memory_use_before: float
    memory_use: float
    lent_cores: float
    batch_cores: float
    batch_core_hours: float
    batch_core_hours_per_day: float
    lost_core_hours: float
    worth: float | None
    """Worth of what batch used, at the price per core-hour; None without a price."""
    worth_per_month: float | None
    p99_growth: float
    p99_growth_low: float
    p99_growth_high: float
    workloads_at_risk: int
    """Workloads whose p99 is more than 5 % higher for a hundredth of the time or longer."""
    evictions: int
    hot_time_before: float
    hot_time: float
    wait_p50_s: float
    wait_p95_s: float


class NodeLine(msgspec.Struct, frozen=True, rename="camel"):
    """One node: core-hours lent and used, shares of time hot, p99 growth of its services, evictions."""

    node: str
    lent_core_hours: float
    batch_core_hours: float
    hot_time_before: float
    hot_time: float
    p99_growth: float
    evictions: int


class WorkloadLine(msgspec.Struct, frozen=True, rename="camel"):
    """One workload: replicas, p99 growth with its interval of 90 %, the largest at any moment, the share of time above
    the mark."""

    workload: str
    replicas: int
    p99_growth: float
    p99_growth_low: float
    p99_growth_high: float
    worst: float
    risk_time: float


class StrategyResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All that is told of a strategy. Nodes come by what they bring, workloads by what they suffer."""

    strategy: str
    is_preview: bool
    """Whether it is shown and not advised: its controller is alpha, and has perfect measurements here."""
    figures: WhatIfFigures
    series: OutcomeSeries
    nodes: list[NodeLine]
    workloads: list[WorkloadLine]
    pools: list[PoolLine]
    ledger: list[LedgerLine]
    """Terms of what the whole cluster lends."""


class WhatIfAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The whole answer."""

    nodes: int
    cores: float
    memory_gib: float
    service_pods: int
    workloads: int
    hours: float
    step_s: float
    history: str
    demand: str
    price_per_core_hour: float | None
    notes: list[str]
    strategies: list[StrategyResult]
    advised: str
    """The strategy to begin with: the most batch work of those that cost services little."""
    first_steps: list[str]


HOURS_PER_MONTH = 730.0
_RISK_TIME = 0.01


def result_of(
    cluster: WhatIfCluster,
    strategy: WhatIfStrategy,
    run: WhatIfRun,
    queue: BatchQueue,
    price: float | None,
) -> StrategyResult:
    """Return what a run says of a strategy."""
    added = run.added
    workloads = added.workloads()
    return StrategyResult(
        strategy=strategy.name,
        is_preview=strategy.control is not None,
        figures=_figures(cluster, added, workloads, queue, price),
        series=added.series,
        nodes=_nodes(cluster, added),
        workloads=_workloads(cluster, workloads),
        pools=advice.pools(cluster, added, run.whys),
        ledger=advice.ledger(added.lent_terms, run.whys),
    )


def _figures(
    cluster: WhatIfCluster, added: Adder, workloads: WorkloadOutcome, queue: BatchQueue, price: float | None
) -> WhatIfFigures:
    series, hours = added.series, added.seconds / 3600
    cores = float(cluster.nodes.cpu_milli.sum()) / 1000
    memory = float(cluster.nodes.memory_bytes.sum()) / 2**30
    own = np.mean(series.services) + np.mean(series.system)
    nodes = added.nodes()
    growth = added.growth()
    core_hours = float(nodes.batch_core_hours.sum())
    lost = added.lost_milli_s / 3.6e6
    useful = core_hours - lost
    worth = None if price is None else round(useful * price, 2)
    wait_p50_s, wait_p95_s = queue.waits_s()
    return WhatIfFigures(
        cpu_use_before=_rounded(own / cores),
        cpu_use=_rounded((own + np.mean(series.batch)) / cores),
        memory_use_before=_rounded(np.mean(series.memory_before) / memory),
        memory_use=_rounded(np.mean(series.memory) / memory),
        lent_cores=round(float(np.mean(series.lent)), 1),
        batch_cores=round(float(np.mean(series.batch)), 1),
        batch_core_hours=round(useful, 1),
        batch_core_hours_per_day=round(useful / hours * 24, 1),
        lost_core_hours=round(lost, 1),
        worth=worth,
        worth_per_month=None if price is None else round(useful / hours * HOURS_PER_MONTH * price, 2),
        p99_growth=_rounded(growth[0] - 1),
        p99_growth_low=_rounded(growth[1] - 1),
        p99_growth_high=_rounded(growth[2] - 1),
        workloads_at_risk=int(np.count_nonzero(workloads.risk_share >= _RISK_TIME)),
        evictions=int(sum(series.evictions)),
        hot_time_before=_rounded(nodes.hot_before.mean()),
        hot_time=_rounded(nodes.hot.mean()),
        wait_p50_s=round(wait_p50_s, 1),
        wait_p95_s=round(wait_p95_s, 1),
    )


def _nodes(cluster: WhatIfCluster, added: Adder) -> list[NodeLine]:
    found, names = added.nodes(), cluster.nodes.names
    order = np.argsort(-found.batch_core_hours, kind="stable").tolist()
    return [
        NodeLine(
            names[row],
            round(float(found.lent_core_hours[row]), 2),
            round(float(found.batch_core_hours[row]), 2),
            _rounded(found.hot_before[row]),
            _rounded(found.hot[row]),
            _rounded(found.p99_growth[row] - 1),
            int(found.evictions[row]),
        )
        for row in order[:LISTED_MAX]
    ]


def _workloads(cluster: WhatIfCluster, found: WorkloadOutcome) -> list[WorkloadLine]:
    services = cluster.services
    order = np.lexsort((-found.risk_share, -found.growth)).tolist()
    return [
        WorkloadLine(
            services.workloads[at],
            int(found.replicas[at]),
            _rounded(found.growth[at] - 1),
            _rounded(found.growth_low[at] - 1),
            _rounded(found.growth_high[at] - 1),
            _rounded(found.worst[at] - 1),
            _rounded(found.risk_share[at]),
        )
        for at in order[:LISTED_MAX]
    ]


def answer(
    cluster: WhatIfCluster,
    history: UsageHistory,
    hours: float,
    demand: str,
    price: float | None,
    results: Sequence[StrategyResult],
) -> WhatIfAnswer:
    """Return the answer about all strategies."""
    best = advised(results)
    return WhatIfAnswer(
        nodes=len(cluster.nodes.objects),
        cores=round(float(cluster.nodes.cpu_milli.sum()) / 1000, 1),
        memory_gib=round(float(cluster.nodes.memory_bytes.sum()) / 2**30, 1),
        service_pods=len(cluster.services.keys),
        workloads=len(cluster.services.workloads),
        hours=round(hours, 2),
        step_s=history.step_s,
        history=history.source,
        demand=demand,
        price_per_core_hour=price,
        notes=[*_reported(cluster), *cluster.notes, *history.notes, *_previews(results)],
        strategies=list(results),
        advised=best.strategy,
        first_steps=_first_steps(cluster, best),
    )


def advised(results: Sequence[StrategyResult]) -> StrategyResult:
    """Return the strategy with the most batch work among those whose p99 grows by 5 % at most; else the gentlest. A
    preview only where there is nothing else."""
    results = [each for each in results if not each.is_preview] or results
    gentle = [each for each in results if each.figures.p99_growth <= advice.P99_COST_MAX]
    if gentle:
        return max(gentle, key=lambda each: each.figures.batch_core_hours)
    return min(results, key=lambda each: each.figures.p99_growth)


def _first_steps(cluster: WhatIfCluster, best: StrategyResult) -> list[str]:
    """Return what to do, in order, each a sentence."""
    steps, figures = [], best.figures
    if cluster.reports < len(cluster.nodes.objects):
        steps.append(
            "Install with `koordinator install`: it lends nothing before `colocation-config` is enabled, and "
            "shows what nodes really use."
        )
    if not figures.lent_cores:
        return [
            *steps,
            f"`{best.strategy}` lends nothing: `colocation-config` is enabled for no node, or services leave nothing.",
        ]
    if best.pools:
        first = best.pools[0]
        steps.append(
            f"Enable lending (`{best.strategy}`) on {first.pool} first: its {first.nodes:,} nodes bring "
            f"{percent(first.share)} of the gain, and p99 of its services grows by {percent(first.p99_growth)}."
        )
    else:
        steps.append(
            f"Enable lending (`{best.strategy}`) on a few nodes first: label them as a pool of their own."
        )
    worst = [each for each in best.workloads[:3] if each.p99_growth > advice.P99_COST_MAX]
    if worst:
        names = ", ".join(each.workload for each in worst)
        steps.append(
            f"Watch {names}: p99 grows most there (up to {percent(worst[0].p99_growth)}). Keep them on nodes that "
            "lend nothing, or give them CPUs of their own (QoS LSR)."
        )
    if figures.hot_time > max(2 * figures.hot_time_before, 0.05):
        steps.append(
            f"Expect nodes above {HOT_PERCENT:.0f} % CPU for {percent(figures.hot_time)} of the time instead of "
            f"{percent(figures.hot_time_before)}: batch gives way there; `LowNodeLoad` "
            "(load-aware descheduling) cools those whose services suffer."
        )
    if figures.evictions:
        steps.append(
            f"Expect {figures.evictions:,} evictions of batch for memory, {figures.lost_core_hours:,.0f} core-hours of "
            "work thrown away: lower memoryReclaimThresholdPercent if that is too much."
        )
    return steps


def _previews(results: Sequence[StrategyResult]) -> list[str]:
    """Return which strategies are better here than they can be."""
    return [
        f"{each.strategy} is a preview: its controller is alpha (gate InterferenceControl of the node agent), and here "
        "it knows what services feel as the model has it, neither late nor noisy"
        for each in results
        if each.is_preview
    ]


def _reported(cluster: WhatIfCluster) -> list[str]:
    """Return what the answer lacks for want of reports."""
    nodes, found = len(cluster.nodes.objects), []
    if cluster.reports < nodes:
        found.append(
            f"{nodes - cluster.reports:,} of {nodes:,} nodes have no NodeMetric: what is not known of their pods' "
            "use is what they request, and lends nothing (install the node agent, or give a history)"
        )
    if cluster.batch.pods:
        found.append(
            f"{cluster.batch.pods:,} batch pods run already, and {cluster.batch.waiting_pods:,} wait: they are part of "
            "the batch work here, not of what services use"
        )
    return found


class FigureRow(msgspec.Struct, frozen=True):
    """A line of the table: one text per strategy."""

    name: str
    texts: tuple[str, ...]


def rows(answer: WhatIfAnswer) -> list[FigureRow]:
    """Return the table: strategies side by side."""
    found = [each.figures for each in answer.strategies]

    def row(name: str, texts: Sequence[str]) -> FigureRow:
        return FigureRow(name, tuple(texts))

    table = [
        row("CPU used", [f"{percent(f.cpu_use_before)} → {percent(f.cpu_use)}" for f in found]),
        row("Memory used", [f"{percent(f.memory_use_before)} → {percent(f.memory_use)}" for f in found]),
        row("Cores lent, mean", [f"{f.lent_cores:,.0f}" for f in found]),
        row("  of these used by batch", [f"{f.batch_cores:,.0f}" for f in found]),
        row("Batch core-hours a day", [f"{f.batch_core_hours_per_day:,.0f}" for f in found]),
    ]
    if answer.price_per_core_hour is not None:
        table.append(row("  worth a month", [f"{f.worth_per_month or 0:,.0f}" for f in found]))
    table += [
        row("p99 of services", [f"{100 * f.p99_growth:+.1f} %" for f in found]),
        row(
            "  between (90 % sure)",
            [f"{_signed(f.p99_growth_low)} and {_signed(f.p99_growth_high)}" for f in found],
        ),
        row(
            f"Workloads slowed by > {100 * (RISK_RATIO - 1):.0f} %",
            [f"{f.workloads_at_risk:,} of {answer.workloads:,}" for f in found],
        ),
        row("Evictions", [f"{f.evictions:,}" for f in found]),
        row(
            f"Node-time above {HOT_PERCENT:.0f} % CPU",
            [f"{percent(f.hot_time_before)} → {percent(f.hot_time)}" for f in found],
        ),
    ]
    if any(f.wait_p95_s for f in found):
        table.append(
            row(
                "Batch waits, p50 / p95",
                [f"{_minutes(f.wait_p50_s)} / {_minutes(f.wait_p95_s)}" for f in found],
            )
        )
    return table


def _signed(ratio: float) -> str:
    return f"{100 * ratio:+.1f} %"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:,.0f} min" if seconds < 7_200 else f"{seconds / 3600:,.1f} h"


def _rounded(number: float | np.floating) -> float:
    return round(float(number), 5)
