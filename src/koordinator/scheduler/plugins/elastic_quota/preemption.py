"""Room inside a quota: less important pods of the same quota go. Source: behaviour/elastic-quota 14.

`evictions` decides; here the pods of a node are laid before it. Only nodes with such pods are looked at, by
trials of the node table, in which the quota's books follow.
"""

from collections.abc import Callable, Iterator, Sequence

from koordinator.api import quota_labels
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.resource_list import Amounts
from koordinator.scheduler.config.default_plugins import ElasticQuotaArgs
from koordinator.scheduler.plugin.framework import (
    Diagnosis,
    Handle,
    Outlook,
    PostFilterResult,
    PreemptionOffer,
    Watch,
)
from koordinator.scheduler.plugin.status import SUCCESS, Code, unschedulable
from koordinator.scheduler.plugins.elastic_quota import evictions
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.evictions import QuotaPod, VictimReason
from koordinator.scheduler.plugins.elastic_quota.forest import QuotaRef
from koordinator.scheduler.plugins.elastic_quota.quota import DEFAULT, Nanos, Quota, amounts_of
from koordinator.scheduler.plugins.preemption import victims
from koordinator.scheduler.plugins.preemption.executor import PreemptionExecutor
from koordinator.scheduler.plugins.preemption.victims import Budgets, Candidate, Victim
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import trial_of

NODES_MAX = 256
"""Nodes tried per attempt: the next attempt begins where this one ended."""

LimitOf = Callable[[Quota], Nanos]


class QuotaPreemption:
    """PostFilter of ElasticQuota."""

    def __init__(self, args: ElasticQuotaArgs, handle: Handle, book: QuotaBook, limit_of: LimitOf) -> None:
        self._handle = handle
        self._book = book
        self._limit_of = limit_of
        self._protects_default = args.disable_default_quota_preemption
        self._budgets = Budgets()
        self._eviction = PreemptionExecutor(handle)
        self._start = 0
        handle.watch(Watch.newest(PodDisruptionBudget, self._budgets.set, self._budgets.remove))

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
        tree = self._book.tree_of(ref)
        quota = tree.get(ref.name) if tree is not None else None
        if tree is None or quota is None or (self._protects_default and ref.name == DEFAULT):
            return PostFilterResult(unschedulable()), None
        if self._objection(pod, ref, diagnosis):
            return PostFilterResult(unschedulable()), None  # DefaultPreemption says the same
        request = amounts_of({k: n for k, n in self._request(pod, quota).items() if k in quota.max})
        limit, used = amounts_of(self._limit_of(quota)), amounts_of(quota.below.used)
        rows = list(self._rows(pod, ref, quota))
        if not rows:
            return PostFilterResult(unschedulable()), None  # nothing that users need to be told
        found = [
            candidate
            for row, lesser in rows
            if (candidate := self._try(pod, row, lesser, ref, request, used, limit, diagnosis)) is not None
        ]
        best = victims.choose(found)
        if best is None:
            text = f"preemption: no eviction of less important pods of quota {ref.name} would make room"
            return PostFilterResult(unschedulable(text)), None
        return PostFilterResult(SUCCESS, nominated_node=best.node_name), best

    def _request(self, pod: PodInfo, quota: Quota) -> Nanos:
        counted = quota.pods.get(pod.key)
        if counted is not None:
            return counted.request
        return {name: amount.nanos for name, amount in self._book.ask_of(pod.pod).request.items()}

    def _objection(self, pod: PodInfo, ref: QuotaRef, diagnosis: Diagnosis) -> str:
        nominated = self._handle.nominations.node_of(pod.uid) or pod.pod.status.nominated_node_name
        table = self._handle.table
        row = table.row_of(nominated) if nominated else None
        there = table.pods_at(row).values() if row is not None else ()
        return evictions.objection(
            self._rival(pod, ref),
            never=pod.pod.spec.preemption_policy == "Never",
            nominated_code=diagnosis.status_of(row).code if row is not None else Code.SUCCESS,
            on_nominated_node=[self._rival(each, self._book.counted_in(each.key)) for each in there],
        )

    def _rows(self, pod: PodInfo, ref: QuotaRef, quota: Quota) -> Iterator[tuple[int, list[PodInfo]]]:
        """Yield nodes with pods that may go for this one, and these pods; at most `NODES_MAX`."""
        table, own = self._handle.table, self._rival(pod, ref)
        lesser: dict[int, list[PodInfo]] = {}
        for key, counted in quota.pods.items():
            known = self._book.pod(key) if counted.is_assigned else None
            place = table.place_of(known.metadata.uid or key) if known is not None else None
            if place is None or place.pod.priority >= pod.priority:
                continue
            allowed = evictions.may_evict(
                own, self._rival(place.pod, ref), protects_default=self._protects_default
            )
            if allowed is VictimReason.OK:
                lesser.setdefault(place.row, []).append(place.pod)
        rows = sorted(lesser)
        first = self._start % len(rows) if len(rows) > NODES_MAX else 0
        self._start = first + NODES_MAX
        for row in (*rows[first:], *rows[:first])[:NODES_MAX]:
            yield row, lesser[row]

    def _try(
        self,
        pod: PodInfo,
        row: int,
        lesser: Sequence[PodInfo],
        ref: QuotaRef,
        request: Amounts,
        used: Amounts,
        limit: Amounts,
        diagnosis: Diagnosis,
    ) -> Candidate | None:
        table, now_s = self._handle.table, self._handle.clock.now()
        name = table.name_of(row)
        ranked = victims.by_importance(Victim.of(each, now_s) for each in lesser)
        by_key = {each.pod.key: each for each in ranked}
        protected, harmless = victims.split(ranked, self._budgets.all())

        def rivals(group: Sequence[Victim]) -> list[QuotaPod]:
            return [self._rival(each.pod, ref, each.start_s) for each in group]

        def fits(staying: Sequence[QuotaPod]) -> bool:
            kept = {rival.name for rival in staying}
            with trial_of(table) as trial:
                for victim in ranked:
                    if victim.pod.key not in kept:
                        trial.take(victim.pod)
                return diagnosis.check(row).is_success

        choice = evictions.choose_victims(
            request, rivals(protected), rivals(harmless), used=used, limit=limit, fits=fits
        )
        if choice.code is not Code.SUCCESS or not choice.victims:
            return None
        gone = victims.by_importance(by_key[rival.name] for rival in choice.victims)
        return Candidate(name, tuple(gone), choice.violations)

    def _rival(self, pod: PodInfo, ref: QuotaRef, start_s: float = 0.0) -> QuotaPod:
        tree = self._book.tree_of(ref)
        quota = tree.get(ref.name) if tree is not None else None
        counted = quota.pods.get(pod.key) if quota is not None else None
        meta = pod.pod.metadata
        return QuotaPod(
            name=pod.key,
            quota=ref.name,
            priority=pod.priority,
            start_s=start_s,
            request=amounts_of(counted.amounts) if counted is not None else {},
            is_preemptible=not quota_labels.is_pod_non_preemptible(meta.labels),
            is_counted=counted is not None,
            is_terminating=meta.deletion_timestamp is not None,
        )
