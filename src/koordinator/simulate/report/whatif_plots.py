"""The pictures of the page about co-location."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from koordinator.report import page
from koordinator.simulate.report.plots import AFTER, ALONE, BATCH, BEFORE, FREE, LENT, SERVICES
from koordinator.simulate.whatif.summary import StrategyResult, WhatIfAnswer, WhatIfFigures, WorkloadLine

_POINTS_MAX = 1_000
"""Points of a line: a week of five minutes is more than a screen shows."""
_WORKLOADS_SHOWN = 15
_HALF = 300
"""Height of figures that stand in pairs."""


def _thinned(values: list[float]) -> list[float]:
    """Return means of neighbours, so that at most `_POINTS_MAX` values are left."""
    every = -(-len(values) // _POINTS_MAX) if values else 1
    return [round(sum(part := values[at : at + every]) / len(part), 4) for at in range(0, len(values), every)]


def use_over_time(found: WhatIfAnswer, result: StrategyResult) -> go.Figure:
    """Return who uses the CPUs, stacked."""
    series = result.series
    own = [a + b for a, b in zip(_thinned(series.services), _thinned(series.system), strict=True)]
    batch, lent = _thinned(series.batch), _thinned(series.lent)
    idle = [max(a - b, 0.0) for a, b in zip(lent, batch, strict=True)]
    free = [max(found.cores - sum(parts), 0.0) for parts in zip(own, batch, idle, strict=True)]
    figure = page.figure("cores", "day")
    figure.update_layout(hovermode="x unified")
    layers = (
        (own, "services and system", SERVICES),
        (batch, "batch", BATCH),
        (idle, "lent, not used", LENT),
        (free, "kept free", FREE),
    )
    page.stack(figure, _days(series.hour), layers)
    figure.update_yaxes(range=[0, found.cores])
    return figure


def ledger(result: StrategyResult, amount: str, unit: str) -> go.Figure:
    """Return the way from capacity to what is lent, term by term; `amount` is the attribute of a line, in `unit`s."""
    lines = result.ledger
    values = [getattr(each, amount) for each in lines]
    figure = page.figure(unit, "")
    figure.add_waterfall(
        x=[*(each.term for each in lines), "lent"],
        y=[*values, sum(values)],
        measure=["relative"] * len(lines) + ["total"],
        customdata=[*(each.why for each in lines), "to batch"],
        hovertemplate="%{x}: %{delta:,.1f}<br>%{customdata}<extra></extra>",
        increasing={"marker": {"color": FREE}},
        decreasing={"marker": {"color": SERVICES}},
        totals={"marker": {"color": BATCH}},
    )
    figure.update_layout(showlegend=False, height=_HALF)
    return figure


def cpu(found: WhatIfAnswer, result: StrategyResult) -> go.Figure:
    """CPU use in percent, without and with batch."""
    series = result.series
    before = [100 * (a + b) / found.cores for a, b in zip(series.services, series.system, strict=True)]
    after = [a + 100 * b / found.cores for a, b in zip(before, series.batch, strict=True)]
    return _before_after("% of all CPUs", series.hour, before, after)


def memory(found: WhatIfAnswer, result: StrategyResult) -> go.Figure:
    """Memory use in percent, without and with batch."""
    series = result.series
    before, after = (
        [100 * each / found.memory_gib for each in values] for values in (series.memory_before, series.memory)
    )
    return _before_after("% of all memory", series.hour, before, after)


def hot(result: StrategyResult) -> go.Figure:
    """Count hot nodes, without and with batch."""
    series = result.series
    before, after = ([float(each) for each in v] for v in (series.hot_nodes_before, series.hot_nodes))
    figure = _before_after("hot nodes", series.hour, before, after)
    figure.update_yaxes(autorange=True, rangemode="tozero")
    return figure


def latency(found: WhatIfAnswer) -> go.Figure:
    """Growth of p99 over time, one line a strategy."""
    figure = page.figure("p99 over p99 without batch", "day")
    figure.update_layout(hovermode="x unified")
    for result, colour in zip(found.strategies, _COLOURS * len(found.strategies), strict=False):
        series = result.series
        growth = [
            with_batch / alone if alone else 1.0
            for with_batch, alone in zip(series.p99_ms, series.p99_alone_ms, strict=True)
        ]
        figure.add_scatter(
            x=_days(series.hour), y=_thinned(growth), name=result.strategy, mode="lines",
            line={"color": colour, "width": 2},
        )  # fmt: skip
    figure.update_layout(showlegend=True)
    return figure


_COLOURS = (AFTER, SERVICES, LENT, BATCH, ALONE)


def strategies(found: WhatIfAnswer) -> go.Figure:
    """Return what strategies bring against what they cost, with intervals."""
    figure = page.figure("growth of p99, %", "batch core-hours a day")
    for result, colour in zip(found.strategies, _COLOURS * len(found.strategies), strict=False):
        figures = result.figures
        figure.add_scatter(
            x=[figures.batch_core_hours_per_day], y=[100 * figures.p99_growth], name=result.strategy,
            mode="markers+text", text=[result.strategy], textposition="top right",
            error_y=_intervals([figures]) | {"thickness": 2, "width": 8},
            marker={"size": 14, "color": colour},
        )  # fmt: skip
    most = max((each.figures.batch_core_hours_per_day for each in found.strategies), default=0.0)
    figure.update_xaxes(range=[0, most * 1.25 or 1])
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(showlegend=False, height=_HALF + 40)
    return figure


def _intervals(growths: Sequence[WhatIfFigures | WorkloadLine]) -> dict[str, Any]:
    return {
        "type": "data", "symmetric": False,
        "array": [100 * (each.p99_growth_high - each.p99_growth) for each in growths],
        "arrayminus": [100 * (each.p99_growth - each.p99_growth_low) for each in growths],
    }  # fmt: skip


def workloads(result: StrategyResult) -> go.Figure:
    """Growth of p99 of the workloads that feel it most, with intervals."""
    shown = result.workloads[:_WORKLOADS_SHOWN][::-1]
    figure = page.figure("", "growth of p99, %")
    figure.add_scatter(
        x=[100 * each.p99_growth for each in shown], y=[each.workload for each in shown], mode="markers",
        error_x=_intervals(shown), marker={"size": 9, "color": AFTER},
    )  # fmt: skip
    figure.update_yaxes(type="category", dtick=1, automargin=True)
    figure.update_xaxes(rangemode="tozero")
    figure.update_layout(showlegend=False, height=120 + 24 * len(shown))
    return figure


def gain(found: WhatIfAnswer, result: StrategyResult) -> go.Figure:
    """Cores of batch on each node, the best first."""
    cores = [each.batch_core_hours / max(found.hours, 1e-9) for each in result.nodes]
    figure = page.figure("cores of batch, mean", "nodes")
    figure.add_scatter(
        x=list(range(1, len(cores) + 1)), y=cores, mode="lines", fill="tozeroy", line={"color": BATCH}
    )
    figure.update_layout(showlegend=False, height=_HALF)
    return figure


def _before_after(y: str, hours: list[float], before: list[float], after: list[float]) -> go.Figure:
    figure = page.figure(y, "day")
    figure.update_layout(hovermode="x unified", height=_HALF)
    for values, name, colour in ((before, "without", BEFORE), (after, "with", AFTER)):
        figure.add_scatter(
            x=_days(hours), y=_thinned(values), name=name, mode="lines", line={"color": colour, "width": 2}
        )
    figure.update_yaxes(range=[0, 100])
    return figure


def _days(hours: list[float]) -> list[float]:
    return [round(hour / 24, 4) for hour in _thinned(hours)]
