"""The descheduler's copies of the cluster: pods by node and by owner, nodes, workloads, jobs, reservations.

A cached pod has what decisions read. Pods of one workload share the parts of their specs, which are the same. Source:
behaviour/descheduler 1.4 and 4.1.
"""

import asyncio
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from koordinator.api import labels, normalization
from koordinator.api.apps import Deployment, ReplicaSet, ReplicationController, StatefulSet
from koordinator.api.core import (
    Container,
    ContainerStateRunning,
    ContainerStatus,
    Node,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.label_selector import Labels
from koordinator.api.meta import Condition, Object, identity_of
from koordinator.api.node_metric import NodeMetric
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.reservation import Reservation
from koordinator.cluster.informer import Informer, InformerFactory
from koordinator.cluster.protocol import Cluster
from koordinator.descheduler.measurements import ByNode, MeasuredNode, Observation, measured
from koordinator.descheduler.migration import jobs

BY_NODE = "node"
BY_OWNER = "owner uid"
BY_POD = "pod"
BY_RESERVATION = "reservation"
OPEN = "open"

SHARED_SPECS_MAX = 8_192
"""Specs of workloads that are kept to be shared; more workloads than that share less."""

SHARED_PARTS_MAX = 65_536
"""Labels, owners, conditions and the like that are kept to be shared."""
T = TypeVar("T")

_SPEC, _STATUS, _NODE_STATUS = PodSpec(), PodStatus(), NodeStatus()
_RUNNING = ContainerStateRunning()
_CONTAINER, _REQUIREMENTS = Container(), ResourceRequirements()


class Caches:
    """Informers of everything that is decided on. `start` them, then wait for `synced`."""

    def __init__(self, cluster: Cluster, gates: FeatureGates, rng: random.Random) -> None:
        self._shrink = Shrinker(normalization.by_view(normalization.PodSteps.of(gates)).get(Pod))
        transforms: dict[type[Object], Callable[[Any], Any]] = {
            Pod: self._shrink.pod,
            Node: self._shrink.node,
            NodeMetric: measured,
            **dict.fromkeys((ReplicaSet, Deployment, StatefulSet, ReplicationController), cached_workload),
        }
        self.factory = InformerFactory(cluster, rng, transforms=transforms)
        self.nodes = self.factory.informer(Node)
        self.pods = self.factory.informer(Pod)
        self.jobs = self.factory.informer(PodMigrationJob)
        self.reservations = self.factory.informer(Reservation)
        self.replica_sets = self.factory.informer(ReplicaSet)
        self.deployments = self.factory.informer(Deployment)
        self.stateful_sets = self.factory.informer(StatefulSet)
        self.replication_controllers = self.factory.informer(ReplicationController)
        self.metrics: Informer[MeasuredNode] | None = None
        self.budgets: Informer[PodDisruptionBudget] | None = None
        self.pods.add_index(BY_NODE, _node_of)
        self.pods.add_index(BY_OWNER, _owners_of)
        self.replica_sets.add_index(BY_OWNER, _owners_of)
        self.jobs.add_index(BY_POD, _pods_of_job)
        self.jobs.add_index(BY_RESERVATION, _reservation_of_job)
        self.jobs.add_index(OPEN, _is_open)

    def need_metrics(self) -> None:
        """Follow NodeMetrics, too."""
        # They come as NodeMetrics; the transform above makes of each what is cached.
        self.metrics = cast(Informer[MeasuredNode], self.factory.informer(NodeMetric))

    def need_times(self) -> None:
        """Keep when pods started and since when their conditions are as they are, too."""
        self._shrink.keeps_times = True

    def need_conditions(self) -> None:
        """Keep all conditions of pods, also those that hold as they should."""
        self._shrink.keeps_conditions = True

    def need_budgets(self) -> None:
        """Follow PodDisruptionBudgets, too."""
        self.budgets = self.factory.informer(PodDisruptionBudget)

    async def synced(self) -> None:
        """Until all are filled for the first time."""
        await self.factory.wait_synced()

    def start(self, group: asyncio.TaskGroup) -> None:
        """Follow the cluster in tasks of `group`."""
        self.factory.start(group)

    def pod(self, namespace: str, name: str) -> Pod | None:
        return self.pods.get(name, namespace)

    def pod_of_key(self, key: str) -> Pod | None:
        """Return the pod of `namespace/name`."""
        namespace, _, name = key.partition("/")
        return self.pods.get(name, namespace)

    def pods_of_node(self, node: str) -> Sequence[Pod]:
        return self.pods.by_index(BY_NODE, node)

    def open_jobs(self) -> Sequence[PodMigrationJob]:
        """Return the jobs that are not finished."""
        return self.jobs.by_index(OPEN, OPEN)

    def observe(self, now_s: float, matches: Callable[[Labels], bool]) -> Observation:
        """Return the ready nodes whose labels match, with what is on them now."""
        nodes = [
            node for node in self.nodes.objects.values() if is_ready(node) and matches(node.metadata.labels)
        ]
        metrics = self.metrics.objects if self.metrics is not None else {}
        by_name = {name: metric for (_, name), metric in metrics.items()}
        pods_of = ByNode((node.metadata.name for node in nodes), self.pods_of_node)
        return Observation(now_s, nodes, pods_of, by_name)


def is_ready(node: Node) -> bool:
    """Return whether the node takes part: it does not say that it is not ready. Cordoned ones do."""
    return all(one.type != "Ready" or one.status == "True" for one in node.status.conditions)


# What of objects is cached


class Shrinker:
    """Reduces objects to what decisions read, and has equal ones share it; `normalize` gives a pod as everyone should
    see it.

    `keeps_times`: when pods started, and since when their conditions are as they are. `keeps_conditions`: also those
    conditions that nothing here reads. Without both, all that run as they should share one status.
    """

    def __init__(self, normalize: Callable[[Pod], Pod] | None) -> None:
        self.keeps_times = False
        self.keeps_conditions = False
        self._normalize = normalize
        self._parts: dict[int, Any] = {}
        self._specs: dict[int, PodSpec] = {}

    def pod(self, whole: Pod) -> Pod:
        """Return what is cached of a pod."""
        if self._normalize is not None:
            whole = self._normalize(whole)
        meta = whole.metadata
        return replace(
            whole,
            metadata=identity_of(
                meta,
                creation_timestamp=meta.creation_timestamp,
                deletion_timestamp=meta.deletion_timestamp,
                labels=self._shared(meta.labels),
                annotations=self._shared(labels.without_last_applied(meta.annotations)),
                owner_references=self._shared(meta.owner_references),
            ),
            spec=self._spec(whole.spec),
            status=self._status(whole.status),
        )

    def node(self, whole: Node) -> Node:
        """Return what is cached of a node, with what is reserved on it taken off."""
        node = normalization.normalize_node(whole)
        status = node.status
        own = replace(
            _NODE_STATUS,
            allocatable=self._shared(status.allocatable),
            capacity=self._shared(status.capacity),
            conditions=self._shared([_without_times(one) for one in status.conditions]),
        )
        return replace(node, status=own)

    def _status(self, status: PodStatus) -> PodStatus:
        conditions = [
            one
            for one in status.conditions
            if self.keeps_conditions or one.type in _CONDITIONS or one.status != "True"
        ]
        if not self.keeps_times:
            conditions = [_without_times(one) for one in conditions]
        found = replace(
            _STATUS,
            phase=status.phase,
            conditions=conditions,
            reason=status.reason,
            qos_class=status.qos_class,
            container_statuses=[_container_status(one) for one in status.container_statuses],
            init_container_statuses=[_container_status(one) for one in status.init_container_statuses],
            ephemeral_container_statuses=[
                _container_status(one) for one in status.ephemeral_container_statuses
            ],
        )
        if not self.keeps_times:
            return self._shared(found)
        return replace(found, start_time=status.start_time)

    def _shared(self, part: T) -> T:
        """Return an equal part of a pod that is cached already; pods of one workload have most of them in common."""
        return _one_of(self._parts, part, SHARED_PARTS_MAX)

    def _spec(self, spec: PodSpec) -> PodSpec:
        """Return the spec with the lists and maps of an equal one that is cached already."""
        shape = replace(
            _SPEC,
            containers=[_container(one) for one in spec.containers],
            init_containers=[_container(one) for one in spec.init_containers],
            volumes=spec.volumes,
            node_selector=spec.node_selector,
            affinity=spec.affinity,
            tolerations=spec.tolerations,
            topology_spread_constraints=spec.topology_spread_constraints,
            scheduler_name=spec.scheduler_name,
            priority=spec.priority,
            overhead=spec.overhead,
            resources=spec.resources,
            resource_claims=spec.resource_claims,
        )
        known = _one_of(self._specs, shape, SHARED_SPECS_MAX)
        return replace(known, node_name=sys.intern(spec.node_name)) if spec.node_name else known


def _one_of(known: dict[int, Any], part: T, most: int) -> T:
    """Return the one of the known parts that is equal to this, or this, which is known then while there are fewer than
    `most`. They are found by a hash: texts that describe them would take more room than they."""
    key = hash(msgspec.json.encode(part))
    found: T | None = known.get(key)
    if found is not None:
        return found if type(found) is type(part) and found == part else part
    if len(known) < most:
        known[key] = part
    return part


_CONDITIONS = ("Ready", "PodScheduled")


def _container(whole: Container) -> Container:
    resources = whole.resources
    return replace(
        _CONTAINER,
        name=whole.name,
        image=whole.image,
        resources=replace(_REQUIREMENTS, requests=resources.requests, limits=resources.limits),
        restart_policy=whole.restart_policy,
    )


def _container_status(whole: ContainerStatus) -> ContainerStatus:
    """Return the status without what differs between equal pods: identifiers and when it started."""
    state = whole.state
    if state.running is not None:
        state = replace(state, running=_RUNNING)
    return replace(whole, container_id="", image="", image_id="", state=state)


def _without_times(condition: Condition) -> Condition:
    return replace(
        condition,
        last_transition_time=None,
        last_probe_time=None,
        last_heartbeat_time=None,
        last_update_time=None,
    )


def cached_workload(whole: Any) -> Any:
    """Return the workload's replicas and owner."""
    meta = whole.metadata
    return replace(
        whole,
        metadata=identity_of(meta, owner_references=meta.owner_references),
        spec=type(whole.spec)(replicas=whole.spec.replicas),
    )


# Indexes


def _node_of(pod: Pod) -> Iterable[str]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()


def _owners_of(obj: Object) -> Iterable[str]:
    return [owner.uid for owner in obj.metadata.owner_references]


def _pods_of_job(job: PodMigrationJob) -> Iterable[str]:
    refs = [ref for ref in (job.spec.pod_ref, job.status.pod_ref) if ref is not None]
    return [f"{ref.namespace}/{ref.name}" for ref in refs]


def _reservation_of_job(job: PodMigrationJob) -> Iterable[str]:
    options = job.spec.reservation_options
    ref = options.reservation_ref if options is not None else None
    return (ref.name,) if ref is not None else ()


def _is_open(job: PodMigrationJob) -> Iterable[str]:
    return (OPEN,) if jobs.is_open(job) else ()
