"""One scheduling cycle: evaluate, pick, assume, reserve, permit. No I/O. Source: spec 03, B3."""

import contextlib
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping

import msgspec
import numpy as np

from koordinator.cluster.supervise import Guard
from koordinator.scheduler import diagnosis, pick, post_filter
from koordinator.scheduler.advice import Advice
from koordinator.scheduler.batch import Batch
from koordinator.scheduler.batch_watch import BatchWatch
from koordinator.scheduler.capabilities import Plan
from koordinator.scheduler.columns import Rows
from koordinator.scheduler.evaluation import Evaluation
from koordinator.scheduler.evaluation_cache import EvaluationCache
from koordinator.scheduler.framework import Later
from koordinator.scheduler.nodes import NodeTable
from koordinator.scheduler.nominations import Nominations
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.post_filter import CycleDiagnosis, KeptFree
from koordinator.scheduler.profile import Profile
from koordinator.scheduler.status import SUCCESS, Code, Status, error, unresolvable, unschedulable
from koordinator.scheduler.steering import FREE, Steering, steer
from koordinator.scheduler.suggestion import Suggestion
from koordinator.scheduler.view import View
from koordinator.scheduler.zone_order import ZoneOrder

RESERVE_TRIES_MAX = 16
"""Nodes tried in one cycle when Reserve refuses one after the other: more means that Filter is blind."""


class Placed(msgspec.Struct, frozen=True):
    """The pod is assumed and reserved on a node. `waits` maps Permit plugins that hold it to seconds.

    `together` are the other pods of its plan that were placed in the same go (`batch`).
    """

    pod: PodInfo
    node_name: str
    evaluation: Evaluation
    feasible_count: int
    waits: dict[str, float]
    together: tuple["Placed", ...] = ()
    nominated_before: str = ""
    """The node that was kept free for it until now."""


class Unplaced(msgspec.Struct, frozen=True):
    """No node. `rejected_by` are the plugins whose events can change that; `nominated_node` is set when
    PostFilter made room ("" clears a nomination, None leaves it). `evaluation` is how the nodes answered, None
    when they were not asked; `post_filter_message` is what PostFilter plugins said."""

    pod: PodInfo
    status: Status
    rejected_by: frozenset[str]
    nominated_node: str | None = None
    evaluation: Evaluation | None = None
    post_filter_message: str = ""
    pending_by: frozenset[str] = frozenset()
    """The plugin that only waits for somebody else to act: its events wake the pod without a backoff."""
    later: "Callable[[], Awaitable[Unplaced]] | None" = None
    """The answer proper, when somebody outside has to be asked for it first."""
    suggestion: Suggestion | None = None
    """What a plugin suggests to users; part of the message."""


class Cycle:
    """Places pods on the node table, one after the other."""

    def __init__(
        self,
        table: NodeTable,
        cache: EvaluationCache,
        seed: int,
        batch_watch: BatchWatch,
        nominations: Nominations | None = None,
    ) -> None:
        self.batch_watch = batch_watch
        self._table = table
        self._cache = cache
        self._seed = seed
        self._nominations = nominations if nominations is not None else Nominations()
        self._sample_start = 0
        self._guard = Guard("scheduler plugins, forgetting a pod")

    def shortlist(self, profile: Profile, pod: PodInfo, class_key: Hashable, now_s: float) -> list[str]:
        """Nodes that pass all filters, to be shown to somebody outside before the cycle runs."""
        for timed in profile.refreshers:
            timed.refresh(now_s)
        if self._table.node_count == 0:
            return []
        evaluation = self._cache.evaluate(profile, pod, class_key)
        if evaluation.failure is not None or not evaluation.status.is_success:
            return []
        kept_free = self.kept_free(profile, pod, evaluation) if len(self._nominations) else {}
        return [self._table.name_of(row) for row in evaluation.feasible.tolist() if row not in kept_free]

    def run(
        self,
        profile: Profile,
        pod: PodInfo,
        class_key: Hashable,
        attempt: int,
        now_s: float,
        advice: Advice | None = None,
    ) -> Placed | Unplaced:
        """Find a node and book it there, minding the `advice` of others."""
        for timed in profile.refreshers:
            timed.refresh(now_s)
        if self._table.node_count == 0:
            return Unplaced(pod, unresolvable(diagnosis.NO_NODES), frozenset())
        objection = profile.extensions.begin_attempt(pod) if profile.extensions.attempts else SUCCESS
        evaluation = self._cache.evaluate(profile, pod, class_key)
        if not objection.is_success:
            return self._refused(profile, pod, evaluation, Steering(objection))
        if evaluation.failure is not None:
            return Unplaced(pod, evaluation.failure, frozenset(), evaluation=evaluation)
        steering = FREE
        if profile.extensions.steers and evaluation.status.is_success:
            steering = steer(profile.extensions, evaluation, pod)
            if not steering.status.is_success:
                return self._refused(profile, pod, evaluation, steering)
            if steering.plan is not None and profile.extensions.batches:
                return self._batch(profile, pod, evaluation, steering, steering.plan)
        kept_free = self.kept_free(profile, pod, evaluation) if len(self._nominations) else {}
        if advice is not None:
            if not advice.failure.is_success:
                return refused(pod, advice.failure, evaluation)
            kept_free |= self._advised_against(evaluation, advice)
        is_advised = advice is not None
        rows = self._candidates(profile, pod, evaluation, kept_free, steering, is_advised=is_advised)
        if (evaluation.feasible_count if rows is None else rows.size) == 0:
            return self._no_fit(profile, pod, evaluation, kept_free, steering)
        chance = pick.chance_of(self._seed, pod.uid, attempt)
        scores: Mapping[str, int] = {}
        if advice is not None and advice.scores:
            rows, scores = evaluation.feasible if rows is None else rows, advice.scores
        return self._place(profile, pod, evaluation, rows, chance, scores)

    def _advised_against(self, evaluation: Evaluation, advice: Advice) -> KeptFree:
        """Feasible rows that somebody outside objects to."""
        found: KeptFree = {}
        for row in evaluation.feasible.tolist():
            objection = advice.objection(self._table.name_of(row))
            if not objection.is_success:
                found[row] = objection
        return found

    def _place(
        self,
        profile: Profile,
        pod: PodInfo,
        evaluation: Evaluation,
        rows: Rows | None,
        chance: int,
        scores: Mapping[str, int],
    ) -> Placed | Unplaced:
        """Book the best of `rows` (None: of all feasible ones) that Reserve and Permit accept; `scores` by node
        name are added to the totals."""
        totals = evaluation.totals if rows is None else evaluation.totals_of(rows)
        if scores and rows is not None:
            totals = totals + np.array([scores.get(self._table.name_of(row), 0) for row in rows.tolist()])
        count = evaluation.feasible_count if rows is None else int(rows.size)
        status = SUCCESS
        for _ in range(RESERVE_TRIES_MAX):
            if totals is evaluation.totals:
                position = evaluation.best(chance)
            else:
                position = pick.best(totals, chance)
            if position is None:
                break
            row = position if rows is None else int(rows[position])
            if profile.extensions.books:
                booked = self._to_book(profile, pod, evaluation, row)
                if isinstance(booked, Status):
                    return refused(pod, booked, evaluation)
                placed = self._book(profile, booked, evaluation, row, count)
                profile.extensions.forget_nominated(pod.uid)
            else:
                sequence = self._table.changes.sequence
                placed = self._book(profile, pod, evaluation, row, count)
                if isinstance(placed, Placed):
                    evaluation.follow(row, sequence)
            if isinstance(placed, Placed):
                return placed
            status = placed
            if not status.is_rejected:
                break
            totals = totals.copy()
            totals[position] = pick.NOT_FEASIBLE
        return refused(pod, status, evaluation)

    def _batch(
        self, profile: Profile, pod: PodInfo, evaluation: Evaluation, steering: Steering, plan: Plan
    ) -> Placed | Unplaced:
        """The pod and all others of its plan on their nodes, or none of them."""
        placed = Batch(self, profile, plan).run()
        if isinstance(placed, Status):
            author = placed.plugin or steering.planned_by
            return self._refused(profile, pod, evaluation, Steering(placed.by(author)))
        own = next((each for each in placed if each.pod.uid == pod.uid), None)
        if own is None:
            text = f"pod {pod.key} is not in its own plan"
            for each in placed:
                self.forget(profile, each.pod, each.evaluation, each.node_name)
            return refused(pod, error(text).by(steering.planned_by), evaluation)
        together = tuple(each for each in placed if each is not own)
        return msgspec.structs.replace(own, together=together)

    def _refused(
        self, profile: Profile, pod: PodInfo, evaluation: Evaluation, steering: Steering
    ) -> Unplaced:
        """By a plugin that was asked after PreFilter."""
        if steering.status.is_rejected:
            return self._no_fit(profile, pod, evaluation, {}, steering)
        return refused(pod, steering.status, evaluation)

    def kept_free(self, profile: Profile, pod: PodInfo, evaluation: Evaluation) -> KeptFree:
        """Feasible rows where the pod would take the place of nominated pods that are as important."""
        view = View(profile, self._table, self._nominations, pod)
        found: KeptFree = {}
        for name in sorted(self._nominations.nodes):
            row = self._table.row_of(name)
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
        nominated = self._nominations.node_of(pod.uid) or pod.pod.status.nominated_node_name
        if nominated and not steering.planned:
            row = self._table.row_of(nominated)
            if row is not None and evaluation.is_feasible(row) and row not in kept_free:
                return np.array([row], np.intp)
        if steering is not FREE:
            for name in (steering.planned,) if steering.planned else steering.preferred:
                row = self._table.row_of(name)
                if row is not None and evaluation.is_feasible(row) and row not in kept_free:
                    return np.array([row], np.intp)
            if steering.planned:
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
        rows, looked_at = pick.sample(feasible, self._table.shared(ZoneOrder).of(all_rows), start, wanted)
        self._sample_start = (self._sample_start + looked_at) % self._table.node_count
        return rows

    def _book(
        self, profile: Profile, pod: PodInfo, evaluation: Evaluation, row: int, feasible_count: int
    ) -> Placed | Status:
        """Assume, reserve and ask for permission; undone as a whole when somebody refuses or raises."""
        name = self._table.name_of(row)
        try:
            self._table.assign(pod, name, assumed=True)
            refusal = self._reserve(profile, pod, evaluation, row)
            waits = refusal or self.permit(profile, pod, evaluation, name)
        except Exception:
            self.forget(profile, pod, evaluation, name)
            raise
        if isinstance(waits, Status):
            self.forget(profile, pod, evaluation, name)
            return waits
        nominated = self._nominations.node_of(pod.uid)
        self._nominations.remove(pod.uid)
        return Placed(pod, name, evaluation, feasible_count, waits, nominated_before=nominated)

    def _reserve(self, profile: Profile, pod: PodInfo, evaluation: Evaluation, row: int) -> Status | None:
        """The first refusal; None when all exact resources are booked."""
        for plugin in profile.reserves:
            status = plugin.reserve(evaluation.state_of(plugin.name), pod, row)
            if not status.is_success:
                return status.by(plugin.name)
        return None

    def permit(
        self, profile: Profile, pod: PodInfo, evaluation: Evaluation, node_name: str
    ) -> dict[str, float] | Status:
        """Which Permit plugins hold the pod for how many seconds, or the refusal."""
        waits: dict[str, float] = {}
        for permit in profile.permits:
            result = permit.permit(evaluation.state_of(permit.name), pod, node_name)
            if result.timeout_s > 0:
                waits[permit.name] = result.timeout_s
            elif not result.status.is_success:
                return result.status.by(permit.name)
        return waits

    # For pods that are placed together

    def row_of(self, node_name: str) -> int | None:
        """The row of an existing node."""
        return self._table.row_of(node_name)

    def is_counted(self, pod: PodInfo) -> bool:
        """Whether the pod is on a node already, assumed or confirmed."""
        return self._table.place_of(pod.uid) is not None

    def evaluate(self, profile: Profile, pod: PodInfo) -> Evaluation:
        """The current evaluation of the pod's class."""
        return self._cache.evaluate(profile, pod, profile.class_key(pod))

    def assume(self, profile: Profile, pod: PodInfo, evaluation: Evaluation, row: int) -> PodInfo | Status:
        """Count and reserve; the pod as it counts, or the refusal, after which nothing is left of it."""
        name = self._table.name_of(row)
        booked = self._to_book(profile, pod, evaluation, row) if profile.extensions.books else pod
        if isinstance(booked, Status):
            return booked
        try:
            self._table.assign(booked, name, assumed=True)
            refusal = self._reserve(profile, booked, evaluation, row)
        except Exception:
            self.forget(profile, booked, evaluation, name)
            raise
        profile.extensions.forget_nominated(pod.uid)
        if refusal is not None:
            self.forget(profile, booked, evaluation, name)
            return refusal
        return booked

    def placed(self, pod: PodInfo, node_name: str, evaluation: Evaluation) -> Placed:
        """A pod that waits for nobody."""
        self._nominations.remove(pod.uid)
        return Placed(pod, node_name, evaluation, evaluation.feasible_count, {})

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

    def _to_book(self, profile: Profile, pod: PodInfo, evaluation: Evaluation, row: int) -> PodInfo | Status:
        """The pod as it shall count on the chosen node, or why it cannot be placed after all."""
        extensions, states = profile.extensions, evaluation.states
        status = extensions.nominate(states, pod, row).status
        if not (status.is_success or status.is_skip):
            return status
        seen = extensions.resize(states, pod, self._table.name_of(row))
        return seen.pod if seen.status.is_success else seen.status

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
                    self._guard.call, plugin.unreserve, evaluation.state_of(plugin.name), pod, node_name
                )

    def _unassume(self, uid: str) -> None:
        place = self._table.place_of(uid)
        if place is not None and place.assumed:
            self._table.unassign(uid)

    def _no_fit(
        self,
        profile: Profile,
        pod: PodInfo,
        evaluation: Evaluation,
        kept_free: KeptFree,
        steering: Steering = FREE,
    ) -> Unplaced:
        view = View(profile, self._table, self._nominations, pod)
        found = CycleDiagnosis(view, profile, evaluation, kept_free, steering)
        asked = post_filter.ask(profile, pod, found)
        later, told = asked.later, found.told(asked.texts)
        profile.extensions.tell_post_filter(pod, found, asked.ended)
        unplaced = Unplaced(
            pod,
            unschedulable(found.fit_error(told)),
            found.rejected_by,
            asked.nominated,
            evaluation,
            told,
            pending_by(evaluation.status if evaluation.status.is_rejected else steering.status),
            suggestion=found.suggestion,
        )
        if later is None:
            return unplaced
        return msgspec.structs.replace(unplaced, later=lambda: _finish(unplaced, found, asked.texts, later))


async def _finish(unplaced: Unplaced, found: CycleDiagnosis, texts: str, later: Later) -> Unplaced:
    """The outcome once a PostFilter plugin has its answer; `texts` are those of the plugins before it."""
    result = await later()
    if not (result.status.is_success or result.status.is_rejected):
        return Unplaced(unplaced.pod, result.status, frozenset())
    told = found.told(", ".join(filter(None, (texts, result.status.message))))
    return msgspec.structs.replace(
        unplaced,
        status=unschedulable(found.fit_error(told)),
        nominated_node=result.nominated_node,
        post_filter_message=told,
    )


def refused(pod: PodInfo, status: Status, evaluation: Evaluation | None = None) -> Unplaced:
    """A pod that found a node, and was turned down by one plugin afterwards."""
    by = frozenset((status.plugin,)) if status.is_rejected and status.plugin else frozenset()
    return Unplaced(pod, status, by, evaluation=evaluation, pending_by=pending_by(status))


def pending_by(status: Status) -> frozenset[str]:
    return frozenset((status.plugin,)) if status.code is Code.PENDING and status.plugin else frozenset()
