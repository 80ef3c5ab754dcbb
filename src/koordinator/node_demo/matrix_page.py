"""The matrix as a part of the report: one table, and one picture of all ratios."""

import html
from collections.abc import Sequence

import plotly.graph_objects as go

from koordinator.node_demo import matrix, texts
from koordinator.node_demo.matrix import MatrixLine
from koordinator.node_demo.plan import DemoMode
from koordinator.node_demo.results import ResultRow
from koordinator.report.page import div
from koordinator.report.page import figure as new_figure

_LINE_PX, _AROUND_PX = 24, 150
_TICKS = [0.5, 1, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000]
_PROMISED = "#7F7F7F"
STYLE = """
  .wide { overflow-x: auto; }
  .wide table { font-size: .9rem; }
  .wide th, .wide td { padding: .2rem .6rem; white-space: nowrap; }
"""


def render(rows: Sequence[ResultRow], colours: dict[DemoMode, str]) -> str:
    """Return table and picture as HTML."""
    found = matrix.lines(rows)
    shown = matrix.modes(rows)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in matrix.header(rows))
    body = "".join(_line(line, shown) for line in found)
    return (
        f"<h2>p99 of each service beside each antagonist</h2><p>{html.escape(texts.MATRIX)}</p>"
        f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>{div(_ratios(found, shown, colours))}'
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
