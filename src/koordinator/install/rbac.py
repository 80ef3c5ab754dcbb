"""List what each component may do, as little as its code asks for.

`tests/install/test_rbac.py` runs the components and holds these rules against every request they make.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from koordinator.manager.webhooks import configuration

Json = dict[str, Any]

API = "rbac.authorization.k8s.io"
MANAGER, SCHEDULER, KOORDLET = "koord-manager", "koord-scheduler", "koordlet"
DESCHEDULER = "koord-descheduler"
YARN_COPILOT, YARN_OPERATOR = "koord-yarn-copilot", "koord-yarn-operator"


class PermissionRule(msgspec.Struct, frozen=True, kw_only=True):
    """Verbs on resources of one group, and what the component needs them for.

    `in_namespace`: only in the namespace of the installation. `names`: only objects of these names. `urls`: paths
    that other components serve, in place of resources.
    """

    group: str = ""
    resources: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    verbs: tuple[str, ...]
    why: str
    names: tuple[str, ...] = ()
    in_namespace: bool = False


def _rule(
    group: str,
    resources: str,
    verbs: str,
    why: str,
    *,
    names: tuple[str, ...] = (),
    in_namespace: bool = False,
) -> PermissionRule:
    return PermissionRule(
        group=group,
        resources=tuple(resources.split()),
        verbs=tuple(verbs.split()),
        why=why,
        names=names,
        in_namespace=in_namespace,
    )


def _reviews(what: str) -> tuple[PermissionRule, ...]:
    return (
        _rule("authentication.k8s.io", "tokenreviews", "create", f"who asks {what}"),
        _rule("authorization.k8s.io", "subjectaccessreviews", "create", "whether they may"),
    )


def _lease(name: str) -> tuple[PermissionRule, PermissionRule]:
    """Creating and listing cannot be restricted to a name; watching makes a hand-over immediate."""
    group, resources = "coordination.k8s.io", "leases"
    return (
        _rule(group, resources, "create list watch", "leader election", in_namespace=True),
        _rule(
            group, resources, "get patch", "leader election: its own lease", names=(name,), in_namespace=True
        ),
    )


SCHEDULING, SLO = "scheduling.koordinator.sh", "slo.koordinator.sh"
QUOTAS, TOPOLOGY = "scheduling.sigs.k8s.io", "topology.node.k8s.io"
"""Groups that several components ask."""

_EVENTS = _rule("", "events", "create patch", "tells users what it did, and why not")

RULES: dict[str, tuple[PermissionRule, ...]] = {
    MANAGER: (
        _rule("", "nodes pods namespaces", "get list watch", "what it computes and decides on"),
        _rule(
            "",
            "nodes/status",
            "patch",
            "Batch, Mid and device resources; ratios of normalization and amplification",
        ),
        _rule("", "pods", "patch", "brings profiles to pods that wait already; marks of tidal pools"),
        _rule("", "nodes", "patch", "phases of tidal pools (gate TidalPool, as all that follows)"),
        _rule("", "pods", "delete", "batch pods of nodes that return"),
        _rule(SCHEDULING, "tidalpools", "list watch patch", "which nodes are lent, and when"),
        _rule(SCHEDULING, "tidalpools/status", "patch", "how far that is"),
        _rule(
            SCHEDULING,
            "podmigrationjobs",
            "list watch create delete",
            "moves online pods off nodes that are lent",
        ),
        _rule("policy", "poddisruptionbudgets", "list watch", "which online pods cannot be moved"),
        PermissionRule(
            urls=("/apis/v1/moves",), verbs=("post",), why="whether the scheduler places them elsewhere"
        ),
        _rule("scheduling.k8s.io", "priorityclasses", "get list watch", "profiles name them"),
        _rule("config.koordinator.sh", "clustercolocationprofiles", "list watch", "what they say about pods"),
        _rule(SLO, "nodemetrics nodeslos", "list watch create patch delete", "keeps one of each per node"),
        _rule(SCHEDULING, "devices", "list watch", "resources of devices"),
        _rule(TOPOLOGY, "noderesourcetopologies", "list watch patch", "Batch resources of NUMA zones"),
        _rule(
            QUOTAS,
            "elasticquotas",
            "get list watch create patch",
            "checks trees of quotas, makes those of profiles",
        ),
        _rule(
            "quota.koordinator.sh", "elasticquotaprofiles", "list watch patch", "names the tree of a profile"
        ),
        _EVENTS,
        _rule(
            "",
            "configmaps",
            "get list watch",
            "slo-controller-config, pod-enhanced-validator-config",
            in_namespace=True,
        ),
        _rule(
            "",
            "secrets",
            "create",
            "the certificate of its webhooks (a name cannot restrict creating)",
            in_namespace=True,
        ),
        _rule(
            "",
            "secrets",
            "get list watch patch",
            "the certificate of its webhooks",
            names=("koordinator-webhook-certs",),
            in_namespace=True,
        ),
        _rule(
            "admissionregistration.k8s.io",
            "mutatingwebhookconfigurations validatingwebhookconfigurations",
            "get list watch patch",
            "its own webhooks: certificate authority, those that are switched on",
            names=(configuration.MUTATING_NAME, configuration.VALIDATING_NAME),
        ),
        *_reviews("for what its webhooks know of quotas"),
        *_lease("koordinator-manager"),
    ),
    SCHEDULER: (
        _rule(
            "",
            "nodes pods namespaces services replicationcontrollers persistentvolumes persistentvolumeclaims",
            "list watch",
            "what it decides on",
        ),
        _rule("apps", "replicasets statefulsets", "list watch", "spreads replicas"),
        _rule("policy", "poddisruptionbudgets", "list watch", "which pods preemption spares"),
        _rule(
            "storage.k8s.io",
            "storageclasses csinodes csidrivers csistoragecapacities volumeattachments",
            "list watch",
            "volumes",
        ),
        _rule(
            "resource.k8s.io",
            "resourceclaims deviceclasses resourceslices devicetaintrules",
            "list watch",
            "dynamic resources",
        ),
        _rule("resource.k8s.io", "resourceclaims", "get patch", "the finalizer of allocated claims"),
        _rule("resource.k8s.io", "resourceclaims/status", "patch", "allocates claims"),
        _rule(TOPOLOGY, "noderesourcetopologies", "list watch", "CPUs and NUMA nodes"),
        _rule(SLO, "nodemetrics", "list watch", "real usage of nodes"),
        _rule(SCHEDULING, "clusternetworktopologies", "list watch", "which switches nodes hang on"),
        _rule(SCHEDULING, "devices", "list watch", "GPUs, NICs and FPGAs"),
        _rule(
            "",
            "configmaps",
            "list watch",
            "templates of NPU slices",
            names=("gpu-shared-resource-templates",),
            in_namespace=True,
        ),
        _rule(
            "",
            "nodes",
            "get patch",
            "locks that vendors' device plugins want (DevicePluginAdaption); whether a reservation's node is gone",
        ),
        _rule(
            SCHEDULING,
            "reservations",
            "get list watch patch delete",
            "room kept for pods to come: what it allocated for it; ended ones go",
        ),
        _rule(SCHEDULING, "reservations/status", "patch", "its node, users and end"),
        _rule(
            SCHEDULING,
            "clusternetworktopologies/status",
            "patch",
            "the network as it found it",
            names=("default",),
        ),
        _rule(SCHEDULING, "scheduleexplanations", "list watch delete", "questions of users; old ones go"),
        _rule(SCHEDULING, "scheduleexplanations/status", "patch", "answers"),
        _rule(
            QUOTAS,
            "elasticquotas",
            "get list watch create patch",
            "quotas and their status; makes the default, system and root quota",
        ),
        _rule(QUOTAS, "podgroups", "list watch patch", "gangs and their status"),
        _rule(QUOTAS, "podgroups/status", "patch", "the same where another installation brought the CRD"),
        _rule("", "pods/eviction", "create", "takes back what a quota uses above its share"),
        _rule("", "pods/binding", "create", "places pods"),
        _rule(
            "", "pods", "get patch delete", "what it allocated; who makes room; bindings without an answer"
        ),
        _rule("", "pods/status", "patch", "why a pod waits"),
        _rule("", "persistentvolumes persistentvolumeclaims", "patch", "binds volumes"),
        _EVENTS,
        *_reviews("its secure port"),
        *_lease("koord-scheduler"),
    ),
    DESCHEDULER: (
        _rule("", "nodes pods namespaces replicationcontrollers", "list watch", "what it decides on"),
        _rule("", "persistentvolumeclaims", "list watch", "which claims protect pods (DefaultEvictor)"),
        _rule(
            "apps", "replicasets deployments statefulsets", "list watch", "how many replicas workloads have"
        ),
        _rule("apps.kruise.io", "clonesets/scale statefulsets/scale", "get", "the same"),
        _rule(
            "apps",
            "deployments/scale replicasets/scale",
            "get patch",
            "one replica more, until the successor of a pod is ready (koordinator.sh/surge)",
        ),
        _rule("", "replicationcontrollers/scale", "get patch", "the same"),
        _rule("policy", "poddisruptionbudgets", "list watch", "which pods have none (DefaultEvictor)"),
        _rule(SLO, "nodemetrics", "list watch", "real usage of nodes"),
        _rule(
            SCHEDULING,
            "podmigrationjobs",
            "list watch create patch delete",
            "evictions as objects, one step after the other",
        ),
        _rule(SCHEDULING, "podmigrationjobs/status", "patch", "how far they are"),
        _rule(
            SCHEDULING,
            "reservations",
            "get list watch create patch delete",
            "room for successors, before anything is evicted",
        ),
        _rule("", "pods/eviction", "create", "evicts"),
        _rule(
            "",
            "pods",
            "get patch delete",
            "templates of reservations; soft evictions, deletion costs; Delete",
        ),
        _rule("", "nodes", "patch", "cordons nodes that it drains (CustomPriority)"),
        PermissionRule(
            urls=("/apis/v1/moves",), verbs=("post",), why="whether the scheduler accepts the moves of a plan"
        ),
        _EVENTS,
        *_reviews("its secure port"),
        *_lease("koord-descheduler"),
    ),
    YARN_OPERATOR: (
        _rule("", "nodes", "list watch", "the batch pool of nodes"),
        _rule("", "pods", "list watch", "NodeManagers, and what batch pods request"),
        _rule("", "nodes", "patch", "records what YARN uses: annotation thirdPartyAllocations"),
        _EVENTS,
        *_lease("koordinator-yarn-operator"),
    ),
    KOORDLET: (
        _rule("", "nodes", "list watch", "its own Node"),
        _rule(SLO, "nodeslos nodemetrics", "list watch", "its policies, and what it is asked to report"),
        _rule(TOPOLOGY, "noderesourcetopologies", "list watch create patch", "reports CPUs and NUMA nodes"),
        _rule(SCHEDULING, "devices", "list watch create patch", "reports devices"),
        _rule("", "nodes/proxy", "get", "the kubelet's pods and configuration"),
        _rule(SLO, "nodemetrics/status", "patch", "reports usage"),
        _rule(
            "",
            "nodes/status",
            "patch",
            "says what isolation works (gate IsolationProbe), which images are there (ImageReport)",
        ),
        _EVENTS,
        _rule("", "pods/eviction", "create", "evicts, with -only-evict-by-api"),
        _rule(
            "",
            "persistentvolumeclaims",
            "list watch",
            "which volume a claim is bound to, with the gate BlkIOReconcile",
        ),
    ),
    YARN_COPILOT: (_rule("", "nodes/proxy", "get", "the kubelet's pods: where the NodeManager is"),),
}


def cluster_rules(component: str) -> list[Json]:
    """`rules` of the component's ClusterRole."""
    return [_wire(rule) for rule in RULES[component] if not rule.in_namespace]


def namespace_rules(component: str) -> list[Json]:
    """`rules` of the component's Role in the namespace of the installation; may be empty."""
    return [_wire(rule) for rule in RULES[component] if rule.in_namespace]


def _wire(rule: PermissionRule) -> Json:
    if rule.urls:
        return {"nonResourceURLs": list(rule.urls), "verbs": list(rule.verbs)}
    body: Json = {"apiGroups": [rule.group], "resources": list(rule.resources)}
    if rule.names:
        body["resourceNames"] = list(rule.names)
    return body | {"verbs": list(rule.verbs)}


def objects(component: str, namespace: str) -> Iterator[Json]:
    """Yield the service account with its roles."""
    own = {"name": component, "namespace": namespace}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": dict(own)}
    for kind, metadata, rules in (
        ("ClusterRole", {"name": component}, cluster_rules(component)),
        ("Role", own, namespace_rules(component)),
    ):
        if not rules:
            continue
        yield {"apiVersion": f"{API}/v1", "kind": kind, "metadata": dict(metadata), "rules": rules}
        yield {
            "apiVersion": f"{API}/v1",
            "kind": f"{kind}Binding",
            "metadata": dict(metadata),
            "roleRef": {"apiGroup": API, "kind": kind, "name": component},
            "subjects": [{"kind": "ServiceAccount", **own}],
        }
