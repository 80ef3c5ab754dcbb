"""Batch amounts per container, repeated in an annotation for hooks that see only annotations."""

from koordinator.api import labels
from koordinator.api.annotations.codec import Annotation, Payload
from koordinator.api.quantity import ResourceList


class ContainerResources(Payload, frozen=True, kw_only=True):
    """Batch requests and limits of one container."""

    limits: ResourceList = {}
    requests: ResourceList = {}


class ExtendedResourceSpec(Payload, frozen=True, kw_only=True):
    """Container name → its batch amounts."""

    containers: dict[str, ContainerResources] = {}


EXTENDED_RESOURCE_SPEC = Annotation(labels.EXTENDED_RESOURCE_SPEC, ExtendedResourceSpec)
