"""Figures of reports, all in one look."""

import plotly.graph_objects as go


def figure(y: str, x: str) -> go.Figure:
    """An empty one with the titles of its axes."""
    found = go.Figure()
    found.update_layout(
        template="plotly_white",
        height=380,
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        legend={"orientation": "h", "y": 1.12},
        font={"family": "system-ui, sans-serif", "size": 14},
    )
    found.update_xaxes(title=x)
    found.update_yaxes(title=y)
    return found


def div(figure: go.Figure) -> str:
    """It as a part of a page that has the plotting library."""
    config = {"displaylogo": False, "responsive": True}
    text: str = figure.to_html(full_html=False, include_plotlyjs=False, config=config)
    return text
