"""Choose who has to go for a quota: pods that give way to a more important one of the same quota, and what quotas use
beyond their runtime for long. Source: behaviour/elastic-quota 14 and 15.

Budgets and the ranking of nodes are those of stock preemption. Only nodes with less important pods are looked at, by
trials of the node table, in which the quota's books follow; of quotas only those that changed, and those above their
runtime.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator

import msgspec

from koordinator.api import duration
from koordinator.api.core import Pod
from koordinator.api.resource_list import Amounts, add, sub
from koordinator.clock import parse_rfc3339
from koordinator.cluster import errors
from koordinator.scheduler.config.default_plugins import ElasticQuotaArgs
from koordinator.scheduler.plugin.framework import (
    Diagnosis,
    Handle,
    Outlook,
    PostFilterResult,
    PreemptionOffer,
)
from koordinator.scheduler.plugin.status import SUCCESS, unschedulable
from koordinator.scheduler.plugins.elastic_quota.admission import fits
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.forest import QuotaRef
from koordinator.scheduler.plugins.elastic_quota.quota import (
    DEFAULT,
    ROOT,
    SYSTEM,
    Nanos,
    Quota,
    above,
    amounts_of,
    exceeding,
    nanos_of,
)
from koordinator.scheduler.plugins.elastic_quota.quota_changes import QuotaChanges
from koordinator.scheduler.plugins.preemption import victims
from koordinator.scheduler.plugins.preemption.executor import PreemptionExecutor
from koordinator.scheduler.plugins.preemption.plugin import followed_budgets, objection
from koordinator.scheduler.plugins.preemption.search import try_without
from koordinator.scheduler.plugins.preemption.victims import Budgets, Candidate, Victim
from koordinator.scheduler.table.pod_info import PodInfo


class QuotaPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that uses its quota."""

    name: str
    priority: int
    start_s: float = 0.0
    request: Amounts = {}
    """Already reduced to the resources that the quota counts."""
    is_preemptible: bool = True


def by_importance(pods: Iterable[QuotaPod]) -> list[QuotaPod]:
    """Higher priority first, among equals the one that runs longest."""
    return sorted(pods, key=lambda pod: (-pod.priority, pod.start_s))


class OveruseTimer:
    """Since when quotas are above their runtime. `delay_s`: how long they may be before pods are evicted."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._under_s: dict[str, float] = {}
        """Quota above its runtime → when it was last seen within it, or last evicted from."""

    @property
    def above(self) -> Collection[str]:
        """Quotas that were above their runtime at their last check."""
        return self._under_s.keys()

    def clear(self) -> None:
        """Nobody is known to be above its runtime."""
        self._under_s.clear()

    def is_due(self, name: str, now_s: float, seen_s: float, *, is_above: bool) -> bool:
        """Return whether it is time to evict from a quota, which begins the delay anew; `seen_s`: when it was last
        seen within its runtime, if nothing is known of it. `is_above`: it uses more than its runtime now."""
        if not is_above:
            self._under_s.pop(name, None)
            return False
        under_s = self._under_s.get(name, seen_s)
        is_due = now_s - under_s > self._delay_s
        self._under_s[name] = now_s if is_due else under_s
        return is_due


def revoke(used: Amounts, runtime: Amounts, assigned: Iterable[QuotaPod]) -> list[QuotaPod]:
    """Return the pods to evict, in this order: the least important ones until the quota is within its runtime, less
    those, the most important first, that turn out not to be needed. Pods that are not preemptible stay, though the
    quota may stay above its runtime then. Source: behaviour/elastic-quota 15."""
    taken: list[QuotaPod] = []
    for pod in reversed(by_importance(assigned)):
        if not exceeding(used, runtime):
            break
        if pod.is_preemptible:
            used = sub(used, pod.request)
            taken.append(pod)
    if exceeding(used, runtime):
        return taken
    evicted: list[QuotaPod] = []
    for pod in reversed(taken):
        with_pod = add(used, pod.request)
        if exceeding(with_pod, runtime):
            evicted.append(pod)
        else:
            used = with_pod
    return evicted


log = logging.getLogger(__name__)

PERIOD_MIN_S = 0.1
AT_ONCE = 256
"""Quotas that are looked at before others have their turn."""
EVICTIONS_AT_ONCE = 16


class OverUse:
    """Evicts pods of quotas that stay above their runtime for `delayEvictTime`."""

    def __init__(
        self, args: ElasticQuotaArgs, handle: Handle, book: QuotaBook, changes: QuotaChanges
    ) -> None:
        self._period_s = max(duration.parse(args.revoke_pod_interval), PERIOD_MIN_S)
        self._timer = OveruseTimer(duration.parse(args.delay_evict_time))
        self._handle = handle
        self._book = book
        self._changes = changes
        self._evicted: dict[str, str] = {}
        """Pods that the API has agreed to evict, with their uids, until the cache has lost them."""

    async def run(self) -> None:
        """Looks every `revokePodInterval`, while there is something to look at."""
        listener = self._changes.listen()
        self._timer.clear()
        seen_s = self._handle.clock.now()
        try:
            while True:
                if not self._timer.above:
                    await listener.wait(None)
                self._changes.spread()
                touched, drifted = listener.take()
                now_s = self._handle.clock.now()
                # A round that had nothing to look at would have seen everybody within.
                await self.look({*touched, *drifted}, max(seen_s, now_s - self._period_s))
                seen_s = now_s
                await asyncio.sleep(self._period_s)
        finally:
            self._changes.leave(listener)

    async def look(self, changed: Collection[str], seen_s: float) -> None:
        """Check quotas that changed and those that were above their runtime; evict where that is due. `seen_s`: when
        the others were last seen within theirs."""
        self._evicted = {key: uid for key, uid in self._evicted.items() if self._book.pod(key) is not None}
        for number, name in enumerate(sorted({*changed, *self._timer.above})):
            await self._check(name, seen_s)
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)

    async def _check(self, name: str, seen_s: float) -> None:
        quota = self._above(name)
        is_due = self._timer.is_due(name, self._handle.clock.now(), seen_s, is_above=quota is not None)
        if is_due and quota is not None:
            await self._take_back(quota)

    def _above(self, name: str) -> Quota | None:
        """Return the quota if it uses more than its runtime of now."""
        place = self._book.find(name)
        if place is None or name in (SYSTEM, ROOT):
            return None
        tree, quota = place
        tree.bring_up_to_date(name)
        return quota if above(quota.below.used, quota.limit(has_runtime=True)) else None

    async def _take_back(self, quota: Quota) -> None:
        """Evicts as long as the quota stays above: it may get more, or others may go, before the last one's turn. A pod
        that leaves already is not taken a second time, however long it takes."""
        used, runtime = amounts_of(quota.below.used), amounts_of(quota.limit(has_runtime=True))
        staying: list[QuotaPod] = []
        for pod, each in self._assigned(quota):
            is_deleted = pod.metadata.deletion_timestamp is not None
            if is_deleted or self._evicted.get(pod.key) == pod.metadata.uid:
                used = sub(used, each.request)
            else:
                staying.append(each)
        leaving = revoke(used, runtime, staying)
        for first in range(0, len(leaving), EVICTIONS_AT_ONCE):
            if self._above(quota.spec.name) is not quota:
                return
            batch = leaving[first : first + EVICTIONS_AT_ONCE]
            pods = [found for each in batch if (found := self._book.pod(each.name)) is not None]
            await asyncio.gather(*(self._evict(pod, quota) for pod in pods))

    def _assigned(self, quota: Quota) -> Iterator[tuple[Pod, QuotaPod]]:
        for key, counted in quota.pods.items():
            pod = self._book.pod(key)
            if pod is None or not counted.is_assigned:
                continue
            started = pod.status.start_time
            each = QuotaPod(
                name=key,
                priority=pod.spec.priority or 0,
                start_s=parse_rfc3339(started) if started else self._handle.clock.now(),
                request=amounts_of(counted.amounts),
                is_preemptible=counted.is_preemptible,
            )
            yield pod, each

    async def _evict(self, pod: Pod, quota: Quota) -> None:
        meta, about = pod.metadata, {"pod": pod.key, "quota": quota.spec.name}
        try:
            await self._handle.cluster.evict(meta.namespace, meta.name, uid=meta.uid)
        except errors.NotFound:
            return
        except errors.ApiError as error:
            log.warning(
                "pod above the runtime of its quota not evicted", extra={**about, "error": str(error)}
            )
            return
        self._evicted[pod.key] = meta.uid
        log.info("pod above the runtime of its quota evicted", extra=about)
        why = f"Evicted: quota {quota.spec.name} uses more than its runtime, which others ask for"
        self._handle.actions.event("", pod, "Warning", "QuotaOverused", why)


NODES_MAX = 256
"""Nodes tried per attempt: the next attempt begins where this one ended."""


class QuotaPreemption:
    """PostFilter of ElasticQuota."""

    def __init__(self, args: ElasticQuotaArgs, handle: Handle, book: QuotaBook) -> None:
        self._handle = handle
        self._book = book
        self._has_runtime = args.enable_runtime_quota
        self._protects_default = args.disable_default_quota_preemption
        self._budgets = handle.shared(Budgets, followed_budgets)
        self._eviction = PreemptionExecutor(handle)
        self._start = 0

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        """Evicts pods of the same quota in the background when that makes room."""
        result, best = self._decide(pod, diagnosis)
        if best is not None:
            self._eviction.start(pod, best, diagnosis.profile_name)
        return result

    def outlook(self, pod: PodInfo, diagnosis: Diagnosis) -> Outlook:
        """Return what `post_filter` would do."""
        result, best = self._decide(pod, diagnosis)
        if best is None:
            return Outlook(result)
        chain = PreemptionOffer(best.node_name, tuple(victim.pod for victim in best.victims), best.violations)
        return Outlook(result, (chain,))

    def _decide(self, pod: PodInfo, diagnosis: Diagnosis) -> tuple[PostFilterResult, Candidate | None]:
        ref = self._book.quota_of(pod.pod)
        quota, lesser = self._book.quota_at(ref), self.lesser(pod, ref)
        if quota is None or not lesser or self.objection(pod, ref, diagnosis):
            return PostFilterResult(unschedulable()), None  # nothing that users need to be told
        request, limit = self._request(pod, quota), quota.limit(has_runtime=self._has_runtime)
        table, now_s = self._handle.table, self._handle.clock.now()

        def has_room() -> bool:
            """The books of the quota follow trials of the table."""
            return fits(request, quota.max, quota.below.used, limit)

        found = (
            try_without(
                [Victim.of(each, now_s) for each in lesser[row]],
                table,
                row,
                self._budgets,
                diagnosis,
                has_room,
            )
            for row in self._next_of(list(lesser))
        )
        best = victims.choose(each for each in found if isinstance(each, Candidate))
        if best is None:
            text = f"preemption: no eviction of less important pods of quota {ref.name} would make room"
            return PostFilterResult(unschedulable(text)), None
        return PostFilterResult(SUCCESS, nominated_node=best.node_name), best

    def _request(self, pod: PodInfo, quota: Quota) -> Nanos:
        counted = quota.pods.get(pod.key)
        return counted.request if counted is not None else nanos_of(self._book.request_of(pod.pod))

    def objection(self, pod: PodInfo, ref: QuotaRef, diagnosis: Diagnosis) -> str:
        """Return why a pod of the quota may not preempt now; "" when it may."""

        def is_leaving(other: PodInfo) -> bool:
            is_deleted = other.pod.metadata.deletion_timestamp is not None
            return is_deleted and self._book.counted_in(other.key).name == ref.name

        return objection(self._handle, pod, diagnosis, is_leaving)

    def lesser(self, pod: PodInfo, ref: QuotaRef) -> dict[int, list[PodInfo]]:
        """Row → pods of the quota that may go for one of it, in order of rows."""
        table, quota = self._handle.table, self._book.quota_at(ref)
        found: dict[int, list[PodInfo]] = {}
        if quota is None or (self._protects_default and ref.name == DEFAULT):
            return found
        for key, counted in quota.pods.items():
            known = self._book.pod(key) if counted.is_assigned else None
            place = table.place_of(known.metadata.uid or key) if known is not None else None
            if place is not None and victims.may_evict(pod, place.pod):
                found.setdefault(place.row, []).append(place.pod)
        return dict(sorted(found.items()))

    def _next_of(self, rows: list[int]) -> list[int]:
        """Return the nodes to try, at most `NODES_MAX`."""
        first = self._start % len(rows) if len(rows) > NODES_MAX else 0
        self._start = first + NODES_MAX
        return (rows[first:] + rows[:first])[:NODES_MAX]
