"""Filter and Score of one pod over all rows, kept current row by row.

Pods that ask for the same thing share one evaluation (an equivalence class). After a change only the
changed rows are looked at again, and only by plugins that read what changed there.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from koordinator.scheduler import diagnosis
from koordinator.scheduler.changes import Changes
from koordinator.scheduler.framework import FilterPlugin, Mask, ReasonCodes, ScorePlugin, Scores
from koordinator.scheduler.nodes import NodeTable, Rows, at
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.profile import Profile
from koordinator.scheduler.status import SUCCESS, Code, Status, unresolvable

CLASSES_MAX = 128
"""Evaluations kept: workloads that spread have one each. Up to 150 bytes per node (100 MB at 5,000 nodes)."""

NO_NODE = 255
"""`refused_by` of rows that stand for no node."""
LEFT_OUT = 254
"""`refused_by` of nodes that a PreFilter plugin left out."""


class Evaluation:
    """What the plugins of a profile say about each row for pods of one class.

    `refused_by` is 0 for feasible rows, else the position (from 1) of the first Filter plugin that refused;
    `codes` are that plugin's reason codes. `totals` are weighted scores, valid on feasible rows.
    """

    def __init__(self, profile: Profile, table: NodeTable, pod: PodInfo) -> None:
        self._profile = profile
        self._table = table
        self._states: dict[str, Any] = {}
        self._sequence = 0
        self._membership = 0
        self._epochs: list[Hashable] = []
        self._normal_epochs: list[Hashable] = []
        self._pod = pod
        self.status = SUCCESS
        self.narrowed_by: tuple[str, ...] = ()
        self._allowed: Rows | None = None
        self._filter_reads: list[tuple[int, int]] = []
        self._filters: list[tuple[int, FilterPlugin[Any], Any]] = []
        self._scorers: list[tuple[int, ScorePlugin[Any], Any, int]] = []
        self._fit_error: dict[str, int] | None = None
        self.score_status = SUCCESS
        self._run_all()

    # Reading

    @property
    def feasible(self) -> Rows:
        """Rows that passed all filters, ascending."""
        return self._feasible

    @property
    def candidates(self) -> Rows:
        """Rows that the filters were asked about, ascending."""
        return self._table.rows if self._allowed is None else self._allowed

    @property
    def failure(self) -> Status | None:
        """An error of a plugin: the pod can neither be placed nor refused."""
        for status in (self.status, self.score_status):
            if not (status.is_success or status.is_rejected):
                return status
        return None

    def is_feasible(self, row: int) -> bool:
        return self.status.is_success and int(self.refused_by[row]) == 0

    def totals_of(self, rows: Rows) -> Scores:
        """Weighted sums of normalised scores, for some feasible rows.

        Normalisation is over exactly these rows, as they are all that take part.
        """
        if rows is self._feasible or not any(scorer.normalizes for _, scorer, _, _ in self._scorers):
            return at(self._totals, rows)
        total = np.zeros(rows.size, np.int64)
        for index, scorer, state, weight in self._scorers:
            raw = self._raw[index, rows]
            total += weight * (scorer.normalize_at(state, raw, rows) if scorer.normalizes else raw)
        return total

    def rejected_by(self) -> frozenset[str]:
        """Plugins that refused at least one node, or the pod as a whole."""
        if not self.status.is_success:
            return frozenset((self.status.plugin,))
        found = np.unique(self.refused_by[self._table.rows])
        names = {self._profile.filters[int(number) - 1].name for number in found if 0 < number < LEFT_OUT}
        if (found == LEFT_OUT).any():
            names.update(self.narrowed_by)
        return frozenset(names)

    def fit_error(self, post_filter_message: str = "", more: Iterable[Status] = ()) -> str:
        """The message when no row is feasible, or those that are were refused for reasons of their own."""
        if self._fit_error is None:
            self._fit_error = diagnosis.count_reasons(self.refusals()) if self.status.is_success else {}
        reasons = self._fit_error
        if further := diagnosis.count_reasons((status, 1) for status in more):
            reasons = dict(Counter(reasons) + Counter(further))
        return diagnosis.fit_error(self._table.node_count, reasons, self.status.message, post_filter_message)

    def unresolvable_rows(self) -> Mask:
        """(capacity,): rows that no eviction can help."""
        if not self.status.is_success:
            is_hopeless = self.status.code is not Code.UNSCHEDULABLE
            return np.full(self._table.capacity, is_hopeless, np.bool_)
        pairs = self.refused_by.astype(np.int64) << 16 | self.codes
        _, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
        verdicts = [self.status_of(int(row)).code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE for row in first]
        return np.array(verdicts, np.bool_)[inverse]

    def state_of(self, plugin: str) -> Any:
        """The state that `Plugin.prepare` made for this class."""
        return self._states[plugin]

    def status_of(self, row: int) -> Status:
        """Why a row was refused; success for feasible rows."""
        if not self.status.is_success:
            return self.status
        refused_by = int(self.refused_by[row])
        if refused_by == 0:
            return SUCCESS
        if refused_by in (LEFT_OUT, NO_NODE):
            return unresolvable(left_out_reason(self.narrowed_by))
        plugin = self._profile.filters[refused_by - 1]
        return plugin.refusal(self._states[plugin.name], int(self.codes[row])).by(plugin.name)

    def refusals(self) -> list[tuple[Status, int]]:
        """Each distinct refusal with the number of nodes that it concerns."""
        rows = self._table.rows
        pairs = self.refused_by[rows].astype(np.int64) << 16 | self.codes[rows]
        _, first, counts = np.unique(pairs, return_index=True, return_counts=True)
        found = [
            (self.status_of(int(rows[index])), int(count)) for index, count in zip(first, counts, strict=True)
        ]
        return [(status, count) for status, count in found if not status.is_success]

    # Keeping current

    def update(self, pod: PodInfo | None = None) -> None:
        """Bring all answers up to date with the table, for `pod` (one of the same class)."""
        if pod is not None:
            self._pod = pod
        changes = self._table.changes.since(self._sequence)
        if changes is None or changes.rows:
            self._fit_error = None
        if self._is_void(changes):
            self._run_all()
            return
        if changes is not None and changes.rows:
            self._sequence = self._table.changes.sequence
            self._rerun(changes)
        if self._normal_epochs != (now := self._normal_epochs_now()):
            self._normal_epochs = now
            if self._normalise():
                self._total(self._feasible)

    def _is_void(self, changes: Changes | None) -> bool:
        return (
            changes is None
            or self._membership != self._table.membership
            or 4 * len(changes.rows) > self._table.node_count + 64
            or self._epochs != self._epochs_now()
        )

    def _epochs_now(self) -> list[Hashable]:
        return [plugin.epoch(self._states[plugin.name]) for plugin in self._profile.epochal]

    def _normal_epochs_now(self) -> list[Hashable]:
        """Of the scorers that take part; none when the pod as a whole was refused."""
        if not self.status.is_success:
            return []
        return [scorer.normal_epoch(state) for _, scorer, state, _ in self._scorers if scorer.normalizes]

    def _run_all(self) -> None:
        table = self._table
        table.widen()
        self._sequence = table.changes.sequence
        self._membership = table.membership
        self._states = {plugin.name: plugin.prepare(self._pod) for plugin in self._profile.evaluators}
        self._epochs = self._epochs_now()
        self._fit_error = None
        self.refused_by = np.full(table.capacity, NO_NODE, np.uint8)
        self.codes: ReasonCodes = np.zeros(table.capacity, np.uint16)
        self._raw: npt.NDArray[np.int64] = np.zeros((len(self._profile.scorers), table.capacity), np.int64)
        self._normal_part: Scores = np.zeros(table.capacity, np.int64)
        self._totals: Scores = np.zeros(table.capacity, np.int64)
        self._feasible: Rows = np.empty(0, np.intp)
        self._pre_filter()
        if not self.status.is_success:
            return
        rows = table.rows
        if self._allowed is not None:
            self.refused_by[rows] = LEFT_OUT
            rows = self._allowed
        self.refused_by[rows] = 0
        self._filter(rows, 0)
        self._feasible = np.flatnonzero(self.refused_by == 0)
        self._pre_score()
        for index, scorer, state, _ in self._scorers:
            self._raw[index, self._feasible] = scorer.score(state, self._feasible)
        self._normalise()
        self._normal_epochs = self._normal_epochs_now()
        self._total(self._feasible)

    def _pre_filter(self) -> None:
        """Which filters take part, on which rows, and whether the pod is rejected as a whole."""
        skipped: set[str] = set()
        names: frozenset[str] | None = None
        narrowed_by: list[str] = []
        self.status = SUCCESS
        for plugin in self._profile.pre_filters:
            result = plugin.pre_filter(self._states[plugin.name])
            if result.status.is_skip:
                skipped.add(plugin.name)
            elif not result.status.is_success:
                self.status = result.status.by(plugin.name)
                return
            elif result.node_names is not None:
                narrowed_by.append(plugin.name)
                names = result.node_names if names is None else names & result.node_names
                if not names:
                    self.status = unresolvable(_nothing_left(narrowed_by)).by(plugin.name)
                    return
        self.narrowed_by = tuple(narrowed_by)
        self._allowed = None if names is None else self._rows_of(names)
        self._filters = [
            (index, plugin, self._states[plugin.name])
            for index, plugin in enumerate(self._profile.filters)
            if plugin.name not in skipped
        ]
        self._filter_reads = [(index, int(plugin.reads)) for index, plugin, _ in self._filters]

    def _rows_of(self, names: frozenset[str]) -> Rows:
        found = (self._table.row_of(name) for name in names)
        return np.array(sorted(row for row in found if row is not None), np.intp)

    def _pre_score(self) -> None:
        skipped: set[str] = set()
        self.score_status = SUCCESS
        for pre_scorer in self._profile.pre_scorers:
            status = pre_scorer.pre_score(self._states[pre_scorer.name])
            if status.is_skip:
                skipped.add(pre_scorer.name)
            elif not status.is_success:
                self.score_status = status.by(pre_scorer.name)
        self._scorers = [
            (index, plugin, self._states[plugin.name], weight)
            for index, (plugin, weight) in enumerate(self._profile.scorers)
            if plugin.name not in skipped
        ]

    def _filter(self, rows: Rows, first: int) -> None:
        """Run the filters from position `first` on, each on the rows that the ones before let pass."""
        for index, plugin, state in self._filters:
            if index < first or rows.size == 0:
                continue
            codes = plugin.filter(state, rows)
            refused = codes != 0
            if refused.any():
                self.refused_by[rows[refused]] = index + 1
                self.codes[rows[refused]] = codes[refused]
                rows = rows[~refused]

    def _rerun(self, changes: Changes) -> None:
        """Look again at changed rows only."""
        if not self.status.is_success:
            return
        rows = np.array(changes.rows, np.intp)
        first = self._first_filter(changes.kinds)
        refused_by = self.refused_by[rows]
        # A refusal by an earlier filter stands: that one reads nothing that changed.
        rows = rows[(refused_by == 0) | ((refused_by > first) & (refused_by < LEFT_OUT))]
        if rows.size == 0:
            return
        was_feasible = self.refused_by[rows] == 0
        self.refused_by[rows] = 0
        self.codes[rows] = 0
        self._filter(rows, first)
        is_feasible = self.refused_by[rows] == 0
        membership_changed = bool((was_feasible != is_feasible).any())
        if membership_changed:
            self._feasible = np.flatnonzero(self.refused_by == 0)
        self._rescore(rows[is_feasible], changes.kinds, membership_changed)

    def _first_filter(self, kinds: int) -> int:
        for index, reads in self._filter_reads:
            if reads & kinds:
                return index
        return len(self._profile.filters)

    def _rescore(self, rows: Rows, kinds: int, membership_changed: bool) -> None:
        renormalise = membership_changed
        for index, scorer, state, _ in self._scorers:
            if rows.size and (membership_changed or self._profile.scorer_reads[index] & kinds):
                self._raw[index, rows] = scorer.score(state, rows)
                renormalise = renormalise or scorer.normalizes
        if renormalise and self._normalise():
            rows = self._feasible
        if rows.size:
            self._total(rows)

    def _normalise(self) -> bool:
        """Recompute what normalising scorers contribute; whether there are any."""
        part = np.zeros(self._feasible.size, np.int64)
        found = False
        for index, scorer, state, weight in self._scorers:
            if scorer.normalizes:
                found = True
                raw = self._raw[index, self._feasible]
                part += weight * scorer.normalize_at(state, raw, self._feasible)
        if found:
            self._normal_part[self._feasible] = part
        return found

    def _total(self, rows: Rows) -> None:
        total = self._normal_part[rows]
        for index, scorer, _, weight in self._scorers:
            if not scorer.normalizes:
                total += weight * at(self._raw[index], rows)
        self._totals[rows] = total


class EvaluationCache:
    """The evaluations of recently seen classes, per profile."""

    def __init__(self, table: NodeTable, *, classes_max: int = CLASSES_MAX) -> None:
        self._table = table
        self._classes_max = classes_max
        self._evaluations: OrderedDict[Hashable, Evaluation] = OrderedDict()
        self.hit_count = 0
        self.miss_count = 0

    def evaluate(self, profile: Profile, pod: PodInfo, class_key: Hashable) -> Evaluation:
        """The current evaluation of the pod's class (`Profile.class_key`)."""
        if self._classes_max == 0:
            self.miss_count += 1
            return Evaluation(profile, self._table, pod)
        key = (profile.name, class_key, profile.live_key(pod))
        found = self._evaluations.get(key)
        if found is None:
            self.miss_count += 1
            found = self._evaluations[key] = Evaluation(profile, self._table, pod)
            if len(self._evaluations) > self._classes_max:
                self._evaluations.popitem(last=False)
            return found
        self.hit_count += 1
        self._evaluations.move_to_end(key)
        found.update(pod)
        return found


def left_out_reason(plugins: tuple[str, ...]) -> str:
    return f"node(s) didn't satisfy plugin(s) [{' '.join(plugins)}]"


def _nothing_left(plugins: list[str]) -> str:
    return f"node(s) didn't satisfy plugin(s) [{' '.join(plugins)}] simultaneously"
