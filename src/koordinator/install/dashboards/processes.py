"""Panels that every component has: what its processes use and ask of the API. `job` is that of the scrape. Beside
them, the PromQL that dashboards ask again and again.
"""

from koordinator.install.dashboards.panels import BYTES, CORES, PER_SECOND, Panel, Query


def cpu(job: str, title: str = "CPU", what: str = "Cores, per instance.") -> Panel:
    """Cores in use, one line per process."""
    query = Query(f'rate(process_cpu_seconds_total{{job="{job}"}}[{WINDOW}])', "{{instance}}")
    return Panel(title=title, what=what, unit=CORES, queries=(query,))


def memory(job: str, title: str = "Memory", what: str = "Resident, per instance.") -> Panel:
    """Resident bytes, one line per process."""
    query = Query(f'process_resident_memory_bytes{{job="{job}"}}', "{{instance}}")
    return Panel(title=title, what=what, unit=BYTES, queries=(query,))


def api_requests(job: str) -> Panel:
    """Requests per second by method and answer."""
    query = per_second(
        "rest_client_requests_total", "code", "method", where=f'{{job="{job}"}}', legend="{{method}} {{code}}"
    )
    return Panel(
        title="Requests to the API", what="Per second, by answer.", unit=PER_SECOND, queries=(query,)
    )


WINDOW = "5m"
"""Over which rates are taken: several scrapes, also where they are a minute apart."""


def per_second(metric: str, *by: str, where: str = "", legend: str = "") -> Query:
    """Return how fast a counter grows by the named labels; `where` narrows its series (`{job="x"}`)."""
    return Query(_sum(by, f"rate({metric}{where}[{WINDOW}])"), legend or _legend(by))


def quantile(share: float, metric: str, *by: str, where: str = "", legend: str = "") -> Query:
    """Below this `share` (0 to 1) of what a histogram counted lately, by the named labels; in the metric's unit."""
    buckets = _sum(("le", *by), f"rate({metric}_bucket{where}[{WINDOW}])")
    return Query(f"histogram_quantile({share}, {buckets})", legend or _legend(by))


def ten_most(query: Query) -> Query:
    """Its ten highest lines."""
    return Query(f"topk(10, {query.expression})", query.legend)


def _sum(by: tuple[str, ...], what: str) -> str:
    return f"sum by ({', '.join(by)}) ({what})" if by else f"sum({what})"


def _legend(by: tuple[str, ...]) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in by)
