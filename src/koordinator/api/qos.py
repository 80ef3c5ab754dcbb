"""QoS classes: how a pod runs on its node. Source: behaviour/api 3.

The variant that a decision uses matters: runtime hooks, suppression, bursting and admission go by `raw`;
over-commit, prediction, reports and the choice of a QoS strategy by `default`.
"""

import enum
from collections.abc import Iterable, Mapping

from koordinator.api import labels, quantity
from koordinator.api.core import Container, Pod
from koordinator.api.quantity import ResourceList


class QoSClass(enum.StrEnum):
    """Koordinator QoS; `NONE` is "no class" (empty text)."""

    LSE = "LSE"
    LSR = "LSR"
    LS = "LS"
    BE = "BE"
    SYSTEM = "SYSTEM"
    NONE = ""


class KubeQoS(enum.StrEnum):
    """Kubernetes QoS."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


_BY_NAME = {qos.value: qos for qos in QoSClass}
_KUBE_BY_NAME = {qos.value: qos for qos in KubeQoS}
_OF_KUBE = {
    KubeQoS.GUARANTEED: QoSClass.LSR,
    KubeQoS.BURSTABLE: QoSClass.LS,
    KubeQoS.BEST_EFFORT: QoSClass.BE,
}
_COMPUTE_RESOURCES = ("cpu", "memory")
_NO_CPU_BURST = frozenset((QoSClass.LSR, QoSClass.LSE, QoSClass.BE))


def of_name(name: str) -> QoSClass:
    """Return the class of that exact name, `NONE` for any other text."""
    return _BY_NAME.get(name, QoSClass.NONE)


def of_labels(pod_labels: Mapping[str, str]) -> QoSClass:
    """Return the raw class: what the label says, else `NONE`."""
    return _BY_NAME.get(pod_labels.get(labels.QOS_CLASS, ""), QoSClass.NONE)


def raw(pod: Pod) -> QoSClass:
    """Return the class by label only."""
    return of_labels(pod.metadata.labels)


def default(pod: Pod) -> QoSClass:
    """Return the class by label, else from the Kubernetes QoS; never `NONE`.

    A plain Guaranteed pod counts as LSR.
    """
    return raw(pod) or _OF_KUBE[kube(pod)]


def kube(pod: Pod) -> KubeQoS:
    """Return the Kubernetes QoS that the API server recorded, else computed from the resources."""
    return _KUBE_BY_NAME.get(pod.status.qos_class) or computed_kube(pod)


def computed_kube(pod: Pod) -> KubeQoS:
    """Return the Kubernetes QoS by requests and limits of cpu and memory.

    Amounts that are not positive do not count; pod-level resources, even where none is given, replace those of the
    containers.
    """
    whole = pod.spec.resources
    if whole is not None:
        parts = [whole]
    else:
        parts = [container.resources for container in _containers(pod)]
    requests = _sum_nanos(part.requests for part in parts)
    limits = _sum_nanos(part.limits for part in parts)
    if not requests and not limits:
        return KubeQoS.BEST_EFFORT
    all_limited = all(_is_limited(part.limits) for part in parts)
    return KubeQoS.GUARANTEED if all_limited and requests == limits else KubeQoS.BURSTABLE


def allows_cpu_burst(qos: QoSClass) -> bool:
    """Return whether pods of this raw class may burst above their CPU limit."""
    return qos not in _NO_CPU_BURST


def _containers(pod: Pod) -> list[Container]:
    return [*pod.spec.containers, *pod.spec.init_containers]


def _sum_nanos(lists: Iterable[ResourceList]) -> dict[str, int]:
    """Exact sums of positive cpu and memory."""
    sums: dict[str, int] = {}
    for amounts in lists:
        for name in _COMPUTE_RESOURCES:
            if name in amounts and (nanos := quantity.of(amounts[name]).nanos) > 0:
                sums[name] = sums.get(name, 0) + nanos
    return sums


def _is_limited(limits: ResourceList) -> bool:
    return all(name in limits and quantity.of(limits[name]).nanos > 0 for name in _COMPUTE_RESOURCES)
