"""Pods whose amounts are changed in place: what they count for, and what the kubelet has granted so far.

`spec` is what the owner wants; `status.containerStatuses[].resources` what the runtime applies; `.allocatedResources`
what the kubelet has promised. Source: KEP-1287 as kube-scheduler 1.35 follows it (component-helpers, `PodRequests` and
`PodLimits` with `UseStatusResources`); KEP-5419 for whole pods.
"""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from koordinator.api import quantity, resources
from koordinator.api.core import Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements
from koordinator.api.meta import Condition
from koordinator.api.quantity import RawQuantity, ResourceList

PENDING = "PodResizePending"
"""The condition of a pod whose new amounts the kubelet has not granted."""
INFEASIBLE = "Infeasible"
"""Its reason when the node could never grant them."""

_RESIZABLE = (resources.CPU, resources.MEMORY)

_Requirements = Callable[[Container], ResourceRequirements]


def counted_spec(pod: Pod) -> PodSpec:
    """Return the spec with what each container counts for on the node: of what is wanted, applied and promised the
    most; without what is wanted when that is infeasible. `pod.spec` itself when it says no less.

    Ordinary init containers cannot be resized. A limit is never promised, only wanted and applied.
    Raises: QuantityError.
    """
    statuses = _telling(pod)
    status, spec = pod.status, pod.spec
    if not statuses and (spec.resources is None or status.resources is None):
        return spec
    is_infeasible = any(each.reason == INFEASIBLE for each in _pending(pod))
    whole = spec.resources
    if whole is not None and status.resources is not None:
        most = _counted(whole, status.resources, status.allocated_resources, is_infeasible)
        whole = _with_amounts(
            whole,
            _of_names(most.requests, whole.requests),
            _of_names(most.limits or whole.limits, whole.limits),  # none applied: those that are wanted
        )

    def counted(container: Container) -> ResourceRequirements:
        found = statuses.get(container.name)
        if found is None or found.resources is None:
            return container.resources
        promised = found.allocated_resources
        return _counted(container.resources, found.resources, promised, is_infeasible)

    return _with_requirements(spec, counted, whole)


def granted_spec(pod: Pod) -> PodSpec:
    """Return the spec as far as the kubelet has granted it: with the amounts from before while it puts a change
    off. `pod.spec` itself otherwise.

    The runtime's amounts are not asked for all the time: agents on the node may have changed them.
    """
    if not _pending(pod):
        return pod.spec
    statuses = _telling(pod)
    status, whole = pod.status, pod.spec.resources
    if whole is not None and status.resources is not None:
        whole = _granted(whole, status.resources, status.allocated_resources)

    def granted(container: Container) -> ResourceRequirements:
        found = statuses.get(container.name)
        if found is None or found.resources is None:
            return container.resources
        return _granted(container.resources, found.resources, found.allocated_resources)

    return _with_requirements(pod.spec, granted, whole)


def status_of(pod: Pod) -> PodStatus | None:
    """Return the part of the status that the functions above read, for caches; None when the spec says it all."""
    status, spec = pod.status, pod.spec
    wanted = {each.name: each.resources for each in (*spec.containers, *spec.init_containers)}
    whole = spec.resources
    is_whole_reported = whole is None or status.resources in (None, whole)
    statuses = _telling(pod)
    if is_whole_reported and all(_is_same(wanted.get(name), each) for name, each in statuses.items()):
        return None
    return PodStatus(
        conditions=_pending(pod),
        container_statuses=[
            ContainerStatus(name=name, resources=each.resources, allocated_resources=each.allocated_resources)
            for name, each in statuses.items()
        ],
        resources=status.resources,
        allocated_resources=status.allocated_resources,
    )


def _is_same(wanted: ResourceRequirements | None, reported: ContainerStatus) -> bool:
    return wanted is None or (
        reported.resources is not None
        and (reported.resources.requests, reported.resources.limits) == (wanted.requests, wanted.limits)
        and reported.allocated_resources in ({}, wanted.requests)
    )


def is_sidecar(init_container: Container) -> bool:
    """Return whether an init container runs as long as the pod."""
    return init_container.restart_policy == "Always"


def _with_requirements(spec: PodSpec, of: _Requirements, whole: ResourceRequirements | None) -> PodSpec:
    """Return the spec with these amounts of its containers and sidecars; the same object when none differs."""
    containers = [_with(each, of) for each in spec.containers]
    init_containers = [_with(each, of) if is_sidecar(each) else each for each in spec.init_containers]
    if whole is spec.resources and not any(
        new is not old
        for new, old in zip(
            (*containers, *init_containers), (*spec.containers, *spec.init_containers), strict=True
        )
    ):
        return spec
    return replace(spec, containers=containers, init_containers=init_containers, resources=whole)


def _with(container: Container, of: _Requirements) -> Container:
    found = of(container)
    return container if found is container.resources else replace(container, resources=found)


def _of_names(amounts: ResourceList, names: ResourceList) -> ResourceList:
    return {name: amounts.get(name, 0) for name in names}


def _telling(pod: Pod) -> dict[str, ContainerStatus]:
    """Statuses that tell what is applied, by container."""
    status = pod.status
    if not status.container_statuses and not status.init_container_statuses:
        return {}
    both = (*status.container_statuses, *status.init_container_statuses)
    return {each.name: each for each in both if each.resources is not None}


def _pending(pod: Pod) -> list[Condition]:
    return [each for each in pod.status.conditions if each.type == PENDING][:1]


def _counted(
    wanted: ResourceRequirements, applied: ResourceRequirements, promised: ResourceList, is_infeasible: bool
) -> ResourceRequirements:
    """Return the same object when what is wanted is the most of all."""
    if is_infeasible:
        requests, limits = _most(applied.requests, promised), applied.limits
    else:
        requests = _most(wanted.requests, applied.requests, promised)
        limits = _most(wanted.limits, applied.limits)
    return _with_amounts(wanted, requests, limits)


def _granted(
    wanted: ResourceRequirements, applied: ResourceRequirements, promised: ResourceList
) -> ResourceRequirements:
    requests = _resized(wanted.requests, promised or applied.requests)
    return _with_amounts(wanted, requests, _resized(wanted.limits, applied.limits))


def _resized(wanted: ResourceList, before: ResourceList) -> ResourceList:
    """Return the list with the resizable amounts from before."""
    kept = {name: raw for name, raw in wanted.items() if name not in _RESIZABLE}
    return kept | {name: raw for name, raw in before.items() if name in _RESIZABLE}


def _most(first: ResourceList, *others: ResourceList) -> ResourceList:
    """Per name the largest amount, as it was written; the first list itself when it has all of them."""
    found = first
    for other in others:
        if other == found:
            continue
        more = {name: raw for name, raw in other.items() if _is_more(raw, name, found)}
        if more:
            found = {**found, **more}
    return found


def _is_more(raw: RawQuantity, name: str, than: Mapping[str, RawQuantity]) -> bool:
    known = than.get(name)
    return known is None or (raw != known and quantity.of(raw) > quantity.of(known))


def _with_amounts(
    old: ResourceRequirements, requests: ResourceList, limits: ResourceList
) -> ResourceRequirements:
    if requests == old.requests and limits == old.limits:
        return old
    return replace(old, requests=requests, limits=limits)
