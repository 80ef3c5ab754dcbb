"""Typed view of ScheduleExplanation: why pods are not placed, and the order in which it tells why nodes were ruled
out.

Source: behaviour/crds 10.
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

from msgspec.structs import replace

from koordinator.api.meta import Object, Resource, ViewPart
from koordinator.api.schema import DATE_TIME, default


class ScheduleExplanationSpec(ViewPart, frozen=True, kw_only=True):
    """The question."""

    question_object_key: Annotated[
        str, "What is asked about: namespace/name of a pod or job, or the id of a gang group."
    ] = ""
    question_object_template: Annotated[
        dict[str, Any] | None, "A pod that does not exist yet; not supported."
    ] = None
    ttl: Annotated[str | None, default("24h"), "Lifetime, such as 24h; 0 keeps the object."] = None


class ScheduledPod(ViewPart, frozen=True, kw_only=True):
    """A pod and the node that would hold it."""

    namespace: Annotated[str, "Namespace of the pod."] = ""
    name: Annotated[str, "Name of the pod."] = ""
    uid: Annotated[str, "UID of the pod."] = ""
    node_name: Annotated[str, "Node that would hold the pod."] = ""


class NodeFailedDetail(ViewPart, frozen=True, kw_only=True):
    """One reason with the nodes that it rules out."""

    failed_plugin: Annotated[str, "Plugin that said no."] = ""
    reason: Annotated[str, "What it said."] = ""
    preempt_might_help: Annotated[bool, "Whether evicting pods could change the answer."] = False
    failed_nodes: Annotated[list[str], "Nodes that are ruled out."] = []


class Explanation(ViewPart, frozen=True, kw_only=True):
    """Outcome of one attempt."""

    schedulable: Annotated[bool, "Whether all pods have a node."] = False
    failed_message: Annotated[str, "Why not, in one sentence."] = ""
    feasible_scheduling_result: Annotated[list[ScheduledPod], "Pods that have a node."] = []
    node_failed_details: Annotated[list[NodeFailedDetail], "Reasons with the nodes that they rule out."] = []


class PossibleVictim(ViewPart, frozen=True, kw_only=True):
    """A pod that could be evicted."""

    namespace: Annotated[str, "Namespace of the pod."] = ""
    name: Annotated[str, "Name of the pod."] = ""
    uid: Annotated[str, "UID of the pod."] = ""
    is_nominated_pod: Annotated[bool, "Whether it does not run yet but was promised the room."] = False


class NodePossibleVictims(ViewPart, frozen=True, kw_only=True):
    """Pods of one node that could be evicted."""

    node_name: Annotated[str, "The node."] = ""
    possible_victims: Annotated[list[PossibleVictim], "Pods that could be evicted."] = []


class DetailedExplanation(ViewPart, frozen=True, kw_only=True):
    """The answer for one part of the network."""

    topology_domain: Annotated[str, "The part of the network; empty is the whole cluster."] = ""
    schedulable: Annotated[bool, "Whether all pods have a node."] = False
    schedulable_after_preemption: Annotated[bool, "Whether they would have after evictions."] = False
    failed_message: Annotated[str, "Why not, in one sentence."] = ""
    schedule_explanation: Annotated[Explanation | None, "Outcome without evictions."] = None
    node_possible_victims: Annotated[list[NodePossibleVictims], "Pods that could be evicted."] = []
    preempt_explanation: Annotated[Explanation | None, "Outcome with evictions."] = None


class ScheduleExplanationStatus(ViewPart, frozen=True, kw_only=True):
    """The answer."""

    schedulable: Annotated[bool, "Whether all pods have a node."] = False
    schedulable_after_preemption: Annotated[bool, "Whether they would have after evictions."] = False
    failed_message: Annotated[str, "Why not, in one sentence."] = ""
    last_update_time: Annotated[str | None, DATE_TIME, "When the answer was last looked at."] = None
    detailed_explanation: Annotated[
        list[DetailedExplanation], "The answer for each part of the network."
    ] = []


class ScheduleExplanation(Object, frozen=True, kw_only=True):
    """Asks the scheduler why pods are not placed."""

    resource: ClassVar[Resource] = Resource(
        group="scheduling.koordinator.sh",
        version="v1alpha1",
        kind="ScheduleExplanation",
        plural="scheduleexplanations",
        short_names=("sched-exp",),
        subresources=("status",),
    )

    spec: ScheduleExplanationSpec = ScheduleExplanationSpec()
    status: ScheduleExplanationStatus = ScheduleExplanationStatus()


def sorted_details(details: Iterable[NodeFailedDetail]) -> list[NodeFailedDetail]:
    """By plugin, then reason, those where preemption might help first; node names in order of their text."""
    return sorted(
        (replace(detail, failed_nodes=sorted(detail.failed_nodes)) for detail in details),
        key=lambda detail: (detail.failed_plugin, detail.reason, not detail.preempt_might_help),
    )
