"""CustomResourceDefinitions of everything that Koordinator adds to a cluster, generated from the views and the table of
definitions.

A CRD has parts beside its schema: versions, columns of `kubectl get`, approval. Names, scope, short names and
subresources are those of the view's `resource`.
"""

from typing import Any

import msgspec

from koordinator.api import schema
from koordinator.api.device import Device
from koordinator.api.groups import ClusterColocationProfile, ElasticQuotaProfile
from koordinator.api.meta import Object
from koordinator.api.network_topology import ClusterNetworkTopology
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology, NodeResourceTopologyV1Alpha2
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.reservation import Reservation
from koordinator.api.schedule_explanation import ScheduleExplanation
from koordinator.api.sigs import ElasticQuota, PodGroup
from koordinator.api.slo import NodeSLO
from koordinator.api.tidal_pool import TidalPool
from koordinator.api.unready import Recommendation


class PrinterColumn(msgspec.Struct, frozen=True):
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
    columns: tuple[PrinterColumn, ...] = ()
    approved: str = ""
    """Link to the approval of the API: the API server asks for it in groups below `k8s.io`."""


AGE = PrinterColumn("Age", ".metadata.creationTimestamp", "date")
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
            PrinterColumn("Phase", ".status.phase", description="Phase of the Reservation"),
            AGE,
            PrinterColumn("Node", ".status.nodeName"),
            PrinterColumn("TTL", ".spec.ttl"),
            PrinterColumn("Expires", ".spec.expires"),
        ),
    ),
    Definition(views=(Device,)),
    Definition(
        views=(PodMigrationJob,),
        columns=(
            PrinterColumn("Phase", ".status.phase", description="Phase of the job"),
            PrinterColumn("Status", ".status.status", description="Step that the job is at"),
            AGE,
            PrinterColumn("Node", ".status.nodeName"),
            PrinterColumn("Reservation", ".spec.reservationOptions.reservationRef.name"),
            PrinterColumn("PodNamespace", ".spec.podRef.namespace"),
            PrinterColumn("Pod", ".spec.podRef.name"),
            PrinterColumn("NewPod", ".status.podRef.name"),
            PrinterColumn("TTL", ".spec.ttl"),
        ),
    ),
    Definition(
        views=(ClusterNetworkTopology,),
        columns=(
            PrinterColumn(
                "Top Layer",
                ".status.detailStatus[0].childTopologyLayer",
                description="Layer below the whole cluster; empty until the scheduler has built the tree",
            ),
            PrinterColumn(
                "Nodes", ".status.detailStatus[0].nodeNum", "integer", "Nodes that have a place in the tree"
            ),
            AGE,
        ),
    ),
    Definition(views=(ScheduleExplanation,)),
    Definition(
        views=(TidalPool,),
        columns=(
            PrinterColumn("Members", ".status.members", "integer", "Nodes of the pool"),
            PrinterColumn("Online", ".status.phases.online", "integer", "Nodes that serve online pods"),
            PrinterColumn("Batch", ".status.phases.batch", "integer", "Nodes that are lent"),
            PrinterColumn("Target", ".status.target", "integer", "Nodes that should be lent"),
            PrinterColumn("Why", ".status.targetReason", description="The rule that set the target"),
            PrinterColumn(
                "Next", ".status.nextTransition", description="When the schedule changes the target"
            ),
            AGE,
        ),
    ),
    Definition(views=(ClusterColocationProfile,)),
    Definition(
        views=(ElasticQuotaProfile,),
        columns=(
            PrinterColumn("Quota", ".spec.quotaName", description="ElasticQuota that is kept up to date"),
            PrinterColumn("Tree", _QUOTA_LABEL + "tree-id", description="Tree of the quota"),
            PrinterColumn(
                "Ratio", ".spec.resourceRatio", description="Share of the nodes that the tree gets"
            ),
            AGE,
        ),
    ),
    Definition(
        views=(Recommendation,),
        columns=(
            AGE,
            PrinterColumn("Type", ".spec.target.type"),
            PrinterColumn("Kind", ".spec.target.workload.kind"),
            PrinterColumn("Name", ".spec.target.workload.name"),
            PrinterColumn("LastUpdateTime", ".status.updateTime", "date"),
        ),
    ),
    Definition(
        views=(ElasticQuota,),
        approved=_SCHEDULER_PLUGINS,
        columns=(
            PrinterColumn("Parent", _QUOTA_LABEL + "parent", description="Parent in the tree of quotas"),
            PrinterColumn("Used CPU", ".status.used.cpu"),
            PrinterColumn("Min CPU", ".spec.min.cpu"),
            PrinterColumn("Max CPU", ".spec.max.cpu"),
            PrinterColumn("Used Memory", ".status.used.memory"),
            PrinterColumn("Min Memory", ".spec.min.memory"),
            PrinterColumn("Max Memory", ".spec.max.memory"),
            AGE,
            PrinterColumn("Tree", _QUOTA_LABEL + "tree-id", description="Tree of the quota", is_wide=True),
            PrinterColumn(
                "Runtime",
                _QUOTA_ANNOTATION + "runtime",
                description="Amounts that the quota may use now",
                is_wide=True,
            ),
            PrinterColumn(
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
            PrinterColumn("Phase", ".status.phase", description="How far the gang is"),
            PrinterColumn("MinMember", ".spec.minMember", "integer", "Pods that must be placed together"),
            PrinterColumn("Scheduled", ".status.scheduled", "integer", "Pods that have a node"),
            PrinterColumn("Running", ".status.running", "integer", "Pods that run"),
            AGE,
            PrinterColumn("Succeeded", ".status.succeeded", "integer", "Pods that ended well", is_wide=True),
            PrinterColumn("Failed", ".status.failed", "integer", "Pods that ended badly", is_wide=True),
            PrinterColumn("OccupiedBy", ".status.occupiedBy", description="Owner of the pods", is_wide=True),
        ),
    ),
    Definition(views=(NodeResourceTopology, NodeResourceTopologyV1Alpha2), approved=_ENHANCEMENTS),
)


def manifests() -> list[dict[str, Any]]:
    """Return all CRDs as JSON objects, ready to be created; the caller may change them."""
    return [manifest(definition) for definition in DEFINITIONS]


def manifest(definition: Definition) -> dict[str, Any]:
    """Return one CRD as a JSON object."""
    stored = definition.views[-1]
    resource = stored.resource
    metadata: dict[str, Any] = {"name": resource.qualified}
    if definition.approved:
        metadata["annotations"] = {"api-approved.kubernetes.io": definition.approved}
    names: dict[str, Any] = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.singular,
    }
    if resource.short_names:
        names["shortNames"] = list(resource.short_names)
    if resource.categories:
        names["categories"] = list(resource.categories)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": resource.group,
            "names": names,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [
                _version(view, definition.columns, is_stored=view is stored) for view in definition.views
            ],
        },
    }


def file_name(crd: dict[str, Any]) -> str:
    """`group_plural.yaml`."""
    spec = crd["spec"]
    return f"{spec['group']}_{spec['names']['plural']}.yaml"


def _version(view: type[Object], columns: tuple[PrinterColumn, ...], *, is_stored: bool) -> dict[str, Any]:
    version: dict[str, Any] = {
        "name": view.resource.version,
        "served": True,
        "storage": is_stored,
        "schema": {"openAPIV3Schema": object_schema(view)},
    }
    if columns:
        version["additionalPrinterColumns"] = [_column(column) for column in columns]
    if "status" in view.resource.subresources:
        version["subresources"] = {"status": {}}
    return version


def object_schema(view: type[Object]) -> dict[str, Any]:
    """Schema of a whole custom object: what the view says, below the members that all objects have."""
    result = schema.of_struct(view)
    every = {
        "apiVersion": {"type": "string", "description": "Group and version of the object."},
        "kind": {"type": "string", "description": "Kind of the object."},
        "metadata": {"type": "object"},
    }
    result["properties"] = every | result["properties"] | every
    return result


def _column(column: PrinterColumn) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    if column.description:
        entry["description"] = column.description
    if column.is_wide:
        entry["priority"] = 1
    return entry
