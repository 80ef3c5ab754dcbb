"""What a CRD says beside its schema: versions, columns of `kubectl get`, approval. Source: spec 01b.

Names, scope, short names and subresources are those of the view's `resource`.
"""

import msgspec

from koordinator.api.analysis import Recommendation
from koordinator.api.config_group import ClusterColocationProfile
from koordinator.api.device import Device
from koordinator.api.meta import Object
from koordinator.api.network_topology import ClusterNetworkTopology
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology, NodeResourceTopologyV1Alpha2
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.quota_group import ElasticQuotaProfile
from koordinator.api.reservation import Reservation
from koordinator.api.schedule_explanation import ScheduleExplanation
from koordinator.api.sigs import ElasticQuota, PodGroup
from koordinator.api.slo import NodeSLO


class Column(msgspec.Struct, frozen=True):
    """A column of `kubectl get`."""

    name: str
    path: str
    type: str = "string"
    description: str = ""


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One CRD. `views` holds one view per served version; the last one is stored."""

    views: tuple[type[Object], ...]
    columns: tuple[Column, ...] = ()
    approved: str = ""
    """Where the API was approved: the API server asks for it in groups below `k8s.io`."""


AGE = Column("Age", ".metadata.creationTimestamp", "date")
_QUOTA_LABEL = r".metadata.labels.quota\.scheduling\.koordinator\.sh/"
_SCHEDULER_PLUGINS = "https://github.com/kubernetes-sigs/scheduler-plugins/pull/52"
_ENHANCEMENTS = "https://github.com/kubernetes/enhancements/pull/1870"

DEFINITIONS: tuple[Definition, ...] = (
    Definition(views=(NodeMetric,)),
    Definition(views=(NodeSLO,)),
    Definition(
        views=(Reservation,),
        columns=(
            Column("Phase", ".status.phase", description="Phase of the Reservation"),
            AGE,
            Column("Node", ".status.nodeName"),
            Column("TTL", ".spec.ttl"),
            Column("Expires", ".spec.expires"),
        ),
    ),
    Definition(views=(Device,)),
    Definition(
        views=(PodMigrationJob,),
        columns=(
            Column("Phase", ".status.phase", description="Phase of the job"),
            Column("Status", ".status.status", description="Step that the job is at"),
            AGE,
            Column("Node", ".status.nodeName"),
            Column("Reservation", ".spec.reservationOptions.reservationRef.name"),
            Column("PodNamespace", ".spec.podRef.namespace"),
            Column("Pod", ".spec.podRef.name"),
            Column("NewPod", ".status.podRef.name"),
            Column("TTL", ".spec.ttl"),
        ),
    ),
    Definition(views=(ClusterNetworkTopology,)),
    Definition(views=(ScheduleExplanation,)),
    Definition(views=(ClusterColocationProfile,)),
    Definition(
        views=(ElasticQuotaProfile,),
        columns=(
            Column("Quota", ".spec.quotaName", description="ElasticQuota that is kept up to date"),
            Column("Tree", _QUOTA_LABEL + "tree-id", description="Tree of the quota"),
            Column("Ratio", ".spec.resourceRatio", description="Share of the nodes that the tree gets"),
            AGE,
        ),
    ),
    Definition(
        views=(Recommendation,),
        columns=(
            AGE,
            Column("Type", ".spec.target.type"),
            Column("Kind", ".spec.target.workload.kind"),
            Column("Name", ".spec.target.workload.name"),
            Column("LastUpdateTime", ".status.updateTime", "date"),
        ),
    ),
    Definition(
        views=(ElasticQuota,),
        approved=_SCHEDULER_PLUGINS,
        columns=(
            Column("Parent", _QUOTA_LABEL + "parent", description="Parent in the tree of quotas"),
            Column("Used CPU", ".status.used.cpu"),
            Column("Min CPU", ".spec.min.cpu"),
            Column("Max CPU", ".spec.max.cpu"),
            Column("Used Memory", ".status.used.memory"),
            Column("Min Memory", ".spec.min.memory"),
            Column("Max Memory", ".spec.max.memory"),
            AGE,
        ),
    ),
    Definition(views=(PodGroup,), approved=_SCHEDULER_PLUGINS),
    Definition(views=(NodeResourceTopology, NodeResourceTopologyV1Alpha2), approved=_ENHANCEMENTS),
)
