"""Grafana's JSON, as far as our dashboards use it: rows of graphs over Prometheus queries, laid out.

Each file of `panels/` describes one: its `title`; `job`, the scrape job of its component (`<job>` in a query);
`variables`, choices at its top, each the values of a label (label → a metric that has it); `terms`, which `<name>` in a
query stands for; `rows`, heading → panels. A panel has a title, `what` (how to read it), a unit, and PromQL: one
`query`, whose lines are named by what it sums by, or `queries`, each below the name of its lines (`{{label}}` stands
for a label's value). `stat`: one number, four to a row; `stacked`: areas on top of each other; `limit`: a line above
which something is wrong. Or it names one of `of-every-component.yaml`, whole or with members of its own beside `panel`.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from koordinator.api import yaml_text

Json = dict[str, Any]

NAMES = ("colocation", "node-agent", "scheduler", "manager", "descheduler", "yarn-operator")

_SCHEMA_VERSION = 39
_COLUMNS = 24
_GRAPH_SIZE, _STAT_SIZE = (12, 8), (6, 4)  # width, height
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_UNITS = {
    "cores": "none",
    "number": "none",
    "count": "short",
    "ratio": "percentunit",
    "percent": "percent",
    "bytes": "bytes",
    "seconds": "s",
    "milliseconds": "ms",
    "per second": "ops",
}
"""Our names of units → Grafana's."""


@functools.cache
def dashboards() -> Mapping[str, Json]:
    """Return all by name: what `deploy/dashboards` and the ConfigMaps of an installation hold."""
    return {name: _dashboard(name) for name in NAMES}


def _dashboard(name: str) -> Json:
    """Return one; its uid stays, so that links and edits survive an upgrade."""
    found = _read(name)
    terms = {"job": found.get("job", ""), **found.get("terms", {})}
    variables = [_variable(label, metric) for label, metric in found.get("variables", {}).items()]
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    return {
        "uid": f"koordinator-{name}",
        "title": found["title"],
        "tags": ["koordinator"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [source, *variables]},
        "panels": _layout(found["rows"], terms),
    }


def _read(name: str) -> Any:
    file = resources.files(__package__) / "panels" / f"{name}.yaml"
    return yaml_text.load(file.read_text(encoding="utf-8"))


def _variable(name: str, metric: str) -> Json:
    query = f"label_values({metric}, {name})"
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _layout(rows: Mapping[str, list[str | Json]], terms: Mapping[str, str]) -> list[Json]:
    panels: list[Json] = []
    of_every_component = _read("of-every-component")
    top = 0
    for title, below in rows.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": top, "w": _COLUMNS, "h": 1},
                "panels": [],
            }
        )
        top += 1
        left = height = 0
        for written in below:
            panel = {"panel": written} if isinstance(written, str) else written
            panel = {**of_every_component.get(panel.get("panel", ""), {}), **panel}
            width, own_height = _STAT_SIZE if "stat" in panel else _GRAPH_SIZE
            if left + width > _COLUMNS:
                top, left, height = top + height, 0, 0
            place = {"x": left, "y": top, "w": width, "h": own_height}
            panels.append(_panel(panel, len(panels) + 1, place, terms))
            left, height = left + width, max(height, own_height)
        top += height
    return panels


def _panel(panel: Json, number: int, place: Json, terms: Mapping[str, str]) -> Json:
    defaults: Json = {"unit": _UNITS[panel["unit"]], "min": 0}
    is_stat, is_stacked = "stat" in panel, "stacked" in panel
    if not is_stat:
        defaults["custom"] = {
            "fillOpacity": 40 if is_stacked else 5,
            "stacking": {"mode": "normal" if is_stacked else "none", "group": "A"},
        }
    if "limit" in panel:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel["limit"]}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        if not is_stat:
            defaults["custom"]["thresholdsStyle"] = {"mode": "line"}
    return {
        "id": number,
        "type": "stat" if is_stat else "timeseries",
        "title": panel["title"],
        "description": panel["what"],
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": _spelled_out(expression, terms),
                "legendFormat": legend or "__auto",
            }
            for index, (legend, expression) in enumerate(_queries(panel))
        ],
    }


def _queries(panel: Json) -> Iterator[tuple[str, str]]:
    """Yield the name of each query's lines, and the query."""
    if "queries" in panel:
        yield from panel["queries"].items()
        return
    summed = re.search(r"\bby \(([^)]*)\)", panel["query"])
    labels = summed[1].split(", ") if summed else []
    yield " ".join(f"{{{{{label}}}}}" for label in labels if label != "le"), panel["query"]


def _spelled_out(expression: str, terms: Mapping[str, str]) -> str:
    while "<" in expression:
        expression = re.sub("<([a-z ]+)>", lambda found: terms[found[1]], expression)
    return expression
