"""Placing all pods of a plan in one cycle, or none of them. Source: behaviour/scheduler C9; behaviour/gangs 17.

A planner (`FindOneNodePlugin`) says which pods belong together, and on which nodes as far as it knows. Behind the
gate EnableInlineBatchSchedule all of them are filtered, counted and reserved at once, and then asked for permission
one after the other.

Planned nodes are independent of each other: when a pod fails, those that were to follow on its node are not tried,
the other nodes go on, so that the message tells how far the plan got. Pods without a planned node follow in the
order of the plan, each on the node that the engine finds best with the ones before it in place; equal pods share an
evaluation there as everywhere. The first one that the plan cannot do without and that no node takes ends it.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import msgspec

from koordinator.prometheus import Histogram
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.engine.results import PendingPod, Placed, rejected_by, steer
from koordinator.scheduler.engine.steps import AssumedPod, CycleSteps
from koordinator.scheduler.plugin.capabilities import PlacementPlan
from koordinator.scheduler.plugin.metrics import SchedulerMetrics
from koordinator.scheduler.plugin.status import Code, Status, unresolvable
from koordinator.scheduler.table.pod_info import PodInfo

SUCCESS, FAILURE = "success", "failure"


class BatchWatch:
    """`tick` gives seconds."""

    def __init__(self, metrics: SchedulerMetrics, tick: Callable[[], float]) -> None:
        self._metrics = metrics
        self._tick = tick

    def node(self) -> contextlib.AbstractContextManager[None]:
        """Filter, count and reserve the pods of one node, within."""
        return self._timing(self._metrics.batch_by_node)

    def pod(self) -> contextlib.AbstractContextManager[None]:
        """So is one pod."""
        return self._timing(self._metrics.batch_by_pod)

    @contextlib.contextmanager
    def _timing(self, histogram: Histogram) -> Iterator[None]:
        began_s = self._tick()
        try:
            yield
        finally:
            histogram.of().observe(max(0.0, self._tick() - began_s))

    def began(self) -> float:
        return self._tick()

    def ended(self, began_s: float, refusal: Status | None) -> None:
        """Note that a plan was carried out up to Permit, or given up."""
        result = SUCCESS if refusal is None else FAILURE
        self._metrics.batch_duration.of(result).observe(max(0.0, self._tick() - began_s))

    def cleaned_up(self, pod_count: int, reason: str) -> None:
        """Placements were undone."""
        if pod_count:
            self._metrics.batch_cleanups.inc(reason, by=pod_count)


class BatchBinding:
    """The bindings of one plan: whether only some of its pods were bound is known when the last one ended."""

    __slots__ = ("_failed_count", "_left_count", "_metrics", "_placed_count")

    def __init__(self, metrics: SchedulerMetrics, pod_count: int) -> None:
        self._metrics = metrics
        self._left_count = pod_count
        self._placed_count = 0
        self._failed_count = 0

    def ended(self, outcome: Status, phase: str) -> None:
        """One of the bindings ended; `phase` is the extension point that failed."""
        self._left_count -= 1
        if outcome.is_success:
            self._placed_count += 1
        else:
            self._failed_count += 1
            self._metrics.batch_bind_failures.inc(outcome.plugin or outcome.code.word, phase)
            self._metrics.batch_cleanups.inc("bind failure")
        if self._left_count == 0 and self._failed_count and self._placed_count:
            self._metrics.batch_partial_jobs.inc()
            self._metrics.batch_partial_pods.inc(SUCCESS, by=self._placed_count)
            self._metrics.batch_partial_pods.inc(FAILURE, by=self._failed_count)


class Trigger(msgspec.Struct, frozen=True):
    """The pod in whose cycle a plan is carried out, how often it was tried, and who made the plan."""

    candidate: PendingPod
    attempt: int
    planned_by: str


class FailedPod(msgspec.Struct, frozen=True):
    """A pod of the plan that found no place. `rejected_by` are the plugins whose events can change that; a node name is
    there when it was planned."""

    candidate: PendingPod
    node_name: str
    status: Status
    rejected_by: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        return self.candidate.pod.key


class BatchOutcome(msgspec.Struct, frozen=True):
    """The pods on their nodes, none of them waiting for anybody, and those that the plan did without; or why it failed
    as a whole, and which pod is to blame, if one is."""

    placed: tuple[Placed, ...] = ()
    left_out: tuple[FailedPod, ...] = ()
    refusal: Status | None = None
    blamed: FailedPod | None = None


class Batch:
    """Carries one plan out."""

    def __init__(
        self, steps: CycleSteps, watch: BatchWatch, profile: Profile, plan: PlacementPlan, trigger: Trigger
    ) -> None:
        self._steps = steps
        self._watch = watch
        self._profile = profile
        self._plan = plan
        self._trigger = trigger
        self._booked: list[AssumedPod] = []
        self._failed: list[FailedPod] = []
        self._blamed: FailedPod | None = None
        self._spare_of = {uid: index for index, quorum in enumerate(plan.quorums) for uid in quorum.uids}
        self._spare = [len(quorum.uids) - quorum.minimum for quorum in plan.quorums]

    def run(self) -> BatchOutcome:
        nominated = self._steps.set_nominations_aside(self._plan.pods)
        began_s = self._watch.began()
        try:
            refusal = self._reserve_all() or self._permit_all()
        except Exception:
            self._roll_back()
            self._steps.nominate_again(nominated)
            raise
        self._watch.ended(began_s, refusal)
        if refusal is not None:
            self._roll_back()
            self._steps.nominate_again(nominated)
            return BatchOutcome(refusal=refusal, blamed=self._blamed)
        before = {pod.uid: node_name for pod, node_name in nominated}
        booked = {each.pod.uid for each in self._booked}
        self._steps.nominate_again(each for each in nominated if each[0].uid not in booked)
        placed = (
            self._steps.placed(each.pod, each.node_name, each.evaluation, before.get(each.pod.uid, ""))
            for each in self._booked
        )
        return BatchOutcome(tuple(placed), tuple(self._failed))

    def _reserve_all(self) -> Status | None:
        """Return why the job failed; None when all pods that have to be are booked."""
        by_node: dict[str, list[PodInfo]] = {}
        anywhere: list[PodInfo] = []
        for pod in self._plan.pods:
            if pod.pod.metadata.deletion_timestamp is None and self._steps.table.place_of(pod.uid) is None:
                node_name = self._plan.nodes.get(pod.uid)
                (by_node.setdefault(node_name, []) if node_name else anywhere).append(pod)
        total = len(anywhere) + sum(map(len, by_node.values()))
        for node_name in sorted(by_node):
            with self._watch.node():
                self._reserve_on(node_name, sorted(by_node[node_name], key=lambda pod: pod.key))
        self._blamed = min(filter(self._is_missed, self._failed), key=lambda each: each.key, default=None)
        for pod in anywhere:
            if self._blamed is not None:
                break
            with self._watch.pod():
                self._reserve_anywhere(pod)
        return self._refusal(self._blamed, total) if self._blamed is not None else None

    def _is_missed(self, failed: FailedPod) -> bool:
        """Return whether the plan cannot do without the pod."""
        quorum = self._spare_of.get(failed.candidate.pod.uid)
        if quorum is None:
            return True
        self._spare[quorum] -= 1
        return self._spare[quorum] < 0

    def _refusal(self, blamed: FailedPod, total: int) -> Status:
        # For a pod that may go anywhere, it is the first one without a node that tells what is short.
        first = blamed if blamed.node_name else next(each for each in self._failed if not each.node_name)
        code = first.status.code
        if code is Code.UNSCHEDULABLE:
            code = Code.UNSCHEDULABLE_AND_UNRESOLVABLE  # no eviction helps a plan that is made anew each time
        self._blamed = first
        return Status(code, (failure_message(self._booked, total - len(self._booked), first),))

    # On planned nodes

    def _reserve_on(self, node_name: str, pods: Sequence[PodInfo]) -> None:
        for position, pod in enumerate(pods):
            with self._watch.pod():
                failed = self._book(pod, node_name)
            if failed is not None:
                self._failed.append(failed)
                behind = unresolvable(f"{pod.key} before it failed")
                self._failed += [
                    FailedPod(PendingPod(each, ()), node_name, behind) for each in pods[position + 1 :]
                ]
                return

    def _book(self, pod: PodInfo, node_name: str) -> FailedPod | None:
        """PreFilter, Filter, assume and Reserve on the planned node; why not, None when it worked."""
        found = self._candidate(pod)
        if isinstance(found, Status):
            return FailedPod(PendingPod(pod, ()), node_name, found, rejected_by(found))
        refusal = self._book_on(found, node_name)
        return FailedPod(found, node_name, refusal, rejected_by(refusal)) if refusal is not None else None

    def _book_on(self, candidate: PendingPod, node_name: str) -> Status | None:
        pod, row = candidate.pod, self._steps.table.row_of(node_name)
        if row is None:
            return unresolvable(f"node {node_name} is unknown")
        evaluation = self._steps.cache.evaluate(self._profile, pod, candidate.class_key)
        if evaluation.failure is not None:
            return evaluation.failure
        steering = steer(self._profile.extensions, evaluation, pod, in_batch=True)
        if not steering.status.is_success:
            return steering.status
        if not evaluation.is_feasible(row):
            return evaluation.status_of(row)
        kept_free = self._steps.kept_free(self._profile, pod, evaluation)
        if row in kept_free:
            return kept_free[row]
        booked = self._steps.assume(self._profile, pod, evaluation, row)
        if isinstance(booked, Status):
            return booked
        self._booked.append(AssumedPod(booked, evaluation, node_name))
        return None

    # Anywhere

    def _reserve_anywhere(self, pod: PodInfo) -> None:
        found = self._candidate(pod)
        if isinstance(found, Status):
            self._fail(FailedPod(PendingPod(pod, ()), "", found, rejected_by(found)))
            return
        pod = found.pod
        evaluation = self._steps.cache.evaluate(self._profile, pod, found.class_key)
        if evaluation.failure is not None:
            self._fail(FailedPod(found, "", evaluation.failure))
            return
        steering = steer(self._profile.extensions, evaluation, pod, in_batch=True)
        booked = self._steps.assume_best(self._profile, pod, evaluation, steering, self._trigger.attempt)
        if isinstance(booked, AssumedPod):
            self._booked.append(booked)
        else:
            self._fail(FailedPod(found, "", booked.status, booked.rejected_by))

    def _fail(self, failed: FailedPod) -> None:
        self._failed.append(failed)
        if self._is_missed(failed):
            self._blamed = failed

    def _candidate(self, pod: PodInfo) -> PendingPod | Status:
        """Return the pod as it waits, or what holds it back."""
        own = self._trigger.candidate
        if pod.uid == own.pod.uid:
            return own
        return self._steps.candidate(self._profile, pod, self._trigger.planned_by)

    # Permission

    def _permit_all(self) -> Status | None:
        """Ask for permission one after the other: who waits, waits for those behind it, so the last decides."""
        waiting_count = 0
        waits: dict[str, float] = {}
        for each in self._booked:
            answer = self._steps.permit(self._profile, each.pod, each.evaluation, each.node_name)
            if isinstance(answer, Status):
                if answer.code is Code.UNSCHEDULABLE:
                    return unresolvable(*answer.reasons).by(answer.plugin)
                return answer
            waits = answer
            waiting_count += bool(waits)
        if waits:
            return unresolvable(
                f"inline batch permit did not complete: {waiting_count} pods are still waiting after all pods "
                "were permitted"
            )
        return None

    def _roll_back(self) -> None:
        self._watch.cleaned_up(len(self._booked), "plan failed")
        for each in reversed(self._booked):
            self._steps.forget(self._profile, each.pod, each.evaluation, each.node_name)
        self._booked.clear()


def failure_message(booked: Sequence[AssumedPod], failed_count: int, first: FailedPod) -> str:
    """Return how far the plan got, and the pod that it failed for, in upstream's words; of pods with a planned node
    that is the one whose key is smallest. Source: behaviour/gangs 17."""
    where = f"@{first.node_name}" if first.node_name else ""
    text = (
        f"job failed due to job batch schedule failed, assumed {len(booked)} pods, failed {failed_count} pods, "
        f"first failed pod {first.key}{where} failed due to {first.status.message}"
    )
    beside = [each.pod.key for each in booked if each.node_name == first.node_name]
    if beside:
        text += f", assumed pods on node {first.node_name}: {', '.join(beside)}"
    return text
