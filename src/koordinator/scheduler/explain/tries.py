"""Place pods one beside the other on the node table, as their cycles would place them, and undo it; or count how many
equal ones fit, from one evaluation, for which nothing is placed.

Equal pods share an evaluation, as in cycles, so a gang costs one look at all nodes and one row per member. Moves of
running pods are tried so, too (`Rehearsal`).
"""

import contextlib
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from koordinator.api.resource_vector import I64
from koordinator.scheduler.engine import pick
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.evaluation_cache import EvaluationCache
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.engine.results import steer
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.explain.quotas import room_in_quota
from koordinator.scheduler.plugin.framework import Mask, ReservePlugin
from koordinator.scheduler.plugin.status import SUCCESS, Status, unresolvable, unschedulable
from koordinator.scheduler.plugins.network_topology import slots
from koordinator.scheduler.table.columns import NOT_FEASIBLE, Rows
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial, rehearsal_of

PLACED_US, LOOKED_AROUND_US, BOOKED_US = 100, 300, 150
"""Cost of a pod, about: where looking ahead serves, where it does not, and the extra of a Reserve plugin."""
EVALUATED_US_PER_NODE = 0.2


class Tries:
    """Placements within a rehearsal, to be used as a context within it. `rows`, when given, are the only ones that are
    considered; `attempt` is the number of the cycles that are foreseen.

    Of Reserve plugins those are asked that may be in rehearsals; `unasked` are the others that would book something.
    Permit is not asked, nor are plugins that plan whole groups, since they remember.
    """

    def __init__(self, engine: Engine, trial: Trial, rows: Rows | None = None, *, attempt: int = 1) -> None:
        self.spent_us = 0.0
        """Cost of all of it so far, about: counted, not measured."""
        self.unasked: set[str] = set()
        self._engine = engine
        self._trial = trial
        self._attempt = attempt
        self._cache = EvaluationCache(engine.table)
        self._booked: list[tuple[ReservePlugin[Any], Any, PodInfo, str]] = []
        self._is_inside: Mask | None = None
        if rows is not None:
            self._is_inside = np.zeros(engine.table.capacity, np.bool_)
            self._is_inside[rows] = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back(0)

    @property
    def booked_count(self) -> int:
        """Return what Reserve plugins have booked so far."""
        return len(self._booked)

    def place(self, pod: PodInfo) -> str | Status:
        """Return the node on which the pod counts from now on, or why there is none."""
        profile = self._engine.profiles.get(pod.pod.spec.scheduler_name)
        if profile is None:
            return unresolvable(f"scheduler {pod.pod.spec.scheduler_name!r} is not served here")
        evaluation = self._evaluate(profile, pod)
        refused = self._refused(profile, pod, evaluation)
        if not refused.is_success:
            return refused
        row = self._row(profile, pod, evaluation)
        if row is None:
            return unresolvable(evaluation.fit_error())
        name, sequence = self._engine.table.name_of(row), self._engine.table.changes.sequence
        booked = self._put(profile, pod, evaluation, row)
        if not booked.is_success:
            return booked
        evaluation.follow(row, sequence)
        self.spent_us += PLACED_US if evaluation.foresees else LOOKED_AROUND_US
        return name

    def again(self, pod: PodInfo, node: str, *, is_booked: bool = True) -> None:
        """Count a pod where it was placed before; nothing if that is no node any more. `is_booked`: Reserve plugins
        may have booked something for it."""
        profile, row = self._engine.profiles.get(pod.pod.spec.scheduler_name), self._engine.table.row_of(node)
        if profile is None or row is None:
            return
        self.spent_us += PLACED_US / 2
        if is_booked:
            self._put(profile, pod, self._evaluate(profile, pod), row)
        else:
            self._trial.add(pod, node)

    def _evaluate(self, profile: Profile, pod: PodInfo) -> Evaluation:
        misses = self._cache.miss_count
        found = self._cache.evaluate(profile, pod, profile.class_key(pod))
        if self._cache.miss_count > misses:
            self.spent_us += EVALUATED_US_PER_NODE * self._engine.table.node_count
        return found

    def _put(self, profile: Profile, pod: PodInfo, evaluation: Evaluation, row: int) -> Status:
        """Count the pod and let Reserve plugins book; what they say when they refuse, after which nothing is left."""
        node = self._engine.table.name_of(row)
        self._trial.add(pod, node)
        before = len(self._booked)
        for plugin in profile.reserves:
            state = evaluation.states[plugin.name]
            if not plugin.reserves(state):
                continue
            if not plugin.in_rehearsals:
                self.unasked.add(plugin.name)
                continue
            self.spent_us += BOOKED_US
            self._booked.append((plugin, state, pod, node))
            status = plugin.reserve(state, pod, row)
            if not status.is_success:
                self._give_back(before)
                self._trial.drop(pod)
                return status.by(plugin.name)
        return SUCCESS

    def _give_back(self, kept: int) -> None:
        """Undo what Reserve plugins booked last, until so much of it is left."""
        while len(self._booked) > kept:
            plugin, state, pod, node = self._booked.pop()
            plugin.unreserve(state, pod, node)

    def _refused(self, profile: Profile, pod: PodInfo, evaluation: Evaluation) -> Status:
        if not evaluation.status.is_success:
            return evaluation.status
        if evaluation.failure is not None:
            return evaluation.failure
        if not profile.extensions.after_pre_filters:
            return SUCCESS
        return steer(profile.extensions, evaluation, pod, in_batch=True).status

    def _row(self, profile: Profile, pod: PodInfo, evaluation: Evaluation) -> int | None:
        """Return the nominated node if it will do, else the best of those that are not kept free for others."""
        engine = self._engine
        view = View(profile, engine.table, engine.nominations, pod)
        nominated = engine.nominations.node_for(pod)
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


STATES_MAX = 1 << 16
"""Placements whose scores are worked out at once."""


class Count(msgspec.Struct, frozen=True, eq=False):
    """The fate of `wanted` pods that are alike."""

    rows: Rows
    """A row per pod that fits, those chosen first in front."""
    taken: I64
    """(table rows,): how many of them each row takes."""
    status: Status = SUCCESS
    """Reason for which the next one does not fit; success when all do."""


def can_count(engine: Engine, profile: Profile, pod: PodInfo) -> bool:
    """Return whether all that decides about pods like this one can be asked ahead: no filter looks around, nothing is
    booked beyond amounts, and no node is kept free for others."""
    extensions = profile.extensions
    if extensions.after_pre_filters or extensions.transforms or extensions.resizers:
        return False
    prospects = engine.prospects(pod)
    if prospects is None or prospects.nominated_beside(pod):
        return False
    evaluation = prospects.evaluate(pod)
    if evaluation.failure is not None or not evaluation.status.is_success:
        return evaluation.failure is None
    if any(plugin.reserves(evaluation.states[plugin.name]) for plugin in profile.reserves):
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
    """Return rows of `wanted` pods placed one after the other, each on the best row at its time.

    `counts` (table rows,) are how many each row takes, `wanted` at most their sum. A later state of a row is at
    most as good as the worst one before it: so states can be sorted instead of chosen one by one.
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
    """Return the best of the first `depth` states of each row, and whether a row may want more of them."""
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


SUCCESSOR = "/moved"
"""Behind the uid of a pod that was moved: its successor is another pod."""
UNKNOWN = "the scheduler does not know it"


class Found(msgspec.Struct, frozen=True):
    """The node that the scheduler chose, empty when it chose none: then `why` says what is in the way."""

    node: str
    why: str = ""


class PodToMove(msgspec.Struct, frozen=True):
    """A pod on its way, and the nodes among which the scheduler may choose."""

    uid: str
    nodes: tuple[str, ...]


class Rehearsal(contextlib.ExitStack):
    """Moves of running pods one on top of the other, to be used as a context; in the end the engine's table is as
    before.

    Room is reserved for a successor while its predecessor runs, so a successor is placed first and the pod taken from
    its node then; or not at all, where all room is reserved before anything is evicted (`sources_stay`). Columns that
    depend on the time must be current.
    """

    def __init__(self, engine: Engine, *, sources_stay: bool = False) -> None:
        super().__init__()
        self.is_spoiled = False
        """True when a move that could not be made is booked in part, so that nothing more can be asked."""
        self._engine = engine
        self._sources_stay = sources_stay
        self._trial: Trial | None = None

    def __enter__(self) -> Self:
        self._trial = self.enter_context(rehearsal_of(self._engine.table))
        return self

    def move(self, uid: str, nodes: Iterable[str]) -> Found:
        """Move the pod to the node of these that the scheduler chooses; where there is none, nothing changes."""
        assert self._trial is not None
        assert not self.is_spoiled
        table = self._engine.table
        place = table.place_of(uid)
        if place is None:
            return Found("", UNKNOWN)
        rows = [row for name in nodes if (row := table.row_of(name)) is not None and row != place.row]
        tries = self.enter_context(Tries(self._engine, self._trial, np.array(rows, np.intp)))
        found = tries.place(successor_of(place.pod))
        if not isinstance(found, str):
            return Found("", found.message)
        if tries.unasked:
            self.is_spoiled = True
            return Found(
                "", f"{', '.join(sorted(tries.unasked))} would have to book for it, which cannot be tried"
            )
        if not self._sources_stay:
            self._trial.take(place.pod)
        return Found(found)


def prove(engine: Engine, moves: Sequence[PodToMove]) -> list[Found]:
    """Return where each pod would go if room was reserved for all of them, in this order, before any is evicted.

    Where one cannot go, the others are asked without it.
    """
    found: list[Found] = []
    with contextlib.ExitStack() as stack:
        rehearsal: Rehearsal | None = None
        for each in moves:
            if rehearsal is None or rehearsal.is_spoiled:
                stack.close()
                rehearsal = stack.enter_context(Rehearsal(engine, sources_stay=True))
                for earlier, made in zip(moves, found, strict=False):
                    if made.node:
                        rehearsal.move(earlier.uid, (made.node,))
            found.append(rehearsal.move(each.uid, each.nodes))
    return found


def successor_of(pod: PodInfo) -> PodInfo:
    """Return the pod that a workload makes in place of this one: it has no node yet."""
    meta = msgspec.structs.replace(pod.pod.metadata, uid=pod.uid + SUCCESSOR)
    spec = msgspec.structs.replace(pod.pod.spec, node_name="")
    whole = msgspec.structs.replace(pod.pod, metadata=meta, spec=spec)
    return msgspec.structs.replace(pod, pod=whole, uid=meta.uid)
