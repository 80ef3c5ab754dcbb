"""The report: one HTML file that needs no network."""

import html
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from koordinator.node_demo import matrix, results, texts
from koordinator.node_demo.matrix import MatrixLine
from koordinator.node_demo.measure import Measured, Records
from koordinator.node_demo.plan import BASELINES, SERVICES, DemoMode, DemoScenario, alone_like
from koordinator.node_demo.results import ResultRow
from koordinator.node_demo.show import ShownResults
from koordinator.report.page import body, div, page, table
from koordinator.report.page import figure as new_figure

# Okabe and Ito's palette: distinguishable with any colour vision, and in print.
_COLOURS = {
    DemoMode.ALONE: "#7F7F7F",
    DemoMode.AWAKE: "#56B4E9",
    DemoMode.UNMANAGED: "#D55E00",
    DemoMode.DEFAULT: "#009E73",
    DemoMode.MANAGED: "#0072B2",
    DemoMode.CLOSED_LOOP: "#CC79A7",
}
_SERVICE, _BATCH, _REST, _UNUSED = "#0072B2", "#E69F00", "#CC79A7", "#D9D9D9"
_POINTS = 400  # of a curve; more cannot be seen
_TAIL = 4  # decades of a distribution's tail: up to 99.99 %
_BIN_S = 0.25
_NS_PER_MS, _NS_PER_S = 1e6, 1e9


_STYLE = """
  .kept { color: #009E73; } .missed { color: #D55E00; }
  .warning { border-left: 4px solid #E69F00; padding-left: 1rem; }
  .wide { overflow-x: auto; }
  .wide table { font-size: .9rem; }
  .wide th, .wide td { padding: .2rem .6rem; white-space: nowrap; }
"""


def render(shown: ShownResults, rows: list[ResultRow], is_matrix: bool = False) -> str:
    """Return the whole page as HTML text, plotting library included; as a matrix it has one table of everything."""
    found = results.disturbances(shown.measured)
    verdicts = [] if is_matrix else texts.verdicts(rows)
    scenarios = [] if is_matrix else sorted({row.scenario for row in rows})
    text = body(
        __package__,
        facts=html.escape(_facts(shown)),
        warnings="".join(
            f'<p class="warning">The machine was not quiet. {html.escape(t)}</p>' for t in found
        ),
        verdicts="\n".join(_verdict(each) for each in verdicts),
        scenarios=_matrix(rows, _COLOURS)
        if is_matrix
        else "\n".join(_scenario(each, shown, rows) for each in scenarios),
        evidence=_evidence(shown),
        method=html.escape(texts.METHOD),
    )
    return page("A service and batch on one machine", text, style=_STYLE)


def _facts(shown: ShownResults) -> str:
    window_s = shown.measured[0].window_s
    costs = ", ".join(f"{cost:.2f} ms ({SERVICES[kind]})" for kind, cost in shown.request_cpu_ms.items())
    return (
        f"{shown.cpus} CPUs, Linux {shown.kernel}; one request costs {costs} of CPU time; "
        f"{len(shown.measured)} measurements of {window_s:g} s; CPUs kept awake by {shown.kept_awake_by}."
    )


def _verdict(verdict: texts.PromiseCheck) -> str:
    word = "kept" if verdict.is_kept else "missed"
    return f'<li><b class="{word}">{word}</b> {html.escape(verdict.text)}: {html.escape(verdict.found)}</li>'


def _scenario(scenario: DemoScenario, shown: ShownResults, rows: list[ResultRow]) -> str:
    own = [row for row in rows if row.scenario == scenario]
    lines = table(list(texts.HEADER), [list(texts.cells(row)) for row in own])
    return (
        f"<h2>{html.escape(str(scenario))}</h2>{lines}"
        f"{div(_tails(scenario, shown.measured))}{div(_over_time(scenario, shown.measured))}{div(_cpus(own))}"
    )


def _evidence(shown: ShownResults) -> str:
    lines = texts.held(shown.measured, shown.written)
    return (
        "<ul>"
        + "".join(f"<li><code>{html.escape(line[len('held') :].strip())}</code></li>" for line in lines)
        + "</ul>"
    )


def _runs(scenario: DemoScenario, mode: DemoMode, measured: list[Measured]) -> list[tuple[Records, float]]:
    """Return the requests of all runs that have any, and how long each run was."""
    wanted = alone_like(scenario) if mode in BASELINES else scenario
    return [
        (each.records, each.window_s)
        for each in measured
        if each.run.mode is mode and each.run.scenario == wanted and each.records is not None
    ]


def _tails(scenario: DemoScenario, measured: list[Measured]) -> go.Figure:
    """Latency by percentile, of all requests of all runs; the axis gives each further nine the same room."""
    figure = new_figure("latency, ms", "percentile")
    for mode in DemoMode:
        runs = _runs(scenario, mode, measured)
        if not runs:
            continue
        waited = np.sort(np.abs(np.concatenate([each.latency_ns for each, _ in runs]))) / _NS_PER_MS
        nines = np.linspace(0, min(_TAIL, np.log10(waited.size)), _POINTS)
        ranks = np.minimum(np.ceil((1 - 10.0**-nines) * waited.size).astype(np.int64), waited.size - 1)
        figure.add_scatter(
            x=nines, y=waited[ranks], name=texts.MODES[mode], mode="lines",
            line={"color": _COLOURS[mode], "width": 2.5},
        )  # fmt: skip
    figure.update_yaxes(type="log")
    figure.update_xaxes(tickvals=[0, 0.301, 1, 2, 3, 4], ticktext=["0", "50", "90", "99", "99.9", "99.99"])
    return figure


def _over_time(scenario: DemoScenario, measured: list[Measured]) -> go.Figure:
    """Return the slowest one percent in each quarter of a second, run after run."""
    figure = new_figure(
        "p99 of ¼ s, ms", "seconds of the measurement; the runs of a mode one after the other"
    )
    for mode in DemoMode:
        times, values, offset_s = [], [], 0.0
        for records, window_s in _runs(scenario, mode, measured):
            bins = (records.due_ns / _NS_PER_S / _BIN_S).astype(np.int64)
            waited = np.abs(records.latency_ns) / _NS_PER_MS
            for number in range(int(bins.max()) + 1):
                inside = waited[bins == number]
                if inside.size:
                    times.append(offset_s + number * _BIN_S)
                    values.append(float(np.percentile(inside, 99)))
            offset_s += window_s
        if values:
            figure.add_scatter(
                x=times, y=values, name=texts.MODES[mode], mode="lines", line={"color": _COLOURS[mode]}
            )
    figure.update_yaxes(type="log")
    return figure


def _cpus(rows: list[ResultRow]) -> go.Figure:
    """Return who used the CPUs."""
    figure = new_figure("% of all CPUs", "")
    names = [texts.MODES[row.mode] for row in rows]
    service = [100 * row.service_ratio for row in rows]
    batch = [100 * row.batch_ratio for row in rows]
    total = [100 * row.total_ratio for row in rows]
    rest = [max(t - s - b, 0.0) for t, s, b in zip(total, service, batch, strict=True)]
    unused = [max(100 - t, 0.0) for t in total]
    for values, name, colour in (
        (service, "service", _SERVICE),
        (batch, "batch", _BATCH),
        (rest, "client, agent, others", _REST),
        (unused, "unused", _UNUSED),
    ):
        figure.add_bar(y=names, x=values, name=name, orientation="h", marker={"color": colour})
    figure.update_layout(barmode="stack", height=240)
    figure.update_xaxes(title="% of all CPUs", range=[0, 100])
    figure.update_yaxes(title="", autorange="reversed")
    return figure


_LINE_PX, _AROUND_PX = 24, 150
_TICKS = [0.5, 1, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000]
_PROMISED = "#7F7F7F"


def _matrix(rows: Sequence[ResultRow], colours: dict[DemoMode, str]) -> str:
    """Return the matrix as HTML: one table, and one picture of all ratios."""
    found = matrix.lines(rows)
    shown = matrix.modes(rows)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in matrix.header(rows))
    lines = "".join(_line(line, shown) for line in found)
    return (
        f"<h2>p99 of each service beside each antagonist</h2><p>{html.escape(texts.MATRIX)}</p>"
        f'<div class="wide"><table><tr>{head}</tr>{lines}</table></div>{div(_ratios(found, shown, colours))}'
    )


def _line(line: MatrixLine, shown: Sequence[DemoMode]) -> str:
    *texts_, promises = matrix.cells(line, shown)
    word = "kept" if all(check.is_kept for check in line.checks) else "missed"
    told = "; ".join(f"{check.text}: {check.found}" for check in line.checks)
    last = f'<td class="{word}" title="{html.escape(told)}">{html.escape(promises)}</td>'
    return "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in texts_) + last + "</tr>"


def _ratios(
    found: Sequence[MatrixLine], shown: Sequence[DemoMode], colours: dict[DemoMode, str]
) -> go.Figure:
    """Draw p99 of each mode relative to the service by itself, and the bound that is promised."""
    figure = new_figure("", "p99 ÷ p99 on CPUs kept awake")
    names = [matrix.name(line) for line in found]
    for mode in shown:
        points = [
            (name, value)
            for name, line in zip(names, found, strict=True)
            if mode in line.rows and (value := matrix.relative(line.rows[mode])) is not None
        ]
        figure.add_scatter(
            y=[name for name, _ in points], x=[value for _, value in points], name=texts.MODES[mode],
            mode="markers", marker={"color": colours[mode], "size": 10},
        )  # fmt: skip
    bounds = [
        (name, aim.p99_max)
        for name, line in zip(names, found, strict=True)
        for row in line.rows.values()
        if (aim := texts.aim(row)) is not None and aim.than is DemoMode.AWAKE
    ]
    if bounds:
        figure.add_scatter(
            y=[name for name, _ in bounds], x=[value for _, value in bounds], name="promised at most",
            mode="markers", marker={"color": _PROMISED, "size": 14, "symbol": "line-ns-open"},
        )  # fmt: skip
    figure.update_layout(height=_AROUND_PX + _LINE_PX * len(found))
    figure.update_xaxes(type="log", tickvals=_TICKS)
    figure.update_yaxes(categoryorder="array", categoryarray=names, autorange="reversed", automargin=True)
    return figure
