"""One scheduling cycle: evaluate, pick, and book by the steps. No I/O. Source: behaviour/scheduler B3."""

from collections.abc import Hashable, Mapping

import msgspec

from koordinator.scheduler.engine import pick, post_filter
from koordinator.scheduler.engine.batch import Batch, BatchWatch, Trigger
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.evaluation_cache import EvaluationCache
from koordinator.scheduler.engine.post_filter import Answered, CycleDiagnosis, KeptFree
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.engine.results import (
    FREE,
    ExtenderAdvice,
    PendingPod,
    Placed,
    Steering,
    Unplaced,
    along,
    pending_by,
    refused,
    steer,
    with_job,
)
from koordinator.scheduler.engine.steps import CycleSteps
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.plugin.capabilities import JobRefusal, PlacementPlan, SharedFailure
from koordinator.scheduler.plugin.framework import Later
from koordinator.scheduler.plugin.status import (
    NO_NODES,
    Status,
    by_its_node,
    error,
    unresolvable,
    unschedulable,
)
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import Nominations, PodInfo


class Cycle(CycleSteps):
    """Places pods on the node table, one after the other."""

    def __init__(
        self,
        table: NodeTable,
        cache: EvaluationCache,
        seed: int,
        nominations: Nominations,
        batch_watch: BatchWatch,
    ) -> None:
        super().__init__(table, cache, seed, nominations)
        self._batch_watch = batch_watch
        self.has_advisors = False
        """Services outside are asked about some pods, one by one: plans then have to name the nodes."""

    def shortlist(self, profile: Profile, pod: PodInfo, class_key: Hashable, now_s: float) -> list[str]:
        """Return nodes that pass all filters, to be shown to somebody outside before the cycle runs."""
        profile.refresh(now_s)
        if self.table.node_count == 0:
            return []
        evaluation = self.cache.evaluate(profile, pod, class_key)
        if evaluation.failure is not None or not evaluation.status.is_success:
            return []
        kept_free = self.kept_free(profile, pod, evaluation)
        return [self.table.name_of(row) for row in evaluation.feasible.tolist() if row not in kept_free]

    def run(
        self,
        profile: Profile,
        pod: PodInfo,
        class_key: Hashable,
        attempt: int,
        now_s: float,
        advice: ExtenderAdvice | None = None,
    ) -> Placed | Unplaced:
        """Find a node and book it there, minding the `advice` of others."""
        profile.refresh(now_s)
        if self.table.node_count == 0:
            return Unplaced(pod, unresolvable(NO_NODES), frozenset())
        objection = profile.extensions.begin_attempt(pod)
        if isinstance(objection, SharedFailure):
            return along(pod, objection, self.table.node_count)
        evaluation = self.cache.evaluate(profile, pod, class_key)
        if isinstance(objection, JobRefusal):
            steering = Steering(objection.status, verdict=objection.verdict)
            return with_job(
                self._no_fit(profile, pod, evaluation, {}, steering), objection, profile.class_key
            )
        if not objection.is_success:
            return self._refused(profile, pod, evaluation, Steering(objection))
        if evaluation.failure is not None:
            return Unplaced(pod, evaluation.failure, frozenset(), evaluation=evaluation)
        steering = steer(profile.extensions, evaluation, pod)
        if not steering.status.is_success:
            return self._refused(profile, pod, evaluation, steering)
        is_whole = bool(steering.planned) or not self.has_advisors
        if steering.plan is not None and profile.extensions.batches and is_whole:
            trigger = Trigger(PendingPod(pod, class_key), attempt, steering.planned_by)
            result = self._batch(profile, trigger, evaluation, steering.plan)
            if result is not None:
                return result
            evaluation = self.cache.evaluate(profile, pod, class_key)
            steering = steer(profile.extensions, evaluation, pod, in_batch=True)
        kept_free = self.kept_free(profile, pod, evaluation)
        if advice is not None:
            if not advice.failure.is_success:
                return refused(pod, advice.failure, evaluation)
            kept_free |= self._advised_against(evaluation, advice)
        is_advised = advice is not None
        rows = self._candidates(profile, pod, evaluation, kept_free, steering, is_advised=is_advised)
        if (evaluation.feasible_count if rows is None else rows.size) == 0:
            return self._no_fit(profile, pod, evaluation, kept_free, steering)
        chance = pick.chance_of(self._seed, pod.uid, attempt)
        scores: Mapping[str, int] = {}
        if advice is not None and advice.scores:
            rows, scores = evaluation.feasible if rows is None else rows, advice.scores
        return self._place(profile, pod, evaluation, rows, chance, scores)

    def _advised_against(self, evaluation: Evaluation, advice: ExtenderAdvice) -> KeptFree:
        """Feasible rows that somebody outside objects to."""
        found: KeptFree = {}
        for row in evaluation.feasible.tolist():
            objection = advice.objection(self.table.name_of(row))
            if not objection.is_success:
                found[row] = objection
        return found

    def _place(
        self,
        profile: Profile,
        pod: PodInfo,
        evaluation: Evaluation,
        rows: Rows | None,
        chance: int,
        scores: Mapping[str, int],
    ) -> Placed | Unplaced:
        """Book the best of `rows` (None: of all feasible ones) that Reserve and Permit accept; `scores` by node
        name are added to the totals."""
        count = evaluation.feasible_count if rows is None else int(rows.size)

        def book(row: int) -> Placed | Unplaced | Status:
            return self._book(profile, pod, evaluation, row, count)

        placed: Placed | Unplaced | Status = self._first_that(book, evaluation, rows, chance, scores)
        if isinstance(placed, Status):
            return refused(pod, by_its_node(placed), evaluation)
        return placed

    def _batch(
        self, profile: Profile, trigger: Trigger, evaluation: Evaluation, plan: PlacementPlan
    ) -> Placed | Unplaced | None:
        """Return the pod and all others of its plan on their nodes, or none of them. None when the plan failed and the
        pod is to be tried as if there was none."""
        pod = trigger.candidate.pod
        outcome = Batch(self, self._batch_watch, profile, plan, trigger).run()
        if outcome.refusal is not None:
            if plan.falls_back:
                return None
            refusal, blamed = outcome.refusal, outcome.blamed
            steering = Steering(refusal.by(refusal.plugin or trigger.planned_by))
            unplaced = self._refused(profile, pod, evaluation, steering)
            if blamed is None or not blamed.rejected_by:
                return unplaced
            by = unplaced.rejected_by | blamed.rejected_by
            return msgspec.structs.replace(unplaced, rejected_by=by, about=blamed.candidate)
        own = next((each for each in outcome.placed if each.pod.uid == pod.uid), None)
        if own is not None:
            return msgspec.structs.replace(
                own, together=tuple(each for each in outcome.placed if each is not own)
            )
        left_out = next((each for each in outcome.left_out if each.candidate.pod.uid == pod.uid), None)
        if left_out is None:
            for each in outcome.placed:
                self.forget(profile, each.pod, each.evaluation, each.node_name)
            text = f"pod {pod.key} is not in its own plan"
            return refused(pod, error(text).by(trigger.planned_by), evaluation)
        return Unplaced(
            pod, left_out.status, left_out.rejected_by, evaluation=evaluation, together=outcome.placed
        )

    def _refused(
        self, profile: Profile, pod: PodInfo, evaluation: Evaluation, steering: Steering
    ) -> Unplaced:
        """By a plugin that was asked after PreFilter."""
        if steering.status.is_rejected:
            return self._no_fit(profile, pod, evaluation, {}, steering)
        return refused(pod, steering.status, evaluation)

    def _book(
        self, profile: Profile, pod: PodInfo, evaluation: Evaluation, row: int, feasible_count: int
    ) -> Placed | Unplaced | Status:
        """Assume, reserve and ask for permission; undone as a whole when somebody refuses or raises."""
        booked = self._assume(profile, pod, evaluation, row)
        if not isinstance(booked, PodInfo):
            return booked
        name = self.table.name_of(row)
        try:
            waits = self.permit(profile, booked, evaluation, name)
        except Exception:
            self.forget(profile, booked, evaluation, name)
            raise
        if isinstance(waits, Status):
            self.forget(profile, booked, evaluation, name)
            return waits
        nominated = self._nominations.node_of(booked.uid)
        self._nominations.remove(booked.uid)
        return Placed(booked, name, evaluation, feasible_count, waits, nominated_before=nominated)

    def _no_fit(
        self,
        profile: Profile,
        pod: PodInfo,
        evaluation: Evaluation,
        kept_free: KeptFree,
        steering: Steering = FREE,
    ) -> Unplaced:
        view = View(profile, self.table, self._nominations, pod)
        found = CycleDiagnosis(view, evaluation, kept_free, steering)
        asked = post_filter.ask(profile, pod, found)
        later, post_filter_text = asked.later, found.post_filter_text(asked.texts)
        profile.extensions.notify_after_post_filter(pod, found, asked.ended)
        unplaced = Unplaced(
            pod,
            unschedulable(found.fit_error(post_filter_text)),
            found.rejected_by,
            asked.nominated,
            evaluation,
            post_filter_text,
            pending_by(evaluation.status if evaluation.status.is_rejected else steering.status),
            suggestion=found.suggestion,
            verdict=steering.verdict,
        )
        if later is None:
            return unplaced
        return msgspec.structs.replace(unplaced, later=lambda: _finish(unplaced, found, asked, later))


async def _finish(unplaced: Unplaced, found: CycleDiagnosis, asked: Answered, later: Later) -> Unplaced:
    """Return the outcome once a PostFilter plugin has its answer."""
    result = await later()
    if not (result.status.is_success or result.status.is_rejected):
        return Unplaced(unplaced.pod, result.status, frozenset())
    post_filter_text = found.post_filter_text(post_filter.texts_with(asked.texts, result.status))
    return msgspec.structs.replace(
        unplaced,
        status=unschedulable(found.fit_error(post_filter_text)),
        nominated_node=result.nominated_node,
        post_filter_message=post_filter_text,
    )
