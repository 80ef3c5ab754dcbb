"""The results of a scheduling cycle, and the nodes that plugins point at after PreFilter: planned for the pod, or
preferred to all others. Source: behaviour/scheduler C2 (PreFilter), C9 and D4."""

from collections.abc import Awaitable, Callable, Hashable

import msgspec

from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.extensions import Extensions
from koordinator.scheduler.plugin import status
from koordinator.scheduler.plugin.capabilities import JobRefusal, JobVerdict, PlacementPlan, SharedFailure
from koordinator.scheduler.plugin.framework import PreFilterResult
from koordinator.scheduler.plugin.status import (
    SUCCESS,
    Code,
    Status,
    Suggestion,
    error,
    fit_error,
    unschedulable,
)
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
        return NOT_ASKED if node_name not in self.asked else self.refused.get(node_name, SUCCESS)


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
    """Suggestion of a plugin to users; part of the message."""
    verdict: JobVerdict | None = None
    """Answer of the nodes to the whole job of the pod."""
    together: tuple[Placed, ...] = ()
    """Pods of its plan that were placed without it."""
    about: PendingPod | None = None
    """The pod of its plan that found no place, whose events count."""


def refused(pod: PodInfo, status: Status, evaluation: Evaluation | None = None) -> Unplaced:
    """Return a pod that found a node, and was turned down by one plugin afterwards."""
    return Unplaced(pod, status, rejected_by(status), evaluation=evaluation, pending_by=pending_by(status))


def with_job(unplaced: Unplaced, refusal: JobRefusal, class_key: Callable[[PodInfo], Hashable]) -> Unplaced:
    """Return a pod that cannot be placed with its whole job."""
    about = refusal.about
    waits_for = PendingPod(about, class_key(about)) if about.uid != unplaced.pod.uid else None
    return msgspec.structs.replace(unplaced, rejected_by=refusal.rejected_by, about=waits_for)


def along(pod: PodInfo, failure: SharedFailure, node_count: int) -> Unplaced:
    """Return a pod that fails with another one; nobody was asked about it."""
    post_filter_text = failure.post_filter_text
    return Unplaced(
        pod,
        unschedulable(fit_error(node_count, {}, failure.message, post_filter_text)),
        frozenset((failure.by,)),
        post_filter_message=post_filter_text,
        suggestion=failure.suggestion,
    )


def rejected_by(status: Status) -> frozenset[str]:
    """Return the plugin whose events can lift a refusal; nobody's can lift an error."""
    return frozenset((status.plugin,)) if status.is_rejected and status.plugin else frozenset()


def pending_by(status: Status) -> frozenset[str]:
    """Return the plugin that only waits for somebody else to act."""
    return frozenset((status.plugin,)) if status.code is Code.PENDING and status.plugin else frozenset()


class Steering(msgspec.Struct, frozen=True):
    """The nodes that a pod goes to: only `planned` when that is set, else the first of `preferred` that passes.

    `status` is a refusal of the pod as a whole, or an error; `plan` holds pods that belong together.
    """

    status: Status = SUCCESS
    planned: str = ""
    planned_by: str = ""
    preferred: tuple[str, ...] = ()
    plan: PlacementPlan | None = None
    rejected_by: frozenset[str] = frozenset()
    """Plugins whose events can lift a refusal, besides its author."""
    is_revisable: bool = False
    """Whether the next attempt may have another planned node."""
    verdict: JobVerdict | None = None
    """Answer of the nodes, where a whole job was refused."""


FREE = Steering()


def steer(
    extensions: Extensions, evaluation: Evaluation, pod: PodInfo, *, in_batch: bool = False
) -> Steering:
    """Return what the plugins say about the nodes of a pod, if PreFilter let it pass.

    Nobody plans for a pod of a batch (`in_batch`), which is part of a plan.
    """
    if not (extensions.steers and evaluation.status.is_success):
        return FREE
    result = PreFilterResult(node_names=evaluation.node_names)
    for transformer in extensions.after_pre_filters:
        answer = transformer.after_pre_filter(evaluation.states[transformer.name], pod, result)
        if not answer.is_success:
            return Steering(answer.by(transformer.name))
    found = None if in_batch else _find_one_node(extensions, evaluation, pod, result)
    return found or _prefer_nodes(extensions, evaluation, pod, result)


def _find_one_node(
    extensions: Extensions, evaluation: Evaluation, pod: PodInfo, result: PreFilterResult
) -> Steering | None:
    """None when nobody has an opinion."""
    for plugin in extensions.find_one_nodes:
        state = evaluation.states[plugin.name]
        if state is None:
            continue
        found = plugin.find_one_node(state, pod, result)
        if found.status.is_skip:
            continue
        if not found.status.is_success:
            status_by = found.status.by(plugin.name)
            return Steering(status_by, rejected_by=found.rejected_by, verdict=found.verdict)
        planned = found.plan.nodes.get(pod.uid, "") if found.plan is not None else found.node_name
        if not planned and not (found.plan is not None and extensions.batches):
            return Steering(status.error(f"no node is planned for pod {pod.key}").by(plugin.name))
        return Steering(
            planned=planned, planned_by=plugin.name, plan=found.plan, is_revisable=found.is_revisable
        )
    return None


def _prefer_nodes(
    extensions: Extensions, evaluation: Evaluation, pod: PodInfo, result: PreFilterResult
) -> Steering:
    plugin = extensions.prefer_nodes
    state = evaluation.states[plugin.name] if plugin is not None else None
    if plugin is None or state is None:
        return FREE
    found = plugin.prefer_nodes(state, pod, result)
    if found.status.is_skip:
        return FREE
    if not found.status.is_success:
        return Steering(found.status.by(plugin.name))
    return Steering(preferred=found.node_names)
