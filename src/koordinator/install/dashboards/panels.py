"""Grafana's JSON, as far as our dashboards use it: rows of graphs over Prometheus queries.

Every component has panels of what its processes use and ask of the API (`job` is that of the scrape). Beside them is
the PromQL that dashboards ask again and again.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Json = dict[str, Any]

SCHEMA_VERSION = 39
COLUMNS = 24
_GRAPH_SIZE, _STAT_SIZE = (12, 8), (6, 4)  # width, height
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


def graph(
    title: str, what: str, unit: str, *queries: Query, stacked: bool = False, limit: float | None = None
) -> Panel:
    """Return lines, or areas, over time."""
    return Panel(title=title, what=what, unit=unit, queries=queries, stacked=stacked, limit=limit)


def stat(title: str, what: str, unit: str, query: Query, *, limit: float | None = None) -> Panel:
    """Return one number, four to a row."""
    return Panel(title=title, what=what, unit=unit, queries=(query,), stat=True, limit=limit)


PanelRow = tuple[str, tuple[Panel, ...]]
"""A heading, and the panels below it."""


def row(title: str, *panels: Panel) -> PanelRow:
    """Return a heading with its panels."""
    return title, panels


def dashboard(uid: str, title: str, rows: Sequence[PanelRow], variables: Mapping[str, str] = {}) -> Json:
    """Return a whole dashboard; `uid` stays, so that links and edits survive an upgrade.

    `variables`: choices at its top, each the values of a label; label → a metric that has it.
    """
    return {
        "uid": uid,
        "title": title,
        "tags": ["koordinator"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_data_source(), *itertools.starmap(_variable, variables.items())]},
        "panels": _layout(rows),
    }


def _layout(rows: Sequence[PanelRow]) -> list[Json]:
    panels: list[Json] = []
    top = 0
    for title, below in rows:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
                "panels": [],
            }
        )
        top += 1
        left = height = 0
        for panel in below:
            width, own_height = _STAT_SIZE if panel.stat else _GRAPH_SIZE
            if left + width > COLUMNS:
                top, left, height = top + height, 0, 0
            place = {"x": left, "y": top, "w": width, "h": own_height}
            panels.append(_panel(panel, len(panels) + 1, place))
            left, height = left + width, max(height, own_height)
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


def cpu(job: str, title: str = "CPU", what: str = "Cores, per instance.") -> Panel:
    """Cores in use, one line per process."""
    query = Query(f'rate(process_cpu_seconds_total{{job="{job}"}}[{WINDOW}])', "{{instance}}")
    return graph(title, what, CORES, query)


def memory(job: str, title: str = "Memory", what: str = "Resident, per instance.") -> Panel:
    """Resident bytes, one line per process."""
    query = Query(f'process_resident_memory_bytes{{job="{job}"}}', "{{instance}}")
    return graph(title, what, BYTES, query)


def api_requests(job: str) -> Panel:
    """Requests per second by method and answer."""
    query = per_second(
        "rest_client_requests_total", "code", "method", where=f'{{job="{job}"}}', legend="{{method}} {{code}}"
    )
    return graph("Requests to the API", "Per second, by answer.", PER_SECOND, query)


WINDOW = "5m"
"""Over which rates are taken: several scrapes, also where they are a minute apart."""


def per_second(metric: str, *by: str, where: str = "", legend: str = "") -> Query:
    """Return how fast a counter grows by the named labels; `where` narrows its series (`{job="x"}`)."""
    return Query(_sum(by, f"rate({metric}{where}[{WINDOW}])"), legend or _legend(by))


def per_hour(metric: str, *by: str, where: str = "", legend: str = "") -> Query:
    """Return how much a counter grew within the last hour, as `per_second` does."""
    return Query(_sum(by, f"increase({metric}{where}[1h])"), legend or _legend(by))


def highest(metric: str, *by: str, where: str = "") -> Query:
    """Return the highest of what instances show, by the named labels: all show the same, or only one does."""
    return Query(f"max by ({', '.join(by)}) ({metric}{where})", _legend(by))


def quantile(share: float, metric: str, *by: str, where: str = "", legend: str = "") -> Query:
    """Below this `share` (0 to 1) of what a histogram counted lately, by the named labels; in the metric's unit."""
    buckets = _sum(("le", *by), f"rate({metric}_bucket{where}[{WINDOW}])")
    return Query(f"histogram_quantile({share}, {buckets})", legend or _legend(by))


def ten_most(query: Query) -> Query:
    """Return its ten highest lines."""
    return Query(f"topk(10, {query.expression})", query.legend)


def _sum(by: tuple[str, ...], what: str) -> str:
    return f"sum by ({', '.join(by)}) ({what})" if by else f"sum({what})"


def _legend(by: tuple[str, ...]) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in by)
