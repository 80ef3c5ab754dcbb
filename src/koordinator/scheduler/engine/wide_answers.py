"""Keep current what plugins say that look beyond a row, and the totals that follow.

A wide plugin has an `epoch`, or it `normalizes`. What wide scorers add to the totals (`_wide_part`) is made anew when
the set of feasible rows changed, or a raw score by which others are normalised; single rows follow by themselves.
"""

from collections.abc import Hashable

import numpy as np

from koordinator.scheduler.engine.answers import Answers, WideFilter, WideScorer
from koordinator.scheduler.table.columns import BY_PLACEMENT, NOT_FEASIBLE, Rows, at, put


class WideAnswers(Answers):
    """Keeps feasibility and totals current from what local and wide plugins say."""

    _wide_reads: int
    """Kinds of changes that wide plugins read: plain integers, as flags are slow."""

    def _choose_wide(self) -> None:
        """Set the wide plugins that take part; those that did before keep their answers."""
        capacity, profile = self._table.capacity, self._profile
        filters = {wide.index: wide for wide in self._wide_filters}
        scorers = {scorer.plugin.name: scorer for scorer in self._wide_scorers}
        self._wide_filters, self._wide_scorers, self._wide_reads = [], [], 0
        for index, plugin, reads in profile.wide_filters:
            if plugin.name not in self._skips_filter:
                self._wide_filters.append(filters.get(index) or WideFilter(index, plugin, capacity))
                self._wide_reads |= reads
        for scorer, weight, reads in profile.wide_scorers:
            if scorer.name not in self._skips_score:
                known = scorers.get(scorer.name)
                self._wide_scorers.append(known or WideScorer(scorer, weight, capacity))
                self._wide_reads |= reads

    def _ask_filter(self, wide: WideFilter, rows: Rows) -> None:
        if rows.size:
            put(wide.codes, rows, wide.plugin.filter(self.states[wide.plugin.name], rows))

    def _ask_scorer(self, scorer: WideScorer, rows: Rows) -> bool:
        """Ask a scorer again and return whether a raw score changed."""
        if not rows.size:
            return False
        return scorer.set(rows, scorer.plugin.score(self.states[scorer.plugin.name], rows))

    def _move(self, scorer: WideScorer, rows: Rows) -> bool:
        """Ask a scorer again about feasible rows (rows,); return whether the scores of others change with them."""
        raw = scorer.plugin.score(self.states[scorer.plugin.name], rows)
        more = scorer.move(rows, raw) if scorer.plugin.normalizes_by_highest else None
        if more is None:
            return scorer.set(rows, raw)
        if more.any():
            assert not isinstance(self._wide_part, int), "a raw score is known"
            self._wide_part[rows] += (scorer.weight * more).astype(np.int32)
        return False

    def _update_feasible(self, rows: Rows) -> bool:
        """Work out again which of `rows` are feasible; return whether that changed for any."""
        now = at(self._refused_by, rows) == 0
        for wide in self._wide_filters:
            now &= at(wide.codes, rows) == 0
        before = at(self._is_feasible, rows)
        if not np.count_nonzero(now != before):
            return False
        gained = int(np.count_nonzero(now)) - int(np.count_nonzero(before))
        if not self._is_feasible.flags.writeable:  # shared with other evaluations until it differs
            self._is_feasible = self._is_feasible.copy()
        put(self._is_feasible, rows, now)
        self.feasible_count += gained
        return True

    def _normal_epochs_now(self) -> list[Hashable]:
        return [
            scorer.plugin.normal_epoch(self.states[scorer.plugin.name])
            for scorer in self._wide_scorers
            if scorer.has_normal_epoch
        ]

    def _normalise(self) -> None:
        """Add what wide scorers say, and with it work out all totals."""
        rows = self.feasible
        same, part = 0, None
        for scorer in self._wide_scorers if rows.size else ():
            final = self._normalised(scorer, rows)
            scorer.note_highest(rows)
            if isinstance(final, int):
                same += scorer.weight * final
            else:
                part = scorer.weight * final if part is None else part + scorer.weight * final
        if part is None:
            self._wide_part = same
        else:
            part += same
            if isinstance(self._wide_part, int):
                self._wide_part = np.zeros(self.totals.size, np.int32)
            put(self._wide_part, rows, part)  # nobody reads those of other rows
        if self._lookahead is not None:
            self._lookahead.top.forget()  # all totals change at once: following each would cost more than a new search
        if self.totals.flags.writeable:
            self.totals.fill(NOT_FEASIBLE)
        else:
            self.totals = self.totals.copy()
        put(self.totals, rows, at(self._own, rows) + (same if part is None else part))

    def _total(self, rows: Rows) -> None:
        totals = self._own.take(rows)
        totals += self._wide_part if isinstance(self._wide_part, int) else self._wide_part.take(rows)
        is_feasible = self._is_feasible.take(rows)
        if not is_feasible.all():
            totals[~is_feasible] = NOT_FEASIBLE
        self.totals[rows] = totals
        if self._lookahead is not None:
            if rows.size == 1:
                self._lookahead.top.changed(rows.item(), totals.item())
            else:
                self._lookahead.top.forget()

    def _move_all(self, row: int) -> bool:
        """A placement was foreseen: ask the wide scorers that look at it about its row, which stays feasible; return
        whether the scores of others change with it."""
        rows = np.array([row], np.intp)
        moved = [
            self._move(each, rows) for each in self._wide_scorers if int(each.plugin.reads) & BY_PLACEMENT
        ]
        return any(moved)
