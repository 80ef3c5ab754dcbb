"""All objects of an installation. Pure: values in, objects out; with ServiceMonitors and dashboards."""

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec

from koordinator.api import crd, defaults
from koordinator.install import configs, rbac, workloads
from koordinator.install.dashboards import dashboards
from koordinator.install.rbac import DESCHEDULER, KOORDLET, MANAGER, SCHEDULER, YARN_COPILOT, YARN_OPERATOR
from koordinator.install.values import Placement, Values
from koordinator.install.workloads import APP_LABEL

Json = dict[str, Any]

METRIC_PATHS = {
    MANAGER: ("/all-metrics",),
    SCHEDULER: ("/metrics", "/metrics/resources"),
}
"""Paths below which a component shows all its metrics where that is not `/metrics`; the scheduler has those of pods'
requests apart."""


def _monitoring(values: Values, components: Iterable[str]) -> Iterator[Json]:
    """Yield what the values ask for."""
    if values.metrics.service_monitor.enabled:
        yield from (_service_monitor(values, name) for name in components)
    if values.metrics.dashboards.enabled:
        yield from (_dashboard(values, name) for name in dashboards())


def _service_monitor(values: Values, name: str) -> Json:
    settings = values.metrics.service_monitor
    paths = METRIC_PATHS.get(name, ("/metrics",))
    endpoints = [{"port": "metrics", "path": path, "interval": settings.interval} for path in paths]
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
        "data": {f"{name}.json": text(dashboards()[name])},
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
    own = _components(values)
    for name, bodies in (
        ("base", _base(values)),
        ("manager", own.get(MANAGER, ())),
        ("scheduler", own.get(SCHEDULER, ())),
        ("descheduler", own.get(DESCHEDULER, ())),
        ("yarn-operator", own.get(YARN_OPERATOR, ())),
        ("koordlet", own.get(KOORDLET, ())),
        ("device-daemon", workloads.device_daemon(values) if values.device_daemon.enabled else ()),
        ("yarn-copilot", own.get(YARN_COPILOT, ())),
        ("monitoring", _monitoring(values, own)),
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


def _components(values: Values) -> dict[str, Iterator[Json]]:
    """Return the objects of each component that the values ask for and that talks to the API."""
    namespace = values.installation.namespace
    found: dict[str, tuple[Placement, Iterator[Json]]] = {
        MANAGER: (values.manager, chain(configs.webhook_configurations(values), workloads.manager(values))),
        SCHEDULER: (values.scheduler, chain([configs.scheduler_config(values)], workloads.scheduler(values))),
        DESCHEDULER: (
            values.descheduler,
            chain([configs.descheduler_config(values)], workloads.descheduler(values)),
        ),
        YARN_OPERATOR: (values.yarn_operator, workloads.yarn_operator(values)),
        KOORDLET: (values.koordlet, workloads.koordlet(values)),
        YARN_COPILOT: (values.yarn_copilot, workloads.yarn_copilot(values)),
    }
    return {
        name: chain(rbac.objects(name, namespace), bodies)
        for name, (own, bodies) in found.items()
        if own.enabled
    }


def _labelled(body: Json) -> Json:
    labels = body["metadata"].get("labels") or {}
    body["metadata"]["labels"] = {PART_OF: PART_OF_VALUE, **labels}
    return body
