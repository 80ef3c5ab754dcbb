"""Decide whether a pod that was bound to this node fits it. Pure. Source: the kubelet's `predicateAdmitHandler`."""

from collections.abc import Iterable

from koordinator.api import pod_resources, resource_list, resources
from koordinator.api.core import Pod
from koordinator.api.quantity import ResourceList
from koordinator.local.processes.pod_status import PodFailure

_NATIVE = (resources.CPU, resources.MEMORY, resources.EPHEMERAL_STORAGE)


def refusal(pod: Pod, others: Iterable[Pod], allocatable: ResourceList) -> PodFailure | None:
    """Return why the pod is not run, None when it fits beside the others.

    `allocatable` is what the node offers now, extended resources of its Node object included; resources that it does
    not know are not asked about, as in the kubelet.
    """
    running = list(others)
    offered = resource_list.of(allocatable)
    limit = offered.get(resources.PODS)
    if limit is not None and len(running) + 1 > limit.value:
        return _refused("pods", 1, len(running), limit.value)
    used = resource_list.sum_of(pod_resources.requests(each) for each in running)
    for name, amount in sorted(pod_resources.requests(pod).items()):
        if name not in offered or amount.nanos <= 0:
            continue
        taken = used.get(name)
        in_milli = name == resources.CPU
        wanted = amount.milli if in_milli else amount.value
        present = 0 if taken is None else (taken.milli if in_milli else taken.value)
        capacity = offered[name].milli if in_milli else offered[name].value
        if wanted + present > capacity:
            return _refused(name, wanted, present, capacity)
    return None


def _refused(name: str, requested: int, used: int, capacity: int) -> PodFailure:
    text = f"Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
    return PodFailure(f"OutOf{name}", f"Pod was rejected: {text}")
