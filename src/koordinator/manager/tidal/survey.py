"""From API objects to the facts that tidal decisions look at. Pure. Source: behaviour/tidal 3 and 4."""

import functools
from collections.abc import Callable, Iterable, Sequence

import msgspec

from koordinator import clock
from koordinator.api import (
    labels,
    node_affinity,
    pod_labels,
    pod_resources,
    resource_list,
    resources,
    tolerations,
)
from koordinator.api.core import Node, Pod
from koordinator.api.meta import OwnerReference, controller_of, find_condition
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.quantity import QuantityError, ResourceList
from koordinator.api.resource_list import Amounts
from koordinator.manager.tidal.drain import MigrationTry
from koordinator.manager.tidal.emergency import PendingPod
from koordinator.manager.tidal.marks import TAINTS, NodeMarks
from koordinator.manager.tidal.nodes import NOTHING, PodDemand, TidalNode, TidalPhase, TidalPod, total
from koordinator.manager.tidal.policy import PoolPolicy

_MIRROR = "kubernetes.io/config.mirror"
_SCALED_KINDS = ("ReplicaSet", "CloneSet")
_ENDED_JOB_PHASES = ("Succeeded", "Failed")
_FORBIDDEN = "ForbiddenMigratePod"
TRIGGER = "koord-manager/tidal"
"""Trigger in the jobs of tidal pools."""
JOB_SINCE = "tidal.scheduling.koordinator.sh/drain"
"""Annotation of a job: the beginning of the drain that it is for."""


def survey_node(node: Node, pods: Iterable[Pod], policy: PoolPolicy) -> TidalNode:
    """Return a node with its pods; DaemonSet and mirror pods only take room, and unreadable amounts are none."""
    marks = NodeMarks.adopted(node) if policy.adopts_katalyst else NodeMarks.of(node)
    allocatable = _of_wire(node.status.allocatable)
    online: list[TidalPod] = []
    batch: list[TidalPod] = []
    rest: list[PodDemand] = []
    for pod in pods:
        if pod_labels.is_terminated(pod):
            continue
        demand = demand_of(pod)
        owner = controller_of(pod)
        if _is_bound_to_node(pod, owner):
            rest.append(demand)
        elif policy.is_online(pod):
            online.append(_tidal_pod(pod, demand, owner))
        elif demand != NOTHING:
            batch.append(_tidal_pod(pod, demand, owner))
    requested = total(online)
    taken = total([requested, *rest, *(batch if marks.phase is TidalPhase.ONLINE else ())])
    return TidalNode(
        name=node.metadata.name,
        phase=marks.phase,
        since_s=marks.since_s,
        reserve=marks.reserve,
        reason=marks.reason,
        blocked_until_s=marks.blocked_until_s,
        allocatable=allocatable,
        free=PodDemand(
            allocatable.cpu_milli - taken.cpu_milli, allocatable.memory_bytes - taken.memory_bytes
        ),
        requested=requested,
        online_pods=tuple(online),
        batch_pods=tuple(batch),
        has_our_costs=any(pod.is_cost_ours for pod in online),
    )


def demand_of(pod: Pod) -> PodDemand:
    """Return what a pod requests of the machine itself; nothing when that cannot be read."""
    try:
        return _demand(pod_resources.requests(pod))
    except QuantityError:
        return NOTHING


def _of_wire(amounts: ResourceList) -> PodDemand:
    try:
        return _demand(resource_list.of(amounts))
    except QuantityError:
        return NOTHING


def _demand(amounts: Amounts) -> PodDemand:
    cpu, memory = amounts.get(resources.CPU), amounts.get(resources.MEMORY)
    return PodDemand(cpu.milli if cpu is not None else 0, memory.value if memory is not None else 0)


def _is_bound_to_node(pod: Pod, owner: OwnerReference | None) -> bool:
    return _MIRROR in pod.metadata.annotations or (owner is not None and owner.kind in ("DaemonSet", "Node"))


def _tidal_pod(pod: Pod, demand: PodDemand, owner: OwnerReference | None) -> TidalPod:
    meta = pod.metadata
    return TidalPod(
        demand.cpu_milli,
        demand.memory_bytes,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        workload=owner.uid if owner is not None else "",
        labels=meta.labels,
        started_s=clock.parse_rfc3339_or(meta.creation_timestamp, 0.0),
        is_going=meta.deletion_timestamp is not None,
        return_at=meta.annotations.get(labels.TIDAL_RETURN_AT, ""),
        is_scaled=owner is not None and owner.kind in _SCALED_KINDS,
        cost=meta.annotations.get(labels.POD_DELETION_COST),
        is_cost_ours=labels.TIDAL_DELETION_COST in meta.annotations,
    )


def pending_pods(
    pods: Iterable[Pod], policy: PoolPolicy, node_of: Callable[[str], Node | None]
) -> list[PendingPod]:
    """Return the online pods among those that found no node."""
    found = []
    admissions: dict[bytes, Callable[[str], bool]] = {}
    for pod in pods:
        if not policy.is_online(pod) or pod.metadata.deletion_timestamp is not None:
            continue
        demand = demand_of(pod)
        # Pods of a workload may use the same nodes: each node is asked once for all of them.
        constraints = msgspec.json.encode((pod.spec.node_selector, pod.spec.affinity, pod.spec.tolerations))
        if constraints not in admissions:
            admissions[constraints] = functools.cache(_admission(pod, node_of))
        refused = find_condition(pod.status.conditions, "PodScheduled")
        found.append(
            PendingPod(
                demand.cpu_milli,
                demand.memory_bytes,
                key=pod.key,
                since_s=clock.parse_rfc3339_or(refused.last_transition_time if refused else None, 0.0),
                admits=admissions[constraints],
            )
        )
    return found


def _admission(pod: Pod, node_of: Callable[[str], Node | None]) -> Callable[[str], bool]:
    """Return whether a node's labels and taints, ours left out, let the pod in."""
    spec = pod.spec
    borne = tuple(spec.tolerations)

    def admits(name: str) -> bool:
        node = node_of(name)
        if node is None or not node_affinity.selects(spec, node):
            return False
        taints = [taint for taint in node.spec.taints if taint.key not in TAINTS]
        return not tolerations.keeps_out(borne, taints)

    return admits


def is_ours(job: PodMigrationJob) -> bool:
    """Return whether a tidal pool wanted the job."""
    return job.metadata.annotations.get(labels.EVICT_TRIGGER) == TRIGGER


def is_open(job: PodMigrationJob) -> bool:
    """Return whether the job has not ended."""
    return job.status.phase not in _ENDED_JOB_PHASES


def has_begun(job: PodMigrationJob) -> bool:
    """Return whether the eviction was asked for, from where there is no way back."""
    return find_condition(job.status.conditions, "Eviction") is not None


def last_try(jobs: Sequence[PodMigrationJob], since_s: float) -> MigrationTry | None:
    """Return the latest job of a pod's drain that began at `since_s`; open jobs of others count, too."""
    if not jobs:
        return None
    drain = clock.rfc3339(since_s)
    own = [job for job in jobs if job.metadata.annotations.get(JOB_SINCE) == drain]
    still_open = [job for job in jobs if is_open(job)]
    if not (own or still_open):
        return None
    latest = max(
        still_open or own, key=lambda job: (job.metadata.creation_timestamp or "", job.metadata.name)
    )
    ended = next((c.last_transition_time for c in latest.status.conditions[::-1]), None)
    return MigrationTry(
        latest.metadata.name,
        len(own),
        clock.parse_rfc3339_or(ended or latest.metadata.creation_timestamp, 0.0)
        if not is_open(latest)
        else None,
        _obstacle(latest),
        latest.status.reason == _FORBIDDEN and latest.spec.reservation_options is None,
    )


def _obstacle(job: PodMigrationJob) -> str:
    """Return what a job says about its last step that did not succeed."""
    refused = (each for each in job.status.conditions[::-1] if each.status != "True")
    said = next((each.message or each.reason for each in refused if each.message or each.reason), "")
    return said or job.status.message or job.status.reason
