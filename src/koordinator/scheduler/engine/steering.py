"""Nodes that plugins point at after PreFilter: planned for the pod, or preferred to all others.

Source: behaviour/scheduler C2 (PreFilter), C9 and D4.
"""

import msgspec

from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.extensions import Extensions
from koordinator.scheduler.plugin import status
from koordinator.scheduler.plugin.capabilities import JobVerdict, PlacementPlan
from koordinator.scheduler.plugin.framework import PreFilterResult
from koordinator.scheduler.plugin.status import SUCCESS, Status
from koordinator.scheduler.table.pod_info import PodInfo


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
    """What nodes said, where a whole job was refused."""


FREE = Steering()


def steer(
    extensions: Extensions, evaluation: Evaluation, pod: PodInfo, *, in_batch: bool = False
) -> Steering:
    """Return what the plugins say about the nodes of a pod that PreFilter let pass.

    Nobody plans for a pod of a batch (`in_batch`), which is part of a plan.
    """
    result = PreFilterResult(node_names=evaluation.node_names)
    for transformer in extensions.after_pre_filters:
        answer = transformer.after_pre_filter(evaluation.state_of(transformer.name), pod, result)
        if not answer.is_success:
            return Steering(answer.by(transformer.name))
    found = None if in_batch else _find_one_node(extensions, evaluation, pod, result)
    return found or _prefer_nodes(extensions, evaluation, pod, result)


def _find_one_node(
    extensions: Extensions, evaluation: Evaluation, pod: PodInfo, result: PreFilterResult
) -> Steering | None:
    """None when nobody has an opinion."""
    for plugin in extensions.find_one_nodes:
        state = evaluation.state_of(plugin.name)
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
    state = evaluation.state_of(plugin.name) if plugin is not None else None
    if plugin is None or state is None:
        return FREE
    found = plugin.prefer_nodes(state, pod, result)
    if found.status.is_skip:
        return FREE
    if not found.status.is_success:
        return Steering(found.status.by(plugin.name))
    return Steering(preferred=found.node_names)
