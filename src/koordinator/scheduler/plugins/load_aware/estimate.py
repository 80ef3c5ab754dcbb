"""What a pod will probably use: a share of its request or limit. Pure. Source: behaviour/scheduler I6."""

from collections.abc import Hashable, Mapping

from koordinator.api import labels, pod_resources, resource_vector, resources
from koordinator.api.annotations import placement
from koordinator.api.core import Container, Pod, ResourceRequirements
from koordinator.api.pod_resize import counted_spec
from koordinator.api.priority import PriorityClass

DEFAULT_CPU_MILLI = 250
DEFAULT_MEMORY_BYTES = 200 << 20
"""What counts for pods that neither request nor limit."""

_DEFAULTS = {
    resources.CPU: DEFAULT_CPU_MILLI,
    resources.BATCH_CPU: DEFAULT_CPU_MILLI,
    resources.MEMORY: DEFAULT_MEMORY_BYTES,
    resources.BATCH_MEMORY: DEFAULT_MEMORY_BYTES,
}


def estimate(
    pod: Pod, cls: PriorityClass, factors: Mapping[str, int], *, allow_custom: bool
) -> dict[str, int]:
    """Expected usage per resource of `factors` (percent): cpu in milli-cores, others in base units.

    Batch and mid pods are judged by the resources of their class `cls`. `allow_custom` honours the factors in the
    pod's annotation.

    Raises: QuantityError when an amount is no quantity.
    """
    custom = placement.load_scaling_factors(pod.metadata.annotations) if allow_custom else None
    own_factors = {**factors, **custom} if custom else factors
    requests = pod_resources.wire_requests(pod)
    limits = pod_resources.wire_limits(pod)
    estimated = {}
    for name, percent in own_factors.items():
        real = resources.translate(cls, name)
        request = resource_vector.amount(real, requests.get(real, 0))
        limit = resource_vector.amount(real, limits.get(real, 0))
        estimated[name] = _estimate_amount(request, limit, percent, _DEFAULTS.get(real, 0))
    return estimated


def kind_key(pod: Pod) -> Hashable:
    """Equal for pods that get the same class and estimate, custom factors left aside."""
    spec, meta_labels = counted_spec(pod), pod.metadata.labels
    return (
        spec.priority,
        meta_labels.get(labels.PRIORITY_CLASS),
        meta_labels.get(labels.QOS_CLASS),
        pod.status.qos_class,
        tuple([_amounts_key(container) for container in spec.containers]),
        tuple([(_amounts_key(c), c.restart_policy) for c in spec.init_containers]),
        tuple(spec.overhead.items()),
        None if spec.resources is None else _requirements_key(spec.resources),
    )


def _amounts_key(container: Container) -> Hashable:
    return _requirements_key(container.resources)


def _requirements_key(requirements: ResourceRequirements) -> Hashable:
    return tuple(requirements.requests.items()), tuple(requirements.limits.items())


def _estimate_amount(request: int, limit: int, percent: int, default: int) -> int:
    wanted = max(request, limit)
    if wanted == 0:
        return default
    share = (wanted * percent + 50) // 100
    return min(share, limit) if limit > 0 else share
