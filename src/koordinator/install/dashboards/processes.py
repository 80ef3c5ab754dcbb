"""Panels that every component has: what its processes use and ask of the API. `job` is that of the scrape."""

from koordinator.install.dashboards.panels import BYTES, CORES, PER_SECOND, Panel, Query
from koordinator.install.dashboards.queries import WINDOW, per_second


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
