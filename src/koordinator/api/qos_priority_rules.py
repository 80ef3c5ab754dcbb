"""Decide which QoS classes, priority classes and resources go together in a pod. Source: behaviour/api 4.5."""

from koordinator.api import pod_resources, priority, qos, quantity, resources
from koordinator.api.core import Pod
from koordinator.api.labels import QOS_CLASS
from koordinator.api.priority import PriorityClass
from koordinator.api.qos import QoSClass

FORBIDDEN_PRIORITIES: dict[QoSClass, frozenset[PriorityClass]] = {
    QoSClass.BE: frozenset((PriorityClass.NONE, PriorityClass.PROD)),
    QoSClass.LSR: frozenset((PriorityClass.NONE, PriorityClass.MID, PriorityClass.BATCH, PriorityClass.FREE)),
}
"""Raw priority classes that a raw QoS class cannot have."""

_WHOLE_CORE_CLASSES = (QoSClass.LSR, QoSClass.LSE)


def violations(pod: Pod) -> list[str]:
    """Return what is wrong with the pod, in words for its user; empty when it may be created.

    Raises: QuantityError when a request is no quantity.
    """
    qos_class, priority_class = qos.raw(pod), priority.raw(pod)
    requests = pod_resources.spec_requests(pod.spec)
    found = []
    if priority_class in FORBIDDEN_PRIORITIES.get(qos_class, ()):
        found.append(
            f"{QOS_CLASS}={qos_class} and priorityClass={priority_class} cannot be used in combination"
        )
    if qos_class in _WHOLE_CORE_CLASSES:
        cpu_milli = requests.get(resources.CPU, quantity.ZERO).milli
        if cpu_milli == 0:
            found.append(f"{QOS_CLASS}={qos_class} must request cpu")
        elif cpu_milli % 1000:
            found.append(f"{QOS_CLASS}={qos_class} must request whole cores of cpu, not {cpu_milli}m")
    if qos_class is not QoSClass.BE:
        batch = [name for name in resources.BATCH_RESOURCES if requests.get(name, quantity.ZERO)]
        found += [f"{name} needs {QOS_CLASS}=BE" for name in batch]
    return found
