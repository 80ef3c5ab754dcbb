"""The parts of a CRD beside its schema: versions, columns of `kubectl get`, approval. Source: behaviour/crds.

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
    """A column of `kubectl get`. Of several values at a path real API servers show the first one only."""

    name: str
    path: str
    type: str = "string"
    description: str = ""
    is_wide: bool = False
    """Shown by `-o wide` only."""


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One CRD. `views` holds one view per served version; the last one is stored."""

    views: tuple[type[Object], ...]
    columns: tuple[Column, ...] = ()
    approved: str = ""
    """Where the API was approved: the API server asks for it in groups below `k8s.io`."""


AGE = Column("Age", ".metadata.creationTimestamp", "date")
_QUOTA_KEY = r"quota\.scheduling\.koordinator\.sh/"
_QUOTA_LABEL = ".metadata.labels." + _QUOTA_KEY
_QUOTA_ANNOTATION = ".metadata.annotations." + _QUOTA_KEY
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
    Definition(
        views=(ClusterNetworkTopology,),
        columns=(
            Column(
                "Top Layer",
                ".status.detailStatus[0].childTopologyLayer",
                description="Layer below the whole cluster; empty until the scheduler has built the tree",
            ),
            Column(
                "Nodes", ".status.detailStatus[0].nodeNum", "integer", "Nodes that have a place in the tree"
            ),
            AGE,
        ),
    ),
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
            Column("Tree", _QUOTA_LABEL + "tree-id", description="Tree of the quota", is_wide=True),
            Column(
                "Runtime",
                _QUOTA_ANNOTATION + "runtime",
                description="Amounts that the quota may use now",
                is_wide=True,
            ),
            Column(
                "Request",
                _QUOTA_ANNOTATION + "request",
                description="Amounts that its pods and children ask for, up to max",
                is_wide=True,
            ),
        ),
    ),
    Definition(
        views=(PodGroup,),
        approved=_SCHEDULER_PLUGINS,
        columns=(
            Column("Phase", ".status.phase", description="How far the gang is"),
            Column("MinMember", ".spec.minMember", "integer", "Pods that must be placed together"),
            Column("Scheduled", ".status.scheduled", "integer", "Pods that have a node"),
            Column("Running", ".status.running", "integer", "Pods that run"),
            AGE,
            Column("Succeeded", ".status.succeeded", "integer", "Pods that ended well", is_wide=True),
            Column("Failed", ".status.failed", "integer", "Pods that ended badly", is_wide=True),
            Column("OccupiedBy", ".status.occupiedBy", description="Owner of the pods", is_wide=True),
        ),
    ),
    Definition(views=(NodeResourceTopology, NodeResourceTopologyV1Alpha2), approved=_ENHANCEMENTS),
)
