"""The results of a scheduling cycle."""

from collections.abc import Awaitable, Callable, Hashable

import msgspec

from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.plugin import diagnosis
from koordinator.scheduler.plugin.capabilities import JobRefusal, JobVerdict, SharedFailure
from koordinator.scheduler.plugin.diagnosis import Suggestion
from koordinator.scheduler.plugin.status import SUCCESS, Code, Status, error, unschedulable
from koordinator.scheduler.table.pod_info import PodInfo

NOT_ASKED = error("node(s) came into question while extenders were asked")


class ExtenderAdvice(msgspec.Struct, frozen=True):
    """`asked` are the nodes that they were shown, `refused` those of them that they refuse, `scores` are to be
    added to the totals. `failure`: one that must be heard could not be."""

    asked: frozenset[str] = frozenset()
    refused: dict[str, Status] = {}
    scores: dict[str, int] = {}
    failure: Status = SUCCESS

    def objection(self, node_name: str) -> Status:
        """Return why the pod must not go to a node that passes the filters; success when it may."""
        if node_name not in self.asked:
            return NOT_ASKED
        return self.refused.get(node_name, SUCCESS)


class PendingPod(msgspec.Struct, frozen=True):
    """A pod that may be placed, and its `Profile.class_key`."""

    pod: PodInfo
    class_key: Hashable


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
    verdict: JobVerdict | None = None
    """What nodes said to the whole job of the pod."""
    together: tuple[Placed, ...] = ()
    """Pods of its plan that were placed without it."""
    about: PendingPod | None = None
    """The pod of its plan that found no place, whose events count."""


def refused(pod: PodInfo, status: Status, evaluation: Evaluation | None = None) -> Unplaced:
    """A pod that found a node, and was turned down by one plugin afterwards."""
    by = frozenset((status.plugin,)) if status.is_rejected and status.plugin else frozenset()
    return Unplaced(pod, status, by, evaluation=evaluation, pending_by=pending_by(status))


def with_job(unplaced: Unplaced, refusal: JobRefusal, class_key: Callable[[PodInfo], Hashable]) -> Unplaced:
    """A pod that cannot be placed with its whole job."""
    about = refusal.about
    waits_for = PendingPod(about, class_key(about)) if about.uid != unplaced.pod.uid else None
    return msgspec.structs.replace(unplaced, rejected_by=refusal.rejected_by, about=waits_for)


def along(pod: PodInfo, failure: SharedFailure, node_count: int) -> Unplaced:
    """A pod that fails with another one; nobody was asked about it."""
    told = failure.told
    return Unplaced(
        pod,
        unschedulable(diagnosis.fit_error(node_count, {}, failure.message, told)),
        frozenset((failure.by,)),
        post_filter_message=told,
        suggestion=failure.suggestion,
    )


def pending_by(status: Status) -> frozenset[str]:
    return frozenset((status.plugin,)) if status.code is Code.PENDING and status.plugin else frozenset()
