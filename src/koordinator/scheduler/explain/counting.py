"""Count how many equal pods fit, and where they would go, from one evaluation: nothing is placed for it.

Every limit is asked ahead (`FilterPlugin.filter_ahead`), so a thousand pods cost what one costs.
"""

import msgspec
import numpy as np

from koordinator.api.resource_vector import I64
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.explain.quotas import room_in_quota
from koordinator.scheduler.plugin.status import SUCCESS, Status, unschedulable
from koordinator.scheduler.plugins.network_topology import slots
from koordinator.scheduler.table.columns import NOT_FEASIBLE, Rows
from koordinator.scheduler.table.pod_info import PodInfo

STATES_MAX = 1 << 16
"""Placements whose scores are worked out at once."""


class Count(msgspec.Struct, frozen=True, eq=False):
    """The fate of `wanted` pods that are alike."""

    rows: Rows
    """A row per pod that fits, those chosen first in front."""
    taken: I64
    """(table rows,): how many of them each row takes."""
    status: Status = SUCCESS
    """Why the next one does not fit; success when all do."""


def can_count(engine: Engine, profile: Profile, pod: PodInfo) -> bool:
    """Return whether all that decides about pods like this one can be asked ahead: no filter looks around, nothing
    is booked beyond amounts, and no node is kept free for others.
    """
    extensions = profile.extensions
    if extensions.after_pre_filters or extensions.transforms or extensions.books:
        return False
    prospects = engine.prospects(pod)
    if prospects is None or prospects.nominated_beside(pod):
        return False
    evaluation = prospects.evaluate(pod)
    if evaluation.failure is not None or not evaluation.status.is_success:
        return evaluation.failure is None
    if any(plugin.reserves(evaluation.state_of(plugin.name)) for plugin in profile.reserves):
        return False
    return prospects.foresight(evaluation).is_complete


def count(engine: Engine, profile: Profile, pod: PodInfo, wanted: int, rows: Rows | None = None) -> Count:
    """Count the pods that fit on the table as it stands, on `rows` (rows,) if given. Needs `can_count`."""
    prospects = engine.prospects(pod)
    assert prospects is not None, pod.key
    found = slots.count(engine.handles[0], prospects, [pod], wanted)
    evaluation, counts = found.evaluation, found.counts
    if rows is not None:
        is_inside = np.zeros(counts.size, np.bool_)
        is_inside[rows] = True
        counts = np.where(is_inside, counts, 0)
    if not evaluation.status.is_success or evaluation.failure is not None:
        status = evaluation.failure or evaluation.status
        return Count(np.empty(0, np.intp), np.zeros_like(counts), status)
    room, (allowed, refusal) = int(counts.sum()), room_in_quota(profile, pod, wanted)
    fitting = min(wanted, room, allowed)
    order = spread(evaluation, counts, fitting)
    taken = np.bincount(order, minlength=counts.size)
    if fitting == wanted:
        return Count(order, taken)
    if allowed <= room:
        return Count(order, taken, refusal)
    return Count(order, taken, unschedulable(found.fit_error(engine.table.node_count)))


def spread(evaluation: Evaluation, counts: I64, wanted: int) -> Rows:
    """Rows of `wanted` pods placed one after the other, each on the best row at its time.

    `counts` (table rows,) are how many each row takes, `wanted` at most their sum. What comes after a state of a row
    is as good as the worst state before it at most: so states can be sorted instead of chosen one by one.
    """
    rows = np.flatnonzero(counts)
    if not rows.size or wanted <= 0:
        return np.empty(0, np.intp)
    if not evaluation.foresees:
        return _filled(evaluation, rows, counts, wanted)
    depth = 1 + wanted // rows.size
    while True:
        order, wants_more = _best_states(evaluation, rows, counts, wanted, depth)
        if order.size == wanted and not wants_more:
            return order
        if order.size == wanted:
            rows = np.unique(
                order
            )  # of which nothing was chosen nothing will be, however far others are seen
        if depth >= int(counts[rows].max()) or 2 * depth * rows.size > STATES_MAX:
            left = counts - np.bincount(order, minlength=counts.size)
            return np.concatenate([order, _filled(evaluation, rows, left, wanted - order.size)])
        depth *= 2


def _filled(evaluation: Evaluation, rows: Rows, counts: I64, wanted: int) -> Rows:
    """One row after the other, the best as things are now in front."""
    best = rows[np.argsort(-evaluation.totals[rows], kind="stable")]
    return best.repeat(counts[best])[:wanted]


def _best_states(
    evaluation: Evaluation, rows: Rows, counts: I64, wanted: int, depth: int
) -> tuple[Rows, bool]:
    """The best of the first `depth` states of each row, and whether a row may want more of them."""
    ahead = np.tile(np.arange(depth), rows.size)
    repeated = rows.repeat(depth)
    # Descending, as `totals_ahead` asks.
    totals = evaluation.totals_ahead(repeated[::-1].copy(), ahead[::-1].copy())[::-1]
    is_there = (ahead < counts[repeated]) & (totals != NOT_FEASIBLE)
    worst = np.minimum.accumulate(np.where(is_there, totals, NOT_FEASIBLE).reshape(-1, depth), axis=1).ravel()
    best = np.argsort(-worst, kind="stable")[: min(wanted, int(is_there.sum()))]
    chosen = repeated[best]
    per_row = np.bincount(chosen, minlength=counts.size)[rows]
    return chosen, bool(((per_row == depth) & (counts[rows] > depth)).any())
