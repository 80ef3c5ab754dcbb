"""Reduce big objects in the manager's caches to what some part of it reads.

A pod on the wire has environment, volumes, probes and statuses; of three hundred thousand of them a cache of
whole objects would take gigabytes. Parts of the manager that read more of an object than this must ask the API for
it, or have it added here.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from koordinator.api import labels, pod_resize, workload_profile
from koordinator.api.core import Container, Node, Pod, PodSpec, PodStatus, ResourceRequirements
from koordinator.api.meta import Object, identity_of
from koordinator.api.node_metric import NodeMetric, NodeMetricStatus
from koordinator.api.quantity import ResourceList
from koordinator.manager.noderesource.rows import ReadMetric, reading_of

_NO_STATUS = NodeMetricStatus()
# Copies of these share their empty lists and maps: twenty of each pod's own would be two kilobytes.
_POD, _SPEC, _STATUS = Pod(), PodSpec(), PodStatus()
_CONTAINER, _RESOURCES = Container(), ResourceRequirements()
_NOTHING: dict[str, Any] = {}
_NONE: list[Any] = []


def pod(whole: Pod) -> Pod:
    """Identity, labels, annotations, node, priority, scheduler, resources, phase, and what is being resized.

    Of a pod that found no node also why, and which nodes it may use: there are few of these.
    """
    meta, spec = whole.metadata, whole.spec
    is_refused = _is_refused(whole)
    return replace(
        _POD,
        metadata=identity_of(
            meta,
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
            labels=_interned(meta.labels),
            annotations=labels.without_last_applied(meta.annotations) or _NOTHING,
            owner_references=meta.owner_references or _NONE,
        ),
        spec=replace(
            _SPEC,
            containers=[_container(each) for each in spec.containers],
            init_containers=[_container(each) for each in spec.init_containers] or _NONE,
            node_name=sys.intern(spec.node_name),
            scheduler_name=sys.intern(spec.scheduler_name),
            priority=spec.priority,
            priority_class_name=sys.intern(spec.priority_class_name),
            preemption_policy=spec.preemption_policy,
            overhead=spec.overhead or _NOTHING,
            resources=spec.resources,
            **(_constraints(spec) if is_refused else {}),
        ),
        status=_status(whole, is_refused=is_refused),
    )


def _is_refused(whole: Pod) -> bool:
    """Return whether the scheduler said that it finds no node."""
    return not whole.spec.node_name and any(
        each.type == "PodScheduled" and each.status == "False" for each in whole.status.conditions
    )


def _constraints(spec: PodSpec) -> dict[str, Any]:
    """Return what decides which nodes a pod may use."""
    return {"node_selector": spec.node_selector, "affinity": spec.affinity, "tolerations": spec.tolerations}


def node(whole: Node) -> Node:
    """Return all but images and volumes, of which a node has dozens."""
    status = replace(whole.status, images=[], volumes_in_use=[], volumes_attached=[])
    return replace(whole, status=status)


def node_metric(whole: NodeMetric) -> NodeMetric:
    """Return the collect policy, and the report as the node resource controller reads it."""
    return ReadMetric(
        metadata=whole.metadata,
        spec=whole.spec,
        status=_NO_STATUS,
        reading=reading_of(whole.status),
        profiles=workload_profile.of_pods(whole.status.pods_metric),
    )


TRANSFORMS: Mapping[type[Object], Callable[[Any], Any]] = {Pod: pod, Node: node, NodeMetric: node_metric}


def _status(whole: Pod, *, is_refused: bool) -> PodStatus:
    status = whole.status
    kept = replace(_STATUS, phase=sys.intern(status.phase), qos_class=sys.intern(status.qos_class))
    if is_refused:
        kept = replace(kept, conditions=[c for c in status.conditions if c.type == "PodScheduled"])
    resizing = pod_resize.status_of(whole)
    return kept if resizing is None else replace(resizing, phase=kept.phase, qos_class=kept.qos_class)


def _container(whole: Container) -> Container:
    resources = whole.resources
    return replace(
        _CONTAINER,
        name=sys.intern(whole.name),
        resources=replace(
            _RESOURCES, requests=_amounts(resources.requests), limits=_amounts(resources.limits)
        ),
        restart_policy=whole.restart_policy,
    )


def _amounts(amounts: ResourceList) -> ResourceList:
    if not amounts:
        return _NOTHING
    return {
        name: sys.intern(amount) if isinstance(amount, str) else amount for name, amount in amounts.items()
    }


def _interned(texts: dict[str, str]) -> dict[str, str]:
    """Pods of a workload share their labels' texts."""
    if not texts:
        return _NOTHING
    return {key: sys.intern(text) for key, text in texts.items()}
