"""Keeps as many pods as a ReplicaSet or ReplicationController asks for.

Source: kube-controller-manager's replicaset controller.
"""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

from koordinator import clock
from koordinator.api.affinity import LabelSelector
from koordinator.api.apps import ReplicaCounts, ReplicaSet, ReplicationController
from koordinator.api.core import Pod
from koordinator.api.meta import Condition, controller_of, find_condition
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import Informer, InformerFactory, Key, key_of
from koordinator.cluster.protocol import Cluster
from koordinator.local.controllers import pod_control, pod_health
from koordinator.local.controllers.ownership import (
    BY_CONTROLLER,
    Children,
    compiled,
    controller_uid,
    is_deleting,
)
from koordinator.local.controllers.pod_control import PodControl

R = TypeVar("R", ReplicaSet, ReplicationController)

WORKERS = 5
# Pods that change together are looked at together: each look is a pass over all pods of the set.
BATCH_S = 0.1
# Pods created or deleted in one go, as upstream.
BURST_MAX = 500
REPLICA_FAILURE = "ReplicaFailure"
ALWAYS_WRITTEN = ("replicas", "terminatingReplicas")


def selector_of(obj: ReplicaSet | ReplicationController) -> LabelSelector | None:
    """Return the selector; a ReplicationController has a plain map of labels."""
    if isinstance(obj, ReplicaSet):
        return obj.spec.selector
    return LabelSelector(match_labels=obj.spec.selector) if obj.spec.selector else None


def counts(
    obj: ReplicaSet | ReplicationController,
    pods: Sequence[Pod],
    terminating: int | None,
    failure: Condition | None,
    now_s: float,
) -> ReplicaCounts:
    """Return the status, given the active pods, how many are stopping (None: that is not told), and the
    ReplicaFailure condition (None: no failure)."""
    template_labels = (obj.spec.template.get("metadata") or {}).get("labels") or {}
    is_full = compiled(LabelSelector(match_labels=template_labels))
    min_ready_s = obj.spec.min_ready_seconds
    ready = [pod for pod in pods if pod_health.is_ready(pod)]
    conditions = obj.status.conditions
    if failure is None:
        conditions = pod_control.without_condition(conditions, REPLICA_FAILURE)
    else:
        conditions = pod_control.with_condition(conditions, failure)
    return msgspec.structs.replace(
        obj.status,
        replicas=len(pods),
        fully_labeled_replicas=sum(is_full(pod.metadata.labels) for pod in pods),
        ready_replicas=len(ready),
        available_replicas=sum(pod_health.is_available(pod, min_ready_s, now_s) for pod in ready)
        if min_ready_s
        else len(ready),
        terminating_replicas=terminating,
        observed_generation=obj.metadata.generation,
        conditions=conditions,
    )


def next_available_s(pods: Iterable[Pod], min_ready_s: int, now_s: float) -> float | None:
    """Return seconds until the next ready pod becomes available; None when none is waiting for that."""
    if not min_ready_s:
        return None
    waits = [pod_health.available_in_s(pod, min_ready_s, now_s) for pod in pods]
    return min((wait for wait in waits if wait), default=None)


class ReplicaSetController(ControllerLoop, Generic[R]):
    """The loop; `view` says which of the two kinds it serves."""

    def __init__(
        self, cluster: Cluster, factory: InformerFactory, events: EventRecorder, view: type[R]
    ) -> None:
        self._cluster = cluster
        self._sets: Informer[R] = factory.informer(view)
        self._sets.add_index(BY_CONTROLLER, controller_uid)
        reconcile = pod_control.reporting_bad_input(events, self._sets, self._reconcile)
        self._controller: Controller[Key] = Controller(view.resource.plural, reconcile, workers=WORKERS)
        self._pods: Children[R, Pod] = Children(
            cluster, factory, self._sets, Pod, self._controller, selector_of, batch_s=BATCH_S
        )
        self._control = PodControl(cluster, events, self._pods.expectations)
        self._controller.watch(self._sets, lambda obj: [key_of(obj)])
        self._sets.add_handler(on_delete=lambda obj: self._pods.expectations.forget(obj.metadata.uid))
        self._informers = [self._sets, self._pods.informer]

    async def _reconcile(self, key: Key) -> float | None:
        obj = self._sets.get(key[1], key[0])
        if obj is None:
            return None
        waits_s = self._pods.expectations.left_s(obj.metadata.uid, self._cluster.clock.now())
        pods = await self._pods.claim(obj, pod_health.is_active)
        error: errors.ApiError | None = None
        failure = find_condition(obj.status.conditions, REPLICA_FAILURE)
        if waits_s is None and not is_deleting(obj):
            error = await self._scale(obj, pods)
            failure = self._failure(obj, len(pods), error)
        now_s = self._cluster.clock.now()
        status = counts(obj, pods, self._terminating(obj), failure, now_s)
        await pod_control.write(self._cluster, obj, obj.status, status, ALWAYS_WRITTEN)
        if error is not None:
            raise error
        soon_s = next_available_s(pods, obj.spec.min_ready_seconds, now_s)
        return min((s for s in (waits_s, soon_s) if s is not None), default=None)

    def _terminating(self, obj: R) -> int | None:
        """Pods that are deleted and have not ended yet; a ReplicationController does not tell."""
        selector = selector_of(obj)
        if not isinstance(obj, ReplicaSet) or selector is None:
            return None
        matches = compiled(selector)
        return sum(
            pod_health.is_terminating(pod) and matches(pod.metadata.labels) for pod in self._pods.of(obj)
        )

    async def _scale(self, obj: R, pods: Sequence[Pod]) -> errors.ApiError | None:
        """Create what is missing or delete what is too much; the first failure."""
        missing = obj.spec.replicas - len(pods)
        if missing > 0:
            body = pod_control.pod_from_template
            return await pod_control.slow_start(
                [lambda: self._control.create(obj, body(obj.spec.template, obj))] * min(missing, BURST_MAX)
            )
        if missing < 0:
            now_s = self._cluster.clock.now()
            doomed = pod_health.first_to_go(pods, min(-missing, BURST_MAX), self._related(obj, pods), now_s)
            return await self._control.delete_all(obj, doomed)
        return None

    def _related(self, obj: R, pods: Sequence[Pod]) -> Iterable[Pod]:
        """Return pods of all sets under the same controller: of a rollout, old and new together."""
        above = controller_of(obj)
        if above is None:
            return pods
        siblings = self._sets.by_index(BY_CONTROLLER, above.uid)
        return [pod for sibling in siblings for pod in self._pods.of(sibling)]

    def _failure(self, obj: R, have: int, error: errors.ApiError | None) -> Condition | None:
        if error is None:
            return None
        reason = "FailedCreate" if have < obj.spec.replicas else "FailedDelete"
        now = clock.rfc3339(self._cluster.clock.now())
        return Condition(
            type=REPLICA_FAILURE,
            status="True",
            reason=reason,
            message=str(error),
            last_transition_time=now,
        )
