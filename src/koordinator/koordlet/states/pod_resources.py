"""Batch and mid requests and limits of containers, as metrics. Source: behaviour/koordlet-observe 14."""

import logging
from collections.abc import Iterable

from koordinator.api import quantity
from koordinator.api.core import Container
from koordinator.api.quantity import QuantityError, ResourceList
from koordinator.koordlet.metrics import AgentMetrics, NodeGauge
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.states.node import UNITS

log = logging.getLogger(__name__)


def tell(metrics: AgentMetrics, pods: Iterable[PodRecord]) -> None:
    """Fill the two families anew, with the unit that each resource has."""
    metrics.container_requests.reset()
    metrics.container_limits.reset()
    for pod in pods:
        specs = {each.name: each for each in (*pod.pod.spec.init_containers, *pod.pod.spec.containers)}
        for container in pod.containers:
            spec = specs.get(container.name)
            if spec is not None:
                labels = pod_labels(pod, container.id, container.name)
                _tell_container(metrics, spec, labels)


def pod_labels(pod: PodRecord, container_id: str, container_name: str) -> tuple[str, ...]:
    """Values of the labels that name a container."""
    meta = pod.pod.metadata
    return pod.uid, meta.name, meta.namespace, container_id, container_name


def _tell_container(metrics: AgentMetrics, spec: Container, labels: tuple[str, ...]) -> None:
    _tell_amounts(metrics.container_requests, spec.resources.requests, labels)
    _tell_amounts(metrics.container_limits, spec.resources.limits, labels)


def _tell_amounts(gauge: NodeGauge, amounts: ResourceList, labels: tuple[str, ...]) -> None:
    for resource, unit in UNITS.items():
        if (raw := amounts.get(resource)) is None:
            continue
        try:
            gauge.set(quantity.value(raw), resource, unit, *labels)
        except QuantityError as error:
            log.debug("amount not told", extra={"resource": resource, "problem": str(error)})
