"""List what this version knows on the wire but does not run yet; users who create such objects get a warning.

The one table of it. Admission warns by it, and `koordinator doctor` finds what is there all the same; when a component
for something lands, its line goes.

Recommendations (group `analysis.koordinator.sh`, behaviour/crds 11) are one of them.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import Object, Resource, StandardCondition, ViewPart
from koordinator.api.quantity import ResourceList
from koordinator.api.schema import ATOMIC, DATE_TIME, REQUIRED, always


class WorkloadReference(ViewPart, frozen=True, kw_only=True):
    """A workload of the same namespace."""

    kind: Annotated[str, REQUIRED, "Kind of the workload."] = always("")
    name: Annotated[str, REQUIRED, "Name of the workload."] = always("")
    api_version: Annotated[str, "API version of the workload."] = ""


class RecommendationTarget(ViewPart, frozen=True, kw_only=True):
    """Pods that the recommendation is for."""

    type: Annotated[str, REQUIRED, "How the pods are named: workload or podSelector."] = always("")
    workload: Annotated[WorkloadReference | None, "The workload that owns the pods."] = None
    pod_selector: Annotated[LabelSelector | None, ATOMIC, "Labels of the pods."] = None


class RecommendationSpec(ViewPart, frozen=True, kw_only=True):
    """Pods that the recommendation is for."""

    target: Annotated[RecommendationTarget, REQUIRED, "Pods that the recommendation is for."] = always(
        RecommendationTarget()
    )


class RecommendedContainer(ViewPart, frozen=True, kw_only=True):
    """The requests recommended for one container."""

    container_name: Annotated[str, "Name of the container."] = ""
    resources: Annotated[ResourceList, "Amounts to request."] = {}


class RecommendedPod(ViewPart, frozen=True, kw_only=True):
    """The requests recommended for the containers of a pod."""

    container_statuses: Annotated[list[RecommendedContainer], "Amounts by container."] = []


class RecommendationStatus(ViewPart, frozen=True, kw_only=True):
    """The recommendation."""

    pod_status: Annotated[RecommendedPod | None, "What the containers of a pod should request."] = None
    update_time: Annotated[str | None, DATE_TIME, "When it was made."] = None
    conditions: Annotated[
        list[StandardCondition],
        "What stands in the way: LowConfidence, NoObjectsMatched, FetchingHistory, ConfigDeprecated, "
        "ConfigUnsupported.",
    ] = []


class Recommendation(Object, frozen=True, kw_only=True):
    """The recommended requests of pods, judged by their usage."""

    resource: ClassVar[Resource] = Resource(
        group="analysis.koordinator.sh",
        version="v1alpha1",
        kind="Recommendation",
        plural="recommendations",
        short_names=("recom",),
        subresources=("status",),
    )

    spec: RecommendationSpec = RecommendationSpec()
    status: RecommendationStatus = RecommendationStatus()


KINDS: Mapping[type[Object], str] = {
    Recommendation: "nothing is recommended, and its status stays empty",
}
"""Kinds without a component, and what that means for an object of theirs."""


def kind_warning(view: type[Object]) -> str:
    """Return the warning for users who create an object of one of `KINDS`."""
    return f"{view.resource.kind}: this version of Koordinator does not act on it yet: {KINDS[view]}"
