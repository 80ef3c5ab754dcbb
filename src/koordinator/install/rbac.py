"""List what each component may do, as little as its code asks for.

`tests/install/test_rbac.py` runs the components and holds these rules against every request they make.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from koordinator.manager.webhooks import configuration

Json = dict[str, Any]

API = "rbac.authorization.k8s.io"
FOLLOW = ("list", "watch")
MANAGER, SCHEDULER, KOORDLET = "koord-manager", "koord-scheduler", "koordlet"


class PermissionRule(msgspec.Struct, frozen=True, kw_only=True):
    """Verbs on resources of one group, and what the component needs them for.

    `in_namespace`: only in the namespace of the installation. `names`: only objects of these names.
    """

    group: str = ""
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    names: tuple[str, ...] = ()
    in_namespace: bool = False


def _reviews(what: str) -> tuple[PermissionRule, ...]:
    return (
        PermissionRule(
            group="authentication.k8s.io",
            resources=("tokenreviews",),
            verbs=("create",),
            why=f"who asks {what}",
        ),
        PermissionRule(
            group="authorization.k8s.io",
            resources=("subjectaccessreviews",),
            verbs=("create",),
            why="whether they may",
        ),
    )


def _lease(name: str) -> tuple[PermissionRule, PermissionRule]:
    """Creating and listing cannot be restricted to a name; watching makes a hand-over immediate."""
    group, resources = "coordination.k8s.io", ("leases",)
    return (
        PermissionRule(
            group=group,
            resources=resources,
            verbs=("create", "list", "watch"),
            in_namespace=True,
            why="leader election",
        ),
        PermissionRule(
            group=group,
            resources=resources,
            verbs=("get", "patch"),
            names=(name,),
            in_namespace=True,
            why="leader election: its own lease",
        ),
    )


_EVENTS = PermissionRule(
    resources=("events",), verbs=("create", "patch"), why="tells users what it did, and why not"
)

RULES: dict[str, tuple[PermissionRule, ...]] = {
    MANAGER: (
        PermissionRule(
            resources=("nodes", "pods", "namespaces"),
            verbs=("get", *FOLLOW),
            why="what it computes and decides on",
        ),
        PermissionRule(
            resources=("nodes/status",),
            verbs=("patch",),
            why="Batch, Mid and device resources; ratios of normalization and amplification",
        ),
        PermissionRule(
            resources=("pods",), verbs=("patch",), why="brings profiles to pods that wait already"
        ),
        PermissionRule(
            group="scheduling.k8s.io",
            resources=("priorityclasses",),
            verbs=("get", *FOLLOW),
            why="profiles name them",
        ),
        PermissionRule(
            group="config.koordinator.sh",
            resources=("clustercolocationprofiles",),
            verbs=FOLLOW,
            why="what they say about pods",
        ),
        PermissionRule(
            group="slo.koordinator.sh",
            resources=("nodemetrics", "nodeslos"),
            verbs=(*FOLLOW, "create", "patch", "delete"),
            why="keeps one of each per node",
        ),
        PermissionRule(
            group="scheduling.koordinator.sh",
            resources=("devices",),
            verbs=FOLLOW,
            why="resources of devices",
        ),
        PermissionRule(
            group="topology.node.k8s.io",
            resources=("noderesourcetopologies",),
            verbs=(*FOLLOW, "patch"),
            why="Batch resources of NUMA zones",
        ),
        PermissionRule(
            group="scheduling.sigs.k8s.io",
            resources=("elasticquotas",),
            verbs=("get", *FOLLOW, "create", "patch"),
            why="checks trees of quotas, makes those of profiles",
        ),
        PermissionRule(
            group="quota.koordinator.sh",
            resources=("elasticquotaprofiles",),
            verbs=(*FOLLOW, "patch"),
            why="names the tree of a profile",
        ),
        _EVENTS,
        PermissionRule(
            resources=("configmaps",),
            verbs=("get", *FOLLOW),
            in_namespace=True,
            why="slo-controller-config, pod-enhanced-validator-config",
        ),
        PermissionRule(
            resources=("secrets",),
            verbs=("create",),
            in_namespace=True,
            why="the certificate of its webhooks (a name cannot restrict creating)",
        ),
        PermissionRule(
            resources=("secrets",),
            verbs=("get", *FOLLOW, "patch"),
            names=("koordinator-webhook-certs",),
            in_namespace=True,
            why="the certificate of its webhooks",
        ),
        PermissionRule(
            group="admissionregistration.k8s.io",
            resources=("mutatingwebhookconfigurations", "validatingwebhookconfigurations"),
            verbs=("get", *FOLLOW, "patch"),
            names=(configuration.MUTATING_NAME, configuration.VALIDATING_NAME),
            why="its own webhooks: certificate authority, those that are switched on",
        ),
        *_reviews("for what its webhooks know of quotas"),
        *_lease("koordinator-manager"),
    ),
    SCHEDULER: (
        PermissionRule(
            resources=(
                "nodes",
                "pods",
                "namespaces",
                "services",
                "replicationcontrollers",
                "persistentvolumes",
                "persistentvolumeclaims",
            ),
            verbs=FOLLOW,
            why="what it decides on",
        ),
        PermissionRule(
            group="apps", resources=("replicasets", "statefulsets"), verbs=FOLLOW, why="spreads replicas"
        ),
        PermissionRule(
            group="policy",
            resources=("poddisruptionbudgets",),
            verbs=FOLLOW,
            why="which pods preemption spares",
        ),
        PermissionRule(
            group="storage.k8s.io",
            resources=(
                "storageclasses",
                "csinodes",
                "csidrivers",
                "csistoragecapacities",
                "volumeattachments",
            ),
            verbs=FOLLOW,
            why="volumes",
        ),
        PermissionRule(
            group="resource.k8s.io",
            resources=("resourceclaims", "deviceclasses", "resourceslices"),
            verbs=FOLLOW,
            why="dynamic resources",
        ),
        PermissionRule(
            group="resource.k8s.io",
            resources=("resourceclaims",),
            verbs=("get", "patch"),
            why="the finalizer of allocated claims",
        ),
        PermissionRule(
            group="resource.k8s.io",
            resources=("resourceclaims/status",),
            verbs=("patch",),
            why="allocates claims",
        ),
        PermissionRule(
            group="topology.node.k8s.io",
            resources=("noderesourcetopologies",),
            verbs=FOLLOW,
            why="CPUs and NUMA nodes",
        ),
        PermissionRule(
            group="slo.koordinator.sh", resources=("nodemetrics",), verbs=FOLLOW, why="real usage of nodes"
        ),
        PermissionRule(
            group="scheduling.koordinator.sh",
            resources=("clusternetworktopologies",),
            verbs=FOLLOW,
            why="which switches nodes hang on",
        ),
        PermissionRule(
            group="scheduling.koordinator.sh",
            resources=("clusternetworktopologies/status",),
            verbs=("patch",),
            names=("default",),
            why="the network as it found it",
        ),
        PermissionRule(
            group="scheduling.koordinator.sh",
            resources=("scheduleexplanations",),
            verbs=(*FOLLOW, "delete"),
            why="questions of users; old ones go",
        ),
        PermissionRule(
            group="scheduling.koordinator.sh",
            resources=("scheduleexplanations/status",),
            verbs=("patch",),
            why="answers",
        ),
        PermissionRule(
            group="scheduling.sigs.k8s.io",
            resources=("elasticquotas",),
            verbs=("get", *FOLLOW, "create", "patch"),
            why="quotas and their status; makes the default, system and root quota",
        ),
        PermissionRule(
            group="scheduling.sigs.k8s.io",
            resources=("podgroups",),
            verbs=(*FOLLOW, "patch"),
            why="gangs and their status",
        ),
        PermissionRule(
            group="scheduling.sigs.k8s.io",
            resources=("podgroups/status",),
            verbs=("patch",),
            why="the same where another installation brought the CRD",
        ),
        PermissionRule(
            resources=("pods/eviction",),
            verbs=("create",),
            why="takes back what a quota uses above its share",
        ),
        PermissionRule(resources=("pods/binding",), verbs=("create",), why="places pods"),
        PermissionRule(
            resources=("pods",),
            verbs=("get", "patch", "delete"),
            why="what it allocated; who makes room; bindings without an answer",
        ),
        PermissionRule(resources=("pods/status",), verbs=("patch",), why="why a pod waits"),
        PermissionRule(
            resources=("persistentvolumes", "persistentvolumeclaims"), verbs=("patch",), why="binds volumes"
        ),
        _EVENTS,
        *_reviews("its secure port"),
        *_lease("koord-scheduler"),
    ),
    KOORDLET: (
        PermissionRule(resources=("nodes",), verbs=FOLLOW, why="its own Node"),
        PermissionRule(
            group="slo.koordinator.sh",
            resources=("nodeslos", "nodemetrics"),
            verbs=FOLLOW,
            why="its policies, and what it is asked to report",
        ),
        PermissionRule(
            group="topology.node.k8s.io",
            resources=("noderesourcetopologies",),
            verbs=(*FOLLOW, "create", "patch"),
            why="reports CPUs and NUMA nodes",
        ),
        PermissionRule(
            group="scheduling.koordinator.sh",
            resources=("devices",),
            verbs=(*FOLLOW, "create", "patch"),
            why="reports devices",
        ),
        PermissionRule(
            resources=("nodes/proxy",), verbs=("get",), why="the kubelet's pods and configuration"
        ),
        PermissionRule(
            group="slo.koordinator.sh",
            resources=("nodemetrics/status",),
            verbs=("patch",),
            why="reports usage",
        ),
        _EVENTS,
        PermissionRule(
            resources=("pods/eviction",), verbs=("create",), why="evicts, with -only-evict-by-api"
        ),
        PermissionRule(
            resources=("persistentvolumeclaims",),
            verbs=FOLLOW,
            why="which volume a claim is bound to, with the gate BlkIOReconcile",
        ),
    ),
}


def cluster_rules(component: str) -> list[Json]:
    """`rules` of the component's ClusterRole."""
    return [_wire(rule) for rule in RULES[component] if not rule.in_namespace]


def namespace_rules(component: str) -> list[Json]:
    """`rules` of the component's Role in the namespace of the installation; may be empty."""
    return [_wire(rule) for rule in RULES[component] if rule.in_namespace]


def _wire(rule: PermissionRule) -> Json:
    body: Json = {"apiGroups": [rule.group], "resources": list(rule.resources)}
    if rule.names:
        body["resourceNames"] = list(rule.names)
    return body | {"verbs": list(rule.verbs)}


def objects(component: str, namespace: str) -> Iterator[Json]:
    """Yield the service account with its roles."""
    subjects = [{"kind": "ServiceAccount", "name": component, "namespace": namespace}]
    yield {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": component, "namespace": namespace},
    }
    yield {
        "apiVersion": f"{API}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": component},
        "rules": cluster_rules(component),
    }
    yield {
        "apiVersion": f"{API}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": component},
        "roleRef": {"apiGroup": API, "kind": "ClusterRole", "name": component},
        "subjects": subjects,
    }
    rules = namespace_rules(component)
    if not rules:
        return
    yield {
        "apiVersion": f"{API}/v1",
        "kind": "Role",
        "metadata": {"name": component, "namespace": namespace},
        "rules": rules,
    }
    yield {
        "apiVersion": f"{API}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": component, "namespace": namespace},
        "roleRef": {"apiGroup": API, "kind": "Role", "name": component},
        "subjects": subjects,
    }
