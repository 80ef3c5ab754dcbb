"""The ClusterRoles and bindings that every cluster has. Source: the bootstrap policy of Kubernetes 1.35.

The roles of the controllers (`system:controller:...`) are left out: ours run in the server's process.
"""

from collections.abc import Iterable
from typing import Any

from koordinator.local.authorization.rbac import GROUP

Line = tuple[str, str, str] | tuple[str, str, str, str] | tuple[str, str]
"""Verbs, groups, resources and (sometimes) names; or verbs and URLs. Words are separated by blanks, and the core
group is `core`."""
Seed = tuple[str, str, dict[str, Any]]
"""Plural, namespace and body of an object to create."""

_READ = "get list watch"
_WRITE = "create delete deletecollection patch update"
_EVERY = "create delete deletecollection get list patch update watch"
_EVENTS: Line = ("create patch update", "core events.k8s.io", "events")
_REVIEWS: tuple[Line, ...] = (
    ("create", "authentication.k8s.io", "tokenreviews"),
    ("create", "authorization.k8s.io", "subjectaccessreviews"),
)
_HEALTH = "/healthz /livez /readyz"
_VERSION = "/version /version/"
_AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"

_VIEW: tuple[Line, ...] = (
    (
        _READ,
        "core",
        "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods replicationcontrollers "
        "replicationcontrollers/scale serviceaccounts services services/status",
    ),
    (
        _READ,
        "core",
        "bindings limitranges namespaces/status pods/log pods/status replicationcontrollers/status "
        "resourcequotas resourcequotas/status",
    ),
    (_READ, "core", "namespaces"),
    (_READ, "core events.k8s.io", "events"),
    (_READ, "discovery.k8s.io", "endpointslices"),
    (
        _READ,
        "apps",
        "controllerrevisions daemonsets daemonsets/status deployments deployments/scale deployments/status "
        "replicasets replicasets/scale replicasets/status statefulsets statefulsets/scale statefulsets/status",
    ),
    (_READ, "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
    (_READ, "batch", "cronjobs cronjobs/status jobs jobs/status"),
    (
        _READ,
        "extensions",
        "daemonsets daemonsets/status deployments deployments/scale deployments/status ingresses ingresses/status "
        "networkpolicies replicasets replicasets/scale replicasets/status replicationcontrollers/scale",
    ),
    (_READ, "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
    (_READ, "networking.k8s.io", "ingresses ingresses/status networkpolicies"),
    (_READ, "resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates"),
)
_STREAMS = "pods/attach pods/exec pods/portforward pods/proxy"
_EDIT: tuple[Line, ...] = (
    (_READ, "core", f"{_STREAMS} secrets services/proxy"),
    ("impersonate", "core", "serviceaccounts"),
    (_WRITE, "core", f"pods {_STREAMS}"),
    ("create", "core", "pods/eviction"),
    (
        _WRITE,
        "core",
        "configmaps persistentvolumeclaims replicationcontrollers replicationcontrollers/scale secrets "
        "serviceaccounts services services/proxy",
    ),
    ("create", "core", "serviceaccounts/token"),
    (_WRITE, "core events.k8s.io", "events"),
    (
        _WRITE,
        "apps",
        "daemonsets deployments deployments/rollback deployments/scale replicasets replicasets/scale statefulsets "
        "statefulsets/scale",
    ),
    (_WRITE, "autoscaling", "horizontalpodautoscalers"),
    (_WRITE, "batch", "cronjobs jobs"),
    (
        _WRITE,
        "extensions",
        "daemonsets deployments deployments/rollback deployments/scale ingresses networkpolicies replicasets "
        "replicasets/scale replicationcontrollers/scale",
    ),
    (_WRITE, "policy", "poddisruptionbudgets"),
    (_WRITE, "networking.k8s.io", "ingresses networkpolicies"),
    (_EVERY, "coordination.k8s.io", "leases"),
    (_WRITE, "resource.k8s.io", "resourceclaims resourceclaimtemplates"),
)
_SCHEDULER: tuple[Line, ...] = (
    _EVENTS,
    ("create", "coordination.k8s.io", "leases"),
    ("get list update watch", "coordination.k8s.io", "leases", "kube-scheduler"),
    (_EVERY, "coordination.k8s.io", "leasecandidates"),
    (_READ, "core", "nodes"),
    ("delete get list watch", "core", "pods"),
    ("create", "core", "bindings pods/binding"),
    ("patch update", "core", "pods/status"),
    (_READ, "core", "replicationcontrollers services"),
    (_READ, "apps extensions", "replicasets"),
    (_READ, "apps", "statefulsets"),
    (_READ, "policy", "poddisruptionbudgets"),
    (_READ, "core", "persistentvolumeclaims persistentvolumes"),
    *_REVIEWS,
    (_READ, "storage.k8s.io", "csinodes"),
    (_READ, "storage.k8s.io", "volumeattachments"),
    (_READ, "core", "namespaces"),
    (_READ, "storage.k8s.io", "csidrivers"),
    (_READ, "storage.k8s.io", "csistoragecapacities"),
    (_READ, "resource.k8s.io", "deviceclasses"),
    ("get list patch update watch", "resource.k8s.io", "resourceclaims"),
    ("get list patch update watch", "resource.k8s.io", "resourceclaims/status"),
    ("update", "core", "pods/finalizers"),
    (_READ, "resource.k8s.io", "resourceslices"),
)
_NODE: tuple[Line, ...] = (
    ("create", "authentication.k8s.io", "tokenreviews"),
    ("create", "authorization.k8s.io", "localsubjectaccessreviews subjectaccessreviews"),
    (_READ, "core", "services"),
    ("create get list watch", "core", "nodes"),
    ("patch update", "core", "nodes/status"),
    ("patch update", "core", "nodes"),
    _EVENTS,
    (_READ, "core", "pods"),
    ("create delete", "core", "pods"),
    ("patch update", "core", "pods/status"),
    ("create", "core", "pods/eviction"),
    (_READ, "core", "configmaps secrets"),
    ("get", "core", "persistentvolumeclaims persistentvolumes"),
    ("get", "core", "endpoints"),
    ("create get list watch", "certificates.k8s.io", "certificatesigningrequests"),
    ("create delete get patch update", "coordination.k8s.io", "leases"),
    ("get", "storage.k8s.io", "volumeattachments"),
    ("create", "core", "serviceaccounts/token"),
    ("get patch update", "core", "persistentvolumeclaims/status"),
    (_READ, "storage.k8s.io", "csidrivers"),
    ("create delete get patch update", "storage.k8s.io", "csinodes"),
    (_READ, "node.k8s.io", "runtimeclasses"),
    ("get", "resource.k8s.io", "resourceclaims"),
    ("deletecollection", "resource.k8s.io", "resourceslices"),
    ("get", "core", "serviceaccounts"),
)
_CONTROLLER_MANAGER: tuple[Line, ...] = (
    _EVENTS,
    ("create", "coordination.k8s.io", "leases"),
    ("get update", "coordination.k8s.io", "leases", "kube-controller-manager"),
    ("create", "core", "secrets serviceaccounts"),
    ("delete", "core", "secrets"),
    ("get", "core", "configmaps namespaces secrets serviceaccounts"),
    ("update", "core", "secrets serviceaccounts"),
    *_REVIEWS,
    ("list watch", "*", "*"),
    ("create", "core", "serviceaccounts/token"),
)
_ROLES: dict[str, tuple[Line, ...]] = {
    "cluster-admin": (("*", "*", "*"), ("*", "*")),
    "system:aggregate-to-admin": (
        ("create", "authorization.k8s.io", "localsubjectaccessreviews"),
        (_EVERY, GROUP, "rolebindings roles"),
    ),
    "system:aggregate-to-edit": _EDIT,
    "system:aggregate-to-view": _VIEW,
    "system:auth-delegator": _REVIEWS,
    "system:basic-user": (
        ("create", "authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews"),
        ("create", "authentication.k8s.io", "selfsubjectreviews"),
    ),
    "system:discovery": (
        ("get", f"/api /api/* /apis /apis/* /healthz /livez /openapi /openapi/* /readyz {_VERSION}"),
    ),
    "system:kube-controller-manager": _CONTROLLER_MANAGER,
    "system:kube-dns": (("list watch", "core", "endpoints services"),),
    "system:kube-scheduler": _SCHEDULER,
    "system:kubelet-api-admin": (
        (_READ, "core", "nodes"),
        ("proxy", "core", "nodes"),
        ("*", "core", "nodes/log nodes/metrics nodes/proxy nodes/stats"),
        ("*", "core", "nodes/configz nodes/healthz nodes/pods"),
    ),
    "system:monitoring": (
        ("get", "/healthz /healthz/* /livez /livez/* /metrics /metrics/slis /readyz /readyz/*"),
        ("get", "core", "nodes/metrics"),
    ),
    "system:node": _NODE,
    "system:node-proxier": (
        ("list watch", "core", "endpoints services"),
        (_READ, "core", "nodes"),
        _EVENTS,
        ("list watch", "networking.k8s.io", "servicecidrs"),
        ("list watch", "discovery.k8s.io", "endpointslices"),
    ),
    "system:persistent-volume-provisioner": (
        ("create delete get list watch", "core", "persistentvolumes"),
        ("get list update watch", "core", "persistentvolumeclaims"),
        (_READ, "storage.k8s.io", "storageclasses"),
        ("watch", "core", "events"),
        _EVENTS,
    ),
    "system:public-info-viewer": (("get", f"{_HEALTH} {_VERSION}"),),
    "system:service-account-issuer-discovery": (
        (
            "get",
            "/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/",
        ),
    ),
    "system:volume-scheduler": (
        ("get list patch update watch", "core", "persistentvolumes"),
        (_READ, "storage.k8s.io", "storageclasses"),
        ("get list patch update watch", "core", "persistentvolumeclaims"),
    ),
}
_AGGREGATED_INTO = {
    "system:aggregate-to-admin": "admin",
    "system:aggregate-to-edit": "edit",
    "system:aggregate-to-view": "view",
    "edit": "admin",
    "view": "edit",
}
_AGGREGATES = ("admin", "edit", "view")
_BINDINGS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("cluster-admin", (("Group", "system:masters"),)),
    ("system:basic-user", (("Group", "system:authenticated"),)),
    ("system:discovery", (("Group", "system:authenticated"),)),
    ("system:kube-controller-manager", (("User", "system:kube-controller-manager"),)),
    ("system:kube-scheduler", (("User", "system:kube-scheduler"),)),
    ("system:monitoring", (("Group", "system:monitoring"),)),
    ("system:node", ()),
    ("system:node-proxier", (("User", "system:kube-proxy"),)),
    ("system:public-info-viewer", (("Group", "system:authenticated"), ("Group", "system:unauthenticated"))),
    ("system:service-account-issuer-discovery", (("Group", "system:serviceaccounts"),)),
    ("system:volume-scheduler", (("User", "system:kube-scheduler"),)),
)
_READER = "extension-apiserver-authentication-reader"
_LOCKING: tuple[Line, ...] = (
    ("create get list update watch", "coordination.k8s.io", "leases"),
    ("create get list update watch", "coordination.k8s.io", "leasecandidates"),
)


def seeds() -> Iterable[Seed]:
    """Yield all default roles and bindings, in the order of their creation."""
    for name, lines in _ROLES.items():
        yield "clusterroles", "", {"metadata": _meta(name), "rules": _rules(lines)}
    for name in _AGGREGATES:
        selector = {"matchLabels": {f"{_AGGREGATE}{name}": "true"}}
        yield (
            "clusterroles",
            "",
            {
                "metadata": _meta(name),
                "aggregationRule": {"clusterRoleSelectors": [selector]},
                "rules": _aggregated(name),
            },
        )
    for name, subjects in _BINDINGS:
        yield "clusterrolebindings", "", _binding(name, "ClusterRole", name, subjects)
    yield from _system_roles()


def _system_roles() -> Iterable[Seed]:
    """Yield the bindings that exist in kube-system only."""
    reader: Line = (_READ, "core", "configmaps", "extension-apiserver-authentication")
    users = (("User", "system:kube-controller-manager"), ("User", "system:kube-scheduler"))
    yield "roles", "kube-system", {"metadata": _meta(_READER), "rules": _rules((reader,))}
    yield "rolebindings", "kube-system", _binding(f"system::{_READER}", "Role", _READER, users)
    for user in ("kube-controller-manager", "kube-scheduler"):
        name = f"system::leader-locking-{user}"
        yield "roles", "kube-system", {"metadata": _meta(name), "rules": _rules(_LOCKING)}
        yield "rolebindings", "kube-system", _binding(name, "Role", name, (("User", f"system:{user}"),))


def _meta(name: str) -> dict[str, Any]:
    labels = {"kubernetes.io/bootstrapping": "rbac-defaults"}
    if name in _AGGREGATED_INTO:
        labels[_AGGREGATE + _AGGREGATED_INTO[name]] = "true"
    return {
        "name": name,
        "labels": labels,
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
    }


def _aggregated(name: str) -> list[dict[str, Any]]:
    """Return what the controller will find for admin, edit and view, so that they hold from the first second."""
    parts = [part for part, into in _AGGREGATED_INTO.items() if into == name]
    found: list[dict[str, Any]] = []
    for part in sorted(parts):
        found += _aggregated(part) if part in _AGGREGATES else _rules(_ROLES[part])
    return found


def _rules(lines: Iterable[Line]) -> list[dict[str, Any]]:
    return [_rule(line) for line in lines]


def _rule(line: Line) -> dict[str, Any]:
    verbs = line[0].split()
    if len(line) == 2:
        return {"nonResourceURLs": line[1].split(), "verbs": verbs}
    groups = ["" if group == "core" else group for group in line[1].split()]
    rule: dict[str, Any] = {"apiGroups": groups, "resources": line[2].split(), "verbs": verbs}
    if len(line) == 4:
        rule["resourceNames"] = line[3].split()
    return rule


def _binding(name: str, kind: str, role: str, subjects: Iterable[tuple[str, str]]) -> dict[str, Any]:
    body: dict[str, Any] = {
        "metadata": _meta(name),
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": role},
    }
    named = [{"apiGroup": GROUP, "kind": of, "name": who} for of, who in subjects]
    return {**body, "subjects": named} if named else body
