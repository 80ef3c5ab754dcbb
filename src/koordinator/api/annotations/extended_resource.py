"""Batch amounts per container, repeated in an annotation for hooks that see only annotations."""

from koordinator.api import labels, resources
from koordinator.api.annotations.codec import Annotation, Payload
from koordinator.api.core import Pod
from koordinator.api.quantity import ResourceList


class ContainerResources(Payload, frozen=True, kw_only=True):
    """Batch requests and limits of one container."""

    limits: ResourceList = {}
    requests: ResourceList = {}


class ExtendedResourceSpec(Payload, frozen=True, kw_only=True):
    """Container name → its batch amounts."""

    containers: dict[str, ContainerResources] = {}


EXTENDED_RESOURCE_SPEC = Annotation(labels.EXTENDED_RESOURCE_SPEC, ExtendedResourceSpec)


def extended_resource_spec(pod: Pod) -> ExtendedResourceSpec:
    """What the annotation of the pod should say: containers that have batch resources."""
    containers = {}
    for container in pod.spec.containers:
        requests = _batch(container.resources.requests)
        limits = _batch(container.resources.limits)
        if requests or limits:
            containers[container.name] = ContainerResources(requests=requests, limits=limits)
    return ExtendedResourceSpec(containers=containers)


def _batch(amounts: ResourceList) -> ResourceList:
    return {name: amounts[name] for name in resources.BATCH_RESOURCES if name in amounts}
