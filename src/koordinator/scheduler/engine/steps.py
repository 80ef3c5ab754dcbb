"""The steps of scheduling cycles: counting pods on nodes, reserving, asking for permission, and undoing it. No I/O.
Source: behaviour/scheduler B3."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec
import numpy as np

from koordinator.cluster.supervise import Guard
from koordinator.scheduler.engine import pick
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.evaluation_cache import EvaluationCache
from koordinator.scheduler.engine.pick import ZoneOrder
from koordinator.scheduler.engine.post_filter import CycleDiagnosis, KeptFree
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.engine.results import FREE, PendingPod, Placed, Steering, Unplaced, refused
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.plugin.status import SUCCESS, Status, unschedulable
from koordinator.scheduler.table.columns import NOT_FEASIBLE, Rows
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import Nominations, PodInfo

RESERVE_TRIES_MAX = 16
"""Nodes tried in one cycle when Reserve refuses one after the other: more means that Filter is blind."""

B = TypeVar("B")

Waiting = Callable[[PodInfo, str], PendingPod | Status]
"""A pod of a plan that was made by the plugin of that name: as it waits in the queue, or what holds it back."""


class AssumedPod(msgspec.Struct, frozen=True):
    """A pod that is counted and reserved on its node; `pod` is as it counts there."""

    pod: PodInfo
    evaluation: Evaluation
    node_name: str


class CycleSteps:
    """The steps, for the pod of a cycle as for all pods of a plan."""

    def __init__(self, table: NodeTable, cache: EvaluationCache, seed: int, nominations: Nominations) -> None:
        self.waiting: Waiting | None = None
        """Pods of plans that wait; None when there is no queue, and all of them may be placed."""
        self.table = table
        self.cache = cache
        self._seed = seed
        self._nominations = nominations
        self._sample_start = 0
        self._guard = Guard("scheduler plugins, forgetting a pod")

    def candidate(self, profile: Profile, pod: PodInfo, planned_by: str) -> PendingPod | Status:
        """Return a pod of a plan, or what holds it back."""
        if self.waiting is None:
            return PendingPod(pod, profile.class_key(pod))
        return self.waiting(pod, planned_by)

    def kept_free(self, profile: Profile, pod: PodInfo, evaluation: Evaluation) -> KeptFree:
        """Feasible rows where the pod would take the place of nominated pods that are as important."""
        if not len(self._nominations):
            return {}
        view = View(profile, self.table, self._nominations, pod)
        found: KeptFree = {}
        for name in sorted(self._nominations.nodes):
            row = self.table.row_of(name)
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
        planned = steering.planned
        for name in (planned,) if planned else (self._nominations.node_for(pod), *steering.preferred):
            row = self.table.row_of(name)
            if row is not None and evaluation.is_feasible(row) and row not in kept_free:
                return np.array([row], np.intp)
        if planned:
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
        rows, looked_at = pick.sample(feasible, self.table.shared(ZoneOrder).of(all_rows), start, wanted)
        self._sample_start = (self._sample_start + looked_at) % self.table.node_count
        return rows

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
            totals = totals + np.array([scores.get(self.table.name_of(row), 0) for row in rows.tolist()])
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

    def assume_best(
        self, profile: Profile, pod: PodInfo, evaluation: Evaluation, steering: Steering, attempt: int
    ) -> AssumedPod | Unplaced:
        """Count and reserve on the best node that takes the pod."""
        kept_free = self.kept_free(profile, pod, evaluation)
        rows = None
        if steering.status.is_success:
            rows = self._candidates(profile, pod, evaluation, kept_free, steering)
        has_room = (evaluation.feasible_count if rows is None else rows.size) > 0
        if not (steering.status.is_success and evaluation.status.is_success and has_room):
            view = View(profile, self.table, self._nominations, pod)
            found = CycleDiagnosis(view, evaluation, kept_free, steering)
            return Unplaced(pod, unschedulable(found.fit_error("")), found.rejected_by, evaluation=evaluation)

        def book(row: int) -> AssumedPod | Unplaced | Status:
            booked = self._assume(profile, pod, evaluation, row)
            if isinstance(booked, PodInfo):
                return AssumedPod(booked, evaluation, self.table.name_of(row))
            return booked

        chance = pick.chance_of(self._seed, pod.uid, attempt)
        placed: AssumedPod | Unplaced | Status = self._first_that(book, evaluation, rows, chance, {})
        if isinstance(placed, Status):
            return refused(pod, placed, evaluation)
        return placed

    def assume(self, profile: Profile, pod: PodInfo, evaluation: Evaluation, row: int) -> PodInfo | Status:
        """Count and reserve; the pod as it counts, or the refusal, after which nothing is left of it."""
        booked = self._assume(profile, pod, evaluation, row)
        return booked.status if isinstance(booked, Unplaced) else booked

    def _assume(
        self, profile: Profile, pod: PodInfo, evaluation: Evaluation, row: int
    ) -> PodInfo | Unplaced | Status:
        """Count and reserve; the pod as it counts, or the refusal, after which nothing is left of it. An `Unplaced` is
        final: other rows need not be tried."""
        name, books = self.table.name_of(row), profile.extensions.books
        booked = self._to_book(profile, pod, evaluation, row) if books else pod
        if isinstance(booked, Status):
            return refused(pod, booked, evaluation)
        sequence = self.table.changes.sequence
        try:
            self.table.assign(booked, name, assumed=True)
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

    def _to_book(self, profile: Profile, pod: PodInfo, evaluation: Evaluation, row: int) -> PodInfo | Status:
        """Return the pod as it shall count on the chosen node, or why it cannot be placed after all."""
        extensions, states = profile.extensions, evaluation.states
        status = extensions.nominate(states, pod, row).status
        if not (status.is_success or status.is_skip):
            return status
        seen = extensions.resize(states, pod, self.table.name_of(row))
        return seen.pod if seen.status.is_success else seen.status

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
            result = permit.permit(evaluation.states[permit.name], pod, node_name)
            if result.timeout_s > 0:
                waits[permit.name] = result.timeout_s
            elif not result.status.is_success:
                return result.status.by(permit.name)
        return waits

    def placed(self, pod: PodInfo, node_name: str, evaluation: Evaluation, nominated_before: str) -> Placed:
        """Return a pod that waits for nobody."""
        self._nominations.remove(pod.uid)
        count = evaluation.feasible_count
        return Placed(pod, node_name, evaluation, count, {}, nominated_before=nominated_before)

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
                    self._guard.call, plugin.unreserve, evaluation.states[plugin.name], pod, node_name
                )

    def _unassume(self, uid: str) -> None:
        place = self.table.place_of(uid)
        if place is not None and place.assumed:
            self.table.unassign(uid)

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
