"""DefaultPreemption as a plugin: pods that find no room, reviewed by extenders where there are any."""

from collections import Counter
from typing import Annotated

import msgspec

from koordinator.api import pod_labels
from koordinator.scheduler.plugin.capabilities import PreemptionReviewer, ReviewedPreemption
from koordinator.scheduler.plugin.events import ClusterEvent
from koordinator.scheduler.plugin.framework import (
    Diagnosis,
    Handle,
    Outlook,
    PostFilterPlugin,
    PostFilterResult,
    PreEnqueuePlugin,
)
from koordinator.scheduler.plugin.status import (
    SKIP,
    SUCCESS,
    Status,
    unresolvable,
    unschedulable,
)
from koordinator.scheduler.plugins.preemption import victims
from koordinator.scheduler.plugins.preemption.preemptor import Preemptor
from koordinator.scheduler.plugins.preemption.search import FoundCandidates
from koordinator.scheduler.plugins.preemption.victims import Candidate
from koordinator.scheduler.table.pod_info import PodInfo

REVIEWED = "Preemption was turned down by extenders"
WAITING = unresolvable("waiting for the preemption for this pod to be finished")


class PreemptionArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The number of candidates to look for: a percentage of the nodes, but no fewer than an absolute number."""

    min_candidate_nodes_percentage: Annotated[int, msgspec.Meta(ge=0, le=100)] = 10
    min_candidate_nodes_absolute: Annotated[int, msgspec.Meta(ge=0)] = 100

    def __post_init__(self) -> None:
        if not self.min_candidate_nodes_percentage and not self.min_candidate_nodes_absolute:
            raise ValueError("minCandidateNodesPercentage and minCandidateNodesAbsolute cannot both be zero")


class DefaultPreemption(PostFilterPlugin[None], PreEnqueuePlugin[None], ReviewedPreemption[None]):
    name = "DefaultPreemption"
    args = PreemptionArgs
    wakes_on = (ClusterEvent.ASSIGNED_POD_DELETED,)

    def __init__(self, args: PreemptionArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.preemptor = Preemptor(
            handle, self.name, args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute
        )
        self._reviewer: PreemptionReviewer | None = None

    # Gate

    def pre_enqueue(self, pod: PodInfo) -> Status:
        """Keep a preemptor out of the queue while its victims are being deleted, all but the last."""
        return WAITING if self.preemptor.is_under_way(pod) else SUCCESS

    # Deciding

    def review_by(self, reviewer: PreemptionReviewer) -> None:
        self._reviewer = reviewer

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        if pod_labels.is_reserve_pod(pod.pod.metadata.annotations):
            return PostFilterResult(SKIP)  # room for pods to come is not made by evicting those that run
        result, found = self.preemptor.attempt(pod, diagnosis)
        reviewer = self._reviewer
        if found.options and reviewer is not None and reviewer.preempts(pod):
            profile_name = diagnosis.profile_name
            return PostFilterResult(
                unschedulable(), later=lambda: self._reviewed(reviewer, pod, found, profile_name)
            )
        self.preemptor.evict(pod, found.best, diagnosis.profile_name)
        return result

    def outlook(self, pod: PodInfo, diagnosis: Diagnosis) -> Outlook:
        return self.preemptor.outlook(pod, diagnosis)

    async def _reviewed(
        self, reviewer: PreemptionReviewer, pod: PodInfo, found: FoundCandidates, profile_name: str
    ) -> PostFilterResult:
        """Return the result once others have said which of the options are open to them."""
        options = {each.node_name: each for each in (option.candidate() for option in found.options)}
        proposals = {
            name: ([victim.pod for victim in each.victims], each.violations) for name, each in options.items()
        }
        answer = await reviewer.reconsider(pod, proposals)
        if isinstance(answer, Status):
            return PostFilterResult(answer)
        left = []
        for name, each in answer.items():
            agreed = (victim for victim in options[name].victims if victim.pod.uid in each.uids)
            left.append(Candidate(name, tuple(agreed), each.violations))
        best = victims.choose(each for each in left if each.victims)
        if best is None:
            refusals = Counter({REVIEWED: len(options)})
            return PostFilterResult(unschedulable(self.preemptor.message(refusals, 0)), nominated_node="")
        self.preemptor.evict(pod, best, profile_name)
        return PostFilterResult(SUCCESS, nominated_node=best.node_name)
