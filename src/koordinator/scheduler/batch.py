"""Placing all pods of a plan in one cycle, or none of them. Source: spec 03, C9; spec 05, section 17.

A planner (`FindOneNodePlugin`) has chosen a node for each pod. Behind the gate EnableInlineBatchSchedule all of
them are filtered, counted and reserved on their nodes at once, and then asked for permission one after the
other. Nodes are independent of each other: when a pod fails, those that were to follow on its node are not
tried, the other nodes go on, so that the message tells how far the plan got.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from koordinator.scheduler import status
from koordinator.scheduler.capabilities import Plan
from koordinator.scheduler.evaluation import Evaluation
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.profile import Profile
from koordinator.scheduler.status import Code, Status, unresolvable
from koordinator.scheduler.steering import steer

if TYPE_CHECKING:
    from koordinator.scheduler.cycle import Cycle, Placed


class Failed(msgspec.Struct, frozen=True):
    """A pod of the plan that its node does not take."""

    key: str
    node_name: str
    status: Status


class Booked(msgspec.Struct, frozen=True):
    """A pod of the plan that is counted and reserved on its node; `pod` is as it counts there."""

    pod: PodInfo
    evaluation: Evaluation
    node_name: str


class Batch:
    """Carries one plan out."""

    def __init__(self, cycle: "Cycle", profile: Profile, plan: Plan) -> None:
        self._cycle = cycle
        self._profile = profile
        self._plan = plan
        self._watch = cycle.batch_watch
        self._booked: list[Booked] = []
        self._failed: list[Failed] = []

    def run(self) -> "tuple[Placed, ...] | Status":
        """The pods on their nodes, none of them waiting for anybody, or why the plan failed as a whole."""
        missing = sorted(pod.key for pod in self._plan.pods if not self._plan.nodes.get(pod.uid))
        if missing:
            return status.error(f"no node is planned for pods {', '.join(missing)}")
        nominated = self._cycle.set_nominations_aside(self._plan.pods)
        began_s = self._watch.began()
        try:
            outcome = self._reserve_all() or self._permit_all()
        except Exception:
            self._roll_back()
            self._cycle.nominate_again(nominated)
            raise
        self._watch.ended(began_s, outcome)
        if outcome is not None:
            self._roll_back()
            self._cycle.nominate_again(nominated)
            return outcome
        return tuple(self._cycle.placed(each.pod, each.node_name, each.evaluation) for each in self._booked)

    def _reserve_all(self) -> Status | None:
        """Why the job failed; None when all pods are booked."""
        by_node: dict[str, list[PodInfo]] = {}
        for pod in sorted(self._plan.pods, key=lambda pod: pod.key):
            is_gone = pod.pod.metadata.deletion_timestamp is not None
            if not is_gone and not self._cycle.is_counted(pod):
                by_node.setdefault(self._plan.nodes[pod.uid], []).append(pod)
        for node_name in sorted(by_node):
            with self._watch.node():
                self._reserve_on(node_name, by_node[node_name])
        if not self._failed:
            return None
        worst = min(self._failed, key=lambda failed: failed.key)
        code = worst.status.code
        if code is Code.UNSCHEDULABLE:
            code = Code.UNSCHEDULABLE_AND_UNRESOLVABLE  # no eviction helps a plan that is made anew each time
        return Status(code, (failure_message(self._booked, self._failed, worst),))

    def _reserve_on(self, node_name: str, pods: Sequence[PodInfo]) -> None:
        for position, pod in enumerate(pods):
            with self._watch.pod():
                refusal = self._book(pod, node_name)
            if refusal is not None:
                self._failed.append(Failed(pod.key, node_name, refusal))
                behind = unresolvable(f"{pod.key} before it failed")
                self._failed += [Failed(each.key, node_name, behind) for each in pods[position + 1 :]]
                return

    def _book(self, pod: PodInfo, node_name: str) -> Status | None:
        """PreFilter, Filter, assume and Reserve on the planned node; why not, None when it worked."""
        row = self._cycle.row_of(node_name)
        if row is None:
            return unresolvable(f"node {node_name} is unknown")
        evaluation = self._cycle.evaluate(self._profile, pod)
        if evaluation.failure is not None:
            return evaluation.failure
        if evaluation.status.is_success and self._profile.extensions.steers:
            steering = steer(self._profile.extensions, evaluation, pod, in_batch=True)
            if not steering.status.is_success:
                return steering.status
        if not evaluation.is_feasible(row):
            return evaluation.status_of(row)
        kept_free = self._cycle.kept_free(self._profile, pod, evaluation)
        if row in kept_free:
            return kept_free[row]
        booked = self._cycle.assume(self._profile, pod, evaluation, row)
        if isinstance(booked, Status):
            return booked
        self._booked.append(Booked(booked, evaluation, node_name))
        return None

    def _permit_all(self) -> Status | None:
        """Ask for permission one after the other: who waits, waits for those behind it, so the last decides."""
        waiting_count = 0
        waits: dict[str, float] = {}
        for each in self._booked:
            answer = self._cycle.permit(self._profile, each.pod, each.evaluation, each.node_name)
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
            self._cycle.forget(self._profile, each.pod, each.evaluation, each.node_name)
        self._booked.clear()


def failure_message(booked: Sequence[Booked], failed: Sequence[Failed], first: Failed) -> str:
    """How far the plan got, and the failing pod whose key is smallest, in upstream's words.

    Source: spec 05, section 17.
    """
    text = (
        f"job failed due to job batch schedule failed, assumed {len(booked)} pods, failed {len(failed)} pods, "
        f"first failed pod {first.key}@{first.node_name} failed due to {first.status.message}"
    )
    beside = [each.pod.key for each in booked if each.node_name == first.node_name]
    if beside:
        text += f", assumed pods on node {first.node_name}: {', '.join(beside)}"
    return text
