"""Carry out one eviction: through the API (which keeps disruption budgets), by deletion, or by asking others.
Source: behaviour/descheduler 7.6."""

import random
from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.cluster import errors
from koordinator.cluster.backoff import retry_on_conflict
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.protocol import Cluster, PatchType
from koordinator.descheduler.config import migration
from koordinator.descheduler.config.migration import MigrationControllerArgs
from koordinator.descheduler.metrics import ERROR, SUCCESS, DeschedulerMetrics
from koordinator.descheduler.migration import state
from koordinator.descheduler.migration.jobs import quoted
from koordinator.descheduler.migration.object_limiter import EvictionTokenBucket

ACTION = "Migrating"
DESCHEDULED = "Descheduled"
TOO_MANY = "TooManyEvictions: evictQPS is used up"


class JobEvictor:
    """Evicts pods of jobs, at the pace of `evictQPS` over all."""

    def __init__(
        self,
        cluster: Cluster,
        events: EventRecorder,
        metrics: DeschedulerMetrics,
        args: MigrationControllerArgs,
        rng: random.Random,
    ) -> None:
        self._cluster = cluster
        self._events = events
        self._metrics = metrics
        self._args = args
        self._rng = rng
        self._bucket = EvictionTokenBucket(migration.qps(args), args.evict_burst, cluster.clock.now())

    async def evict(self, job: PodMigrationJob, pod: Pod, reason: str) -> str:
        """Evict the pod of the job; why it could not be done, empty when it is under way."""
        if not self._bucket.take(self._cluster.clock.now()):
            return TOO_MANY
        trigger = job.metadata.annotations.get(labels.EVICT_TRIGGER, "")
        where = (trigger, pod.metadata.namespace, pod.spec.node_name)
        try:
            await self._carry_out(job, pod)
        except errors.ApiError as error:
            self._metrics.pods_evicted.inc(ERROR, *where)
            return str(error)
        self._metrics.pods_evicted.inc(SUCCESS, *where)
        message = f"Pod evicted from node {quoted(pod.spec.node_name)} by the reason {quoted(reason)}"
        self._events.normal(pod, DESCHEDULED, message, action=ACTION)
        return ""

    async def _carry_out(self, job: PodMigrationJob, pod: Pod) -> None:
        meta, options = pod.metadata, job.spec.delete_options or self._args.default_delete_options
        # All of them count: who asks for a dry run, or names a version, must not lose a pod.
        asked: dict[str, Any] = msgspec.to_builtins(options) if options is not None else {}
        match state.policy(pod, job, self._args.eviction_policy):
            case migration.DELETE:
                await self._cluster.delete(Pod, meta.name, meta.namespace, uid=meta.uid, options=asked)
            case migration.SOFT_EVICTION:
                text = state.soft_eviction(job, options, self._cluster.clock.now())

                async def annotate() -> None:
                    patch = {"metadata": {"uid": meta.uid, "annotations": {labels.SOFT_EVICTION: text}}}
                    await self._cluster.patch(
                        Pod, meta.name, patch, meta.namespace, patch_type=PatchType.STRATEGIC
                    )

                await retry_on_conflict(annotate, self._rng)
            case _:
                await self._cluster.evict(meta.namespace, meta.name, uid=meta.uid, options=asked)
