"""Figures of reports, all in one look."""

import plotly.graph_objects as go


def figure(y: str, x: str) -> go.Figure:
    """An empty one with the titles of its axes."""
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


def div(figure: go.Figure) -> str:
    """It as a part of a page that has the plotting library."""
    config = {"displaylogo": False, "responsive": True}
    text: str = figure.to_html(full_html=False, include_plotlyjs=False, config=config)
    return f'<div class="figure">{text}<button type="button" class="csv">CSV</button></div>'
