"""ServiceMonitors for the Prometheus operator, and dashboards for Grafana."""

import json
from collections.abc import Iterator
from typing import Any

from koordinator.install.dashboards import DASHBOARDS
from koordinator.install.rbac import KOORDLET, MANAGER, SCHEDULER
from koordinator.install.values import Values
from koordinator.install.workloads import APP_LABEL

Json = dict[str, Any]

METRIC_PATHS = {
    MANAGER: ("/all-metrics",),
    SCHEDULER: ("/metrics", "/metrics/resources"),
    KOORDLET: ("/metrics",),
}
"""Where a component shows everything that it counts; the scheduler tells what pods request apart."""


def monitoring(values: Values) -> Iterator[Json]:
    """Yield what the values ask for."""
    enabled = {
        MANAGER: values.manager.enabled,
        SCHEDULER: values.scheduler.enabled,
        KOORDLET: values.koordlet.enabled,
    }
    if values.metrics.service_monitor.enabled:
        yield from (_service_monitor(values, name) for name, is_on in enabled.items() if is_on)
    if values.metrics.dashboards.enabled:
        yield from (_dashboard(values, name) for name in DASHBOARDS)


def _service_monitor(values: Values, name: str) -> Json:
    settings = values.metrics.service_monitor
    endpoints = [
        {"port": "metrics", "path": path, "interval": settings.interval} for path in METRIC_PATHS[name]
    ]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": {
            "name": name,
            "namespace": values.installation.namespace,
            "labels": {APP_LABEL: name, **settings.labels},
        },
        "spec": {
            "jobLabel": APP_LABEL,
            "selector": {"matchLabels": {APP_LABEL: name}},
            "endpoints": endpoints,
        },
    }


def _dashboard(values: Values, name: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"koordinator-dashboard-{name}",
            "namespace": values.installation.namespace,
            "labels": dict(values.metrics.dashboards.labels),
        },
        "data": {f"{name}.json": text(DASHBOARDS[name])},
    }


def text(dashboard: Json) -> str:
    """Return the file that Grafana imports."""
    return json.dumps(dashboard, indent=1, ensure_ascii=False) + "\n"
