"""Carrying a preemption out: victims are marked, deleted and told why. Source: spec 03, B7 (6)."""

import asyncio
import logging
from typing import Any

from koordinator import clock
from koordinator.api.core import Pod
from koordinator.cluster import errors
from koordinator.cluster.protocol import PatchType
from koordinator.scheduler.events import ClusterEvent, Happening
from koordinator.scheduler.framework import Handle
from koordinator.scheduler.plugins.preemption.victims import Candidate
from koordinator.scheduler.pod_info import PodInfo

log = logging.getLogger(__name__)

DISRUPTION_TARGET = "DisruptionTarget"
PREEMPTION = "PreemptionByScheduler"
PLUGIN = "DefaultPreemption"


class Eviction:
    """Preemptions under way."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._under_way: set[str] = set()

    def is_under_way(self, uid: str) -> bool:
        """Whether victims of this pod are still to be deleted."""
        return uid in self._under_way

    def start(self, preemptor: PodInfo, candidate: Candidate, profile_name: str) -> None:
        """Evict the victims in the background; less important pods lose their nomination to the node at once."""
        losers = [
            other
            for other in self._handle.nominations.on(candidate.node_name)
            if other.priority < preemptor.priority
        ]
        for loser in losers:
            self._handle.nominations.remove(loser.uid)
        reject = self._handle.actions.reject_waiting
        leaving = [each.pod for each in candidate.victims if not reject(each.pod.uid, PLUGIN, "preempted")]
        work = self._run(preemptor, candidate.node_name, leaving, losers, profile_name)
        self._handle.actions.spawn(work, f"preemption by {preemptor.key}")

    async def _run(
        self,
        preemptor: PodInfo,
        node_name: str,
        leaving: list[PodInfo],
        losers: list[PodInfo],
        profile_name: str,
    ) -> None:
        self._under_way.add(preemptor.uid)
        try:
            await asyncio.gather(*(self._clear_nomination(loser.pod) for loser in losers))
            # The last one goes after the others: when it is gone there is room, not earlier.
            await asyncio.gather(
                *(self._evict(victim.pod, preemptor, node_name, profile_name) for victim in leaving[:-1])
            )
            for victim in leaving[-1:]:
                await self._evict(victim.pod, preemptor, node_name, profile_name)
        finally:
            self._under_way.discard(preemptor.uid)
            self._handle.happened(Happening(ClusterEvent.PREEMPTION_ENDED, None, None, preemptor))

    async def _evict(self, victim: Pod, preemptor: PodInfo, node_name: str, profile_name: str) -> None:
        meta = victim.metadata
        try:
            if not has_condition(victim, PREEMPTION):
                await self._mark(victim, profile_name)
            await self._handle.cluster.delete(Pod, meta.name, meta.namespace, uid=meta.uid)
        except (errors.NotFound, errors.Conflict):
            return  # it is gone, or another pod has its name
        except errors.ApiError as failure:
            # The preemptor tries again: nothing counts on this eviction.
            log.warning("victim not evicted: %s", failure, extra={"pod": victim.key})
            return
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
