"""All resources that a cluster of ours serves: the built-in ones and our custom ones.

`BUILT_IN` is what the API server in one process serves from the start; `CUSTOM` comes with the CRDs. Kinds
that no component looks into have a view of their metadata only (`view_of`), for the garbage collector and
namespace clean-up.
"""

from collections.abc import Mapping
from typing import Any

from koordinator.api import admission, apps, core, dra, groups, storage
from koordinator.api.crd import DEFINITIONS
from koordinator.api.meta import Object, Resource, metadata_view

_VIEWS: tuple[type[Object], ...] = (
    core.Pod,
    core.Node,
    core.Namespace,
    core.ConfigMap,
    core.Secret,
    core.ServiceAccount,
    core.Service,
    groups.Endpoints,
    groups.EndpointSlice,
    core.Event,
    storage.PersistentVolume,
    storage.PersistentVolumeClaim,
    apps.ReplicationController,
    apps.ReplicaSet,
    apps.Deployment,
    apps.StatefulSet,
    apps.DaemonSet,
    apps.ControllerRevision,
    apps.Job,
    apps.CronJob,
    groups.HorizontalPodAutoscaler,
    groups.PodDisruptionBudget,
    groups.Lease,
    groups.Event,
    groups.PriorityClass,
    groups.RuntimeClass,
    storage.StorageClass,
    storage.CSINode,
    storage.CSIDriver,
    storage.CSIStorageCapacity,
    storage.VolumeAttachment,
    dra.ResourceClaim,
    dra.ResourceClaimTemplate,
    dra.DeviceClass,
    dra.ResourceSlice,
    dra.DeviceTaintRule,
    admission.MutatingWebhookConfiguration,
    admission.ValidatingWebhookConfiguration,
    groups.CustomResourceDefinition,
    groups.ClusterRole,
    groups.ResourceQuota,
)


def _cluster(group: str, kind: str, plural: str, **more: Any) -> Resource:
    return Resource(group=group, version="v1", kind=kind, plural=plural, namespaced=False, **more)


def _namespaced(group: str, kind: str, plural: str, **more: Any) -> Resource:
    return Resource(group=group, version="v1", kind=kind, plural=plural, **more)


_RBAC = "rbac.authorization.k8s.io"
_NETWORKING = "networking.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_STATUS = ("status",)

_METADATA_ONLY: tuple[Resource, ...] = (
    _namespaced("", "PodTemplate", "podtemplates"),
    _namespaced("", "LimitRange", "limitranges", short_names=("limits",)),
    _namespaced(_RBAC, "Role", "roles"),
    _namespaced(_RBAC, "RoleBinding", "rolebindings"),
    _cluster(_RBAC, "ClusterRoleBinding", "clusterrolebindings"),
    _namespaced(_NETWORKING, "NetworkPolicy", "networkpolicies", short_names=("netpol",)),
    _namespaced(_NETWORKING, "Ingress", "ingresses", short_names=("ing",), subresources=_STATUS),
    _cluster(_NETWORKING, "IngressClass", "ingressclasses"),
    _cluster(_ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", subresources=_STATUS),
    _cluster(_ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    _namespaced(
        "autoscaling",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        short_names=("hpa",),
        categories=("all",),
        subresources=_STATUS,
    ),
    _cluster(
        "apiregistration.k8s.io",
        "APIService",
        "apiservices",
        categories=("api-extensions",),
        subresources=_STATUS,
    ),
    _cluster(
        "certificates.k8s.io",
        "CertificateSigningRequest",
        "certificatesigningrequests",
        short_names=("csr",),
        subresources=_STATUS,
    ),
)

BUILT_IN: tuple[Resource, ...] = (*(view.resource for view in _VIEWS), *_METADATA_ONLY)
"""Kinds of Kubernetes itself; the first of several versions of one kind is the preferred one, which is stored."""

CUSTOM: tuple[Resource, ...] = tuple(view.resource for definition in DEFINITIONS for view in definition.views)
"""Kinds that our CRDs add, in every served version."""

ALL: tuple[Resource, ...] = BUILT_IN + CUSTOM


def by_kind(group: str, kind: str, version: str = "") -> Resource | None:
    """Return the resource of this kind (without `version`: its first one); None if there is none."""
    candidates = _BY_KIND.get((group, kind), ())
    return next((found for found in candidates if not version or found.version == version), None)


def resource_of(obj: Mapping[str, Any]) -> Resource:
    """Return the resource of an object; its kind must be one of ours or built in."""
    found = by_kind(obj["apiVersion"].rpartition("/")[0], obj["kind"])
    assert found is not None, obj
    return found


def view_of(resource: Resource) -> type[Object]:
    """Return the view of a resource: the typed one, or else one of its metadata (of foreign custom ones, too)."""
    address = (resource.group, resource.version, resource.plural)
    view = _VIEW_BY_ADDRESS.get(address)
    if view is None:
        view = _VIEW_BY_ADDRESS[address] = metadata_view(resource)
    return view


_BY_KIND: dict[tuple[str, str], list[Resource]] = {}
for _resource in ALL:
    _BY_KIND.setdefault((_resource.group, _resource.kind), []).append(_resource)
# Grows with the resources that are served: a CRD's view is made once.
_VIEW_BY_ADDRESS: dict[tuple[str, str, str], type[Object]] = {
    (view.resource.group, view.resource.version, view.resource.plural): view
    for view in (*_VIEWS, *(view for definition in DEFINITIONS for view in definition.views))
}
