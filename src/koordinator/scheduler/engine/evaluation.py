"""Filter and Score of one pod over all rows, kept current.

Pods that ask for the same thing share one evaluation (an equivalence class). What is looked at again
depends on the kind of plugin:

* A local plugin answers for a row by what is in that row alone. It is asked again about rows that changed
  in a respect that it reads (`Plugin.reads`). Its scores are folded into one number per row (`_own`).
* A wide plugin looks beyond the row: it has an `epoch`, or it `normalizes`. When its epoch changed, it alone is
  asked again about all rows that the local filters let pass; when the set of feasible rows changed, what
  it adds to the totals (`_wide_part`) is made anew.

Invariants after `__init__` and `update`, for every row of the table:
* `_refused_by` is 0 exactly where all local filters pass; else it is the first of them that refuses.
* `_is_feasible` is where these and all wide filters pass.
* `totals` is `_own` + `_wide_part` where feasible, and `NOT_FEASIBLE` elsewhere.
"""

import functools
from collections.abc import Hashable
from typing import Any

import numpy as np

from koordinator.api.resource_vector import I64
from koordinator.scheduler.engine.pick import LocalFilter, LocalScorer, Lookahead, folded, foresee
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.engine.wide_answers import WideAnswers
from koordinator.scheduler.plugin.framework import Mask, Plugin, ScorePlugin, Scores, is_pass
from koordinator.scheduler.plugin.status import SUCCESS, Code, unresolvable
from koordinator.scheduler.table.columns import (
    BY_PLACEMENT,
    LEFT_OUT,
    NOT_FEASIBLE,
    Changes,
    Rows,
    are_no_points,
    no_points,
    put,
)
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

BLOCK_ROWS = 6_144
"""Rows judged at once: intermediate results of a block (two numbers per row, 96 KiB) stay in the processor's
cache, and below the size from which memory is fetched from the system each time."""

_NO_ROWS: Rows = np.empty(0, np.intp)
_SUCCESS, _SKIP = Code.SUCCESS, Code.SKIP


class Evaluation(WideAnswers):
    """Works the answers out, and keeps them current."""

    def __init__(self, profile: Profile, table: NodeTable, pod: PodInfo) -> None:
        super().__init__(profile, table)
        self._pod = pod
        self._run_all()

    # From scratch

    def _run_all(self) -> None:
        self._begin(self._pod)
        self._pre_filter()
        self._pre_score()
        if self.status.is_success:
            self._ask_all()

    def _begin(self, pod: PodInfo) -> None:
        """Nothing is known yet but the states of the plugins for this pod."""
        table = self._table
        table.widen()
        self._sequence, self._membership = table.changes.sequence, table.membership
        self._prepare(pod)
        shared = table.patterns
        self._refused_by, self._codes = shared.nobody_asked, shared.no_codes
        self._has_refusals = False
        """True when these two are its own, and not shared with other evaluations."""
        self._is_feasible = shared.nowhere
        self._own = self.totals = shared.never
        self._wide_part = 0
        self._wide_filters = []
        self._wide_scorers = []
        self._wide_reads = 0
        self._normal_epochs: list[Hashable] = []
        self.feasible_count = 0
        self._forget_answers()
        self._lookahead = None
        self._placed_on = -1
        """The row of the last pod of this class, if its next state was not predicted."""
        self._misses = 0
        """Times that a pod followed another one directly, and only that one's row had to be looked at."""

    def _prepare(self, pod: PodInfo) -> None:
        self.states = {plugin.name: plugin.prepare(pod) for plugin in self._profile.evaluators}
        self._note_epochs()

    def _note_epochs(self) -> None:
        states = self.states
        self._epochs: list[tuple[Plugin[Any], Hashable]] = [
            (plugin, epoch)
            for plugin in self._profile.epochal
            if (epoch := plugin.epoch(states[plugin.name])) is not None
        ]

    def _ask_all(self) -> None:
        """Ask all plugins about all rows that PreFilter left."""
        table = self._table
        rows, shared = table.rows, table.patterns
        self._own = np.zeros(table.capacity, np.int32)
        if self._allowed is None:
            self._refused_by = shared.nobody_refused
        else:
            self._have_refusals()
            put(self._refused_by, rows, LEFT_OUT)
            rows = self._allowed
            put(self._refused_by, rows, 0)
        passing_count = self._judge(rows)
        passing = rows if passing_count == rows.size else np.flatnonzero(self._refused_by == 0)
        self._choose_wide()
        self._foresees: bool | None = None
        for wide in self._wide_filters:
            self._ask_filter(wide, passing)
        if self._wide_filters:
            self._update_feasible(passing)
        elif passing is table.rows:
            self._is_feasible, self._feasible, self.feasible_count = shared.everywhere, passing, passing.size
        else:
            self._is_feasible = self._refused_by == 0
            self._feasible, self.feasible_count = passing, passing.size
        for scorer in self._wide_scorers:
            self._ask_scorer(scorer, passing)
        self._normal_epochs = self._normal_epochs_now()
        self._normalise()

    def _pre_filter(self) -> None:
        """Find the filters that take part, on which rows, and whether the pod is rejected as a whole."""
        self._participation = None
        self._skips_filter = set()
        self._allowed = None
        self.narrowed_by = ()
        self.node_names: frozenset[str] | None = None
        """The only nodes that PreFilter plugins left, None for all."""
        self.status = SUCCESS
        names: frozenset[str] | None = None
        narrowed_by: list[str] = []
        states, skips = self.states, self._skips_filter
        for plugin in self._profile.pre_filters:
            result = plugin.pre_filter(states[plugin.name])
            code = result.status.code
            if code is _SKIP:
                skips.add(plugin.name)
            elif code is not _SUCCESS:
                self.status = result.status.by(plugin.name)
                return
            elif result.node_names is not None:
                narrowed_by.append(plugin.name)
                names = result.node_names if names is None else names & result.node_names
                if not names:
                    reason = f"node(s) didn't satisfy plugin(s) [{' '.join(narrowed_by)}] simultaneously"
                    self.status = unresolvable(reason).by(plugin.name)
                    return
        self.narrowed_by = tuple(narrowed_by)
        self.node_names = names
        self._allowed = None if names is None else self._rows_of(names)
        self._choose_local_filters()

    def _choose_local_filters(self) -> None:
        states, skips = self.states, self._skips_filter
        self._local_filters: list[LocalFilter] = [
            (index, plugin, states[plugin.name], reads)
            for index, plugin, reads in self._profile.local_filters
            if plugin.name not in skips
        ]

    def _rows_of(self, names: frozenset[str]) -> Rows:
        found = (self._table.row_of(name) for name in names)
        return np.array(sorted(row for row in found if row is not None), np.intp)

    def _pre_score(self) -> None:
        """Find the scorers that take part."""
        self._participation = None
        self._skips_score = set()
        self.score_status = SUCCESS
        states, skips = self.states, self._skips_score
        for pre_scorer in self._profile.pre_scorers:
            status = pre_scorer.pre_score(states[pre_scorer.name])
            if status.code is _SKIP:
                skips.add(pre_scorer.name)
            elif status.code is not _SUCCESS:
                self.score_status = status.by(pre_scorer.name)
        for scorer in self._profile.choosy_scorers:
            if not scorer.scores(states[scorer.name]):
                skips.add(scorer.name)
        self._local_scorers: list[LocalScorer] = [
            (plugin, states[plugin.name], weight, reads)
            for plugin, weight, reads in self._profile.local_scorers
            if plugin.name not in skips
        ]

    # Local plugins

    def _judge(self, rows: Rows, first: int = 0) -> int:
        """Ask the local filters from position `first` on, and all local scorers; `_refused_by` is 0 on `rows`.
        How many of them pass."""
        count = 0
        for start in range(0, rows.size, BLOCK_ROWS):
            passing = self._filter(rows[start : start + BLOCK_ROWS], first)
            if self._local_scorers and passing.size:
                put(self._own, passing, self._score(passing))
            count += passing.size
        return count

    def _filter(self, rows: Rows, first: int) -> Rows:
        """Return the rows that pass; each filter is asked about those that the ones before it let pass."""
        for index, plugin, state, _ in self._local_filters:
            if index < first:
                continue
            codes = plugin.filter(state, rows)
            if is_pass(codes):
                continue
            refused = codes != 0
            if np.count_nonzero(refused):
                self._have_refusals()
                out = rows[refused]
                self._refused_by[out] = index + 1
                self._codes[out] = codes[refused]
                rows = rows[~refused]
                if rows.size == 0:
                    break
        return rows

    def _have_refusals(self) -> None:
        """From here on, refusals are this evaluation's own."""
        if not self._has_refusals:
            self._refused_by, self._codes = self._refused_by.copy(), self._codes.copy()
            self._has_refusals = True

    def _score(self, rows: Rows) -> Scores:
        total: Scores | None = None
        for scorer, state, weight, _ in self._local_scorers:
            score = scorer.score(state, rows)
            if not are_no_points(score):
                weighted = score if weight == 1 else weight * score
                total = weighted if total is None else total + weighted
        return no_points(rows) if total is None else total

    # Keeping current

    def update(self, pod: PodInfo) -> None:
        """Bring all answers up to date with the table, for `pod` (one of the same class)."""
        self._pod = pod
        log = self._table.changes
        changes = log.since(self._sequence) if self._sequence != log.sequence else None
        if self._is_void(changes):
            self._run_all()
            return
        if changes is not None:
            self._distrust(changes.rows)
        stale = self._stale_plugins()
        if stale and not self._renew(stale):
            self._run_all()
            return
        self._sequence = log.sequence
        self._apply(changes, stale)

    def _is_void(self, changes: Changes | None) -> bool:
        is_much = changes is not None and 2 * changes.rows.size > self._table.node_count + 64
        return is_much or self._membership != self._table.membership

    def _apply(self, changes: Changes | None, stale: list[Plugin[Any]]) -> None:
        if not self.status.is_success:
            return
        touched, kinds, is_passing = _NO_ROWS, 0, True
        if changes is not None:
            kinds = changes.kinds
            touched, is_passing = self._rerun(changes)
        if stale or not is_passing or kinds & self._wide_reads:
            self._forget_answers()
            self._follow_up(touched, {plugin.name for plugin in stale})
        elif self._normal_epochs != (now := self._normal_epochs_now()):
            self._normal_epochs = now
            self._normalise()
        elif touched.size:
            self._total(touched)

    # Ahead

    def follow(self, row: int, sequence: int) -> None:
        """Note that a pod of this class was placed on a row; the table's log stood at `sequence` before.

        When that is all that happened since, the row's next state is taken from the predictions. Otherwise
        nothing is done here: the log tells the next `update` to look again.
        """
        log = self._table.changes
        if self._sequence != sequence or log.sequence != sequence + 1:
            return
        self._placed_on = row
        if (self._lookahead is None and not self._misses) or not self._can_foresee():
            return
        if self._lookahead is None:
            self._lookahead = Lookahead(self.totals.size)
        own = self._lookahead.take(row)
        if own is None:
            own = self._look_ahead(self._lookahead, row)
        if own is not None and own != NOT_FEASIBLE:  # else the filters have to say why
            self._sequence, self._placed_on = log.sequence, -1
            self._own[row] = own
            if self._move_all(row):
                self._normalise()
                return
            part = self._wide_part if isinstance(self._wide_part, int) else int(self._wide_part[row])
            self.totals[row] = own + part
            self._lookahead.top.changed(row, own + part)

    def _look_ahead(self, lookahead: Lookahead, row: int) -> int | None:
        """Work out the next states of `row`, whose columns show this placement already, and of other rows; None when it
        does not pay."""
        rows = lookahead.choose(row, self.totals, self._misses)
        if not rows.size:
            return None
        lookahead.keep(rows, foresee(self._local_filters, self._local_scorers, rows, row, lookahead.depth))
        return lookahead.take(row)

    def totals_ahead(self, rows: Rows, ahead: I64) -> Scores:
        """Totals of rows with `ahead` more pods of the class on each, `NOT_FEASIBLE` where a filter refuses, as far as
        plugins foresee it and the other rows stay as they are.

        Shapes: both (n,), returns (n,). The rows descend, may repeat, and are feasible as they are.
        """
        totals = folded(self._local_filters, self._local_scorers, rows, ahead)
        part = self._wide_part if isinstance(self._wide_part, int) else self._wide_part[rows]
        return np.where(totals == NOT_FEASIBLE, totals, totals + part)

    @property
    def foresees(self) -> bool:
        """Return whether `totals_ahead` tells what placements change."""
        is_known = all(plugin.foresees_everywhere for _, plugin, _, _ in self._local_filters)
        is_local = not any(int(each.plugin.reads) & BY_PLACEMENT for each in self._wide_scorers)
        return self.status.is_success and is_known and is_local and self._can_foresee()

    def _can_foresee(self) -> bool:
        """Return whether all plugins that take part know what a placement changes."""
        if self._foresees is None:
            plugins: list[Plugin[Any]] = [each[1] for each in self._local_filters]
            plugins += [each[0] for each in self._local_scorers]
            plugins += [wide.plugin for wide in self._wide_filters]
            plugins += [scorer.plugin for scorer in self._wide_scorers]
            self._foresees = all(plugin.foresees(self.states[plugin.name]) for plugin in plugins)
        return self._foresees

    def _distrust(self, rows: Rows) -> None:
        """Predictions for rows that changed do not hold, other than by a placement that was the only change."""
        if rows.size == 1 and rows.item() == self._placed_on:
            self._misses += 1
        if self._lookahead is not None:
            self._lookahead.drop(rows)

    # Staleness

    def _stale_plugins(self) -> list[Plugin[Any]]:
        states = self.states
        return [plugin for plugin, epoch in self._epochs if plugin.epoch(states[plugin.name]) != epoch]

    def _renew(self, stale: list[Plugin[Any]]) -> bool:
        """Prepare plugins again whose epoch changed; False when more than their own answers may differ."""
        if not self.status.is_success or not self.score_status.is_success:
            return False
        for plugin in stale:
            state = self.states[plugin.name] = plugin.prepare(self._pod)
            if plugin in self._profile.pre_filters:
                result = plugin.pre_filter(state)
                is_narrowing = result.node_names is not None or plugin.name in self.narrowed_by
                if is_narrowing or not (result.status.is_success or result.status.is_skip):
                    return False
                _set_member(self._skips_filter, plugin.name, result.status.is_skip)
            is_skipping = isinstance(plugin, ScorePlugin) and not plugin.scores(state)
            if plugin in self._profile.pre_scorers:
                status = plugin.pre_score(state)
                if not (status.is_success or status.is_skip):
                    return False
                is_skipping |= status.is_skip
            _set_member(self._skips_score, plugin.name, is_skipping)
        self._note_epochs()
        self._choose_wide()
        self._foresees = None
        return True

    def _rerun(self, changes: Changes) -> tuple[Rows, bool]:
        """Ask the local plugins again about changed rows: the rows whose answers may be others now, and whether
        all of them pass as they did before."""
        first = self._first_reader(changes.kinds)
        rows: Rows = changes.rows
        refused_by = self._refused_by.take(rows)
        was_passing = not np.count_nonzero(refused_by)
        if not was_passing:
            rows = rows[_asked_again(first).take(refused_by)]
            self._have_refusals()
            self._refused_by[rows] = 0
            self._codes[rows] = 0
        passing_count = self._judge(rows, first)
        return rows, was_passing and passing_count == rows.size

    def _first_reader(self, kinds: int) -> int:
        """Position of the first local filter that reads such changes."""
        for index, _, _, reads in self._local_filters:
            if reads & kinds:
                return index
        return len(self._profile.filters)

    def _follow_up(self, touched: Rows, stale: set[str]) -> None:
        """Bring feasibility and totals up to date: local answers changed on `touched`, plugins in `stale`
        have other answers everywhere."""
        rows = touched
        if stale and any(plugin.name in stale for plugin in self._profile.filters):
            rows = np.flatnonzero(self._refused_by < LEFT_OUT)
        newly = touched[self._refused_by.take(touched) == 0]
        # Scans of the whole table are for stale plugins only: after a placement, `touched` is a single row.
        everywhere = np.flatnonzero(self._refused_by == 0) if stale else newly
        for wide in self._wide_filters:
            self._ask_filter(wide, everywhere if wide.plugin.name in stale else newly)
        renormalise = self._update_feasible(rows)
        stays = not (stale or renormalise) and newly.size > 0
        for scorer in self._wide_scorers:
            name = scorer.plugin.name
            if stays and scorer.plugin.normalizes_by_highest and self._is_feasible.take(newly).all():
                renormalise |= self._move(scorer, newly)
            else:
                renormalise |= self._ask_scorer(scorer, everywhere if name in stale else newly)
        now = self._normal_epochs_now()
        if renormalise or stale or self._normal_epochs != now:
            self._normal_epochs = now
            self._normalise()
        else:
            self._total(touched)


@functools.cache
def _asked_again(first: int) -> Mask:
    """Return by `refused_by` (256,) whether a row is looked at again after changes that no filter before position
    `first` reads: a refusal by one of those stands."""
    found = np.zeros(256, np.bool_)
    found[0] = found[first + 1 : LEFT_OUT] = True
    return found


def _set_member(names: set[str], name: str, is_member: bool) -> None:
    if is_member:
        names.add(name)
    else:
        names.discard(name)
