"""A replay as one HTML page that works offline."""

import html

import plotly.graph_objects as go
import plotly.offline

from koordinator import __version__
from koordinator.simulate.replay_report import BINS, ReplayReport

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body{{font-family:system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}}
table{{border-collapse:collapse}}td,th{{padding:.25rem .75rem;text-align:right;border-bottom:1px solid #ddd}}
th:first-child,td:first-child{{text-align:left}}</style>
<script>{plotly}</script></head><body>
<h1>{title}</h1><p>{facts}</p>
<h2>Allocation and fragmentation</h2>{resources}
<h2>Nodes by allocation</h2>{histogram}
{timeline}
<h2>Not placed</h2>{left_over}
<p>Koordinator {version}</p></body></html>
"""


def render(found: ReplayReport) -> str:
    """The whole page as HTML text, plotting library included."""
    speed = found.speed
    facts = (
        f"{found.placed:,} of {found.pods:,} pods were placed on {found.nodes:,} nodes in {speed.placing_s:.2f} s "
        f"({speed.pods_per_s:,.0f} pods/s)."
    )
    if found.gpu_pods_left_out:
        facts += f" {found.gpu_pods_left_out:,} pods that ask for GPUs are left out."
    return _PAGE.format(
        title=f"Scheduling {found.pods:,} pods on {found.nodes:,} nodes",
        facts=html.escape(facts),
        plotly=plotly.offline.get_plotlyjs(),
        resources=_resources(found),
        histogram=_div(_histogram(found)),
        timeline=f"<h2>Over time</h2>{_div(_over_time(found))}" if found.samples else "",
        left_over=_left_over(found),
        version=html.escape(__version__),
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _resources(found: ReplayReport) -> str:
    header = ["resource", "allocatable", "wanted", "allocated", "share", "unusable", "stranded"]
    rows = [
        [
            use.resource,
            use.allocatable,
            use.wanted,
            use.allocated,
            *(f"{100 * r:.1f} %" for r in (use.allocated_ratio, use.unusable_ratio, use.stranded_ratio)),
        ]
        for use in found.resources
    ]
    return _table(header, rows)


def _left_over(found: ReplayReport) -> str:
    if not found.left_over:
        return "<p>Every pod was placed.</p>"
    rows = [[", ".join(each.reasons), f"{each.pods:,}", ", ".join(each.examples)] for each in found.left_over]
    return _table(["reasons", "pods", "for example"], rows)


def _histogram(found: ReplayReport) -> go.Figure:
    width = 100 // BINS
    bands = [f"{width * i}–{width * (i + 1)} %" for i in range(BINS)]
    figure = _figure("nodes", "share of the node that is allocated")
    for colour, (name, counts) in zip(_COLOURS, found.histogram.items(), strict=False):
        figure.add_bar(x=bands, y=counts, name=name, marker={"color": colour})
    figure.update_layout(barmode="group")
    return figure


def _over_time(found: ReplayReport) -> go.Figure:
    start_s = found.samples[0].at_s
    hours = [(each.at_s - start_s) / 3_600 for each in found.samples]
    figure = _figure("% allocated", "hours since the first arrival")
    for number, (colour, use) in enumerate(zip(_COLOURS, found.resources, strict=False)):
        shares = [100 * each.allocated[number] for each in found.samples]
        figure.add_scatter(
            x=hours, y=shares, name=use.resource, mode="lines", line={"color": colour, "shape": "hv"}
        )
    return figure


def _figure(y: str, x: str) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(template="plotly_white", height=380, margin={"l": 60, "r": 20, "t": 20, "b": 50})
    figure.update_xaxes(title=x)
    figure.update_yaxes(title=y)
    return figure


def _div(figure: go.Figure) -> str:
    config = {"displaylogo": False, "responsive": True}
    text: str = figure.to_html(full_html=False, include_plotlyjs=False, config=config)
    return text
