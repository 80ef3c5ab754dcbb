"""The group `scheduling.sigs.k8s.io`: ElasticQuota and PodGroup. Source: behaviour/crds 8."""

from typing import Annotated, ClassVar

from koordinator.api.meta import Object, Resource, ViewPart
from koordinator.api.quantity import ResourceList
from koordinator.api.schema import DATE_TIME, INT32


class ElasticQuotaSpec(ViewPart, frozen=True, kw_only=True):
    """The resources that a team is sure of, and the maximum up to which it may borrow."""

    min: Annotated[ResourceList, "Amounts that the team is sure of."] = {}
    max: Annotated[ResourceList, "Amounts that the team may use when others do not."] = {}


class ElasticQuotaStatus(ViewPart, frozen=True, kw_only=True):
    """The resources that a team uses."""

    used: Annotated[ResourceList, "Amounts that pods of the team use."] = {}


class ElasticQuota(Object, frozen=True, kw_only=True):
    """A share of the cluster that lends what it does not use; quotas form trees by their labels."""

    resource: ClassVar[Resource] = Resource(
        group="scheduling.sigs.k8s.io",
        version="v1alpha1",
        kind="ElasticQuota",
        plural="elasticquotas",
        short_names=("eq", "eqs"),
    )

    spec: ElasticQuotaSpec = ElasticQuotaSpec()
    status: ElasticQuotaStatus = ElasticQuotaStatus()


class PodGroupSpec(ViewPart, frozen=True, kw_only=True):
    """The conditions under which the pods of a gang may start."""

    min_member: Annotated[int, INT32, "Pods that must be placed together; fewer do not start."] = 0
    min_resources: Annotated[ResourceList, "Resources that must be there before any pod is placed."] = {}
    schedule_timeout_seconds: Annotated[int | None, INT32, "How long placed pods wait for the others."] = None


class PodGroupStatus(ViewPart, frozen=True, kw_only=True):
    """The progress of a gang."""

    phase: Annotated[
        str,
        "Pending, PreScheduling, Scheduling, Scheduled, Running, Unknown, Finished or Failed.",
    ] = ""
    occupied_by: Annotated[str, "The workload that the gang belongs to, as namespace/name."] = ""
    scheduled: Annotated[int, INT32, "Pods that have a node."] = 0
    running: Annotated[int, INT32, "Pods that run."] = 0
    succeeded: Annotated[int, INT32, "Pods that ended well."] = 0
    failed: Annotated[int, INT32, "Pods that ended badly."] = 0
    schedule_start_time: Annotated[str | None, DATE_TIME, "When the scheduler first saw the gang."] = None


class PodGroup(Object, frozen=True, kw_only=True):
    """A gang: pods that start together or not at all."""

    resource: ClassVar[Resource] = Resource(
        group="scheduling.sigs.k8s.io",
        version="v1alpha1",
        kind="PodGroup",
        plural="podgroups",
        short_names=("pg", "pgs"),
    )

    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()
