"""Coscheduling in the running scheduler: `GangRounds` decides, here its decisions are carried out.

The books follow pods and PodGroups, and hear of a pod before the queue does. In the scheduling loop the plugin
stands at the gate of the queue, chooses the next pod while a round runs, and holds placed members in Permit until
their whole group may be bound. Source: spec 05, sections 5 to 8.
"""

from collections.abc import Iterable

from koordinator.api import duration, labels
from koordinator.api.core import Pod
from koordinator.api.gang_labels import GangMatchPolicy
from koordinator.api.sigs import PodGroup
from koordinator.prometheus import Reading
from koordinator.scheduler.capabilities import AttemptPlugin, NextPodPlugin, PostFilterTransformer
from koordinator.scheduler.columns import Rows
from koordinator.scheduler.failures import JOB_REJECT
from koordinator.scheduler.framework import (
    Diagnosis,
    Handle,
    PermitPlugin,
    PermitResult,
    PostBindPlugin,
    PostFilterPlugin,
    PostFilterResult,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ReservePlugin,
    ScorePlugin,
    Scores,
    Watch,
)
from koordinator.scheduler.plugin_args import CoschedulingArgs
from koordinator.scheduler.plugins.coscheduling.config import GangDefaults
from koordinator.scheduler.plugins.coscheduling.decisions import GateReason, Next, PermitReason
from koordinator.scheduler.plugins.coscheduling.rounds import GangRounds, key_of
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.pod_patch import PodPatch
from koordinator.scheduler.status import SKIP, SUCCESS, Status, unresolvable, unschedulable


class Coscheduling(
    PreEnqueuePlugin[None],
    NextPodPlugin[None],
    AttemptPlugin[None],
    PreFilterPlugin[None],
    PostFilterPlugin[None],
    PostFilterTransformer[None],
    PreScorePlugin[None],
    ScorePlugin[None],
    ReservePlugin[None],
    PermitPlugin[None],
    PreBindPlugin[None],
    PostBindPlugin[None],
):
    """Binds the pods of a gang together, or none of them."""

    name = "Coscheduling"
    args = CoschedulingArgs

    def __init__(self, args: CoschedulingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.rounds = GangRounds(
            defaults_of(args), patches_conditions=handle.gates.is_on("GangPendingPodsConditionPatch")
        )
        self._uids: dict[str, str] = {}
        self._failed_by_another = ""
        """The pod whose attempt under way failed because another member did."""
        handle.watch(Watch(Pod, self._pod_added, self._pod_updated, self._pod_deleted))
        handle.watch(
            Watch(
                PodGroup,
                lambda group: self._activate(self.rounds.on_pod_group_add(group)),
                lambda _, group: self._activate(self.rounds.on_pod_group_update(group)),
                self.rounds.on_pod_group_delete,
            )
        )
        handle.metrics.registry.shared(
            Reading(
                "scheduler_waiting_gang_group_number",
                "Gang groups that hold places for members which are not complete yet.",
                (),
                lambda: {(): float(self.rounds.cache.waiting_group_count)},
            )
        )

    # What happens

    def _pod_added(self, pod: Pod) -> None:
        self._uids[key_of(pod)] = pod.metadata.uid or pod.key
        self._activate(self.rounds.on_pod_add(pod))

    def _pod_updated(self, old: Pod, pod: Pod) -> None:
        self._uids[key_of(pod)] = pod.metadata.uid or pod.key
        self.rounds.on_pod_update(pod)

    def _pod_deleted(self, pod: Pod) -> None:
        self._uids.pop(key_of(pod), None)
        self._activate(self.rounds.on_pod_delete(pod))

    def _activate(self, keys: Iterable[str]) -> None:
        if uids := [self._uids[key] for key in keys if key in self._uids]:
            self.handle.actions.activate(uids)

    def _reject(self, keys: Iterable[str], message: str, by: str = JOB_REJECT) -> None:
        for key in keys:
            if (uid := self._uids.get(key)) is not None:
                self.handle.actions.reject_waiting(uid, by, message)

    # The way into the queue, and the start of an attempt

    def pre_enqueue(self, pod: PodInfo) -> Status:
        gate = self.rounds.pre_enqueue(pod.pod)
        return SUCCESS if gate.is_open else unresolvable(gate.message)

    def next_pod(self) -> str | None:
        while True:
            found = self.rounds.next_pod()
            self._ended(found)
            if not found.pod:
                return None
            if (uid := self._uids.get(found.pod)) is not None:
                return uid

    def _ended(self, found: Next) -> None:
        if found.ended is not None:
            self._reject(found.rejected, found.ended.value)

    def begin_attempt(self, pod: PodInfo) -> Status:
        self._failed_by_another = ""
        begin = self.rounds.begin(pod.pod)
        self._ended(begin.ended)
        if begin.gate.is_open:
            return SUCCESS
        if begin.gate.reason is GateReason.ROUND_FAILED:
            self._failed_by_another = pod.uid
        return unresolvable(begin.gate.message)

    def pre_filter(self, state: None) -> PreFilterResult:
        return PreFilterResult(SKIP)

    # No node

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        return PostFilterResult(unschedulable())

    def after_post_filter(self, pod: PodInfo, diagnosis: Diagnosis, status: Status) -> None:
        is_root_cause = self._failed_by_another != pod.uid
        failure = self.rounds.filter_failed(pod.pod, diagnosis.fit_error(""), is_root_cause=is_root_cause)
        self._reject(failure.rejected, failure.group_message)

    # Score

    def pre_score(self, state: None) -> Status:
        return SKIP

    def score(self, state: None, rows: Rows) -> Scores:
        raise AssertionError("left out by pre_score")

    # A place

    def unreserve(self, state: None, pod: PodInfo, node_name: str) -> None:
        rejection = self.rounds.unreserve(pod.pod)
        self._reject(rejection.rejected, rejection.message)

    def permit(self, state: None, pod: PodInfo, node_name: str) -> PermitResult:
        permit = self.rounds.permit(pod.pod)
        match permit.reason:
            case PermitReason.GANG_UNKNOWN:
                return PermitResult(unschedulable(permit.reason.value))
            case PermitReason.WAIT:
                return PermitResult(timeout_s=permit.wait_s)
        for key in permit.allowed:
            if (uid := self._uids.get(key)) is not None:
                self.handle.actions.allow_waiting(uid, self.name)
        self._activate(permit.activate)
        return PermitResult()

    async def pre_bind(self, state: None, pod: PodInfo, node_name: str, patch: PodPatch) -> Status:
        group_id, count = self.rounds.binding_mark(pod.pod)
        annotations = pod.pod.metadata.annotations
        for key, value in (
            (labels.BIND_GANG_GROUP_ID, group_id),
            (labels.DEPRECATED_BIND_GANG_GROUP_ID, group_id),
            (labels.BIND_GANG_MEMBER_COUNT, str(count)),
            (labels.DEPRECATED_BIND_GANG_MEMBER_COUNT, str(count)),
        ):
            if group_id or key in annotations:
                patch.annotations[key] = value if group_id else None
        return SUCCESS

    def post_bind(self, pod: PodInfo, node_name: str) -> None:
        self.rounds.post_bind(pod.pod)


def defaults_of(args: CoschedulingArgs) -> GangDefaults:
    """What the arguments say where gangs do not; an unknown match policy is as good as none."""
    known = {policy.value: policy for policy in GangMatchPolicy}
    policy = known.get(args.default_match_policy, GangMatchPolicy.ONCE_SATISFIED)
    return GangDefaults(duration.parse(args.default_timeout), policy)
