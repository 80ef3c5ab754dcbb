"""Grafana's JSON, as far as our dashboards use it: rows of graphs over Prometheus queries."""

from collections.abc import Sequence
from typing import Any

import msgspec

Json = dict[str, Any]

SCHEMA_VERSION = 39
COLUMNS = 24
_GRAPH_HEIGHT, _STAT_HEIGHT = 8, 4
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

CORES, BYTES, RATIO, SECONDS, MILLISECONDS, PER_SECOND, COUNT = (
    "none",
    "bytes",
    "percentunit",
    "s",
    "ms",
    "ops",
    "short",
)
"""Grafana's names of units."""


class Query(msgspec.Struct, frozen=True):
    """A PromQL expression; `legend` names its lines, `{{label}}` stands for a label's value."""

    expression: str
    legend: str = ""


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One picture. `what` says how to read it; `stacked` lays areas on top of each other."""

    title: str
    what: str
    unit: str
    queries: tuple[Query, ...]
    stacked: bool = False
    stat: bool = False
    limit: float | None = None
    """A line that means: above this something is wrong."""
    width: int = 12


class PanelRow(msgspec.Struct, frozen=True):
    """A heading with panels below."""

    title: str
    panels: tuple[Panel, ...]


class Variable(msgspec.Struct, frozen=True):
    """A choice at the top of the dashboard: the values of a label of a metric."""

    name: str
    metric: str


def dashboard(uid: str, title: str, rows: Sequence[PanelRow], variables: Sequence[Variable] = ()) -> Json:
    """Return a whole dashboard; `uid` stays, so that links and edits survive an upgrade."""
    return {
        "uid": uid,
        "title": title,
        "tags": ["koordinator"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_data_source(), *map(_variable, variables)]},
        "panels": _layout(rows),
    }


def _layout(rows: Sequence[PanelRow]) -> list[Json]:
    panels: list[Json] = []
    top = 0
    for row in rows:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
                "panels": [],
            }
        )
        top += 1
        left = height = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left, height = top + height, 0, 0
            own_height = _STAT_HEIGHT if panel.stat else _GRAPH_HEIGHT
            place = {"x": left, "y": top, "w": panel.width, "h": own_height}
            panels.append(_panel(panel, len(panels) + 1, place))
            left, height = left + panel.width, max(height, own_height)
        top += height
    return panels


def _panel(panel: Panel, number: int, place: Json) -> Json:
    defaults: Json = {"unit": panel.unit, "min": 0}
    if not panel.stat:
        defaults["custom"] = {
            "fillOpacity": 40 if panel.stacked else 5,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
    if panel.limit is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.limit}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        if not panel.stat:
            defaults["custom"]["thresholdsStyle"] = {"mode": "line"}
    return {
        "id": number,
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.what,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _data_source() -> Json:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _variable(variable: Variable) -> Json:
    query = f"label_values({variable.metric}, {variable.name})"
    return {
        "name": variable.name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": variable.name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
