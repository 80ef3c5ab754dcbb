"""The frame of every report: heading, style, the plotting library, figures all in one look, and who made it."""

import html
from collections.abc import Iterable, Sequence
from importlib import resources
from string import Template

import plotly.graph_objects as go
import plotly.offline

from koordinator import __version__


def page(title: str, body: str, *, style: str = "") -> str:
    """Return a whole page as HTML text, plotting library included; `body` and `style` (more CSS) stand in it as they
    are."""
    return _template(__package__, "frame.html").substitute(
        title=html.escape(title),
        style=style,
        plotly=plotly.offline.get_plotlyjs(),
        body=body,
        version=html.escape(__version__),
    )


def body(package: str, template: str = "page.html", /, **parts: str) -> str:
    """Return a template of a package with its `$name`s replaced. Raises: KeyError when a part is missing."""
    return _template(package, template).substitute(parts)


def table(header: list[str], rows: list[list[str]]) -> str:
    """Texts as a table; the first column names the row."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    lines = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{lines}</table>"


def _template(package: str, name: str) -> Template:
    return Template(resources.files(package).joinpath(name).read_text(encoding="utf-8"))


def figure(y: str, x: str) -> go.Figure:
    """Return an empty one with the titles of its axes."""
    found = go.Figure()
    found.update_layout(
        template="plotly_white",
        height=420,
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        # Below the plot, which makes room for as many lines as the legend needs.
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"},
        font={"family": "system-ui, sans-serif", "size": 14},
        # The page's colours show through, so that the page alone decides between light and dark.
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        modebar={"bgcolor": "rgba(0,0,0,0)"},
    )
    found.update_xaxes(title=x)
    found.update_yaxes(title=y)
    return found


def stack(figure: go.Figure, x: Sequence[float], layers: Iterable[tuple[Sequence[float], str, str]]) -> None:
    """Add layers, one on top of the other: the thickness of each at every `x`, its name and its colour."""
    for values, name, colour in layers:
        figure.add_scatter(
            x=x, y=values, name=name, stackgroup="all", mode="lines",
            line={"width": 0.5, "color": colour}, fillcolor=colour,
        )  # fmt: skip


def div(figure: go.Figure) -> str:
    """It as a part of a page that has the plotting library."""
    config = {"displaylogo": False, "responsive": True}
    text: str = figure.to_html(full_html=False, include_plotlyjs=False, config=config)
    return f'<div class="figure">{text}<button type="button" class="csv">CSV</button></div>'
