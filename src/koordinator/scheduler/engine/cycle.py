"""One scheduling cycle: evaluate, pick, assume, reserve, permit. No I/O. Source: behaviour/scheduler B3."""

import contextlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

import msgspec
import numpy as np

from koordinator.cluster.supervise import Guard
from koordinator.scheduler.engine import pick, post_filter
from koordinator.scheduler.engine.batch import AssumedPod, Batch, BatchWatch, Trigger
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.evaluation_cache import EvaluationCache
from koordinator.scheduler.engine.pick import ZoneOrder
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
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.plugin.capabilities import JobRefusal, PlacementPlan, SharedFailure
from koordinator.scheduler.plugin.framework import Later
from koordinator.scheduler.plugin.status import (
    NO_NODES,
    SUCCESS,
    Status,
    by_its_node,
    error,
    unresolvable,
    unschedulable,
)
from koordinator.scheduler.table.columns import NOT_FEASIBLE, Rows
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import Nominations, PodInfo

RESERVE_TRIES_MAX = 16
"""Nodes tried in one cycle when Reserve refuses one after the other: more means that Filter is blind."""

B = TypeVar("B")

Waiting = Callable[[PodInfo, str], PendingPod | Status]
"""A pod of a plan that was made by the plugin of that name: as it waits in the queue, or what holds it back."""


class Cycle:
    """Places pods on the node table, one after the other."""

    def __init__(
        self,
        table: NodeTable,
        cache: EvaluationCache,
        seed: int,
        batch_watch: BatchWatch,
        nominations: Nominations | None = None,
    ) -> None:
        self.batch_watch = batch_watch
        self.waiting: Waiting | None = None
        """Pods of plans that wait; None when there is no queue, and all of them may be placed."""
        self.has_advisors = False
        """Services outside are asked about some pods, one by one: plans then have to name the nodes."""
        self._table = table
        self._cache = cache
        self._seed = seed
        self._nominations = nominations if nominations is not None else Nominations()
        self._sample_start = 0
        self._guard = Guard("scheduler plugins, forgetting a pod")

    def shortlist(self, profile: Profile, pod: PodInfo, class_key: Hashable, now_s: float) -> list[str]:
        """Return nodes that pass all filters, to be shown to somebody outside before the cycle runs."""
        profile.refresh(now_s)
        if self._table.node_count == 0:
            return []
        evaluation = self._cache.evaluate(profile, pod, class_key)
        if evaluation.failure is not None or not evaluation.status.is_success:
            return []
        kept_free = self.kept_free(profile, pod, evaluation) if len(self._nominations) else {}
        return [self._table.name_of(row) for row in evaluation.feasible.tolist() if row not in kept_free]

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
        if self._table.node_count == 0:
            return Unplaced(pod, unresolvable(NO_NODES), frozenset())
        objection = profile.extensions.begin_attempt(pod) if profile.extensions.attempts else SUCCESS
        if isinstance(objection, SharedFailure):
            return along(pod, objection, self._table.node_count)
        evaluation = self._cache.evaluate(profile, pod, class_key)
        if isinstance(objection, JobRefusal):
            steering = Steering(objection.status, verdict=objection.verdict)
            return with_job(
                self._no_fit(profile, pod, evaluation, {}, steering), objection, profile.class_key
            )
        if not objection.is_success:
            return self._refused(profile, pod, evaluation, Steering(objection))
        if evaluation.failure is not None:
            return Unplaced(pod, evaluation.failure, frozenset(), evaluation=evaluation)
        steering = FREE
        if profile.extensions.steers and evaluation.status.is_success:
            steering = steer(profile.extensions, evaluation, pod)
            if not steering.status.is_success:
                return self._refused(profile, pod, evaluation, steering)
            is_whole = bool(steering.planned) or not self.has_advisors
            if steering.plan is not None and profile.extensions.batches and is_whole:
                trigger = Trigger(PendingPod(pod, class_key), attempt, steering.planned_by)
                result = self._batch(profile, trigger, evaluation, steering.plan)
                if result is not None:
                    return result
                evaluation = self._cache.evaluate(profile, pod, class_key)
                steering = steer(profile.extensions, evaluation, pod, in_batch=True)
        kept_free = self.kept_free(profile, pod, evaluation) if len(self._nominations) else {}
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
            objection = advice.objection(self._table.name_of(row))
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

    def _first_that(
        self,
        books: Callable[[int], B | Status],
        evaluation: Evaluation,
        rows: Rows | None,
        chance: int,
        scores: Mapping[str, int],
    ) -> B | Status:
        """Return what `books` makes of the best row that does not refuse; the last refusal, or an error, when none."""
        totals = evaluation.totals if rows is None else evaluation.totals_of(rows)
        if scores and rows is not None:
            totals = totals + np.array([scores.get(self._table.name_of(row), 0) for row in rows.tolist()])
        status = SUCCESS
        for _ in range(RESERVE_TRIES_MAX):
            if totals is evaluation.totals:
                position = evaluation.best(chance)
            else:
                position = pick.best(totals, chance)
            if position is None:
                break
            found = books(position if rows is None else int(rows[position]))
            if not isinstance(found, Status):
                return found
            status = found
            if not status.is_rejected:
                break
            totals = totals.copy()
            totals[position] = NOT_FEASIBLE
        return status

    def _batch(
        self, profile: Profile, trigger: Trigger, evaluation: Evaluation, plan: PlacementPlan
    ) -> Placed | Unplaced | None:
        """Return the pod and all others of its plan on their nodes, or none of them. None when the plan failed and the
        pod is to be tried as if there was none."""
        pod = trigger.candidate.pod
        outcome = Batch(self, profile, plan, trigger).run()
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

    def kept_free(self, profile: Profile, pod: PodInfo, evaluation: Evaluation) -> KeptFree:
        """Feasible rows where the pod would take the place of nominated pods that are as important."""
        view = View(profile, self._table, self._nominations, pod)
        found: KeptFree = {}
        for name in sorted(self._nominations.nodes):
            row = self._table.row_of(name)
            if row is None or not evaluation.is_feasible(row):
                continue
            status = view.check_with_nominated(row)
            if not status.is_success:
                found[row] = status
        return found

    def _candidates(
        self,
        profile: Profile,
        pod: PodInfo,
        evaluation: Evaluation,
        kept_free: KeptFree,
        steering: Steering = FREE,
        *,
        is_advised: bool = False,
    ) -> Rows | None:
        """Feasible rows to choose from, None for all: the planned node alone, or else the nominated one if it is
        feasible, then the first of those preferred, or a sample."""
        nominated = self._nominations.node_for(pod)
        if nominated and not steering.planned:
            row = self._table.row_of(nominated)
            if row is not None and evaluation.is_feasible(row) and row not in kept_free:
                return np.array([row], np.intp)
        if steering is not FREE:
            for name in (steering.planned,) if steering.planned else steering.preferred:
                row = self._table.row_of(name)
                if row is not None and evaluation.is_feasible(row) and row not in kept_free:
                    return np.array([row], np.intp)
            if steering.planned:
                return np.empty(0, np.intp)
        if not kept_free and profile.sample_percent is None:
            return None
        feasible = evaluation.feasible
        if kept_free:
            feasible = feasible[~np.isin(feasible, list(kept_free))]
        if profile.sample_percent is None:
            return feasible
        all_rows = evaluation.candidates
        wanted = pick.nodes_to_find(int(all_rows.size), profile.sample_percent)
        if not profile.scorers and not is_advised:
            wanted = 1  # nobody would tell one from the other
        start = self._sample_start % max(int(all_rows.size), 1)
        rows, looked_at = pick.sample(feasible, self._table.shared(ZoneOrder).of(all_rows), start, wanted)
        self._sample_start = (self._sample_start + looked_at) % self._table.node_count
        return rows

    def _book(
        self, profile: Profile, pod: PodInfo, evaluation: Evaluation, row: int, feasible_count: int
    ) -> Placed | Unplaced | Status:
        """Assume, reserve and ask for permission; undone as a whole when somebody refuses or raises."""
        booked = self._assume(profile, pod, evaluation, row)
        if not isinstance(booked, PodInfo):
            return booked
        name = self._table.name_of(row)
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

    def _assume(
        self, profile: Profile, pod: PodInfo, evaluation: Evaluation, row: int
    ) -> PodInfo | Unplaced | Status:
        """Count and reserve; the pod as it counts, or the refusal, after which nothing is left of it. An `Unplaced` is
        final: other rows need not be tried."""
        name, books = self._table.name_of(row), profile.extensions.books
        booked = self._to_book(profile, pod, evaluation, row) if books else pod
        if isinstance(booked, Status):
            return refused(pod, booked, evaluation)
        sequence = self._table.changes.sequence
        try:
            self._table.assign(booked, name, assumed=True)
            refusal = self._reserve(profile, booked, evaluation, row)
        except Exception:
            self.forget(profile, booked, evaluation, name)
            raise
        if books:
            profile.extensions.forget_nominated(pod.uid)
        if refusal is not None:
            self.forget(profile, booked, evaluation, name)
            return refusal
        if booked is pod:
            evaluation.follow(row, sequence)
        return booked

    def _reserve(self, profile: Profile, pod: PodInfo, evaluation: Evaluation, row: int) -> Status | None:
        """Return the first refusal; None when all exact resources are booked."""
        states = evaluation.states
        for plugin in profile.reserves:
            status = plugin.reserve(states[plugin.name], pod, row)
            if status is not SUCCESS and not status.is_success:
                return status.by(plugin.name)
        return None

    def permit(
        self, profile: Profile, pod: PodInfo, evaluation: Evaluation, node_name: str
    ) -> dict[str, float] | Status:
        """Return which Permit plugins hold the pod for how many seconds, or the refusal."""
        waits: dict[str, float] = {}
        for permit in profile.permits:
            result = permit.permit(evaluation.state_of(permit.name), pod, node_name)
            if result.timeout_s > 0:
                waits[permit.name] = result.timeout_s
            elif not result.status.is_success:
                return result.status.by(permit.name)
        return waits

    # For pods that are placed together

    def row_of(self, node_name: str) -> int | None:
        """Return the row of an existing node."""
        return self._table.row_of(node_name)

    def is_counted(self, pod: PodInfo) -> bool:
        """Return whether the pod is on a node already, assumed or confirmed."""
        return self._table.place_of(pod.uid) is not None

    def candidate(self, profile: Profile, pod: PodInfo, planned_by: str) -> PendingPod | Status:
        """Return a pod of a plan, or what holds it back."""
        if self.waiting is None:
            return PendingPod(pod, profile.class_key(pod))
        return self.waiting(pod, planned_by)

    def evaluate(self, profile: Profile, pod: PodInfo, class_key: Hashable) -> Evaluation:
        """Return the current evaluation of the pod's class."""
        return self._cache.evaluate(profile, pod, class_key)

    def assume(self, profile: Profile, pod: PodInfo, evaluation: Evaluation, row: int) -> PodInfo | Status:
        """Count and reserve; the pod as it counts, or the refusal, after which nothing is left of it."""
        booked = self._assume(profile, pod, evaluation, row)
        return booked.status if isinstance(booked, Unplaced) else booked

    def assume_best(
        self, profile: Profile, pod: PodInfo, evaluation: Evaluation, steering: Steering, attempt: int
    ) -> AssumedPod | Unplaced:
        """Count and reserve on the best node that takes the pod."""
        kept_free = self.kept_free(profile, pod, evaluation) if len(self._nominations) else {}
        rows = None
        if steering.status.is_success:
            rows = self._candidates(profile, pod, evaluation, kept_free, steering)
        has_room = (evaluation.feasible_count if rows is None else rows.size) > 0
        if not (steering.status.is_success and evaluation.status.is_success and has_room):
            view = View(profile, self._table, self._nominations, pod)
            found = CycleDiagnosis(view, evaluation, kept_free, steering)
            return Unplaced(pod, unschedulable(found.fit_error("")), found.rejected_by, evaluation=evaluation)

        def book(row: int) -> AssumedPod | Unplaced | Status:
            booked = self._assume(profile, pod, evaluation, row)
            if isinstance(booked, PodInfo):
                return AssumedPod(booked, evaluation, self._table.name_of(row))
            return booked

        chance = pick.chance_of(self._seed, pod.uid, attempt)
        placed: AssumedPod | Unplaced | Status = self._first_that(book, evaluation, rows, chance, {})
        if isinstance(placed, Status):
            return refused(pod, placed, evaluation)
        return placed

    def placed(self, pod: PodInfo, node_name: str, evaluation: Evaluation, nominated_before: str) -> Placed:
        """Return a pod that waits for nobody."""
        self._nominations.remove(pod.uid)
        count = evaluation.feasible_count
        return Placed(pod, node_name, evaluation, count, {}, nominated_before=nominated_before)

    def set_nominations_aside(self, pods: Iterable[PodInfo]) -> list[tuple[PodInfo, str]]:
        """Take the nominations of pods back: they do not keep room free from each other."""
        found = [(pod, self._nominations.node_of(pod.uid)) for pod in pods]
        for pod, _ in found:
            self._nominations.remove(pod.uid)
        return [(pod, node_name) for pod, node_name in found if node_name]

    def nominate_again(self, nominated: Iterable[tuple[PodInfo, str]]) -> None:
        """Undo `set_nominations_aside`."""
        for pod, node_name in nominated:
            self._nominations.set(pod, node_name)

    def _to_book(self, profile: Profile, pod: PodInfo, evaluation: Evaluation, row: int) -> PodInfo | Status:
        """Return the pod as it shall count on the chosen node, or why it cannot be placed after all."""
        extensions, states = profile.extensions, evaluation.states
        status = extensions.nominate(states, pod, row).status
        if not (status.is_success or status.is_skip):
            return status
        seen = extensions.resize(states, pod, self._table.name_of(row))
        return seen.pod if seen.status.is_success else seen.status

    def forget(self, profile: Profile, pod: PodInfo, evaluation: Evaluation, node_name: str) -> None:
        """Undo a placement: unreserve in reverse order, count the pod no longer, tell who wants to know.

        All of it happens, whatever plugins raise meanwhile. A pod that the API says is on a node stays there, be
        it this one or another.
        """
        with contextlib.ExitStack() as steps:  # the last step first
            for handler in reversed(profile.forget_handlers):
                steps.callback(self._guard.call, handler, pod, node_name)
            steps.callback(self._unassume, pod.uid)
            for plugin in profile.reserves:
                steps.callback(
                    self._guard.call, plugin.unreserve, evaluation.state_of(plugin.name), pod, node_name
                )

    def _unassume(self, uid: str) -> None:
        place = self._table.place_of(uid)
        if place is not None and place.assumed:
            self._table.unassign(uid)

    def _no_fit(
        self,
        profile: Profile,
        pod: PodInfo,
        evaluation: Evaluation,
        kept_free: KeptFree,
        steering: Steering = FREE,
    ) -> Unplaced:
        view = View(profile, self._table, self._nominations, pod)
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
