"""Roll a Deployment's pods from one template to the next by way of ReplicaSets, and describe that in its status:
counts, and whether it is available and progresses.

`rollout` and `revisions` decide what to do; this module carries it out.

Source: kube-controller-manager's deployment controller; reasons and messages are those that kubectl shows.
"""

import functools
import logging
from collections.abc import Mapping, Sequence

import msgspec

from koordinator import clock
from koordinator.api.apps import Deployment, DeploymentStatus, ReplicaSet
from koordinator.api.core import Pod
from koordinator.api.meta import Condition, controller_of, find_condition, is_controlled_by
from koordinator.api.pod_labels import is_terminated
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory, Key, key_of
from koordinator.cluster.protocol import Cluster, delete_if_same, patch_same
from koordinator.local.controllers import pod_control, revisions, rollout
from koordinator.local.controllers.ownership import BY_CONTROLLER, Children, controller_uid, is_deleting
from koordinator.local.controllers.pod_control import with_condition, without_condition
from koordinator.local.controllers.replicaset import REPLICA_FAILURE

log = logging.getLogger(__name__)

WORKERS = 5


class _Stage(msgspec.Struct):
    """A Deployment during one reconcile: the sets as last read or written."""

    deployment: Deployment
    new: ReplicaSet | None
    old: list[ReplicaSet]

    def replace(self, changed: ReplicaSet) -> None:
        uid = changed.metadata.uid
        if self.new is not None and self.new.metadata.uid == uid:
            self.new = changed
        self.old = [changed if one.metadata.uid == uid else one for one in self.old]


class DeploymentController(ControllerLoop):
    """The loop."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._deployments = factory.informer(Deployment)
        reconcile = pod_control.reporting_bad_input(events, self._deployments, self._reconcile)
        self._controller: Controller[Key] = Controller("deployments", reconcile, workers=WORKERS)
        self._sets: Children[Deployment, ReplicaSet] = Children(
            cluster, factory, self._deployments, ReplicaSet, self._controller
        )
        self._pods = factory.informer(Pod)
        self._pods.add_index(BY_CONTROLLER, controller_uid)
        self._pods.add_handler(on_delete=self._pod_gone)
        self._controller.watch(self._deployments, lambda obj: [key_of(obj)])
        self._informers = [self._deployments, self._sets.informer, self._pods]

    def _pod_gone(self, pod: Pod) -> None:
        """The last old pod of a recreating Deployment makes room for the new ones."""
        owner = controller_of(pod)
        found = self._sets.informer.get(owner.name, pod.metadata.namespace) if owner is not None else None
        above = controller_of(found) if found is not None else None
        if above is not None and above.kind == "Deployment":
            self._controller.queue.add((pod.metadata.namespace, above.name))

    async def _reconcile(self, key: Key) -> float | None:
        found = self._deployments.get(key[1], key[0])
        if found is None:
            return None
        sets = await self._sets.claim(found)
        now_s = self._cluster.clock.now()
        deployment = msgspec.structs.replace(found, status=with_pause(found, now_s))
        new = revisions.find_new(deployment, sets)
        stage = _Stage(deployment, new, [one for one in sets if one is not new])
        if is_deleting(found):
            await self._write_counts(found, stage)
            return None
        if deployment.spec.paused or rollout.is_scaling(deployment, sets):
            await self._sync_revision(stage)
            await self._scale(stage, rollout.plan_scaling(deployment, stage.new, stage.old))
            if deployment.spec.paused:
                await self._clean_up(stage)
            await self._write_counts(found, stage)
            return None
        try:
            await (self._roll(stage) if rollout.is_rolling(deployment) else self._recreate(stage))
        except _NewSetRefused as refused:
            await pod_control.write(self._cluster, found, found.status, refused.status)
            raise refused.error from refused
        return await self._write_progress(found, stage)

    # Strategies

    async def _roll(self, stage: _Stage) -> None:
        await self._ensure_new(stage)
        if stage.new is None:
            return
        if await self._scale(stage, rollout.plan_new(stage.deployment, stage.new, stage.old)):
            return
        if await self._scale(stage, rollout.plan_old(stage.deployment, stage.new, stage.old)):
            return
        if is_complete(stage.deployment, stage.deployment.status):
            await self._clean_up(stage)

    async def _recreate(self, stage: _Stage) -> None:
        await self._sync_revision(stage)
        old_pods_left = self._has_pods(stage.old)
        plan = rollout.plan_recreate(stage.deployment, stage.new, stage.old, old_pods_left=old_pods_left)
        if await self._scale(stage, plan) or old_pods_left:
            return
        await self._ensure_new(stage)
        if is_complete(stage.deployment, stage.deployment.status):
            await self._clean_up(stage)

    def _has_pods(self, sets: Sequence[ReplicaSet]) -> bool:
        return any(
            not is_terminated(pod)
            for one in sets
            for pod in self._pods.by_index(BY_CONTROLLER, one.metadata.uid)
        )

    # ReplicaSets

    async def _ensure_new(self, stage: _Stage) -> None:
        """Create the ReplicaSet of the newest template, or bring its bookkeeping up to date."""
        if stage.new is not None:
            await self._sync_revision(stage)
            return
        deployment = stage.deployment
        body = revisions.new_replica_set(deployment, stage.old)
        name, revision = (
            body["metadata"]["name"],
            body["metadata"]["annotations"][revisions.REVISION],
        )
        replicas: int = body["spec"]["replicas"]
        try:
            created = await self._cluster.create(ReplicaSet, body, deployment.metadata.namespace)
        except errors.AlreadyExists:
            await self._resolve_collision(stage, name)
            return
        except errors.ApiError as error:
            if pod_control.is_namespace_ending(error):
                return
            message = f'Failed to create new replica set "{name}": {error}'
            self._events.warning(deployment, SET_CREATE_ERROR, message)
            raise _NewSetRefused(error, self._noted(stage, "False", SET_CREATE_ERROR, message)) from error
        stage.new = created
        if replicas > 0:
            self._record_scaling(deployment, name, 0, replicas)
        message = f'Created new replica set "{name}"'
        self._note(stage, NEW_SET_CREATED, message)
        await self._set_revision(stage, revision)

    async def _resolve_collision(self, stage: _Stage, name: str) -> None:
        """Note that a ReplicaSet of that name exists: ours, and the cache is behind, or one with another template."""
        deployment = stage.deployment
        found = await self._cluster.get(ReplicaSet, name, deployment.metadata.namespace)
        if is_controlled_by(found, deployment) and revisions.find_new(deployment, [found]) is not None:
            stage.new = found
            return
        collisions = (deployment.status.collision_count or 0) + 1
        log.info("template hash collided", extra={"deployment": deployment.key, "collisions": collisions})
        # The changed status wakes us to try under the next name.
        status = msgspec.structs.replace(deployment.status, collision_count=collisions)
        stage.deployment = msgspec.structs.replace(deployment, status=status)

    async def _sync_revision(self, stage: _Stage) -> None:
        """Give the new ReplicaSet its revision and the Deployment's annotations."""
        if stage.new is None:
            return
        deployment, new = stage.deployment, stage.new
        revision = revisions.next_revision(stage.old)
        missing = revisions.annotations_for(deployment, new.metadata.annotations, revision)
        spec: dict[str, int | None] = {}
        if new.spec.min_ready_seconds != deployment.spec.min_ready_seconds:
            spec["minReadySeconds"] = deployment.spec.min_ready_seconds or None
        if missing or spec:
            await self._patch_set(stage, new, missing, spec)
        if find_condition(deployment.status.conditions, PROGRESSING) is None:
            self._note(stage, NEW_SET_FOUND, f'Found new replica set "{new.metadata.name}"')
        assert stage.new is not None
        await self._set_revision(stage, stage.new.metadata.annotations[revisions.REVISION])

    async def _set_revision(self, stage: _Stage, revision: str) -> None:
        if stage.deployment.metadata.annotations.get(revisions.REVISION) == revision:
            return
        patch = {"metadata": {"annotations": {revisions.REVISION: revision}}}
        await patch_same(self._cluster, stage.deployment, patch, any_version=True)

    async def _scale(self, stage: _Stage, plan: Sequence[rollout.ScaleTo]) -> bool:
        """Carry out a plan; whether any ReplicaSet changed its size."""
        changed = False
        for step in plan:
            one, size = step.replica_set, step.replicas
            wanted = revisions.size_annotations(stage.deployment)
            missing = {k: v for k, v in wanted.items() if one.metadata.annotations.get(k) != v}
            if size == one.spec.replicas:
                if missing:
                    await self._patch_set(stage, one, missing, {})
                continue
            await self._patch_set(stage, one, missing, {"replicas": size})
            self._record_scaling(stage.deployment, one.metadata.name, one.spec.replicas, size)
            changed = True
        return changed

    async def _patch_set(
        self, stage: _Stage, one: ReplicaSet, annotations: dict[str, str], spec: Mapping[str, int | None]
    ) -> None:
        # A size is decided from all sizes: a set that changed meanwhile is looked at again (Conflict).
        patch = {"metadata": {"annotations": annotations}, "spec": spec}
        stage.replace(await patch_same(self._cluster, one, patch))

    def _record_scaling(self, deployment: Deployment, name: str, before: int, after: int) -> None:
        direction = "up" if after > before else "down"
        message = f"Scaled {direction} replica set {name} from {before} to {after}"
        self._events.normal(deployment, "ScalingReplicaSet", message)

    async def _clean_up(self, stage: _Stage) -> None:
        for one in revisions.outdated_sets(stage.deployment, stage.old):
            if await delete_if_same(self._cluster, one):
                facts = {"deployment": stage.deployment.key, "name": one.metadata.name}
                log.info("old replica set deleted", extra=facts)

    # Status

    def _note(self, stage: _Stage, reason: str, message: str) -> None:
        """Start the clock of the progress deadline."""
        status = self._noted(stage, "True", reason, message)
        stage.deployment = msgspec.structs.replace(stage.deployment, status=status)

    def _noted(self, stage: _Stage, state: str, reason: str, message: str) -> DeploymentStatus:
        status = stage.deployment.status
        if deadline_s(stage.deployment) is None:
            return status
        condition = progressing(state, reason, message, self._cluster.clock.now())
        conditions = with_condition(status.conditions, condition)
        return msgspec.structs.replace(status, conditions=conditions)

    async def _write_counts(self, found: Deployment, stage: _Stage) -> None:
        status = counts(stage.deployment, stage.new, stage.old, self._cluster.clock.now())
        await pod_control.write(self._cluster, found, found.status, status)

    async def _write_progress(self, found: Deployment, stage: _Stage) -> float | None:
        now_s = self._cluster.clock.now()
        status = rolling(stage.deployment, stage.new, stage.old, now_s)
        await pod_control.write(self._cluster, found, found.status, status)
        left_s = until_deadline_s(stage.deployment, status, now_s)
        # A second more, since the deadline must be behind us then.
        return None if left_s is None else max(left_s, 0.0) + 1.0


class _NewSetRefused(Exception):
    """The API refused the new ReplicaSet; `status` says so to users."""

    def __init__(self, error: errors.ApiError, status: DeploymentStatus) -> None:
        super().__init__(str(error))
        self.error, self.status = error, status


AVAILABLE, PROGRESSING = "Available", "Progressing"
NEW_SET_CREATED, NEW_SET_FOUND, NEW_SET_AVAILABLE = (
    "NewReplicaSetCreated",
    "FoundNewReplicaSet",
    "NewReplicaSetAvailable",
)
SET_UPDATED, SET_CREATE_ERROR, TIMED_OUT = (
    "ReplicaSetUpdated",
    "ReplicaSetCreateError",
    "ProgressDeadlineExceeded",
)
PAUSED, RESUMED = "DeploymentPaused", "DeploymentResumed"

DEADLINE_DEFAULT_S = 600
_NO_DEADLINE = 2**31 - 1  # how the API spells "for ever"


def deadline_s(deployment: Deployment) -> int | None:
    """Return seconds without progress after which a rollout is called stuck; None for never."""
    found = deployment.spec.progress_deadline_seconds
    if found is None:
        return DEADLINE_DEFAULT_S
    return None if found == _NO_DEADLINE else found


def _condition(kind: str, status: str, reason: str, message: str, now_s: float) -> Condition:
    now = clock.rfc3339(now_s)
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        last_update_time=now,
        last_transition_time=now,
    )


progressing = functools.partial(_condition, PROGRESSING)


def with_pause(deployment: Deployment, now_s: float) -> DeploymentStatus:
    """Return the status after a pause or its end was noted (a pause stops the progress deadline)."""
    status = deployment.status
    if deadline_s(deployment) is None:
        return status
    current = find_condition(status.conditions, PROGRESSING)
    reason = current.reason if current is not None else ""
    if reason == TIMED_OUT or deployment.spec.paused == (reason == PAUSED):
        return status
    if deployment.spec.paused:
        new = progressing("Unknown", PAUSED, "Deployment is paused", now_s)
    else:
        new = progressing("Unknown", RESUMED, "Deployment is resumed", now_s)
    return msgspec.structs.replace(status, conditions=with_condition(status.conditions, new))


def counts(
    deployment: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet], now_s: float
) -> DeploymentStatus:
    """Replica counts and the Available condition."""
    every = [*old, *([new] if new is not None else [])]
    available = sum(one.status.available_replicas for one in every)
    minimum = deployment.spec.replicas - rollout.bounds_of(deployment).unavailable
    if available >= minimum:
        said = "True", "MinimumReplicasAvailable", "Deployment has minimum availability."
    else:
        said = "False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability."
    condition = _condition(AVAILABLE, *said, now_s)
    return msgspec.structs.replace(
        deployment.status,
        observed_generation=deployment.metadata.generation,
        replicas=sum(one.status.replicas for one in every),
        updated_replicas=new.status.replicas if new is not None else 0,
        ready_replicas=sum(one.status.ready_replicas for one in every),
        available_replicas=available,
        unavailable_replicas=max(rollout.wanted(every) - available, 0),
        terminating_replicas=_terminating(every),
        conditions=with_condition(deployment.status.conditions, condition),
    )


def _terminating(sets: Sequence[ReplicaSet]) -> int | None:
    """Pods of all ReplicaSets that are stopping; None while one that was looked at does not tell."""
    told = [one.status.terminating_replicas for one in sets if one.status.observed_generation]
    return None if None in told else sum(count or 0 for count in told)


def rolling(
    deployment: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet], now_s: float
) -> DeploymentStatus:
    """Counts, the Progressing condition of the rollout, and failures of the ReplicaSets.

    `deployment.status` is the status before, against which progress is measured.
    """
    status = counts(deployment, new, old, now_s)
    conditions = status.conditions
    current = find_condition(deployment.status.conditions, PROGRESSING)
    if deadline_s(deployment) is None:
        conditions = without_condition(conditions, PROGRESSING)
    elif not _was_complete(status, current):
        subject = (
            f'ReplicaSet "{new.metadata.name}"'
            if new is not None
            else f'Deployment "{deployment.metadata.name}"'
        )
        if is_complete(deployment, status):
            done = progressing("True", NEW_SET_AVAILABLE, f"{subject} has successfully progressed.", now_s)
            conditions = with_condition(conditions, done)
        elif _has_progressed(deployment.status, status):
            moving = progressing("True", SET_UPDATED, f"{subject} is progressing.", now_s)
            if current is not None and current.status == "True":
                moving = msgspec.structs.replace(moving, last_transition_time=current.last_transition_time)
            # Set anew even when it says the same: the deadline counts from the last progress.
            conditions = [*without_condition(conditions, PROGRESSING), moving]
        elif is_timed_out(deployment, now_s):
            stuck = progressing("False", TIMED_OUT, f"{subject} has timed out progressing.", now_s)
            conditions = with_condition(conditions, stuck)
    failure = _failure(new, old)
    if failure is None:
        conditions = without_condition(conditions, REPLICA_FAILURE)
    else:
        conditions = with_condition(conditions, failure)
    return msgspec.structs.replace(status, conditions=conditions)


def is_complete(deployment: Deployment, status: DeploymentStatus) -> bool:
    """Return whether all pods are new and available."""
    replicas = deployment.spec.replicas
    return (
        status.updated_replicas == replicas
        and status.replicas == replicas
        and status.available_replicas == replicas
        and status.observed_generation >= deployment.metadata.generation
    )


def is_timed_out(deployment: Deployment, now_s: float) -> bool:
    """Return whether the rollout has made no progress for its deadline."""
    left_s = until_deadline_s(deployment, deployment.status, now_s)
    current = find_condition(deployment.status.conditions, PROGRESSING)
    return (left_s is not None and left_s < 0) or (current is not None and current.reason == TIMED_OUT)


def until_deadline_s(deployment: Deployment, status: DeploymentStatus, now_s: float) -> float | None:
    """Return seconds until the rollout counts as stuck (negative: it does); None when that cannot happen."""
    limit_s, current = deadline_s(deployment), find_condition(status.conditions, PROGRESSING)
    if limit_s is None or current is None or current.last_update_time is None:
        return None
    if current.reason in (NEW_SET_AVAILABLE, TIMED_OUT, PAUSED):
        return None
    return clock.parse_rfc3339(current.last_update_time) + limit_s - now_s


def _was_complete(status: DeploymentStatus, current: Condition | None) -> bool:
    return (
        status.replicas == status.updated_replicas
        and current is not None
        and current.reason == NEW_SET_AVAILABLE
    )


def _has_progressed(old: DeploymentStatus, new: DeploymentStatus) -> bool:
    return (
        new.updated_replicas > old.updated_replicas
        or new.replicas - new.updated_replicas < old.replicas - old.updated_replicas
        or new.ready_replicas > old.ready_replicas
        or new.available_replicas > old.available_replicas
    )


def _failure(new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> Condition | None:
    """Return the first failure of a ReplicaSet, the new one asked first."""
    for one in [*([new] if new is not None else []), *old]:
        found = find_condition(one.status.conditions, REPLICA_FAILURE)
        if found is not None:
            return msgspec.structs.replace(found, last_update_time=found.last_transition_time)
    return None
