"""Make room for a pod by evicting less important ones: who may, dry runs on the node table, the nomination; the plugin
DefaultPreemption, reviewed by extenders where there are any. Source: behaviour/scheduler B7."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from koordinator.api import pod_labels
from koordinator.api.groups import PodDisruptionBudget
from koordinator.scheduler.engine import pick
from koordinator.scheduler.plugin.capabilities import PreemptionReviewer, ReviewedPreemption
from koordinator.scheduler.plugin.events import ClusterEvent
from koordinator.scheduler.plugin.framework import (
    Diagnosis,
    Handle,
    Outlook,
    Plugin,
    PostFilterPlugin,
    PostFilterResult,
    PreemptionOffer,
    PreEnqueuePlugin,
    Watch,
)
from koordinator.scheduler.plugin.status import (
    SKIP,
    SUCCESS,
    Code,
    Status,
    fit_error,
    unresolvable,
    unschedulable,
)
from koordinator.scheduler.plugins.node_resources_fit import NodeResourcesFit
from koordinator.scheduler.plugins.preemption import victims
from koordinator.scheduler.plugins.preemption.eviction_index import EvictionIndex
from koordinator.scheduler.plugins.preemption.executor import PreemptionExecutor, is_terminating_victim
from koordinator.scheduler.plugins.preemption.search import FoundCandidates, Search
from koordinator.scheduler.plugins.preemption.victims import Budgets, Candidate, Victim
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo

NOT_HELPFUL = "Preemption is not helpful for scheduling"


def followed_budgets(handle: Handle) -> Budgets:
    """Return all disruption budgets, from now on."""
    budgets = Budgets()
    handle.watch(Watch.newest(PodDisruptionBudget, budgets.set, budgets.remove))
    return budgets


class Preemptor:
    """Preemption for the pods of one plugin; what is under way, and the budgets, are the scheduler's."""

    def __init__(self, handle: Handle, plugin: str, percentage: int, absolute: int) -> None:
        """The number of nodes to look for: a percentage of them, but no fewer than an absolute number."""
        self._plugin = plugin
        self._handle = handle
        self._percentage = percentage
        self._absolute = absolute
        self._table = handle.table
        self.budgets = handle.shared(Budgets, followed_budgets)
        self.search = Search(handle, self.budgets)
        self._attempt_count = 0
        self._eviction = handle.shared(PreemptionExecutor, PreemptionExecutor)

    def is_under_way(self, pod: PodInfo) -> bool:
        """Return whether victims of the pod are still being deleted, all but the last."""
        return pod.uid in self._eviction.under_way

    def attempt(self, pod: PodInfo, diagnosis: Diagnosis) -> tuple[PostFilterResult, FoundCandidates]:
        """Return what PostFilter says, and the candidates; nobody is evicted yet."""
        self._attempt_count += 1
        self._handle.metrics.preemption_attempts.inc()
        return self._decide(pod, diagnosis)

    def evict(self, pod: PodInfo, chosen: Candidate | None, profile_name: str) -> None:
        """Carry a candidate out, if there is one."""
        if chosen is not None:
            self._handle.metrics.preemption_victims.of().observe(len(chosen.victims))
            self._eviction.start(pod, chosen, profile_name, self._plugin)

    def outlook(self, pod: PodInfo, diagnosis: Diagnosis) -> Outlook:
        """Return what an attempt would say, and all that could be evicted."""
        result, found = self._decide(pod, diagnosis)
        offers = [
            PreemptionOffer(each.node_name, tuple(victim.pod for victim in each.victims), each.violations)
            for each in (option.candidate() for option in sorted(found.options, key=lambda offer: offer.rank))
        ]
        return Outlook(result, tuple(offers))

    def _decide(self, pod: PodInfo, diagnosis: Diagnosis) -> tuple[PostFilterResult, FoundCandidates]:
        nothing = FoundCandidates([], Counter())
        if problem := self.objection(pod, diagnosis):
            return PostFilterResult(unschedulable(f"preemption: {problem}")), nothing
        rows = self._table.rows
        is_hopeless = diagnosis.unresolvable_rows()[rows]
        found = self.dry_run(pod, rows[~is_hopeless], diagnosis)
        if not found.options:
            # A nomination that preemption does not confirm would only keep room from others.
            message = self.message(found.refusals, int(is_hopeless.sum()))
            return PostFilterResult(unschedulable(message), nominated_node=""), found
        node_name = min(found.options, key=lambda option: option.rank).node_name
        return PostFilterResult(SUCCESS, nominated_node=node_name), found

    def message(self, refusals: Counter[str], hopeless_count: int) -> str:
        """Return why there is no candidate, for people."""
        counted = dict(refusals)
        if hopeless_count:
            counted[NOT_HELPFUL] = hopeless_count
        return f"preemption: {fit_error(self._table.node_count, counted)}"

    def objection(self, pod: PodInfo, diagnosis: Diagnosis) -> str:
        """Return why the pod may not preempt now; "" when it may."""
        return objection(self._handle, pod, diagnosis, lambda other: is_terminating_victim(other.pod))

    def dry_run(self, pod: PodInfo, rows: Rows, diagnosis: Diagnosis) -> FoundCandidates:
        """Return options among `rows` (rows,), as many as the arguments want."""
        wanted = min(max(int(rows.size) * self._percentage // 100, self._absolute), int(rows.size))
        return self.search.run(pod, self._from_somewhere(pod, rows, wanted), diagnosis, wanted)

    def _from_somewhere(self, pod: PodInfo, rows: Rows, wanted: int) -> Rows:
        """Return all rows; those that were left out last time come first sooner or later."""
        if rows.size <= wanted:
            return rows
        start = pick.chance_of(0, pod.uid, self._attempt_count) % rows.size
        return np.roll(rows, -start)


def objection(
    handle: Handle, pod: PodInfo, diagnosis: Diagnosis, is_leaving: Callable[[PodInfo], bool]
) -> str:
    """Return why a pod may not preempt now; "" when it may. On its nominated node less important pods that are leaving
    make room for it already."""
    if pod.pod.spec.preemption_policy == "Never":
        return "not eligible due to preemptionPolicy=Never."
    row = handle.table.row_of(handle.nominations.node_for(pod))
    if row is None or diagnosis.status_of(row).code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
        return ""
    there = handle.table.pods_at(row).values()
    if any(other.priority < pod.priority and is_leaving(other) for other in there):
        return "not eligible due to a terminating pod on the nominated node."
    return ""


REVIEWED = "Preemption was turned down by extenders"
WAITING = unresolvable("waiting for the preemption for this pod to be finished")


class PreemptionArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The number of candidates to look for: a percentage of the nodes, but no fewer than an absolute number."""

    min_candidate_nodes_percentage: Annotated[int, msgspec.Meta(ge=0, le=100)] = 10
    min_candidate_nodes_absolute: Annotated[int, msgspec.Meta(ge=0)] = 100

    def __post_init__(self) -> None:
        if not self.min_candidate_nodes_percentage and not self.min_candidate_nodes_absolute:
            raise ValueError("minCandidateNodesPercentage and minCandidateNodesAbsolute cannot both be zero")


class DefaultPreemption(PostFilterPlugin[None], PreEnqueuePlugin[None], ReviewedPreemption[None]):
    name = "DefaultPreemption"
    args = PreemptionArgs
    wakes_on = (ClusterEvent.ASSIGNED_POD_DELETED,)

    def __init__(self, args: PreemptionArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.preemptor = Preemptor(
            handle, self.name, args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute
        )
        self._reviewer: PreemptionReviewer | None = None

    # Gate

    def pre_enqueue(self, pod: PodInfo) -> Status:
        """Keep a preemptor out of the queue while its victims are being deleted, all but the last."""
        return WAITING if self.preemptor.is_under_way(pod) else SUCCESS

    # Deciding

    def eviction_index(self, plugins: Mapping[str, Plugin[Any]]) -> EvictionIndex | None:
        fit = plugins.get(NodeResourcesFit.name)
        return EvictionIndex(self.handle.table, fit.checked) if isinstance(fit, NodeResourcesFit) else None

    def review_by(self, reviewer: PreemptionReviewer) -> None:
        self._reviewer = reviewer

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        if pod_labels.is_reserve_pod(pod.pod.metadata.annotations):
            return PostFilterResult(SKIP)  # room for pods to come is not made by evicting those that run
        result, found = self.preemptor.attempt(pod, diagnosis)
        reviewer = self._reviewer
        if found.options and reviewer is not None and reviewer.preempts(pod):
            profile_name = diagnosis.profile_name
            return PostFilterResult(
                unschedulable(), later=lambda: self._reviewed(reviewer, pod, found, profile_name)
            )
        self.preemptor.evict(pod, found.best, diagnosis.profile_name)
        return result

    def outlook(self, pod: PodInfo, diagnosis: Diagnosis) -> Outlook:
        return self.preemptor.outlook(pod, diagnosis)

    async def _reviewed(
        self, reviewer: PreemptionReviewer, pod: PodInfo, found: FoundCandidates, profile_name: str
    ) -> PostFilterResult:
        """Return the result once others have said which of the options are open to them."""
        options = {each.node_name: each for each in (option.candidate() for option in found.options)}
        proposals = {
            name: ([victim.pod for victim in each.victims], each.violations) for name, each in options.items()
        }
        answer = await reviewer.reconsider(pod, proposals)
        if isinstance(answer, Status):
            return PostFilterResult(answer)
        left = []
        for name, each in answer.items():
            # They may name other pods of the node than were proposed.
            chosen = {victim.pod.uid: victim for victim in options[name].victims}
            now_s, row = self.handle.clock.now(), self.handle.table.row_of(name)
            there = {} if row is None else self.handle.table.pods_at(row)
            agreed = [
                chosen[uid] if uid in chosen else Victim.of(there[uid], now_s)
                for uid in each.uids
                if uid in chosen or uid in there
            ]
            left.append(Candidate(name, tuple(victims.by_importance(agreed)), each.violations))
        best = victims.choose(each for each in left if each.victims)
        if best is None:
            refusals = Counter({REVIEWED: len(options)})
            return PostFilterResult(unschedulable(self.preemptor.message(refusals, 0)), nominated_node="")
        self.preemptor.evict(pod, best, profile_name)
        return PostFilterResult(SUCCESS, nominated_node=best.node_name)
