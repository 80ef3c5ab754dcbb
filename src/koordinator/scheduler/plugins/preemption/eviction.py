"""Carrying a preemption out: victims are marked, deleted and told why. Source: spec 03, B7 (6)."""

import asyncio
import enum
import logging
from collections.abc import Awaitable
from typing import Any

from koordinator import clock
from koordinator.api.core import Pod
from koordinator.cluster import errors
from koordinator.cluster.protocol import PatchType
from koordinator.scheduler.framework import Handle
from koordinator.scheduler.plugins.preemption.victims import Candidate
from koordinator.scheduler.pod_info import PodInfo

log = logging.getLogger(__name__)

DISRUPTION_TARGET = "DisruptionTarget"
PREEMPTION = "PreemptionByScheduler"
PLUGIN = "DefaultPreemption"


class End(enum.Enum):
    """What became of a victim."""

    DELETED = enum.auto()
    GONE = enum.auto()
    """It was not there any more."""
    FAILED = enum.auto()


class Eviction:
    """Preemptions under way."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._under_way: set[str] = set()

    def is_under_way(self, uid: str) -> bool:
        """Whether victims of this pod are still to be deleted, apart from the last one."""
        return uid in self._under_way

    def start(self, preemptor: PodInfo, candidate: Candidate, profile_name: str) -> None:
        """Evict the victims in the background. Less important pods lose their nomination to the node at once,
        and may look for another."""
        actions, nominations = self._handle.actions, self._handle.nominations
        losers = [
            other for other in nominations.on(candidate.node_name) if other.priority < preemptor.priority
        ]
        for loser in losers:
            nominations.remove(loser.uid)
        actions.activate([loser.uid for loser in losers])
        leaving: list[PodInfo] = []
        for victim in candidate.victims:
            if actions.reject_waiting(victim.pod.uid, PLUGIN, "preempted"):
                self._tell(victim.pod.pod, preemptor, candidate.node_name, profile_name)
            else:
                leaving.append(victim.pod)
        actions.evicting(preemptor, candidate.node_name, leaving)
        work = self._run(preemptor, candidate.node_name, leaving, losers, profile_name)
        uid = preemptor.uid
        name = f"preemption by {preemptor.key}"
        if actions.spawn(work, name, lambda: self._under_way.discard(uid)) and leaving:
            self._under_way.add(uid)

    async def _run(
        self,
        preemptor: PodInfo,
        node_name: str,
        leaving: list[PodInfo],
        losers: list[PodInfo],
        profile_name: str,
    ) -> None:
        def evict(victim: PodInfo) -> Awaitable[End]:
            return self._evict(victim.pod, preemptor, node_name, profile_name)

        ends: list[End] = []
        began_s = self._handle.clock.now()
        try:
            await asyncio.gather(*(self._clear_nomination(loser.pod) for loser in losers))
            ends += await asyncio.gather(*(evict(victim) for victim in leaving[:-1]))
        finally:
            self._under_way.discard(preemptor.uid)
        # The last one goes after the others: its end wakes the preemptor, and there is room then.
        if End.FAILED not in ends:
            ends += [await evict(victim) for victim in leaving[-1:]]
        self._measured(began_s, "error" if End.FAILED in ends else "success")
        if leaving and (End.FAILED in ends or End.DELETED not in ends):
            # No end of a pod is to be expected that would wake it.
            self._handle.actions.activate([preemptor.uid])

    def _measured(self, began_s: float, result: str) -> None:
        metrics = self._handle.metrics
        metrics.preemption_count.inc(result)
        metrics.preemption_duration.of(result).observe(max(0.0, self._handle.clock.now() - began_s))

    async def _evict(self, victim: Pod, preemptor: PodInfo, node_name: str, profile_name: str) -> End:
        meta = victim.metadata
        try:
            if not has_condition(victim, PREEMPTION):
                await self._mark(victim, profile_name)
            await self._handle.cluster.delete(Pod, meta.name, meta.namespace, uid=meta.uid)
        except (errors.NotFound, errors.Conflict):
            return End.GONE  # or another pod has its name
        except errors.ApiError as failure:
            log.warning("victim not evicted: %s", failure, extra={"pod": victim.key})
            return End.FAILED
        self._tell(victim, preemptor, node_name, profile_name)
        return End.DELETED

    def _tell(self, victim: Pod, preemptor: PodInfo, node_name: str, profile_name: str) -> None:
        note = f"Preempted by pod {preemptor.uid} on node {node_name}"
        self._handle.actions.event(profile_name, victim, "Normal", "Preempted", note)

    async def _mark(self, victim: Pod, profile_name: str) -> None:
        condition = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": PREEMPTION,
            "message": f"{profile_name}: preempting to accommodate a higher priority pod",
            "lastTransitionTime": clock.rfc3339(self._handle.clock.now()),
        }
        body: dict[str, Any] = {
            "metadata": {"uid": victim.metadata.uid},
            "status": {"conditions": [condition]},
        }
        await self._patch_status(victim, body)

    async def _clear_nomination(self, pod: Pod) -> None:
        body = {"metadata": {"uid": pod.metadata.uid}, "status": {"nominatedNodeName": None}}
        try:
            await self._patch_status(pod, body)
        except errors.ApiError as failure:
            log.info("nomination not cleared: %s", failure, extra={"pod": pod.key})

    async def _patch_status(self, pod: Pod, body: dict[str, Any]) -> None:
        meta = pod.metadata
        await self._handle.cluster.patch(
            Pod, meta.name, body, meta.namespace, patch_type=PatchType.STRATEGIC, subresource="status"
        )


def has_condition(pod: Pod, reason: str) -> bool:
    """Whether the pod is to be disrupted for this reason."""
    return any(
        condition.type == DISRUPTION_TARGET and condition.status == "True" and condition.reason == reason
        for condition in pod.status.conditions
    )
