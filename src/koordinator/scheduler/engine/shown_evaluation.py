"""Evaluations of pods and nodes as transformers show them, for profiles that have transformers.

Source: behaviour/scheduler C2.
"""

from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.plugin.status import Status
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial, trial_of


class ShownEvaluation(Evaluation):
    """As `Evaluation`. What transformers changed is shown again, from scratch, after every change in the
    table; where they changed nothing, rows are kept current one by one as ever."""

    _is_changed = False

    def update(self, pod: PodInfo) -> None:
        log, table = self._table.changes, self._table
        is_stale = self._sequence != log.sequence or self._membership != table.membership
        if self._is_changed and (is_stale or self._stale_plugins()):
            self._pod = pod
            self._run_all()
        else:
            super().update(pod)

    @property
    def is_of_table(self) -> bool:
        return not self._is_changed

    def follow(self, row: int, sequence: int) -> None:
        """Transformers may show the next pod another row."""

    def _run_all(self) -> None:
        with trial_of(self._table) as what_if:
            shown = self._show(what_if)
            self._is_changed = what_if.is_used or shown is not self._pod
            if what_if.is_used and self.status.is_success:
                self._all_refusals()  # now, as later the nodes are as they are again
        # The trial is undone: what plugins count is as before, their epochs need not be.
        self._sequence = self._table.changes.sequence
        self._membership = self._table.membership
        if what_if.is_used:
            self._note_epochs()
            self._normal_epochs = self._normal_epochs_now()

    def _show(self, what_if: Trial) -> PodInfo:
        """Evaluate; the pod as the last transformer showed it."""
        extensions = self._profile.extensions
        shown = extensions.see_before_pre_filter(self._pod, what_if)
        self._begin(shown.pod)
        self._pre_filter()
        if self._is_refused(shown.status):
            self._pre_score()
            return shown.pod
        filtered = extensions.see_before_filter(self._states, shown.pod, what_if)
        if filtered.pod is not shown.pod:
            self._prepare(filtered.pod)
            self._choose_local_filters()
        self._pre_score()
        if self._is_refused(filtered.status):
            return filtered.pod
        self._ask_all()
        return filtered.pod

    def _is_refused(self, status: Status) -> bool:
        """Whether the pod is refused as a whole, by a transformer (`status`) or before."""
        if not status.is_success:
            self.status = status
        return not self.status.is_success
