"""The pictures of the report, as plotly figures."""

from collections.abc import Sequence

import plotly.graph_objects as go

from koordinator.report import figures
from koordinator.simulate.recorder import UTILISATION_BINS, Series
from koordinator.simulate.run import RunResult

# Okabe and Ito's palette: distinguishable with any colour vision, and in print.
SERVICES, BATCH, LENT, FREE = "#0072B2", "#E69F00", "#009E73", "#D9D9D9"
BEFORE, AFTER, ALONE = "#7F7F7F", "#D55E00", "#56B4E9"


def use_over_time(run: RunResult) -> go.Figure:
    """Who uses the CPUs: services and system, batch, lent but unused, neither."""
    series, cores = run.series, run.cores
    own = [s + y for s, y in zip(series.services, series.system, strict=True)]
    idle_lent = [
        max(lent - used, 0.0) for lent, used in zip(series.batch_allocatable, series.batch, strict=True)
    ]
    free = [max(cores - o - b - i, 0.0) for o, b, i in zip(own, series.batch, idle_lent, strict=True)]
    figure = _figure("cores")
    for values, name, colour in (
        (own, "used by services and system", SERVICES),
        (series.batch, "used by batch", BATCH),
        (idle_lent, "lent to batch, not used", LENT),
        (free, "neither used nor lent", FREE),
    ):
        figure.add_scatter(
            x=series.hour, y=values, name=name, stackgroup="cores", mode="lines",
            line={"width": 0.5, "color": colour}, fillcolor=colour,
        )  # fmt: skip
    requested = [min(r, cores) for r in series.requested]
    figure.add_scatter(
        x=series.hour, y=requested, name="requested", mode="lines", line={"color": "black", "dash": "dash"}
    )
    figure.update_yaxes(range=[0, cores])
    return figure


def cpu_use(before: RunResult, after: RunResult) -> go.Figure:
    """CPU use of the cluster over the day, both runs."""
    figure = _figure("% of all CPUs")
    for run, name, colour in ((before, "before", BEFORE), (after, "after", AFTER)):
        figure.add_scatter(
            x=run.series.hour, y=[100 * v for v in _use_ratio(run)], name=name, mode="lines",
            line={"color": colour, "width": 2.5},
        )  # fmt: skip
    figure.update_yaxes(range=[0, 100])
    return figure


def queue(before: RunResult, after: RunResult) -> go.Figure:
    """Batch tasks that could run but have not started."""
    figure = _figure("tasks waiting")
    for run, name, colour in ((before, "before", BEFORE), (after, "after", AFTER)):
        figure.add_scatter(
            x=run.series.hour,
            y=run.series.queue,
            name=name,
            mode="lines",
            line={"color": colour, "width": 2.5},
        )
    figure.update_yaxes(rangemode="tozero")
    return figure


def latency(before: RunResult, after: RunResult) -> go.Figure:
    """Service latency over the day: p50 and p99 of both runs, and p99 as it would be without batch."""
    figure = _figure("milliseconds")
    lines: tuple[tuple[Series, str, str, str, str], ...] = (
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
    figure.update_yaxes(rangemode="tozero")
    return figure


def utilisation(before: RunResult, after: RunResult) -> go.Figure:
    """How busy single nodes are: share of node-time per band of CPU use."""
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


def _figure(y: str, x: str = "hour of the simulation") -> go.Figure:
    figure = figures.figure(y, x)
    figure.update_layout(hovermode="x unified")
    return figure
