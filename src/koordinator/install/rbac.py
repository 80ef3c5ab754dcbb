"""What each component may do, as little as its code asks for.

`tests/install/test_rbac.py` runs the components and holds these rules against every request they make.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from koordinator.manager.webhooks import configuration

Json = dict[str, Any]

API = "rbac.authorization.k8s.io"
READ = ("get", "list", "watch")
MANAGER, SCHEDULER, KOORDLET = "koord-manager", "koord-scheduler", "koordlet"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Verbs on resources of one group, and what the component needs them for.

    `in_namespace`: only in the namespace of the installation. `names`: only objects of these names.
    """

    group: str = ""
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    names: tuple[str, ...] = ()
    in_namespace: bool = False


def _lease(name: str) -> tuple[Rule, Rule]:
    """Creating and listing cannot be restricted to a name; watching makes a hand-over immediate."""
    group, resources = "coordination.k8s.io", ("leases",)
    return (
        Rule(
            group=group,
            resources=resources,
            verbs=("create", "list", "watch"),
            in_namespace=True,
            why="leader election",
        ),
        Rule(
            group=group,
            resources=resources,
            verbs=("get", "patch"),
            names=(name,),
            in_namespace=True,
            why="leader election: its own lease",
        ),
    )


_EVENTS = Rule(resources=("events",), verbs=("create", "patch"), why="tells users what it did, and why not")

RULES: dict[str, tuple[Rule, ...]] = {
    MANAGER: (
        Rule(resources=("nodes", "pods", "namespaces"), verbs=READ, why="what it computes and decides on"),
        Rule(
            resources=("nodes", "nodes/status"),
            verbs=("patch",),
            why="Batch, Mid and device resources; normalization and amplification ratios",
        ),
        Rule(resources=("pods",), verbs=("patch",), why="profiles for pods that wait already"),
        Rule(group="scheduling.k8s.io", resources=("priorityclasses",), verbs=READ, why="profiles name them"),
        Rule(
            group="config.koordinator.sh",
            resources=("clustercolocationprofiles",),
            verbs=READ,
            why="profiles",
        ),
        Rule(
            group="slo.koordinator.sh",
            resources=("nodemetrics", "nodeslos"),
            verbs=(*READ, "create", "patch", "delete"),
            why="one of each per node",
        ),
        Rule(group="scheduling.koordinator.sh", resources=("devices",), verbs=READ, why="device resources"),
        Rule(
            group="topology.node.k8s.io",
            resources=("noderesourcetopologies",),
            verbs=(*READ, "patch"),
            why="Batch resources of NUMA zones",
        ),
        Rule(
            group="scheduling.sigs.k8s.io",
            resources=("elasticquotas",),
            verbs=(*READ, "create", "patch"),
            why="quota trees; quotas of profiles",
        ),
        Rule(
            group="quota.koordinator.sh",
            resources=("elasticquotaprofiles",),
            verbs=(*READ, "patch"),
            why="quota profiles",
        ),
        _EVENTS,
        Rule(
            resources=("configmaps",),
            verbs=READ,
            in_namespace=True,
            why="slo-controller-config, pod-enhanced-validator-config",
        ),
        Rule(
            resources=("secrets",),
            verbs=("create",),
            in_namespace=True,
            why="the certificate of its webhooks (a name cannot restrict creating)",
        ),
        Rule(
            resources=("secrets",),
            verbs=("get", "list", "watch", "patch"),
            names=("koordinator-webhook-certs",),
            in_namespace=True,
            why="the certificate of its webhooks",
        ),
        Rule(
            group="admissionregistration.k8s.io",
            resources=("mutatingwebhookconfigurations", "validatingwebhookconfigurations"),
            verbs=(*READ, "patch"),
            names=(configuration.MUTATING_NAME, configuration.VALIDATING_NAME),
            why="its own webhooks: certificate authority, those that are switched on",
        ),
        *_lease("koordinator-manager"),
    ),
    SCHEDULER: (
        Rule(
            resources=(
                "nodes",
                "pods",
                "namespaces",
                "services",
                "replicationcontrollers",
                "persistentvolumes",
                "persistentvolumeclaims",
            ),
            verbs=READ,
            why="what it decides on",
        ),
        Rule(
            group="apps", resources=("replicasets", "statefulsets"), verbs=READ, why="spreading of replicas"
        ),
        Rule(group="policy", resources=("poddisruptionbudgets",), verbs=READ, why="preemption"),
        Rule(
            group="storage.k8s.io",
            resources=(
                "storageclasses",
                "csinodes",
                "csidrivers",
                "csistoragecapacities",
                "volumeattachments",
            ),
            verbs=READ,
            why="volumes",
        ),
        Rule(
            group="resource.k8s.io",
            resources=("resourceclaims", "deviceclasses", "resourceslices"),
            verbs=READ,
            why="dynamic resources",
        ),
        Rule(
            group="resource.k8s.io",
            resources=("resourceclaims", "resourceclaims/status"),
            verbs=("patch", "update"),
            why="allocates claims; their finalizer",
        ),
        Rule(
            group="topology.node.k8s.io",
            resources=("noderesourcetopologies",),
            verbs=READ,
            why="CPUs and NUMA",
        ),
        Rule(group="slo.koordinator.sh", resources=("nodemetrics",), verbs=READ, why="real usage of nodes"),
        Rule(
            group="scheduling.koordinator.sh",
            resources=("devices", "reservations", "clusternetworktopologies", "scheduleexplanations"),
            verbs=READ,
            why="devices, reservations, network topology, questions of users",
        ),
        Rule(
            group="scheduling.sigs.k8s.io",
            resources=("podgroups", "elasticquotas"),
            verbs=READ,
            why="gangs and quotas",
        ),
        Rule(resources=("pods/binding",), verbs=("create",), why="places pods"),
        Rule(resources=("pods",), verbs=("patch", "delete"), why="what it allocated; preemption"),
        Rule(resources=("pods/status",), verbs=("patch",), why="why a pod waits"),
        Rule(
            resources=("persistentvolumes", "persistentvolumeclaims"), verbs=("patch",), why="binds volumes"
        ),
        _EVENTS,
        Rule(
            group="events.k8s.io", resources=("events",), verbs=("create", "patch"), why="as kube-scheduler"
        ),
        Rule(
            group="scheduling.koordinator.sh",
            resources=("reservations", "reservations/status", "scheduleexplanations/status"),
            verbs=("patch",),
            why="reservations that it placed, answers to questions",
        ),
        Rule(
            group="scheduling.sigs.k8s.io",
            resources=("podgroups", "elasticquotas"),
            verbs=("patch",),
            why="their status",
        ),
        Rule(
            group="authentication.k8s.io",
            resources=("tokenreviews",),
            verbs=("create",),
            why="who asks its secure port",
        ),
        Rule(
            group="authorization.k8s.io",
            resources=("subjectaccessreviews",),
            verbs=("create",),
            why="whether they may",
        ),
        *_lease("koord-scheduler"),
    ),
    KOORDLET: (
        Rule(resources=("nodes",), verbs=READ, why="its own Node"),
        Rule(
            group="slo.koordinator.sh",
            resources=("nodeslos", "nodemetrics"),
            verbs=READ,
            why="its policies, and what it is asked to report",
        ),
        Rule(
            group="topology.node.k8s.io",
            resources=("noderesourcetopologies",),
            verbs=(*READ, "create", "patch"),
            why="reports CPUs and NUMA nodes",
        ),
        Rule(
            group="scheduling.koordinator.sh",
            resources=("devices",),
            verbs=(*READ, "create", "patch"),
            why="reports devices",
        ),
        Rule(resources=("nodes/proxy",), verbs=("get",), why="the kubelet's pods and configuration"),
        Rule(
            group="slo.koordinator.sh",
            resources=("nodemetrics/status",),
            verbs=("patch",),
            why="reports usage",
        ),
        _EVENTS,
        Rule(resources=("pods/eviction",), verbs=("create",), why="evicts, with -only-evict-by-api"),
        Rule(
            resources=("persistentvolumeclaims",),
            verbs=("list", "watch"),
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


def _wire(rule: Rule) -> Json:
    body: Json = {"apiGroups": [rule.group], "resources": list(rule.resources)}
    if rule.names:
        body["resourceNames"] = list(rule.names)
    return body | {"verbs": list(rule.verbs)}


def objects(component: str, namespace: str) -> Iterator[Json]:
    """The service account with its roles."""
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
