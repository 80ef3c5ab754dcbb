"""Normalize every object before its cache or decision sees it. Source: behaviour/api 5.4.

Old resource names become current ones; a pod's replacements, priority, preemption policy and scheduler
name take effect; a node's reservation is deducted from what pods may request. The results live in memory
only and are never written back. Objects that need no change come back as they are.
"""

from collections.abc import Callable, Mapping
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from koordinator.api import labels, node_reservation, pod_labels, priority, resource_list, resources
from koordinator.api.annotations.device import DEVICE_ALLOCATED, DeviceAllocation, DeviceAllocations
from koordinator.api.core import Container, ContainerStatus, Node, Pod, PodSpec, ResourceRequirements
from koordinator.api.device import Device, DeviceInfo
from koordinator.api.errors import ProtocolError
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.pod_labels import ReplaceResources
from koordinator.api.quantity import QuantityError, ResourceList
from koordinator.api.sigs import ElasticQuota

_DEPRECATED_NAMES = resources.DEPRECATED_BATCH_NAMES | resources.DEPRECATED_DEVICE_NAMES

_Change = Callable[[ResourceList], ResourceList]
"""Gives back the same list when there is nothing to change."""


class PodSteps(msgspec.Struct, frozen=True):
    """The steps for pods that feature gates switch on."""

    replace_resources: bool = False
    priority: bool = False
    preemption_policy: bool = False

    @classmethod
    def of(cls, *gates: FeatureGates) -> Self:
        """Return the steps that are on: those whose gate is on in any of the component's registries."""

        def is_on(gate: str) -> bool:
            return any(registry.states.get(gate, False) for registry in gates)

        return cls(
            replace_resources=is_on("ReplaceResourcesTransformer"),
            priority=is_on("PriorityTransformer"),
            preemption_policy=is_on("PreemptionPolicyTransformer"),
        )


def by_view(steps: PodSteps) -> Mapping[type, Callable[[Any], Any]]:
    """View → what its objects go through before a cache sees them; other views have nothing to go through."""
    return {
        Pod: lambda pod: normalize_pod(pod, steps),
        Node: normalize_node,
        Device: normalize_device,
        ElasticQuota: normalize_quota,
    }


def normalize_pod(pod: Pod, steps: PodSteps) -> Pod:
    """Return the pod as everyone should see it; doing it again changes nothing.

    A malformed device allocation, and amounts that are no quantities, stay as they are: whoever needs them
    reports them.
    """
    if _has_deprecated_names(pod.spec):
        pod = _with_lists(pod, lambda amounts: resources.rename_all(amounts, _DEPRECATED_NAMES))
    if labels.DEVICE_ALLOCATED in pod.metadata.annotations:
        pod = _with_current_device_names(pod)
    if steps.replace_resources:
        pod = replace_pod_resources(pod)
    if steps.priority:
        pod = _with_priority(pod)
    if steps.preemption_policy:
        policy = priority.default_preemption_policy(pod.metadata.labels)
        pod = _with_spec(pod, replace(pod.spec, preemption_policy=policy))
    return _with_scheduler_name(pod)


def replace_pod_resources(pod: Pod) -> Pod:
    """Return the pod with the resources erased and renamed that its annotation `replace-resources` lists."""
    wanted = pod_labels.replace_resources(pod.metadata.annotations)
    if not wanted.erase and not wanted.replace:
        return pod
    return _with_lists(pod, lambda amounts: _replaced(amounts, wanted))


def normalize_node(node: Node) -> Node:
    """Return the node as everyone should see it. Only for a node as read: each time deducts the reservation.

    Allocatable amounts that are no quantities stay as they are: whoever needs them reports them.
    """
    status = node.status
    allocatable, capacity = status.allocatable, status.capacity
    if labels.NODE_RESERVATION in node.metadata.annotations:
        allocatable = _less_reservation(allocatable, node.metadata.annotations)
    allocatable = resources.rename_all(allocatable, _DEPRECATED_NAMES)
    capacity = resources.rename_all(capacity, _DEPRECATED_NAMES)
    if allocatable is status.allocatable and capacity is status.capacity:
        return node
    return replace(node, status=replace(status, allocatable=allocatable, capacity=capacity))


def _less_reservation(allocatable: ResourceList, annotations: Mapping[str, str]) -> ResourceList:
    reservation = node_reservation.of_annotations(annotations)
    try:
        whole = resource_list.of(allocatable)
    except QuantityError:
        return allocatable
    left = node_reservation.trim_allocatable(whole, reservation)
    return allocatable if left is whole else resource_list.to_wire(left)


def normalize_device(device: Device) -> Device:
    """Return the devices with current resource names."""

    def changed(info: DeviceInfo) -> DeviceInfo:
        renamed = resources.rename_all(info.resources, resources.DEPRECATED_DEVICE_NAMES)
        return info if renamed is info.resources else replace(info, resources=renamed)

    infos = [changed(info) for info in device.spec.devices]
    if all(new is old for new, old in zip(infos, device.spec.devices, strict=True)):
        return device
    return replace(device, spec=replace(device.spec, devices=infos))


def normalize_quota(quota: ElasticQuota) -> ElasticQuota:
    """Return the quota with current names of batch resources."""
    low = resources.rename_all(quota.spec.min, resources.DEPRECATED_BATCH_NAMES)
    high = resources.rename_all(quota.spec.max, resources.DEPRECATED_BATCH_NAMES)
    if low is quota.spec.min and high is quota.spec.max:
        return quota
    return replace(quota, spec=replace(quota.spec, min=low, max=high))


def _has_deprecated_names(spec: PodSpec) -> bool:
    """Almost no pod has any; this spares them the rest."""
    known = _DEPRECATED_NAMES.keys()
    return not known.isdisjoint(spec.overhead) or any(
        not known.isdisjoint(container.resources.requests) or not known.isdisjoint(container.resources.limits)
        for containers in (spec.containers, spec.init_containers)
        for container in containers
    )


def _with_lists(pod: Pod, change: _Change) -> Pod:
    """Return the pod with all resource lists of its containers, their statuses, and its overhead changed."""
    pod = _with_status_lists(pod, change)
    spec = pod.spec
    containers = _with_container_lists(spec.containers, change)
    init_containers = _with_container_lists(spec.init_containers, change)
    overhead = change(spec.overhead)
    if (
        containers is spec.containers
        and init_containers is spec.init_containers
        and overhead is spec.overhead
    ):
        return pod
    return _with_spec(
        pod,
        replace(spec, containers=containers, init_containers=init_containers, overhead=overhead),
    )


def _with_status_lists(pod: Pod, change: _Change) -> Pod:
    """Statuses repeat the names of the spec while amounts are resized in place."""
    status = pod.status
    if not any(each.resources for each in (*status.container_statuses, *status.init_container_statuses)):
        return pod
    return replace(
        pod,
        status=replace(
            status,
            container_statuses=[_change_status(each, change) for each in status.container_statuses],
            init_container_statuses=[_change_status(each, change) for each in status.init_container_statuses],
        ),
    )


def _change_status(status: ContainerStatus, change: _Change) -> ContainerStatus:
    if status.resources is None:
        return status
    return replace(
        status,
        resources=_with_requirements(status.resources, change),
        allocated_resources=change(status.allocated_resources),
    )


def _with_container_lists(containers: list[Container], change: _Change) -> list[Container]:
    def changed(container: Container) -> Container:
        requirements = _with_requirements(container.resources, change)
        if requirements is container.resources:
            return container
        return replace(container, resources=requirements)

    new = [changed(container) for container in containers]
    return new if any(a is not b for a, b in zip(new, containers, strict=True)) else containers


def _with_requirements(requirements: ResourceRequirements, change: _Change) -> ResourceRequirements:
    requests, limits = change(requirements.requests), change(requirements.limits)
    if requests is requirements.requests and limits is requirements.limits:
        return requirements
    return replace(requirements, requests=requests, limits=limits)


def _with_current_device_names(pod: Pod) -> Pod:
    annotations = pod.metadata.annotations
    try:
        allocations = DEVICE_ALLOCATED.read(annotations)
    except ProtocolError:
        return pod
    if not allocations or (current := _renamed_allocations(allocations)) == allocations:
        return pod
    text = DEVICE_ALLOCATED.encode(current)
    return _with_annotations(pod, {**annotations, labels.DEVICE_ALLOCATED: text})


def _renamed_allocations(allocations: DeviceAllocations) -> DeviceAllocations:
    def renamed(allocation: DeviceAllocation) -> DeviceAllocation:
        names = resources.DEPRECATED_DEVICE_NAMES
        return replace(allocation, resources=resources.rename_all(allocation.resources, names))

    return {type_: [renamed(each) for each in of_type] for type_, of_type in allocations.items()}


def _replaced(amounts: ResourceList, wanted: ReplaceResources) -> ResourceList:
    if not wanted.erase.isdisjoint(amounts):
        amounts = {name: amount for name, amount in amounts.items() if name not in wanted.erase}
    try:
        for old, new in wanted.replace.items():
            amounts = resources.rename(amounts, old, new)
    except QuantityError:
        pass  # cpu is counted in milli-cores under its new name; what is no quantity stays, and is reported
    return amounts


def _with_priority(pod: Pod) -> Pod:
    try:
        number = priority.default_number(pod)
    except QuantityError:
        return pod  # its QoS cannot be told from such requests; they are reported
    return _with_spec(pod, replace(pod.spec, priority=number))


def _with_scheduler_name(pod: Pod) -> Pod:
    name = pod_labels.scheduler_name(pod.metadata.labels, pod.spec.scheduler_name)
    if name == pod.spec.scheduler_name:
        return pod
    original = {labels.ORIGINAL_SCHEDULER_NAME: pod.spec.scheduler_name}
    pod = _with_annotations(pod, {**pod.metadata.annotations, **original})
    return _with_spec(pod, replace(pod.spec, scheduler_name=name))


def _with_spec(pod: Pod, spec: PodSpec) -> Pod:
    return replace(pod, spec=spec)


def _with_annotations(pod: Pod, annotations: dict[str, str]) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations))
