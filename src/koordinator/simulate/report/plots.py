"""The pictures of the report, as plotly figures."""

from collections.abc import Sequence

import plotly.graph_objects as go

from koordinator.report import page
from koordinator.simulate.recorder import UTILISATION_BINS, RecordedSeries
from koordinator.simulate.run import RunResult

# Okabe and Ito's palette: distinguishable with any colour vision, and in print.
SERVICES, BATCH, LENT, FREE = "#0072B2", "#E69F00", "#009E73", "#D9D9D9"
BEFORE, AFTER, ALONE, REQUESTED = "#7F7F7F", "#D55E00", "#56B4E9", "#CC79A7"

HOURS = "hour of the simulation"
LOG_RATIO = 10.0
"""Latencies that span more than this have a logarithmic axis: otherwise all but the peaks is one flat line."""
SLOWED_SHOWN = 15


def use_over_time(run: RunResult) -> go.Figure:
    """Return who uses the CPUs: services and system, batch, lent but unused, neither."""
    series, cores = run.series, run.cores
    own = [s + y for s, y in zip(series.services, series.system, strict=True)]
    idle_lent = [
        max(lent - used, 0.0) for lent, used in zip(series.batch_allocatable, series.batch, strict=True)
    ]
    free = [max(cores - o - b - i, 0.0) for o, b, i in zip(own, series.batch, idle_lent, strict=True)]
    figure = _figure("cores")
    layers = (
        (own, "used by services and system", SERVICES),
        (series.batch, "used by batch", BATCH),
        (idle_lent, "lent to batch, not used", LENT),
        (free, "neither used nor lent", FREE),
    )
    page.stack(figure, series.hour, layers)
    requested = [min(r, cores) for r in series.requested]
    figure.add_scatter(
        x=series.hour, y=requested, name="requested", mode="lines", line={"color": REQUESTED, "dash": "dash"}
    )
    figure.update_yaxes(range=[0, cores])
    return figure


def cpu_use(before: RunResult, after: RunResult) -> go.Figure:
    """CPU use of the cluster over the day, both runs."""
    figure = _figure("% of all CPUs")
    for run, name, colour in ((before, "before", BEFORE), (after, "after", AFTER)):
        _line(figure, run.series.hour, [100 * v for v in _use_ratio(run)], name, colour)
    figure.update_yaxes(range=[0, 100])
    return figure


def queue(before: RunResult, after: RunResult) -> go.Figure:
    """Batch tasks that could run but have not started."""
    figure = _figure("tasks waiting")
    for run, name, colour in ((before, "before", BEFORE), (after, "after", AFTER)):
        _line(figure, run.series.hour, run.series.queue, name, colour)
    figure.update_yaxes(rangemode="tozero")
    return figure


def latency(before: RunResult, after: RunResult) -> go.Figure:
    """Service latency over the day: p50 and p99 of both runs, and p99 as it would be without batch."""
    figure = _figure("milliseconds")
    lines: tuple[tuple[RecordedSeries, str, str, str, str], ...] = (
        (before.series, "p99_ms", "p99 before", BEFORE, "solid"),
        (after.series, "p99_ms", "p99 after", AFTER, "solid"),
        (after.series, "p99_alone_ms", "p99 if there were no batch", ALONE, "dot"),
        (before.series, "p50_ms", "p50 before", BEFORE, "dash"),
        (after.series, "p50_ms", "p50 after", AFTER, "dash"),
    )
    for series, field, name, colour, dash in lines:
        figure.add_scatter(
            x=series.hour, y=getattr(series, field), name=name, mode="lines",
            line={"color": colour, "dash": dash, "width": 2},
        )  # fmt: skip
    values = [value for series, field, *_ in lines for value in getattr(series, field) if value > 0]
    if values and max(values) > LOG_RATIO * min(values):
        figure.update_yaxes(type="log")
    else:
        figure.update_yaxes(rangemode="tozero")
    return figure


def memory(before: RunResult, after: RunResult) -> go.Figure:
    """Memory use of the cluster over the day, both runs."""
    figure = _figure("GiB")
    for run, name, colour in ((before, "before", BEFORE), (after, "after", AFTER)):
        _line(figure, run.series.hour, run.series.memory_gib, name, colour)
    hours = after.series.hour
    figure.add_scatter(
        x=hours, y=[after.memory_gib] * len(hours), name="all memory", mode="lines",
        line={"color": ALONE, "dash": "dot"},
    )  # fmt: skip
    figure.update_yaxes(rangemode="tozero")
    return figure


def jobs(before: RunResult, after: RunResult) -> go.Figure:
    """Batch jobs that have arrived and finished since the beginning."""
    figure = _figure("jobs")
    _line(figure, after.series.hour, after.series.jobs_arrived, "arrived", ALONE)
    for run, name, colour in ((before, "finished before", BEFORE), (after, "finished after", AFTER)):
        _line(figure, run.series.hour, run.series.jobs_finished, name, colour)
    figure.update_yaxes(rangemode="tozero")
    return figure


def nodes_over_time(run: RunResult) -> go.Figure:
    """CPU use of single nodes over the day: one row a node."""
    figure = _figure("node")
    by_node = [list(values) for values in zip(*run.series.node_percent, strict=True)]
    figure.add_heatmap(
        x=run.series.hour, y=run.shown_nodes, z=by_node, zmin=0, zmax=100, colorscale="Viridis",
        colorbar={"title": {"text": "CPU, %"}}, hovertemplate="%{y}, hour %{x:.1f}: %{z} %<extra></extra>",
    )  # fmt: skip
    figure.update_yaxes(showticklabels=False)
    figure.update_layout(hovermode="closest")
    return figure


def held_back(run: RunResult) -> go.Figure:
    """Return what batch would have used and what it got: the difference is what services took back."""
    figure = _figure("cores")
    _line(figure, run.series.hour, run.series.batch_wanted, "batch would have used", ALONE)
    _line(figure, run.series.hour, run.series.batch, "batch got", BATCH)
    figure.update_yaxes(rangemode="tozero")
    return figure


def slowed(run: RunResult) -> go.Figure:
    """Return the nodes whose services batch slowed down most."""
    worst = sorted(run.slowed_nodes.items(), key=lambda pair: (-pair[1], pair[0]))[:SLOWED_SHOWN]
    figure = _figure("growth of p99 by batch, %", x="node")
    figure.add_bar(
        x=[name for name, _ in worst], y=[percent for _, percent in worst], marker={"color": AFTER}
    )
    figure.update_layout(hovermode="closest", showlegend=False)
    figure.update_xaxes(type="category", dtick=1)
    figure.update_yaxes(rangemode="tozero")
    return figure


def utilisation(before: RunResult, after: RunResult) -> go.Figure:
    """Return how busy single nodes are: share of node-time per band of CPU use."""
    figure = _figure("% of node-time", x="CPU use of a node, %")
    width = 100 / UTILISATION_BINS
    middles = [width * (i + 0.5) for i in range(UTILISATION_BINS)]
    for run, name, colour in ((before, "before", BEFORE), (after, "after", AFTER)):
        total = sum(run.utilisation) or 1
        shares = [100 * count / total for count in run.utilisation]
        figure.add_bar(x=middles, y=shares, name=name, marker={"color": colour})
    figure.update_layout(barmode="group", hovermode="closest")
    return figure


def _use_ratio(run: RunResult) -> Sequence[float]:
    series = run.series
    used = zip(series.services, series.batch, series.system, strict=True)
    return [(services + batch + system) / run.cores for services, batch, system in used]


def _line(figure: go.Figure, hours: Sequence[float], values: Sequence[float], name: str, colour: str) -> None:
    figure.add_scatter(x=hours, y=values, name=name, mode="lines", line={"color": colour, "width": 2.5})


def _figure(y: str, x: str = HOURS) -> go.Figure:
    figure = page.figure(y, x)
    figure.update_layout(hovermode="x unified")
    if x == HOURS:
        figure.update_xaxes(tick0=0, dtick=6)
    return figure
