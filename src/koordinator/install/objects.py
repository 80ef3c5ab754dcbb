"""All objects of an installation. Pure: values in, objects out; with ServiceMonitors and dashboards."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from koordinator.api import crd, defaults
from koordinator.install import configs, rbac, workloads, yarn
from koordinator.install.dashboards import DASHBOARDS
from koordinator.install.rbac import DESCHEDULER, KOORDLET, MANAGER, SCHEDULER, YARN_COPILOT, YARN_OPERATOR
from koordinator.install.values import Values
from koordinator.install.workloads import APP_LABEL

Json = dict[str, Any]

METRIC_PATHS = {
    MANAGER: ("/all-metrics",),
    SCHEDULER: ("/metrics", "/metrics/resources"),
    DESCHEDULER: ("/metrics",),
    YARN_OPERATOR: ("/metrics",),
    KOORDLET: ("/metrics",),
    YARN_COPILOT: ("/metrics",),
}
"""Paths below which a component shows all its metrics; the scheduler has those of pods' requests apart."""


def monitoring(values: Values) -> Iterator[Json]:
    """Yield what the values ask for."""
    enabled = {
        MANAGER: values.manager.enabled,
        SCHEDULER: values.scheduler.enabled,
        DESCHEDULER: values.descheduler.enabled,
        YARN_OPERATOR: values.yarn_operator.enabled,
        KOORDLET: values.koordlet.enabled,
        YARN_COPILOT: values.yarn_copilot.enabled,
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


PART_OF = "app.kubernetes.io/part-of"
PART_OF_VALUE = "koordinator"
POD_SECURITY = "pod-security.kubernetes.io/enforce"
SELECTOR = f"{PART_OF}={PART_OF_VALUE}"
"""Finds what an installation brought, CRDs aside."""


class ObjectGroup(msgspec.Struct, frozen=True):
    """A group of objects that belong together, in the order in which they are applied. `name` is the folder in
    `deploy/`."""

    name: str
    objects: list[Json]


def parts(values: Values) -> list[ObjectGroup]:
    """Return all parts that the values ask for, in the order in which they are applied."""
    found = [ObjectGroup("crds", list(_crds(values)))]
    for name, bodies in (
        ("base", _base(values)),
        ("manager", _manager(values)),
        ("scheduler", _scheduler(values)),
        ("descheduler", _descheduler(values)),
        ("yarn-operator", _yarn_operator(values)),
        ("koordlet", _koordlet(values)),
        ("device-daemon", workloads.device_daemon(values) if values.device_daemon.enabled else iter(())),
        ("yarn-copilot", _yarn_copilot(values)),
        ("monitoring", monitoring(values)),
    ):
        found.append(ObjectGroup(name, [_labelled(body) for body in bodies]))
    return [part for part in found if part.objects]


def objects(values: Values) -> list[Json]:
    """Return all objects that the values ask for, in the order in which they are applied."""
    return [body for part in parts(values) for body in part.objects]


def key(body: Json) -> str:
    """`Kind namespace/name`, or `Kind name` of what is in no namespace."""
    metadata = body["metadata"]
    namespace = metadata.get("namespace", "")
    return f"{body['kind']} {namespace}{'/' if namespace else ''}{metadata['name']}"


def _crds(values: Values) -> Iterator[Json]:
    for manifest in crd.manifests():
        if values.crds.brings(manifest["spec"]["names"]["plural"]):
            yield manifest


def _base(values: Values) -> Iterator[Json]:
    if values.installation.create_namespace:
        body = defaults.namespace()
        body["metadata"]["name"] = values.installation.namespace
        if values.koordlet.enabled or values.device_daemon.enabled or values.yarn_copilot.enabled:
            # The agents of nodes are privileged.
            body["metadata"]["labels"][POD_SECURITY] = "privileged"
        yield body
    if values.priority_classes.create:
        yield from defaults.priority_classes()
    if values.slo_controller_config.create:
        yield configs.slo_controller_config(values)


def _manager(values: Values) -> Iterator[Json]:
    if values.manager.enabled:
        yield from rbac.objects(rbac.MANAGER, values.installation.namespace)
        yield from configs.webhook_configurations(values)
        yield from workloads.manager(values)


def _scheduler(values: Values) -> Iterator[Json]:
    if values.scheduler.enabled:
        yield from rbac.objects(rbac.SCHEDULER, values.installation.namespace)
        yield configs.scheduler_config(values)
        yield from workloads.scheduler(values)


def _descheduler(values: Values) -> Iterator[Json]:
    if values.descheduler.enabled:
        yield from rbac.objects(rbac.DESCHEDULER, values.installation.namespace)
        yield configs.descheduler_config(values)
        yield from workloads.descheduler(values)


def _yarn_operator(values: Values) -> Iterator[Json]:
    if values.yarn_operator.enabled:
        yield from rbac.objects(rbac.YARN_OPERATOR, values.installation.namespace)
        yield from yarn.operator(values)


def _koordlet(values: Values) -> Iterator[Json]:
    if values.koordlet.enabled:
        yield from rbac.objects(rbac.KOORDLET, values.installation.namespace)
        yield from workloads.koordlet(values)


def _yarn_copilot(values: Values) -> Iterator[Json]:
    if values.yarn_copilot.enabled:
        yield from rbac.objects(rbac.YARN_COPILOT, values.installation.namespace)
        yield from workloads.yarn_copilot(values)


def _labelled(body: Json) -> Json:
    labels = body["metadata"].get("labels") or {}
    body["metadata"]["labels"] = {PART_OF: PART_OF_VALUE, **labels}
    return body
