"""Telling users in the pod's status why it is not scheduled, without holding up the next cycle."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api.core import Pod
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster
from koordinator.scheduler.plugin.pod_patch import observed

log = logging.getLogger(__name__)

WRITERS = 8
"""Patches under way at a time."""
TRIES_MAX = 4
"""Tries when others change the pod at the same time."""

POD_SCHEDULED = "PodScheduled"


class PodStatusUpdate(msgspec.Struct, frozen=True):
    """The text for the pod's status; `nominated_node` None leaves the nomination, "" clears it."""

    reason: str
    message: str
    nominated_node: str | None


def unscheduled_patch(pod: Pod, verdict: PodStatusUpdate, now_s: float) -> dict[str, Any]:
    """The merge patch that sets the condition PodScheduled to False; empty when the pod says so already.

    A merge patch replaces the list of conditions, so it holds them all and is good for this version only.
    """
    conditions = pod.status.conditions
    old = next((condition for condition in conditions if condition.type == POD_SCHEDULED), None)
    status: dict[str, Any] = {}
    said = (old.status, old.reason, old.message) if old is not None else None
    if said != ("False", verdict.reason, verdict.message):
        kept_s = old.last_transition_time if old is not None and old.status == "False" else None
        new = {
            "type": POD_SCHEDULED,
            "status": "False",
            "reason": verdict.reason,
            "message": verdict.message,
            "lastTransitionTime": kept_s or clock.rfc3339(now_s),
            **observed(pod),
        }
        others = [msgspec.to_builtins(condition) for condition in conditions if condition is not old]
        status["conditions"] = [*others, new]
    if verdict.nominated_node is not None and verdict.nominated_node != pod.status.nominated_node_name:
        status["nominatedNodeName"] = verdict.nominated_node or None
    if not status:
        return {}
    meta = pod.metadata
    return {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": status}


class StatusWriter:
    """Writes verdicts in the background: the latest per pod, so the backlog is bounded by the pods.

    `live` gives the current state of a pod, None when it is gone or assigned.
    """

    def __init__(self, cluster: Cluster, clock: Clock, live: Callable[[Pod], Pod | None]) -> None:
        self.failure_count = 0
        self._cluster = cluster
        self._clock = clock
        self._live = live
        self._pending: dict[str, tuple[Pod, PodStatusUpdate]] = {}
        self._filled = asyncio.Event()

    def write(self, pod: Pod, verdict: PodStatusUpdate) -> None:
        """Write the verdict; what the one before said about the nomination still holds if this one says nothing."""
        waiting = self._pending.get(pod.metadata.uid)
        if waiting is not None and verdict.nominated_node is None:
            verdict = msgspec.structs.replace(verdict, nominated_node=waiting[1].nominated_node)
        self._pending[pod.metadata.uid] = (pod, verdict)
        self._filled.set()

    def discard(self, pod: Pod) -> None:
        """The pod is bound or gone: an old refusal must not be written any more."""
        self._pending.pop(pod.metadata.uid, None)

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                group.create_task(self._work(), name=f"pod status writer {number}")

    async def _work(self) -> None:
        while True:
            while not self._pending:
                self._filled.clear()
                await self._filled.wait()
            uid = next(iter(self._pending))
            pod, verdict = self._pending.pop(uid)
            try:
                await self._write(pod, verdict)
            except errors.NotFound:
                continue  # nobody is left to tell
            except errors.ApiError as error:
                # The next failed attempt writes again; the event tells the user meanwhile.
                self.failure_count += 1
                log.warning("pod condition not written: %s", error, extra={"pod": pod.key})

    async def _write(self, pod: Pod, verdict: PodStatusUpdate) -> None:
        current = self._live(pod)
        for tries_left in reversed(range(TRIES_MAX)):
            if current is None or current.spec.node_name or current.metadata.uid != pod.metadata.uid:
                return
            patch = unscheduled_patch(current, verdict, self._clock.now())
            if not patch:
                return
            name, namespace = pod.metadata.name, pod.metadata.namespace
            try:
                await self._cluster.patch(Pod, name, patch, namespace, subresource="status")
            except errors.Conflict:
                if tries_left == 0:
                    raise
                current = await self._cluster.get(Pod, name, namespace)
            else:
                return
