"""Pods placed one beside the other on the node table, as their cycles would place them, and undone.

Equal pods share an evaluation, as in cycles, so a gang costs one look at all nodes and one row per member.
"""

import numpy as np

from koordinator.scheduler import pick
from koordinator.scheduler.columns import Rows
from koordinator.scheduler.engine import Engine
from koordinator.scheduler.evaluation import Evaluation
from koordinator.scheduler.evaluation_cache import EvaluationCache
from koordinator.scheduler.framework import Mask
from koordinator.scheduler.pick import NOT_FEASIBLE
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.profile import Profile
from koordinator.scheduler.status import SUCCESS, Status, unresolvable
from koordinator.scheduler.steering import steer
from koordinator.scheduler.trial import Trial
from koordinator.scheduler.view import View


class Tries:
    """Placements within a trial. `rows`, when given, are the only ones that are considered; `attempt` is the
    number of the cycles that are foreseen.

    Reserve and Permit are not asked, since they book, nor are plugins that plan whole groups, since they remember.
    """

    def __init__(self, engine: Engine, trial: Trial, rows: Rows | None = None, *, attempt: int = 1) -> None:
        self._engine = engine
        self._trial = trial
        self._attempt = attempt
        self._cache = EvaluationCache(engine.table)
        self._is_inside: Mask | None = None
        if rows is not None:
            self._is_inside = np.zeros(engine.table.capacity, np.bool_)
            self._is_inside[rows] = True

    def place(self, pod: PodInfo) -> str | Status:
        """The node on which the pod counts from now on, or why there is none."""
        engine = self._engine
        profile = engine.profiles.get(pod.pod.spec.scheduler_name)
        if profile is None:
            return unresolvable(f"scheduler {pod.pod.spec.scheduler_name!r} is not served here")
        evaluation = self._cache.evaluate(profile, pod, profile.class_key(pod))
        refused = self._refused(profile, pod, evaluation)
        if not refused.is_success:
            return refused
        row = self._row(profile, pod, evaluation)
        if row is None:
            return unresolvable(evaluation.fit_error())
        name, sequence = engine.table.name_of(row), engine.table.changes.sequence
        self._trial.add(pod, name)
        evaluation.follow(row, sequence)
        return name

    def _refused(self, profile: Profile, pod: PodInfo, evaluation: Evaluation) -> Status:
        if not evaluation.status.is_success:
            return evaluation.status
        if evaluation.failure is not None:
            return evaluation.failure
        if not profile.extensions.after_pre_filters:
            return SUCCESS
        return steer(profile.extensions, evaluation, pod, in_batch=True).status

    def _row(self, profile: Profile, pod: PodInfo, evaluation: Evaluation) -> int | None:
        """The nominated node if it will do, else the best of those that are not kept free for others."""
        engine = self._engine
        view = View(profile, engine.table, engine.nominations, pod)
        nominated = engine.nominations.node_of(pod.uid) or pod.pod.status.nominated_node_name
        row = engine.table.row_of(nominated) if nominated else None
        if row is not None and self._is_free(view, evaluation, row):
            return row
        chance = pick.chance_of(engine.seed, pod.uid, self._attempt)
        totals = evaluation.totals
        if self._is_inside is not None:
            totals = np.where(self._is_inside, totals, np.int32(NOT_FEASIBLE))
        while True:
            row = evaluation.best(chance) if totals is evaluation.totals else pick.best(totals, chance)
            if row is None or self._is_free(view, evaluation, row):
                return row
            totals = totals.copy()
            totals[row] = NOT_FEASIBLE

    def _is_free(self, view: View, evaluation: Evaluation, row: int) -> bool:
        if not evaluation.is_feasible(row) or (self._is_inside is not None and not self._is_inside[row]):
            return False
        nominations = self._engine.nominations
        if not len(nominations) or self._engine.table.name_of(row) not in nominations.nodes:
            return True
        return view.check_with_nominated(row).is_success
