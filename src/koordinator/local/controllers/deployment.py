"""Rolls a Deployment's pods from one template to the next by way of ReplicaSets.

`rollout`, `deployment_revision` and `deployment_status` decide what to do; this module carries it out.
Source: kube-controller-manager's deployment controller.
"""

import logging
from collections.abc import Sequence

import msgspec

from koordinator.api.affinity import LabelSelector
from koordinator.api.apps import Deployment, DeploymentStatus, ReplicaSet
from koordinator.api.core import Pod
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory, Key
from koordinator.cluster.protocol import Cluster
from koordinator.local.controllers import deployment_revision, pod_control, rollout, status_write
from koordinator.local.controllers import deployment_status as statuses
from koordinator.local.controllers.ownership import (
    BY_CONTROLLER,
    Children,
    controller_of,
    controller_uid,
    is_deleting,
    key_of,
)

log = logging.getLogger(__name__)

WORKERS = 5
_ENDED = ("Succeeded", "Failed")


def _selector_of(deployment: Deployment) -> LabelSelector:
    return deployment.spec.selector


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


class DeploymentController:
    """The loop."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._deployments = factory.informer(Deployment)
        reconcile = pod_control.telling_bad_input(events, self._deployments, self._reconcile)
        self._controller: Controller[Key] = Controller("deployments", reconcile, workers=WORKERS)
        self._sets: Children[Deployment, ReplicaSet] = Children(
            cluster, factory, self._deployments, ReplicaSet, self._controller, _selector_of
        )
        self._pods = factory.informer(Pod)
        self._pods.add_index(BY_CONTROLLER, controller_uid)
        self._pods.add_handler(on_delete=self._pod_gone)
        self._controller.watch(self._deployments, lambda obj: [key_of(obj)])

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run([self._deployments, self._sets.informer, self._pods])

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
        deployment = msgspec.structs.replace(found, status=statuses.with_pause(found, now_s))
        new = deployment_revision.find_new(deployment, sets)
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
            await status_write.write(self._cluster, found, found.status, refused.status)
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
        if statuses.is_complete(stage.deployment, stage.deployment.status):
            await self._clean_up(stage)

    async def _recreate(self, stage: _Stage) -> None:
        await self._sync_revision(stage)
        old_pods_left = self._has_pods(stage.old)
        plan = rollout.plan_recreate(stage.deployment, stage.new, stage.old, old_pods_left=old_pods_left)
        if await self._scale(stage, plan) or old_pods_left:
            return
        await self._ensure_new(stage)
        if statuses.is_complete(stage.deployment, stage.deployment.status):
            await self._clean_up(stage)

    def _has_pods(self, sets: Sequence[ReplicaSet]) -> bool:
        return any(
            pod.status.phase not in _ENDED
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
        body = deployment_revision.new_replica_set(deployment, stage.old)
        name, revision = (
            body["metadata"]["name"],
            body["metadata"]["annotations"][deployment_revision.REVISION],
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
            self._events.warning(deployment, statuses.SET_CREATE_ERROR, message)
            raise _NewSetRefused(
                error, self._noted(stage, "False", statuses.SET_CREATE_ERROR, message)
            ) from error
        stage.new = created
        if replicas > 0:
            self._tell_scaled(deployment, name, 0, replicas)
        message = f'Created new replica set "{name}"'
        self._note(stage, statuses.NEW_SET_CREATED, message)
        await self._set_revision(stage, revision)

    async def _resolve_collision(self, stage: _Stage, name: str) -> None:
        """A ReplicaSet of that name exists: ours, and the cache is behind, or one with another template."""
        deployment = stage.deployment
        found = await self._cluster.get(ReplicaSet, name, deployment.metadata.namespace)
        owner = controller_of(found)
        is_ours = owner is not None and owner.uid == deployment.metadata.uid
        if is_ours and deployment_revision.find_new(deployment, [found]) is not None:
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
        revision = deployment_revision.next_revision(stage.old)
        missing = deployment_revision.annotations_for(deployment, new.metadata.annotations, revision)
        spec = {}
        if new.spec.min_ready_seconds != deployment.spec.min_ready_seconds:
            spec["minReadySeconds"] = deployment.spec.min_ready_seconds
        if missing or spec:
            await self._patch_set(stage, new, missing, spec)
        if status_write.find(deployment.status.conditions, statuses.PROGRESSING) is None:
            self._note(stage, statuses.NEW_SET_FOUND, f'Found new replica set "{new.metadata.name}"')
        assert stage.new is not None
        await self._set_revision(stage, stage.new.metadata.annotations[deployment_revision.REVISION])

    async def _set_revision(self, stage: _Stage, revision: str) -> None:
        meta = stage.deployment.metadata
        if meta.annotations.get(deployment_revision.REVISION) == revision:
            return
        annotations = {deployment_revision.REVISION: revision}
        patch = {"metadata": {"uid": meta.uid, "annotations": annotations}}
        await self._cluster.patch(Deployment, meta.name, patch, meta.namespace)

    async def _scale(self, stage: _Stage, plan: Sequence[rollout.ScaleTo]) -> bool:
        """Carry out a plan; whether any ReplicaSet changed its size."""
        changed = False
        for step in plan:
            one, size = step.replica_set, step.replicas
            wanted = deployment_revision.size_annotations(stage.deployment)
            missing = {k: v for k, v in wanted.items() if one.metadata.annotations.get(k) != v}
            if size == one.spec.replicas:
                if missing:
                    await self._patch_set(stage, one, missing, {})
                continue
            await self._patch_set(stage, one, missing, {"replicas": size})
            self._tell_scaled(stage.deployment, one.metadata.name, one.spec.replicas, size)
            changed = True
        return changed

    async def _patch_set(
        self, stage: _Stage, one: ReplicaSet, annotations: dict[str, str], spec: dict[str, int]
    ) -> None:
        meta = one.metadata
        # A size is decided from all sizes: only the version that we read may change (Conflict: tried again).
        guard = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        patch = {"metadata": {**guard, "annotations": annotations}, "spec": spec}
        stage.replace(await self._cluster.patch(ReplicaSet, meta.name, patch, meta.namespace))

    def _tell_scaled(self, deployment: Deployment, name: str, before: int, after: int) -> None:
        direction = "up" if after > before else "down"
        message = f"Scaled {direction} replica set {name} from {before} to {after}"
        self._events.normal(deployment, "ScalingReplicaSet", message)

    async def _clean_up(self, stage: _Stage) -> None:
        for one in deployment_revision.outdated(stage.deployment, stage.old):
            meta = one.metadata
            try:
                await self._cluster.delete(ReplicaSet, meta.name, meta.namespace, uid=meta.uid)
            except (errors.NotFound, errors.Conflict):
                continue  # gone, or another of that name
            log.info("old replica set deleted", extra={"deployment": stage.deployment.key, "name": meta.name})

    # Status

    def _note(self, stage: _Stage, reason: str, message: str) -> None:
        """Start the clock of the progress deadline."""
        status = self._noted(stage, "True", reason, message)
        stage.deployment = msgspec.structs.replace(stage.deployment, status=status)

    def _noted(self, stage: _Stage, state: str, reason: str, message: str) -> DeploymentStatus:
        status = stage.deployment.status
        if statuses.deadline_s(stage.deployment) is None:
            return status
        condition = statuses.progressing(state, reason, message, self._cluster.clock.now())
        conditions = statuses.with_condition(status.conditions, condition)
        return msgspec.structs.replace(status, conditions=conditions)

    async def _write_counts(self, found: Deployment, stage: _Stage) -> None:
        status = statuses.counts(stage.deployment, stage.new, stage.old, self._cluster.clock.now())
        await status_write.write(self._cluster, found, found.status, status)

    async def _write_progress(self, found: Deployment, stage: _Stage) -> float | None:
        now_s = self._cluster.clock.now()
        status = statuses.rolling(stage.deployment, stage.new, stage.old, now_s)
        await status_write.write(self._cluster, found, found.status, status)
        left_s = statuses.until_deadline_s(stage.deployment, status, now_s)
        # A second more, since the deadline must be behind us then.
        return None if left_s is None else max(left_s, 0.0) + 1.0


class _NewSetRefused(Exception):
    """The API refused the new ReplicaSet; `status` says so to users."""

    def __init__(self, error: errors.ApiError, status: DeploymentStatus) -> None:
        super().__init__(str(error))
        self.error, self.status = error, status
