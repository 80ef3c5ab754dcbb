"""Decide whether a pod may be migrated now, later, or never. Pure. Source: behaviour/descheduler 8.3.

Each gate answers with the reason of its refusal, empty when it lets the pod pass.
"""

from collections.abc import Callable, Iterable
from typing import Self

import msgspec

from koordinator.api import pod_labels
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import OwnerReference, controller_of
from koordinator.descheduler import facts, pod_filter
from koordinator.descheduler.config.migration import RESERVATION_FIRST, MigrationControllerArgs, SkippableGate
from koordinator.descheduler.migration import object_limiter
from koordinator.descheduler.migration.jobs import JobCounts


class Workload(msgspec.Struct, frozen=True):
    """A workload as its pods' controller reference names it. Unknown workloads have 0 replicas."""

    replicas: int
    unavailable: frozenset[str] = frozenset()
    """Its pods (namespace/name) that ended, are being deleted or are not ready."""

    @classmethod
    def of(cls, replicas: int, pods: Iterable[Pod]) -> Self:
        """Return the workload that has these pods."""
        return cls(replicas, frozenset(pod.key for pod in pods if _is_unavailable(pod)))


WorkloadOf = Callable[[str, OwnerReference], Workload | None]
"""By namespace and controller. None: the look-up failed, so nothing can be said about the workload."""


class GateState(msgspec.Struct, frozen=True):
    """The state that the gates look at. `pod_of`: by namespace/name; `open_jobs`: all that are not finished."""

    open_jobs: JobCounts
    counted_jobs: JobCounts
    pod_of: Callable[[str], Pod | None]
    pods_of_node: Callable[[str], Iterable[Pod]]
    workload_of: WorkloadOf


class Gates:
    """The gates under one configuration. Raises: ProtocolError for a selector that cannot be read."""

    def __init__(self, args: MigrationControllerArgs) -> None:
        self._args = args
        self._skipped = frozenset(args.skip_eviction_gates)
        skip_namespaces = SkippableGate.NAMESPACES in self._skipped
        self._in_namespaces = pod_filter.in_namespaces(None if skip_namespaces else args.namespaces)
        self._limits: dict[int, tuple[int, int] | str] = {}
        """By number of replicas: see `workload_limits`, or why that cannot be told."""
        self._spared = pod_filter.refusal(evictable_options(args))

    # The four parts

    def existing_job(self, pod: Pod, world: GateState) -> str:
        return "a migration job for it exists" if world.open_jobs.has(pod) else ""

    def scheduler(self, pod: Pod) -> str:
        args = self._args
        if args.default_job_mode != RESERVATION_FIRST or pod.spec.scheduler_name in args.scheduler_names:
            return ""
        return f"its scheduler {pod.spec.scheduler_name!r} knows no reservations"

    def non_retryable(self, pod: Pod, world: GateState) -> str:
        """Return a refusal that waiting does not change."""
        if facts.has_evict_annotation(pod):
            return ""
        if not self._in_namespaces(pod):
            return f"namespace {pod.metadata.namespace} is not one to evict from"
        if facts.eviction_cost(pod) == facts.NEVER_EVICT_COST:
            return "its eviction cost forbids it"
        return self._spared(pod) or self.expected_replicas(pod, world)

    def retryable(self, pod: Pod, world: GateState) -> str:
        """Return a refusal that ends when other migrations do."""
        if facts.has_evict_annotation(pod):
            return ""
        if not world.counted_jobs.total:
            return self.workload(pod, world)  # the others count jobs
        return (
            self.globally(pod, world)
            or self.node(pod, world)
            or self.namespace(pod, world)
            or self.workload(pod, world)
        )

    def admission(self, pod: Pod, world: GateState) -> str:
        """All four parts, as plugins ask before they evict."""
        return (
            self.existing_job(pod, world)
            or self.scheduler(pod)
            or self.non_retryable(pod, world)
            or self.retryable(pod, world)
        )

    # Single gates

    def globally(self, pod: Pod, world: GateState) -> str:
        most = self._limit(SkippableGate.MAX_MIGRATING_GLOBALLY, self._args.max_migrating_globally)
        count = world.counted_jobs.others(pod) if most else 0
        return f"{count} pods are migrating, at most {most} may" if most and count >= most else ""

    def node(self, pod: Pod, world: GateState) -> str:
        most = self._limit(SkippableGate.MAX_MIGRATING_PER_NODE, self._args.max_migrating_per_node)
        node = pod.spec.node_name
        if not most or not node or not world.counted_jobs.total:
            return ""
        uid = pod.metadata.uid
        others = (other for other in world.pods_of_node(node) if other.metadata.uid != uid)
        count = sum(world.counted_jobs.has(other) for other in others)
        return f"{count} pods of node {node} are migrating, at most {most} may" if count >= most else ""

    def namespace(self, pod: Pod, world: GateState) -> str:
        most = self._limit(SkippableGate.MAX_MIGRATING_PER_NAMESPACE, self._args.max_migrating_per_namespace)
        count = world.counted_jobs.others_in_namespace(pod) if most else 0
        name = pod.metadata.namespace
        return (
            f"{count} pods of namespace {name} are migrating, at most {most} may" if count >= most > 0 else ""
        )

    def workload(self, pod: Pod, world: GateState) -> str:
        owner = controller_of(pod)
        checks_migrating = SkippableGate.MAX_MIGRATING_PER_WORKLOAD not in self._skipped
        checks_unavailable = SkippableGate.MAX_UNAVAILABLE_PER_WORKLOAD not in self._skipped
        if owner is None or not (checks_migrating or checks_unavailable):
            return ""
        found = self._workload_limits(pod, owner, world)
        if isinstance(found, str):
            return found
        workload, most_migrating, most_unavailable = found
        migrating = _migrating(pod, owner, world)
        if checks_migrating and migrating and len(migrating) >= most_migrating:
            return f"{len(migrating)} pods of its workload are migrating, at most {most_migrating} may"
        unavailable = migrating | workload.unavailable
        if checks_unavailable and len(unavailable) >= most_unavailable:
            return (
                f"{len(unavailable)} pods of its workload are unavailable, at most {most_unavailable} may be"
            )
        return ""

    def expected_replicas(self, pod: Pod, world: GateState) -> str:
        """Refuses where one migration touches all of a workload. A limit of all replicas counts as that.

        A workload that cannot be looked up is refused also where `skipCheckExpectedReplicas` lets all sizes pass.
        """
        owner = controller_of(pod)
        if owner is None or SkippableGate.EXPECTED_REPLICAS in self._skipped:
            return ""
        found = self._workload_limits(pod, owner, world)
        if isinstance(found, str):
            return found
        workload, *limits = found
        if not self._args.skip_check_expected_replicas and workload.replicas in (1, *limits):
            return f"its workload has only {workload.replicas} replicas"
        return ""

    def _limit(self, gate: SkippableGate, given: int | None) -> int:
        """0 is off."""
        return 0 if gate in self._skipped or given is None else max(given, 0)

    def _workload_limits(
        self, pod: Pod, owner: OwnerReference, world: GateState
    ) -> tuple[Workload, int, int] | str:
        workload = world.workload_of(pod.metadata.namespace, owner)
        if workload is None:
            return f"its workload {owner.kind} {owner.name} cannot be looked up"
        limits = self._limits.get(workload.replicas)
        if limits is None:
            try:
                limits = workload_limits(self._args, workload.replicas)
            except ProtocolError as error:
                limits = str(error)
            self._limits[workload.replicas] = limits
        return limits if isinstance(limits, str) else (workload, *limits)


def workload_limits(args: MigrationControllerArgs, replicas: int) -> tuple[int, int]:
    """Return how many pods of so many may migrate and be unavailable at a time. Raises: ProtocolError."""
    return (
        object_limiter.limit(replicas, args.max_migrating_per_workload, "maxMigratingPerWorkload"),
        object_limiter.limit(replicas, args.max_unavailable_per_workload, "maxUnavailablePerWorkload"),
    )


def evictable_options(args: MigrationControllerArgs) -> pod_filter.EvictableOptions:
    """Return what spares a pod, with the gates of `skipEvictionGates` applied."""
    skipped = frozenset(args.skip_eviction_gates)
    has_bare = SkippableGate.BARE_PODS in skipped
    threshold = args.priority_threshold.value if args.priority_threshold is not None else None
    return pod_filter.EvictableOptions(
        evict_all_bare_pods=args.evict_all_bare_pods or has_bare,
        evict_failed_bare_pods=args.evict_failed_bare_pods or has_bare,
        evict_local_storage_pods=args.evict_local_storage_pods or SkippableGate.LOCAL_STORAGE in skipped,
        evict_system_critical_pods=args.evict_system_critical_pods
        or SkippableGate.SYSTEM_CRITICAL in skipped,
        ignore_pvc_pods=args.ignore_pvc_pods and SkippableGate.PVC not in skipped,
        priority_threshold=None if SkippableGate.PRIORITY_THRESHOLD in skipped else threshold,
        label_selector=None if SkippableGate.LABEL_SELECTOR in skipped else args.label_selector,
    )


def _migrating(pod: Pod, owner: OwnerReference, world: GateState) -> set[str]:
    """Return pods of the same workload and namespace that other counted jobs move."""
    found: set[str] = set()
    if not world.counted_jobs.total:
        return found
    for key in world.counted_jobs.other_pods_in_namespace(pod):
        other = world.pod_of(key)
        controller = controller_of(other) if other is not None else None
        if controller is not None and controller.uid == owner.uid:
            found.add(key)
    return found


def _is_unavailable(pod: Pod) -> bool:
    is_going = pod.metadata.deletion_timestamp is not None
    return pod_labels.is_terminated(pod) or is_going or not facts.is_ready(pod)
