"""DefaultPreemption as a plugin: who may preempt, dry runs on the node table, the nomination."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Annotated

import msgspec
import numpy as np

from koordinator.api.policy import PodDisruptionBudget
from koordinator.scheduler import diagnosis, pick
from koordinator.scheduler.framework import (
    Diagnosis,
    Handle,
    Outlook,
    PostFilterPlugin,
    PostFilterResult,
    Watch,
)
from koordinator.scheduler.framework import Eviction as EvictionWay
from koordinator.scheduler.nodes import ColumnSpec, RowKeeper, Rows, Trial
from koordinator.scheduler.plugins.preemption import victims
from koordinator.scheduler.plugins.preemption.eviction import PREEMPTION, Eviction, has_condition
from koordinator.scheduler.plugins.preemption.victims import Budget, Candidate, Victim
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.status import SUCCESS, Code, Status, error, unresolvable, unschedulable

NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = unresolvable("No preemption victims found for incoming pod")
NOT_TRIED = "Preemption was not tried in this attempt"
DRY_RUNS_MAX = 256
"""Nodes tried per attempt, about 0.2 s for which other pods wait. The next attempt begins elsewhere."""
NO_POD = np.iinfo(np.int64).max

Check = Callable[[int], Status]


class PreemptionArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How many candidates to look for: a percentage of the nodes, but no fewer than an absolute number."""

    min_candidate_nodes_percentage: Annotated[int, msgspec.Meta(ge=0, le=100)] = 10
    min_candidate_nodes_absolute: Annotated[int, msgspec.Meta(ge=0)] = 100

    def __post_init__(self) -> None:
        if not self.min_candidate_nodes_percentage and not self.min_candidate_nodes_absolute:
            raise ValueError("minCandidateNodesPercentage and minCandidateNodesAbsolute cannot both be zero")


class DefaultPreemption(PostFilterPlugin[None], RowKeeper):
    name = "DefaultPreemption"
    args = PreemptionArgs

    def __init__(self, args: PreemptionArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._percentage = args.min_candidate_nodes_percentage
        self._absolute = args.min_candidate_nodes_absolute
        self._table = handle.table
        self._lowest = handle.columns["lowestPriority"]
        self._priorities: dict[int, Counter[int]] = {}
        self._budgets: dict[str, Budget] = {}
        self._attempt_count = 0
        self._eviction = Eviction(handle)
        handle.watch(
            Watch(
                PodDisruptionBudget,
                on_add=self.set_budget,
                on_update=lambda _, new: self.set_budget(new),
                on_delete=lambda budget: self._budgets.pop(budget.key, None),
            )
        )

    @classmethod
    def columns_of(cls, args: PreemptionArgs) -> tuple[ColumnSpec, ...]:
        return (ColumnSpec("lowestPriority", np.int64, fill=NO_POD),)

    def set_budget(self, budget: PodDisruptionBudget) -> None:
        found = Budget.of(budget)
        if found is None:
            self._budgets.pop(budget.key, None)
        else:
            self._budgets[budget.key] = found

    # Who is where

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        self._priorities.setdefault(row, Counter())[pod.priority] += 1
        if pod.priority < self._lowest.values[row]:
            self._lowest.values[row] = pod.priority

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        priorities = self._priorities[row]
        priorities[pod.priority] -= 1
        if not priorities[pod.priority]:
            del priorities[pod.priority]
            self._lowest.values[row] = min(priorities, default=NO_POD)

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        if old.priority != new.priority:
            self.pod_unassigned(row, old)
            self.pod_assigned(row, new)

    def row_freed(self, row: int) -> None:
        self._priorities.pop(row, None)

    # Deciding

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        result, candidates = self._decide(pod, diagnosis)
        best = victims.choose(candidates)
        if best is not None:
            self._eviction.start(pod, best, diagnosis.profile_name)
        self._attempt_count += 1
        return result

    def outlook(self, pod: PodInfo, diagnosis: Diagnosis) -> Outlook:
        result, candidates = self._decide(pod, diagnosis)
        ways = [
            EvictionWay(each.node_name, tuple(victim.pod for victim in each.victims), each.violations)
            for each in sorted(candidates, key=victims.rank)
        ]
        return Outlook(result, tuple(ways))

    def _decide(self, pod: PodInfo, diagnosis: Diagnosis) -> tuple[PostFilterResult, list[Candidate]]:
        if objection := self.objection(pod, diagnosis):
            return PostFilterResult(unschedulable(f"preemption: {objection}")), []
        rows = self._table.rows
        is_hopeless = diagnosis.unresolvable_rows()[rows]
        refusals: Counter[str] = Counter({NOT_HELPFUL: int(is_hopeless.sum())})
        candidates = self.dry_run(pod, rows[~is_hopeless], diagnosis.check, refusals)
        best = victims.choose(candidates)
        if best is None:
            # A nomination that preemption does not confirm would only keep room from others.
            return PostFilterResult(unresolvable(self._message(refusals)), nominated_node=""), []
        return PostFilterResult(SUCCESS, nominated_node=best.node_name), candidates

    def _message(self, refusals: Counter[str]) -> str:
        counted = {reason: count for reason, count in refusals.items() if count}
        return f"preemption: {diagnosis.fit_error(self._table.node_count, counted)}"

    def objection(self, pod: PodInfo, diagnosis: Diagnosis) -> str:
        """Why the pod may not preempt; "" when it may."""
        nominated = self.handle.nominations.node_of(pod.uid) or pod.pod.status.nominated_node_name
        row = self._table.row_of(nominated) if nominated else None
        status = diagnosis.status_of(row) if row is not None else SUCCESS
        there = self._table.pods_at(row).values() if row is not None else ()
        if self._eviction.is_under_way(pod.uid):
            return "not eligible due to a preemption of the pod that is not finished."
        return objection(pod, status, there)

    def dry_run(self, pod: PodInfo, rows: Rows, check: Check, refusals: Counter[str]) -> list[Candidate]:
        """Candidates among `rows`, enough of them; why the others are none is added to `refusals`."""
        has_victims = self._lowest.values[rows] < pod.priority
        refusals[NO_VICTIMS.message] += int(rows.size - has_victims.sum())
        rows = rows[has_victims]
        wanted = min(max(rows.size * self._percentage // 100, self._absolute), int(rows.size))
        found: list[Candidate] = []
        harmless_count = 0
        rows = self._from_somewhere(pod, rows)
        refusals[NOT_TRIED] += int(rows[DRY_RUNS_MAX:].size)
        for row in rows[:DRY_RUNS_MAX].tolist():
            candidate = self._try(pod, row, check)
            if isinstance(candidate, Candidate):
                found.append(candidate)
                harmless_count += candidate.violations == 0
                if harmless_count and len(found) >= wanted:
                    break
            else:
                refusals.update(candidate.reasons)
        return found

    def _from_somewhere(self, pod: PodInfo, rows: Rows) -> Rows:
        """All rows; those that were left out last time come first sooner or later."""
        if rows.size <= self._absolute:
            return rows
        start = pick.chance_of(0, pod.uid, self._attempt_count) % rows.size
        return np.roll(rows, -start)

    def _try(self, pod: PodInfo, row: int, check: Check) -> Candidate | Status:
        """The candidate that the node makes, or why it is none."""
        now_s = self.handle.clock.now()
        name = self._table.name_of(row)
        removed = [
            Victim.of(each, now_s)
            for each in self._table.pods_at(row).values()
            if each.priority < pod.priority
        ]
        if not removed:
            return NO_VICTIMS
        with self._table.trial() as trial:
            for victim in removed:
                trial.take(victim.pod)
            status = check(row)
            if not status.is_success:
                return status
            chosen, violations = self._select(trial, removed, lambda: check(row).is_success, name)
        if not chosen:
            return error(f'expected at least one victim pod on node "{name}"')
        return Candidate(name, chosen, violations)

    def _select(
        self, trial: Trial, removed: list[Victim], fits: Callable[[], bool], name: str
    ) -> tuple[tuple[Victim, ...], int]:
        return victims.select(
            removed,
            tuple(self._budgets.values()),
            put_back=lambda victim: trial.add(victim.pod, name),
            take=lambda victim: trial.take(victim.pod),
            fits=fits,
        )


def objection(pod: PodInfo, nominated_status: Status, on_nominated_node: Iterable[PodInfo]) -> str:
    """Why a pod may not preempt. `nominated_status` is what its nominated node got in this cycle, success
    when it has none; `on_nominated_node` are the pods there."""
    if pod.pod.spec.preemption_policy == "Never":
        return "not eligible due to preemptionPolicy=Never."
    if nominated_status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
        return ""
    for other in on_nominated_node:
        is_leaving = other.pod.metadata.deletion_timestamp is not None
        if other.priority < pod.priority and is_leaving and has_condition(other.pod, PREEMPTION):
            return "not eligible due to a terminating pod on the nominated node."
    return ""
