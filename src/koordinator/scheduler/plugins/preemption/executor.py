"""Carrying a preemption out: victims are marked, deleted and told why. Source: behaviour/scheduler B7 (6)."""

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from koordinator import clock
from koordinator.api import labels, pod_labels
from koordinator.api.core import Pod
from koordinator.api.meta import find_condition
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster, PatchType
from koordinator.scheduler.plugin.events import PREEMPTING
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugin.status import observed
from koordinator.scheduler.plugins.preemption.victims import Candidate
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

DISRUPTION_TARGET = "DisruptionTarget"
PREEMPTION = "PreemptionByScheduler"
PLUGIN = "DefaultPreemption"
REQUESTS_AT_ONCE = 16
"""Requests of one preemption under way: a large job has hundreds of victims, and others want to be served, too."""

A = TypeVar("A")
T = TypeVar("T")


class VictimOutcome(enum.Enum):
    """The fate of a victim."""

    DELETED = enum.auto()
    GONE = enum.auto()
    """It was not there any more."""
    FAILED = enum.auto()


class PreemptionTerms(msgspec.Struct, frozen=True):
    """The terms of one preemption."""

    accommodates: str = "a higher priority pod"
    """Beneficiary, in the condition of the victims."""
    plugin: str = PLUGIN
    """In whose name victims are turned down that wait in Permit."""
    nominations: tuple[tuple[PodInfo, str], ...] = ()
    """Nodes that other pods of the preemptor's job are promised, to be told in their status."""
    is_job: bool = False
    """The preemptor waits for all requests and is tried again then: the ends of its victims, on many nodes, are no
    good sign of when there is room for all of it."""
    awaits_others: bool = False
    """True for a job where pods have to go that leave anyhow. Where nobody else has to, their ends wake it."""
    evicted: Callable[[PodInfo], None] = lambda _: None
    """Hears of victims that the API has agreed to delete."""


class PreemptionExecutor:
    """Preemptions under way."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.under_way: set[str] = set()
        """uids of pods whose victims are still to be deleted, apart from the last one (of a job: all)."""

    def start(
        self, preemptor: PodInfo, candidate: Candidate, profile_name: str, plugin: str = PLUGIN
    ) -> None:
        """Evict the victims in the background. Less important pods lose their nomination to the node at once,
        and may look for another."""
        victims = [victim.pod for victim in candidate.victims]
        terms = PreemptionTerms(plugin=plugin)
        self.start_many(preemptor, {candidate.node_name: victims}, profile_name, terms)

    def start_many(
        self,
        preemptor: PodInfo,
        victims: Mapping[str, Sequence[PodInfo]],
        profile_name: str,
        terms: PreemptionTerms,
    ) -> None:
        """The same for several nodes."""
        actions, nominations = self._handle.actions, self._handle.nominations
        own = {pod.uid for pod, _ in terms.nominations}
        losers = [
            other
            for node_name in victims
            for other in nominations.on(node_name)
            if other.priority < preemptor.priority and other.uid not in own
        ]
        for loser in losers:
            nominations.remove(loser.uid)
        actions.activate([loser.uid for loser in losers])
        work = _Work(self._handle, preemptor, profile_name, terms)
        leaving: list[tuple[str, PodInfo]] = []
        for node_name, pods in victims.items():
            gone = [pod for pod in pods if actions.reject_waiting(pod.uid, terms.plugin, "preempted")]
            for pod in gone:
                work.record_event(pod.pod, node_name)
            work.has_made_room = work.has_made_room or bool(gone)
            staying = [pod for pod in pods if pod not in gone]
            if staying:
                actions.evicting(preemptor, node_name, staying)
            leaving += [(node_name, pod) for pod in staying]
        uid = preemptor.uid

        def ended() -> None:
            self.under_way.discard(uid)

        running = work.run(leaving, [*terms.nominations, *((loser, "") for loser in losers)], ended)
        if actions.spawn(running, f"preemption by {preemptor.key}", ended) and leaving:
            self.under_way.add(uid)

    def renominate(self, promised: Sequence[tuple[PodInfo, str]], name: str) -> None:
        """Tell pods in their status which node they are promised, "" for none, in the background."""
        if promised:
            self._handle.actions.spawn(write_nominations(self._handle.cluster, promised), name)


class _Work:
    """The requests of one preemption."""

    def __init__(self, handle: Handle, preemptor: PodInfo, profile_name: str, terms: PreemptionTerms) -> None:
        self._handle = handle
        self._preemptor = preemptor
        self._profile_name = profile_name
        self._terms = terms
        self.has_made_room = False
        """True when pods that waited in Permit were turned down."""

    async def run(
        self,
        leaving: Sequence[tuple[str, PodInfo]],
        nominations: Sequence[tuple[PodInfo, str]],
        nearly_done: Callable[[], None],
    ) -> None:
        ends: list[VictimOutcome] = []
        began_s = self._handle.clock.now()
        first = len(leaving) if self._terms.is_job else len(leaving) - 1
        try:
            await write_nominations(self._handle.cluster, nominations)
            ends += await _some_at_a_time(self._evict, leaving[: max(first, 0)])
        finally:
            nearly_done()
        # The last one goes after the others: its end wakes the preemptor, and there is room then.
        if VictimOutcome.FAILED not in ends:
            ends += [await self._evict(last) for last in leaving[max(first, 0) :]]
        self._measured(began_s, "error" if VictimOutcome.FAILED in ends else "success")
        if self._is_woken(ends):
            # What did not change anything is not repeated at once, or it might go on for ever.
            has_changed = VictimOutcome.FAILED not in ends and (
                VictimOutcome.DELETED in ends or self.has_made_room
            )
            self._handle.actions.activate([self._preemptor.uid], at_once=has_changed)

    def _is_woken(self, ends: Sequence[VictimOutcome]) -> bool:
        """Return whether no end of a pod is to be expected that would wake the preemptor."""
        if self._terms.is_job:
            return bool(ends) or self.has_made_room or not self._terms.awaits_others
        return bool(ends) and (VictimOutcome.FAILED in ends or VictimOutcome.DELETED not in ends)

    def _measured(self, began_s: float, result: str) -> None:
        metrics = self._handle.metrics
        metrics.preemption_count.inc(result)
        metrics.preemption_duration.of(result).observe(max(0.0, self._handle.clock.now() - began_s))

    async def _evict(self, leaving: tuple[str, PodInfo]) -> VictimOutcome:
        node_name, victim = leaving[0], leaving[1].pod
        meta = victim.metadata
        try:
            if not is_preempted(victim):
                await self._mark(victim)
            await self._handle.cluster.delete(Pod, meta.name, meta.namespace, uid=meta.uid)
        except (errors.NotFound, errors.Conflict):
            return VictimOutcome.GONE  # or another pod has its name
        except errors.ApiError as failure:
            log.warning("victim not evicted: %s", failure, extra={"pod": victim.key})
            return VictimOutcome.FAILED
        self._terms.evicted(leaving[1])
        self.record_event(victim, node_name)
        return VictimOutcome.DELETED

    def record_event(self, victim: Pod, node_name: str) -> None:
        by = self._preemptor.pod.metadata
        room = by.annotations.get(labels.RESERVATION_NAME, "") if by.annotations else ""
        preemptor = f"reservation {room}" if room else f"pod {by.uid}"
        note = f"Preempted by {preemptor} on node {node_name}"
        self._handle.actions.event(
            self._profile_name,
            victim,
            "Normal",
            "Preempted",
            note,
            action=PREEMPTING,
            related=None if room else self._preemptor.pod,
        )

    async def _mark(self, victim: Pod) -> None:
        condition = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": PREEMPTION,
            "message": f"{self._profile_name}: preempting to accommodate {self._terms.accommodates}",
            "lastTransitionTime": clock.rfc3339(self._handle.clock.now()),
            **observed(victim),
        }
        body: dict[str, Any] = {
            "metadata": {"uid": victim.metadata.uid},
            "status": {"conditions": [condition]},
        }
        await _patch_status(self._handle.cluster, victim, body)


async def write_nominations(cluster: Cluster, promised: Sequence[tuple[PodInfo, str]]) -> None:
    """Patch the nomination of each pod, "" takes it back; whom it cannot be told is tried again some day anyhow."""

    async def write(promise: tuple[PodInfo, str]) -> None:
        pod, node_name = promise[0].pod, promise[1]
        body = {"metadata": {"uid": pod.metadata.uid}, "status": {"nominatedNodeName": node_name or None}}
        try:
            await _patch_status(cluster, pod, body)
        except errors.ApiError as failure:
            log.info("nomination not written: %s", failure, extra={"pod": pod.key})

    # A reserve pod is no object that could be told.
    pods = [each for each in promised if not pod_labels.is_reserve_pod(each[0].pod.metadata.annotations)]
    await _some_at_a_time(write, pods)


async def _patch_status(cluster: Cluster, pod: Pod, body: dict[str, Any]) -> None:
    meta = pod.metadata
    await cluster.patch(
        Pod, meta.name, body, meta.namespace, patch_type=PatchType.STRATEGIC, subresource="status"
    )


async def _some_at_a_time(ask: Callable[[A], Awaitable[T]], about: Iterable[A]) -> list[T]:
    """Return all answers, in order."""
    slots = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def in_turn(each: A) -> T:
        async with slots:
            return await ask(each)

    return list(await asyncio.gather(*map(in_turn, about)))


def is_preempted(pod: Pod) -> bool:
    """Return whether the pod is to make room for another one."""
    found = find_condition(pod.status.conditions, DISRUPTION_TARGET)
    return found is not None and found.status == "True" and found.reason == PREEMPTION


def is_terminating_victim(pod: Pod) -> bool:
    """Return whether the pod is leaving for another one."""
    return pod.metadata.deletion_timestamp is not None and is_preempted(pod)
