"""The answers of an evaluation: feasible rows, totals, and who refused each node first, in configured order.
`evaluation` works it out and keeps it current."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from koordinator.scheduler.engine import pick
from koordinator.scheduler.engine.pick import Lookahead, Totals
from koordinator.scheduler.engine.profile import Participation, Profile
from koordinator.scheduler.plugin.framework import (
    SCORE_MAX,
    FilterPlugin,
    Mask,
    Plugin,
    ReasonCodes,
    ScorePlugin,
    Scores,
)
from koordinator.scheduler.plugin.status import SUCCESS, Code, Status, count_reasons, fit_error, unresolvable
from koordinator.scheduler.table.columns import LEFT_OUT, NO_NODE, RefusedBy, Rows, are_no_points, at, put
from koordinator.scheduler.table.nodes import NodeTable

EVALUATION_BYTES = 20_000
"""Size of an evaluation beside what it holds per row: states of plugins, and first and last pod that asked."""


class NodeRefusals:
    """The verdicts of one evaluation. `codes` are those of the plugin in `refused_by`."""

    def __init__(
        self,
        profile: Profile,
        table: NodeTable,
        states: Mapping[str, Any],
        refused_by: RefusedBy,
        codes: ReasonCodes,
        narrowed_by: tuple[str, ...],
    ) -> None:
        self._profile = profile
        self._table = table
        self._states = states
        self.refused_by = refused_by
        self.codes = codes
        self._narrowed_by = narrowed_by

    def status_of(self, row: int) -> Status:
        """Return why a row was refused; success for rows that pass."""
        refused_by = int(self.refused_by[row])
        if refused_by == 0:
            return SUCCESS
        if refused_by in (LEFT_OUT, NO_NODE):
            return left_out(self._narrowed_by)
        plugin = self._profile.filters[refused_by - 1]
        self._detail(plugin, np.array([row], np.intp))
        return plugin.refusal(self._states[plugin.name], int(self.codes[row])).by(plugin.name)

    def counts(self) -> list[tuple[Status, int]]:
        """Return each distinct refusal with the number of nodes that it concerns."""
        rows = self._table.rows
        for index, plugin in enumerate(self._profile.filters):
            if type(plugin).detail is not FilterPlugin.detail:
                self._detail(plugin, rows[self.refused_by[rows] == index + 1])
        pairs = self.refused_by[rows].astype(np.int64) << 16 | self.codes[rows]
        _, first, counts = np.unique(pairs, return_index=True, return_counts=True)
        found = [
            (self.status_of(int(rows[index])), int(count)) for index, count in zip(first, counts, strict=True)
        ]
        return [(status, count) for status, count in found if not status.is_success]

    def _detail(self, plugin: FilterPlugin[Any], rows: Rows) -> None:
        """Codes of a plugin that tell more in place of those that told enough."""
        if rows.size and type(plugin).detail is not FilterPlugin.detail:
            self.codes[rows] = plugin.detail(self._states[plugin.name], rows, self.codes[rows])

    def plugins(self) -> frozenset[str]:
        """Plugins that refused at least one node."""
        found = np.unique(self.refused_by[self._table.rows]).tolist()
        names = {self._profile.filters[number - 1].name for number in found if 0 < number < LEFT_OUT}
        if LEFT_OUT in found:
            names.update(self._narrowed_by)
        return frozenset(names)

    def unresolvable_rows(self) -> Mask:
        """(capacity,): rows that no eviction can help."""
        pairs = self.refused_by.astype(np.int64) << 16 | self.codes
        _, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
        verdicts = [self.status_of(int(row)).code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE for row in first]
        return np.array(verdicts, np.bool_)[inverse]


def left_out(plugins: Iterable[str]) -> Status:
    """Return the refusal of nodes that these PreFilter plugins left out together."""
    return unresolvable(f"node(s) didn't satisfy plugin(s) [{' '.join(plugins)}]")


_UNKNOWN = -1


class WideFilter:
    """A filter that looks beyond the row, and its answers: valid where the local filters pass."""

    def __init__(self, index: int, plugin: FilterPlugin[Any], capacity: int) -> None:
        self.index = index
        self.plugin = plugin
        self.codes: ReasonCodes = np.zeros(capacity, np.uint16)


class WideScorer:
    """A scorer that looks beyond the row, and its raw scores: valid where the local filters pass.

    Most often all of them are 0 (a preference that no node meets): then no array is kept.
    """

    def __init__(self, plugin: ScorePlugin[Any], weight: int, capacity: int) -> None:
        self.plugin = plugin
        self.weight = weight
        self._capacity = capacity
        self._raw: Scores | None = None
        own_epoch = type(plugin).normal_epoch is not Plugin.normal_epoch
        self.has_normal_epoch = plugin.normalizes and own_epoch
        self._is_plain = type(plugin).normalize_at is ScorePlugin.normalize_at
        self._highest, self._highest_count = _UNKNOWN, 0
        """The highest raw score of the feasible rows, and how many have it."""

    @property
    def size_bytes(self) -> int:
        return 0 if self._raw is None else self._raw.nbytes

    def set(self, rows: Rows, raw: Scores) -> bool:
        """Take raw scores (rows,) of `rows`; return whether one of them is another one now."""
        if self._raw is None:
            if are_no_points(raw) or not raw.any():
                return False
            self._raw = np.zeros(self._capacity, np.int64)
        if np.array_equal(at(self._raw, rows), raw):
            return False
        put(self._raw, rows, raw)
        return True

    def note_highest(self, rows: Rows) -> None:
        """All of the feasible `rows` (rows,) have just been normalised together."""
        if self._raw is not None and self.plugin.normalizes_by_highest:
            raw = at(self._raw, rows)
            self._highest = int(raw.max(initial=_UNKNOWN))
            self._highest_count = int(np.count_nonzero(raw == self._highest))

    def move(self, rows: Rows, raw: Scores) -> Scores | None:
        """Take the raw scores (rows,) of feasible rows that stay feasible; return by how much their final scores change
        (rows,) when no others do, else None."""
        if self._raw is None or self._highest <= 0:
            return np.zeros(rows.size, np.int64) if self._raw is None and not raw.any() else None
        before, highest = self._raw.take(rows), self._highest
        gained = int(np.count_nonzero(raw == highest)) - int(np.count_nonzero(before == highest))
        if raw.max() > highest or not self._highest_count + gained:
            self._highest = _UNKNOWN
            return None
        self._highest_count += gained
        put(self._raw, rows, raw)
        return raw * SCORE_MAX // highest - before * SCORE_MAX // highest

    def final(self, state: Any, rows: Rows) -> Scores | int:
        """Return final scores (rows,) when `rows` are all that take part; one number when it is the same for all."""
        if self._raw is not None:
            raw = at(self._raw, rows)
            return self.plugin.normalize_at(state, raw, rows) if self.plugin.normalizes else raw
        if not self.plugin.normalizes:
            return 0
        if self._is_plain:
            return int(self.plugin.normalize(state, np.zeros(1, np.int64))[0])
        return self.plugin.normalize_at(state, np.zeros(rows.size, np.int64), rows)


class ScoreShare(msgspec.Struct, frozen=True, eq=False):
    """The part of one plugin in the totals of some rows: raw and final scores (rows,)."""

    plugin: str
    weight: int
    raw: Scores
    normalised: Scores


class Answers:
    """The answers of a profile's plugins about each row for pods of one class.

    Arrays are (capacity,). `totals` are weighted sums of final scores, `NOT_FEASIBLE` where a filter refuses.
    """

    _profile: Profile
    _table: NodeTable
    states: dict[str, Any]
    """Plugin → the state that `Plugin.prepare` made for this class."""
    _allowed: Rows | None
    _skips_filter: set[str]
    _skips_score: set[str]
    _participation: Participation | None
    _refused_by: RefusedBy
    _codes: ReasonCodes
    _own: Totals
    _is_feasible: Mask
    _wide_part: Totals | int
    _wide_filters: list[WideFilter]
    _wide_scorers: list[WideScorer]
    _lookahead: Lookahead | None
    totals: Totals
    feasible_count: int
    status: Status
    score_status: Status
    narrowed_by: tuple[str, ...]

    def __init__(self, profile: Profile, table: NodeTable) -> None:
        self._profile = profile
        self._table = table
        self._forget_answers()

    def _forget_answers(self) -> None:
        """Forget the answers that are only worked out when somebody asks."""
        self._feasible: Rows | None = None
        self._refusals: NodeRefusals | None = None
        self._fit_error: dict[str, int] | None = None

    # Reading

    @property
    def feasible(self) -> Rows:
        """Rows that passed all filters, ascending."""
        if self._feasible is None:
            self._feasible = np.flatnonzero(self._is_feasible)
        return self._feasible

    @property
    def candidates(self) -> Rows:
        """Rows that the filters were asked about, ascending."""
        return self._table.rows if self._allowed is None else self._allowed

    @property
    def failure(self) -> Status | None:
        """Return an error of a plugin: the pod can neither be placed nor refused."""
        for status in (self.status, self.score_status):
            if not (status.is_success or status.is_rejected):
                return status
        return None

    @property
    def size_bytes(self) -> int:
        """Memory, about, without what all evaluations share."""
        per_row = 2 * len(self._wide_filters)
        own = (self.totals, self._own, self._refused_by, self._codes, self._is_feasible, self._wide_part)
        for array in own:
            if isinstance(array, np.ndarray) and array.flags.writeable:
                per_row += array.itemsize
        size = EVALUATION_BYTES + per_row * self.totals.size
        for scorer in self._wide_scorers:
            size += scorer.size_bytes
        return size if self._lookahead is None else size + self._lookahead.size_bytes

    @property
    def is_of_table(self) -> bool:
        """Return whether the answers are about nodes as they stand in the table, not as transformers show them."""
        return True

    def is_feasible(self, row: int) -> bool:
        return bool(self._is_feasible[row])

    def score_shares(self, rows: Rows) -> list[ScoreShare]:
        """Return what each plugin that takes part adds to the totals of `rows` (rows,), which take part together;
        worked out anew."""
        skipped = {p.name for p in self._profile.pre_scorers if p.pre_score(self.states[p.name]).is_skip}
        shares = []
        for plugin, weight in self._profile.scorers:
            state = self.states[plugin.name]
            if plugin.name not in skipped and plugin.scores(state):
                raw = np.array(plugin.score(state, rows), np.int64)
                normalised = plugin.normalize_at(state, raw.copy(), rows) if plugin.normalizes else raw
                shares.append(ScoreShare(plugin.name, weight, raw, normalised))
        return shares

    def best(self, chance: int) -> int | None:
        """Return the row that `pick.best` finds in `totals`."""
        # The best rows are worth keeping only where pods of the class follow each other.
        if self._lookahead is None:
            return pick.best(self.totals, chance)
        return self._lookahead.top.choose(self.totals, chance)

    def totals_of(self, rows: Rows) -> Totals | Scores:
        """Weighted sums of normalised scores, for some feasible rows.

        Normalisation is over exactly these rows, as they are all that take part.
        """
        if rows is self._feasible or not self._wide_scorers:
            return at(self.totals, rows)
        total = self._own[rows].astype(np.int64)
        for scorer in self._wide_scorers:
            total += scorer.weight * self._normalised(scorer, rows)
        return total

    @property
    def participation(self) -> Participation:
        """Return the plugins that take part, with the number of cycles so far in which just these did."""
        if self._participation is None:
            refused = self.status.plugin if not self.status.is_success else ""
            names = frozenset(self._skips_filter), frozenset(self._skips_score), refused
            self._participation = self._profile.participation(*names)
        return self._participation

    # Refusals

    @property
    def refused_by(self) -> RefusedBy:
        """(capacity,): 0 for feasible rows, else the position (from 1) of the first filter that refused."""
        return self._all_refusals().refused_by

    @property
    def codes(self) -> ReasonCodes:
        """(capacity,): reason codes of the plugins in `refused_by`."""
        return self._all_refusals().codes

    def rejected_by(self) -> frozenset[str]:
        """Plugins that refused at least one node, or the pod as a whole."""
        if not self.status.is_success:
            return frozenset((self.status.plugin,))
        return self._all_refusals().plugins()

    @property
    def reason_counts(self) -> dict[str, int]:
        """Nodes per reason, to be read only; empty when the pod as a whole was refused."""
        if self._fit_error is None:
            self._fit_error = count_reasons(self.refusals()) if self.status.is_success else {}
        return self._fit_error

    def fit_error(self, post_filter_message: str = "", more: Iterable[Status] = ()) -> str:
        """Return the message when no row is feasible, or those that are were refused for reasons of their own."""
        reasons = self.reason_counts
        if further := count_reasons((status, 1) for status in more):
            reasons = dict(Counter(reasons) + Counter(further))
        return fit_error(self._table.node_count, reasons, self.status.message, post_filter_message)

    def unresolvable_rows(self) -> Mask:
        """(capacity,): rows that no eviction can help."""
        if not self.status.is_success:
            is_hopeless = self.status.code is not Code.UNSCHEDULABLE
            return np.full(self._table.capacity, is_hopeless, np.bool_)
        return self._all_refusals().unresolvable_rows()

    def active_filters(self) -> list[tuple[FilterPlugin[Any], Any]] | None:
        """Return the filters that take part, in configured order, with their states; None when PreFilter refused."""
        if not self.status.is_success:
            return None
        plugins = [each for each in self._profile.filters if each.name not in self._skips_filter]
        return [(plugin, self.states[plugin.name]) for plugin in plugins]

    def status_of(self, row: int) -> Status:
        """Return why a row was refused; success for feasible rows."""
        return self._all_refusals().status_of(row) if self.status.is_success else self.status

    def refusals(self) -> list[tuple[Status, int]]:
        """Return each distinct refusal with the number of nodes that it concerns."""
        return self._all_refusals().counts()

    def _all_refusals(self) -> NodeRefusals:
        """Return who refused first in configured order, wide filters included: worked out when somebody asks.

        A wide filter may stand before the local one that refused a row, so it is asked about such rows, too.
        """
        if self._refusals is None:
            refused_by, codes = self._refused_by, self._codes
            if self._wide_filters:
                refused_by, codes = refused_by.copy(), codes.copy()
            for wide in self._wide_filters:
                is_later = (refused_by > wide.index + 1) & (refused_by < LEFT_OUT)
                rows = np.flatnonzero((refused_by == 0) | is_later)
                found = wide.plugin.filter(self.states[wide.plugin.name], rows)
                refused = found != 0
                refused_by[rows[refused]] = wide.index + 1
                codes[rows[refused]] = found[refused]
            self._refusals = NodeRefusals(
                self._profile, self._table, self.states, refused_by, codes, self.narrowed_by
            )
        return self._refusals

    def _normalised(self, scorer: WideScorer, rows: Rows) -> Scores | int:
        return scorer.final(self.states[scorer.plugin.name], rows)
