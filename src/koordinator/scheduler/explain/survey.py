"""Ask every filter about every node: the cycle's evaluation without stopping at the first refusal. Long answers come
in slices, between which the scheduler goes on with its work.

A question is a generator. Up to each `yield` it takes one look at the tables as they stand, at most some 10 ms; a
trial or a rehearsal never stays open across one, as the scheduler would take what is supposed for what is.
"""

import asyncio
from collections.abc import Generator, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.resource_vector import I64
from koordinator.scheduler.engine.answers import left_out
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.evaluation_cache import evaluate
from koordinator.scheduler.engine.post_filter import CycleDiagnosis, KeptFree
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.engine.results import FREE, Steering
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.explain.answer import PluginAnswer, PluginScore, ReasonCount, ScoredNode
from koordinator.scheduler.plugin.framework import FilterPlugin, Mask, ReasonCodes
from koordinator.scheduler.plugin.status import Code, Status
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import trial_of

T = TypeVar("T")

EXAMPLES_MAX = 3
FITS, REFUSES, NO_PART = "fits", "refuses", "takes no part"


class Survey(msgspec.Struct, frozen=True):
    """All answers for one pod.

    `rows` are all nodes; `codes` (filters, rows) are the reason codes of each of `filters`, 0 where it has no
    objection. `left_out` (rows,) marks nodes that PreFilter plugins leave out, `kept_free` rows that pass but
    are promised to nominated pods. `ahead` (rows,) are pods of the class that each row is taken to have besides.
    `requested` (resources, rows) and `pod_count` (rows,) are what nodes hold as they are shown to the pod: without
    the room of reservations that it may use.
    """

    engine: Engine
    profile: Profile
    pod: PodInfo
    evaluation: Evaluation
    kept_free: KeptFree
    rows: Rows
    filters: tuple[FilterPlugin[Any], ...]
    codes: npt.NDArray[np.uint16]
    left_out: Mask
    pre_filter: tuple[PluginAnswer, ...]
    ahead: I64
    requested: I64
    pod_count: I64

    @property
    def refused(self) -> npt.NDArray[np.bool_]:
        """(filters + 1, rows): who objects to what; the last row is PreFilter's narrowing."""
        return np.vstack([self.codes != 0, self.left_out])

    @property
    def is_alone(self) -> Mask:
        """(rows,): nodes to which one alone objects."""
        return np.asarray(self.refused.sum(axis=0) == 1)

    @property
    def view(self) -> View:
        """Return the filters, to be asked about nodes as the table stands."""
        return View(self.profile, self.engine.table, self.engine.nominations, self.pod)

    def diagnosis(self, steering: Steering = FREE) -> CycleDiagnosis:
        """Return what PostFilter plugins are told."""
        return CycleDiagnosis(self.view, self.evaluation, self.kept_free, steering)

    @property
    def takers(self) -> Rows:
        """Rows that the cycle would choose from."""
        if not self.evaluation.status.is_success:
            return self.rows[:0]
        feasible = self.evaluation.feasible
        return feasible[~np.isin(feasible, list(self.kept_free))] if self.kept_free else feasible

    @property
    def wanted(self) -> dict[int, int]:
        """Column → amount that the pod requests."""
        return dict(self.pod.requests)

    def inside(self, rows: Rows | None) -> Mask:
        """(rows,): which of all nodes are among these; None stands for all."""
        return np.ones(self.rows.size, np.bool_) if rows is None else np.isin(self.rows, rows)

    def index_of(self, plugin: str) -> int | None:
        """Return where a filter is, None where it has no say."""
        return next((index for index, each in enumerate(self.filters) if each.name == plugin), None)

    def free(self, columns: Sequence[int]) -> I64:
        """(columns, rows): what is left of these resources, `ahead` considered."""
        table, wanted = self.engine.table, self.wanted
        own = np.array([wanted.get(column, 0) for column in columns], np.int64)[:, np.newaxis]
        places = np.array(columns, np.intp)
        allocatable = table.allocatable[np.ix_(places, self.rows)]
        return np.asarray(allocatable - self.requested[places] - own * self.ahead)

    @property
    def free_pods(self) -> I64:
        """(rows,): how many more pods each takes at most, `ahead` considered."""
        table = self.engine.table
        return np.asarray(table.pods_max[self.rows] - self.pod_count - self.ahead)

    def names_of(self, rows: Iterable[int]) -> list[str]:
        """Return names of the first rows."""
        return [
            self.engine.table.name_of(int(row)) for row, _ in zip(rows, range(EXAMPLES_MAX), strict=False)
        ]

    def status_of(self, index: int, code: int) -> Status:
        """Return what a code of the filter at `index` means."""
        plugin = self.filters[index]
        return plugin.refusal(self.evaluation.states[plugin.name], code).by(plugin.name)


def survey(engine: Engine, profile: Profile, pod: PodInfo, ahead: I64 | None = None) -> Survey:
    """Ask all filters about all nodes. The table, its caches and the queue stay as they are.

    `ahead` (table rows,): so many more pods of the class on each row, for filters that foresee what they mean.
    """
    evaluation = evaluate(profile, engine.table, pod)
    kept_free = engine.cycle.kept_free(profile, pod, evaluation)
    rows = engine.table.rows
    pre_filter, skipped = _pre_filter(profile, evaluation)
    filters = tuple(plugin for plugin in profile.filters if plugin.name not in skipped)
    codes = np.zeros((len(filters), rows.size), np.uint16)
    more = np.zeros(rows.size, np.int64) if ahead is None else ahead[rows]
    with trial_of(engine.table) as what_if:
        if (shown := profile.extensions.shown_nodes(pod)) is not None:
            shown.show(what_if)
        if evaluation.status.is_success and rows.size:
            for index, plugin in enumerate(filters):
                codes[index] = _codes(plugin, evaluation.states[plugin.name], rows, more)
        requested, pod_count = engine.table.requested[:, rows], engine.table.pod_count[rows]
    left_out = np.zeros(rows.size, np.bool_)
    if evaluation.narrowed_by:
        left_out = ~np.isin(rows, evaluation.candidates)
    return Survey(
        engine,
        profile,
        pod,
        evaluation,
        kept_free,
        rows,
        filters,
        codes,
        left_out,
        tuple(pre_filter),
        more,
        requested,
        pod_count,
    )


def _codes(plugin: FilterPlugin[Any], state: Any, rows: Rows, ahead: I64) -> ReasonCodes:
    """Return every reason of the plugin, also those that Filter itself has no need for."""
    is_ahead = ahead.any() and plugin.foresees(state)
    codes = np.array(
        plugin.filter_ahead(state, rows, ahead) if is_ahead else plugin.filter(state, rows), np.uint16
    )
    refused = (codes != 0) & (ahead == 0)
    if refused.any() and type(plugin).detail is not FilterPlugin.detail:
        codes[refused] = plugin.detail(state, rows[refused], codes[refused])
    return codes


def _pre_filter(profile: Profile, evaluation: Evaluation) -> tuple[list[PluginAnswer], set[str]]:
    """Return what PreFilter plugins said about the pod, and whose Filter is left out for it."""
    answers: list[PluginAnswer] = []
    skipped: set[str] = set()
    for plugin in profile.pre_filters:
        result = plugin.pre_filter(evaluation.states[plugin.name])
        status = result.status
        if status.is_skip:
            skipped.add(plugin.name)
            answers.append(PluginAnswer(plugin=plugin.name, verdict=NO_PART))
        elif not status.is_success:
            answers.append(_refusal(status.by(plugin.name)))
            break
        else:
            names = result.node_names
            details = [] if names is None else [f"only {len(names)} nodes can come into question"]
            answers.append(PluginAnswer(plugin=plugin.name, verdict=FITS, details=details))
    return answers, skipped


def _refusal(status: Status, details: Iterable[str] = ()) -> PluginAnswer:
    return PluginAnswer(
        plugin=status.plugin,
        verdict=REFUSES,
        reasons=list(status.reasons),
        preemption_might_help=status.code is not Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
        details=list(details),
    )


def reasons(found: Survey) -> list[ReasonCount]:
    """Return every refusal of every plugin with the nodes that it concerns, most nodes first."""
    is_alone = found.is_alone
    counts: list[ReasonCount] = []
    for index, plugin in enumerate(found.filters):
        codes = found.codes[index]
        for code in np.unique(codes[codes != 0]).tolist():
            mask = codes == code
            facts = plugin.facts(found.evaluation.states[plugin.name], int(found.rows[mask.argmax()]))
            counts += _count(found, found.status_of(index, code), mask, is_alone, facts)
    if found.left_out.any():
        narrowed_by = found.evaluation.narrowed_by
        status = left_out(narrowed_by).by(", ".join(narrowed_by))
        counts += _count(found, status, found.left_out, is_alone)
    passes = np.asarray(~found.refused.any(axis=0))
    for row, status in found.kept_free.items():
        is_row = np.asarray(found.rows == row, np.bool_)
        counts += _count(found, status, is_row, passes)
    return sorted(_merged(counts), key=lambda each: (-each.node_count, each.plugin, each.reason))


def _count(
    found: Survey,
    status: Status,
    mask: Mask,
    is_alone: Mask,
    facts: Iterable[str] = (),
) -> list[ReasonCount]:
    return [
        ReasonCount(
            reason=reason,
            plugin=status.plugin,
            node_count=int(mask.sum()),
            alone_count=int((mask & is_alone).sum()),
            examples=found.names_of(found.rows[mask]),
            preemption_might_help=status.code is not Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            facts=list(facts),
        )
        for reason in status.reasons
    ]


def _merged(counts: Iterable[ReasonCount]) -> list[ReasonCount]:
    """Return one entry per plugin and reason: several codes may share a reason (short of cpu; of cpu and memory).
    Preemption might help when it might on some of the nodes."""
    merged: dict[tuple[str, str], ReasonCount] = {}
    for each in counts:
        key = (each.plugin, each.reason)
        other = merged.get(key)
        if other is None:
            merged[key] = each
            continue
        merged[key] = msgspec.structs.replace(
            other,
            node_count=other.node_count + each.node_count,
            alone_count=other.alone_count + each.alone_count,
            examples=[*other.examples, *each.examples][:EXAMPLES_MAX],
            preemption_might_help=other.preemption_might_help or each.preemption_might_help,
        )
    return list(merged.values())


def plugin_answers(found: Survey, position: int) -> list[PluginAnswer]:
    """Return what each filter says about the node at `position` of `rows`."""
    row = int(found.rows[position])
    answers = []
    for index, plugin in enumerate(found.filters):
        code = int(found.codes[index, position])
        details = plugin.facts(found.evaluation.states[plugin.name], row)
        if code:
            answers.append(_refusal(found.status_of(index, code), details))
        else:
            answers.append(PluginAnswer(plugin=plugin.name, verdict=FITS, details=list(details)))
    if found.left_out[position]:
        narrowed_by = found.evaluation.narrowed_by
        answers.append(_refusal(left_out(narrowed_by).by(" ".join(narrowed_by))))
    if row in found.kept_free:
        answers.append(_refusal(found.kept_free[row], ["next to the pods nominated to the node"]))
    return answers


def scores(found: Survey, rows: Rows, best_max: int, also: Iterable[int] = ()) -> list[ScoredNode]:
    """Return the best of `rows` (rows,), which take part together, and the rows `also` among them, with each plugin's
    share."""
    if rows.size == 0:
        return []
    shares = found.evaluation.score_shares(rows)
    total = np.zeros(rows.size, np.int64)
    for each in shares:
        total += each.weight * each.normalised
    order = np.argsort(-total, kind="stable")
    wanted = set(also)
    shown = [i for place, i in enumerate(order.tolist()) if place < best_max or int(rows[i]) in wanted]
    return [
        ScoredNode(
            node=found.engine.table.name_of(int(rows[i])),
            total=int(total[i]),
            shares=[
                PluginScore(
                    plugin=each.plugin,
                    raw=int(each.raw[i]),
                    normalised=int(each.normalised[i]),
                    weight=each.weight,
                )
                for each in shares
            ],
        )
        for i in shown
    ]


Steps = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """Return the answer in one piece, where nobody waits for the loop."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: T = end.value
            return answer


async def in_turns(steps: Steps[T], engine: Engine) -> T:
    """Return the answer; after each slice everybody else has a turn."""
    async with engine.explaining:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                answer: T = end.value
                return answer
            assert not engine.table.is_trial, "a trial is open across slices"
            await asyncio.sleep(0)
